"""A job that kills itself (SIGKILL) at a named step of a batch, in a process of its own.

    python crashing_job.py SERVERS INPUT OUTPUT CHECKPOINT STEP [BATCHES]

STEP is one of `STEPS`, or ``none``; the crash comes at that step of the BATCHES-th batch of this process.  Or it is one
of `AHEAD`: the crash comes there once the job has foreseen a watermark; of `SHARDS`: a task kills the driver; or of
`TABLE_STEPS`: the crash also kills Spark's JVM.  With the delivery ``writer``, OUTPUT is the file of a `RowStore`; with
``iceberg`` or ``delta``, it is the folder of a table, COMMIT_EVERY is in seconds, and OUTPUT_MODE may be ``update``.
"""

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import pyarrow as pa
from floodmark.producers.clients.transaction import Transaction
from floodmark.spark_jobs import Job, WriteOptions, local_session, write
from floodmark.spark_jobs.batch import shards
from floodmark.spark_jobs.batch.shards import Shards, ShardTask, ShardWriter
from floodmark.spark_jobs.batch.sinks import AtLeastOnceSink, ExactlyOnceSink, StoreSink
from floodmark.spark_jobs.batch.snapshots import Snapshots
from floodmark.spark_jobs.internals.engine import Engine
from floodmark.spark_jobs.lookahead.marks_ahead import Ahead
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.tables.table import Table
from floodmark.spark_jobs.tables.table_sink import TableSink
from support.counting import counted, read_events, windowed
from support.harness import SMALL_BATCHES
from support.row_store import count_store

TABLES = {"iceberg", "delta"}
KEYS = {"append": (), "update": ("user", "ended")}
"""Of the table, by the output mode."""
SINKS = (AtLeastOnceSink, ExactlyOnceSink, StoreSink)
STEPS = {
    "before the batch runs": (SINKS, "consume", "before"),
    "after the batch ran, before its snapshot": (Snapshots, "store", "before"),
    "after the snapshot, before the transaction": (SINKS, "commit", "before"),
    "inside the transaction": (Transaction, "commit", "before"),
    "after the transaction, before the watermark is set": (SINKS, "commit", "after"),
    "after the watermark is set, during Spark's commit": (Engine, "set_watermark", "after"),
}
"""The class (or each of several), its method, and whether the crash comes before, within or after that."""

AGAIN = "after that batch ran, before its snapshot"
AHEAD = {
    "after the watermark ahead is stored, before it is set": (Snapshots, "store", "after"),
    "after it is set, during Spark's commit": (Engine, "set_watermark", "after"),
    "the batch that it is for is planned, before it runs": (SINKS, "consume", "before"),
    AGAIN: (Snapshots, "store", "before"),
    "after its snapshot, before the transaction": (SINKS, "commit", "before"),
    "after the transaction": (SINKS, "commit", "after"),
}

SHARDS = {  # steps of a task that writes a shard; the last one is of the driver
    "a shard is fenced, nothing is written": (Shards, "last", "before"),
    "the rows of a shard are at the broker, its transaction is open": (Shards, "store", "before"),
    "a shard is committed, maybe not the other one": (Transaction, "abort", "before"),
    "all shards are committed, the marks are not": (ShardWriter, "write", "after"),
}

TABLE_STEPS = {
    "before a batch runs": (TableSink, "consume", "before"),
    "after a batch ran": (TableSink, "consume", "after"),  # its rows are staged, or in the cache
    "after a batch is staged or committed": (TableSink, "commit", "after"),
    "before the commit": (Table, "commit", "before"),
    "within the commit": (Table, "commit", "within"),
    "after the commit": (Table, "commit", "after"),
    "during Spark's commit": (Engine, "set_watermark", "after"),
}


def run(*arguments: str, delivery: str = "exactly-once", **more: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "DELIVERY": delivery, **more}
    options = {"capture_output": True, "text": True, "timeout": 200, "start_new_session": True}
    return subprocess.run([sys.executable, __file__, *arguments], env=environment, check=False, **options)


def _kill() -> None:
    if os.environ["DELIVERY"] in TABLES:
        os.killpg(0, signal.SIGKILL)
    os.kill(int(os.environ.get("VICTIM", os.getpid())), signal.SIGKILL)


def _kill_when_it_has_files(folder: Path) -> None:
    """Kill as soon as a folder has one more data file, which the commit then lacks."""
    before = len(list(folder.rglob("*.parquet")))
    while len(list(folder.rglob("*.parquet"))) == before:
        pass
    _kill()


