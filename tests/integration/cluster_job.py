"""The two jobs of ``test_standalone.py``: windows per user, then totals per window; run by ``spark-submit``.

    spark-submit ... cluster_job.py --servers=S --given=TOPIC --windows=TOPIC --totals=TOPIC --checkpoint=PLACE --done=D

Each line that it prints is an object of JSON.  The first says from where the executors take Floodmark.  The executors
write the rows of the first job, and are killed while they do; folder D has a file for each of `STEPS` that is done.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from floodmark.producers.clients.transaction import Transaction
from floodmark.producers.readers.receipts import Receipt
from floodmark.spark_jobs import Batch, Job, ReadOptions, WriteOptions, avro, read, write
from floodmark.spark_jobs.batch import shards
from floodmark.spark_jobs.batch.shards import ShardTask
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.harness import COUNT, EVENT

WIDTH = 10_000


def say(**fields: object) -> None:
    """Write a line of JSON."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


COPIED, OPEN, COMMITTED = STEPS = (
    "a speculative copy of the task has fenced it",
    "the executor died with the rows of a shard at the broker and its transaction open",
    "the executor died with its transaction committed, and the driver has not heard of it",
)


class HarmfulTask(ShardTask):
    """Does each of `STEPS` once, in a batch of its own; pickled by value, since executors do not see the tests."""

    done: Path

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a shard."""
        outcome = list(super().__call__(batches))
        if self._is_due(COMMITTED):
            kill_executor()
        yield from outcome

    def _write(self, out: Transaction | None, batches: Iterable[pa.RecordBatch]) -> Receipt:
        receipt = super()._write(out, batches)
        if out is not None:
            out.producer.flush(30)
            context = TaskContext.get()
            assert context is not None
            copy = self.done / f"{self.receipt.batch_id}-{context.partitionId()}.copy"
            if context.attemptNumber():
                copy.touch()
            elif self._is_due(COPIED):
                while not copy.exists():  # without a copy, the test fails
                    time.sleep(0.02)
            if self._is_due(OPEN):
                kill_executor()
        return receipt

    def _is_due(self, step: str) -> bool:
        if self.receipt.batch_id > STEPS.index(step):
            with suppress(FileExistsError):
                (self.done / step).touch(exist_ok=False)
                return True
        return False


def kill_executor() -> None:
    """Kill the executor (SIGKILL), the parent of the daemon that has forked this Python worker."""
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text("ascii")
    os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
    time.sleep(60)  # it is dead before


def place_of_the_package(_number: int) -> str:
    """Tell, on an executor, which Floodmark it imports."""
    from floodmark.spark_jobs.reading import judge  # noqa: PLC0415  # on the executor

    return os.path.abspath(judge.__file__)  # noqa: PTH100  # of a folder of the executor's


def start(spark: SparkSession, options: argparse.Namespace, stage: str, source: str, topic: str) -> Job:
    """Start one of the two stages."""
    first = stage == "first"
    rows = read(
        spark,
        topics=source,
        value=avro(EVENT if first else COUNT),
        event_time="at" if first else "ended",
        bootstrap_servers=options.servers,
        late="drop" if first else None,  # judged by Python, on the executors
        options=ReadOptions(max_offsets_per_trigger=5_000),
    )
    if first:
        grouped = rows.groupBy("user", F.window("at", f"{WIDTH} milliseconds")).agg(F.count("user").alias("n"))
        result = grouped.select("user", F.col("window.end").alias("ended"), "n")
    else:
        result = rows.groupBy("user", "ended").agg(F.sum("n").alias("n")).select("user", "ended", "n")

    def report(batch: Batch) -> None:
        say(stage=stage, batch=batch.batch_id, rows=batch.rows)

    return write(
        result,
        topic=topic,
        value=avro(COUNT),
        key="user",
        event_time="ended",
        checkpoint_location=f"{options.checkpoint}/{stage}",
        trigger={"processingTime": "1 second"},
        options=WriteOptions(on_batch=report, delivery="exactly-once-executors" if first else "exactly-once"),
    )


def main() -> None:
    """Run both stages to their end."""
    parser = argparse.ArgumentParser()
    for option in ("servers", "given", "windows", "totals", "checkpoint", "done"):
        parser.add_argument(f"--{option}", required=True)
    options = parser.parse_args()
    HarmfulTask.done = Path(options.done)
    shards.ShardTask = HarmfulTask  # type: ignore[misc]
    spark = SparkSession.builder.appName("two stages").getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    say(places=spark.sparkContext.parallelize(range(2), 2).map(place_of_the_package).collect())
    jobs = [
        start(spark, options, "first", options.given, options.windows),
        start(spark, options, "second", options.windows, options.totals),
    ]
    for job in jobs:
        job.awaitTermination()
    say(counts=[{name: job.counts[name] for name in ("late", "lost", "surplus")} for job in jobs])
    spark.stop()


if __name__ == "__main__":
    main()
