"""A job that kills itself (SIGKILL) at a named step of a batch; run by ``test_restart.py`` in a process of its own.

    python crashing_job.py SERVERS INPUT OUTPUT CHECKPOINT STEP [BATCHES]

STEP is one of `STEPS`, or ``none``; the crash comes at that step of the BATCHES-th batch of this process.
"""

import os
import signal
import sys
from collections.abc import Callable

from floodmark.producers.clients.transaction import Transaction
from floodmark.spark_jobs import local_session
from floodmark.spark_jobs.batch.sinks import AtLeastOnceSink, ExactlyOnceSink
from floodmark.spark_jobs.batch.snapshots import Snapshots
from floodmark.spark_jobs.internals.engine import Engine
from support.counting import counted, read_events, windowed
from support.harness import SHORT_LIVED

STEPS = {
    "before the batch runs": ("consume", "before"),
    "after the batch ran, before its snapshot": ("store", "before"),
    "after the snapshot, before the transaction": ("commit", "before"),
    "inside the transaction": ("commit_transaction", "before"),
    "after the transaction, before the watermark is set": ("commit", "after"),
    "after the watermark is set, during Spark's commit": ("set_watermark", "after"),
}


def _kill_at(owner: type, name: str, when: str, batches: int) -> None:
    original: Callable[..., object] = getattr(owner, name)
    calls = [0]

    def crashing(*args: object, **kwargs: object) -> object:
        calls[0] += 1
        due = calls[0] >= batches
        if due and when == "before":
            if owner is Transaction:
                args[0].producer.flush(30)  # the records are at the broker, the transaction is open
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if due and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, crashing)


def main(servers: str, given: str, out: str, checkpoint: str, step: str, batches: str = "2") -> None:
    """Run the job, and die where told."""
    delivery = os.environ.get("DELIVERY", "exactly-once")
    sink = ExactlyOnceSink if delivery == "exactly-once" else AtLeastOnceSink
    if step != "none":
        what, when = STEPS[step]
        owner, name = {
            "consume": (sink, "consume"),
            "store": (Snapshots, "store"),
            "commit": (sink, "commit"),
            "commit_transaction": (Transaction, "commit"),
            "set_watermark": (Engine, "set_watermark"),
        }[what]
        _kill_at(owner, name, when, int(batches))
    spark = local_session("crashing", settings=SHORT_LIVED)
    rows = read_events(spark, servers, given, max_offsets_per_trigger=120)
    job = counted(windowed(rows), out, checkpoint, delivery=delivery)
    job.awaitTermination(150)
    sys.stdout.write(f"late={job.counts['late']}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