def _kill_at(owner: type, name: str, when: str, is_due: Callable[[], bool], folder: str = "") -> None:
    original: Callable[..., object] = getattr(owner, name)

    def crashing(*args: object, **kwargs: object) -> object:
        due = is_due()
        if due and when == "before":
            for one in (one for one in args if isinstance(one, Transaction)):
                one.producer.flush(30)  # the records are at the broker, the transaction is open
            _kill()
        if due and when == "within":
            threading.Thread(target=_kill_when_it_has_files, args=[Path(folder)], daemon=True).start()
        result = original(*args, **kwargs)
        if due and when == "after":
            _kill()
        return result

    setattr(owner, name, crashing)


class CrashingTask(ShardTask):
    """Crashes in a task: this module is imported there, and patches are not."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        once = Path(os.environ["ONCE"])
        if self.receipt.batch_id >= int(os.environ["BATCH"]) and not once.exists():
            owner, name, when = SHARDS[os.environ["STEP"]]

            def is_due() -> bool:
                with suppress(FileExistsError):
                    return once.touch(exist_ok=False) is None
                return False

            _kill_at(owner, name, when, is_due)
        yield from super().__call__(batches)


def _due(times: int, *, ahead: bool) -> Callable[[], bool]:
    """Return what tells, asked at each step, that it is time; ``ahead``: it counts since a watermark was foreseen."""
    original, foreseen, calls = Progress.look_ahead, list[int](), itertools.count(1)

    def noting(progress: Progress, found: Ahead) -> None:
        foreseen.append(found.watermark)
        original(progress, found)

    Progress.look_ahead = noting  # type: ignore[method-assign]
    return lambda: bool(foreseen or not ahead) and next(calls) >= times


def _started(servers: str, given: str, out: str, checkpoint: str, *, ahead: bool) -> Job:
    delivery, lookahead = os.environ["DELIVERY"], timedelta(seconds=30 if ahead else 0)
    usual = {"job": "totals", "checkpoint_location": checkpoint, "options": WriteOptions(lookahead=lookahead)}
    if delivery in TABLES:
        from support.lake import lake_session, named_table  # noqa: PLC0415  # the other jobs start faster without it

        folder = Path(out)
        spark = lake_session(folder.parent.parent if delivery == "iceberg" else folder.parent, delivery)
        per_batch = int(os.environ.get("PER_BATCH", "60"))
        rows = windowed(read_events(spark, servers, given, max_offsets_per_trigger=per_batch))
        mode = os.environ.get("OUTPUT_MODE", "append")
        table = named_table(delivery, folder, timedelta(seconds=float(os.environ["COMMIT_EVERY"])), key=KEYS[mode])
        return write(rows, table=table, event_time="ended", output_mode=mode, **usual)
    cores = os.environ.get("CORES", "2")
    settings = {**SMALL_BATCHES, "spark.sql.shuffle.partitions": cores}
    spark = local_session("crashing", cores=int(cores), settings=settings)
    rows = windowed(read_events(spark, servers, given, max_offsets_per_trigger=20_000 if ahead else 120))
    if delivery == "writer":
        return write(rows, writer=count_store(out), **usual)
    return counted(rows, out, checkpoint, delivery=delivery, lookahead=lookahead)


def main(servers: str, given: str, out: str, checkpoint: str, step: str, batches: str = "2") -> None:
    ahead = step in AHEAD or "LOOKAHEAD" in os.environ
    if step in SHARDS and SHARDS[step][0] is not ShardWriter:
        once, driver = f"{checkpoint}.crashed-{step}", str(os.getpid())
        os.environ.update(STEP=step, BATCH=batches, ONCE=once, VICTIM=driver)
        shards.ShardTask = import_module("support.crashing_job").CrashingTask
    elif step != "none":
        owners, name, when = {**STEPS, **AHEAD, **SHARDS, **TABLE_STEPS}[step]
        is_due = _due(1 + (step == AGAIN) if ahead else int(batches), ahead=ahead)
        for owner in owners if owners is SINKS else [owners]:
            _kill_at(owner, name, when, is_due, out)
    job = _started(servers, given, out, checkpoint, ahead=ahead)
    job.awaitTermination(150)
    sys.stdout.write(f"late={job.counts['late']}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
