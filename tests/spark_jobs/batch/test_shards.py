"""Exactly once from the executors: a transaction and a receipt for each shard of a batch."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
from confluent_kafka import Producer
from floodmark.producers.clients.admin import begin_offsets
from floodmark.producers.readers.receipts import receipts_topic, waiting_shards
from floodmark.producers.readers.replay import read_until_end
from floodmark.schemas.errors import ContinueError, FencedError, InvalidOutputError, NondeterministicBatchError
from floodmark.spark_jobs.batch import shards
from floodmark.spark_jobs.batch.shards import Shards, ShardTask, ShardWriter
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.harness import until

pytestmark = pytest.mark.spark

ROWS = 1_000


@pytest.fixture
def start(kafka, topic):
    """Start the writer of a job, as its driver does."""
    out = topic(3)

    def new(run="run-1", *, checkpoint="c", last=None, shards=4):
        writer = ShardWriter(kafka.config, "shops", out, checkpoint, run, shards)
        writer.fence(Producer(kafka.config))
        writer.open(last)
        return writer

    new.topic = out
    return new


def rows(spark, first=0, last=ROWS):
    text = F.col("id").cast("string").cast("binary")
    key = F.when(F.col("id") % 10 != 0, text)
    return spark.range(first, last).select(key.alias("key"), text.alias("value"))


def written(kafka, start):
    return sorted(
        int(record.value) for record in read_until_end(kafka.config, begin_offsets(kafka.config, [start.topic]))
    )


@pytest.mark.every_spark
def test_a_batch_is_written_once_however_often_it_runs(spark, kafka, start):
    writer = start()
    counts = writer.write(rows(spark), 0, 3)
    assert sum(counts.values()) == ROWS
    assert writer.write(rows(spark), 0, 3) == counts, "a stage that runs again"
    again = start("run-2", shards=2)
    assert again.write(rows(spark), 0, 3) == counts, "a restart, and rows without key are where they were"
    again.write(rows(spark, ROWS, ROWS + 10), 1, 3)
    assert written(kafka, start) == list(range(ROWS + 10))


def test_a_batch_with_other_rows_is_refused_before_one_is_written(spark, kafka, start):
    start().write(rows(spark), 0, 3)
    with pytest.raises(NondeterministicBatchError) as refused:
        start("run-2").write(rows(spark, 0, ROWS - 1), 0, 3)
    assert refused.value.computed == refused.value.written - 1
    with pytest.raises(NondeterministicBatchError):
        start("run-3").write(rows(spark, 0, 0), 0, 3)
    assert written(kafka, start) == list(range(ROWS))


def test_a_driver_that_was_replaced_writes_nothing(spark, kafka, start):
    former = start()
    start("run-2")
    with pytest.raises(FencedError, match="another instance"):
        former.write(rows(spark), 0, 3)
    assert written(kafka, start) == []


def test_a_task_of_an_earlier_batch_writes_nothing(spark, kafka, start):
    writer = start()
    writer.write(rows(spark), 0, 3)
    writer.write(rows(spark, ROWS, ROWS + 10), 1, 3)
    with pytest.raises(FencedError):
        writer.write(rows(spark), 0, 3)
    assert written(kafka, start) == list(range(ROWS + 10))


def test_a_task_that_its_copy_fences_runs_again(spark, kafka, start, tmp_path, monkeypatch):
    class Overtaken(ShardTask):
        def _write(self, out, batches):
            receipt, fenced = super()._write(out, batches), tmp_path / f"fenced-{self.receipt.batch_id}"
            if not fenced.exists():
                fenced.touch()
                self.shards.fence(TaskContext.get().partitionId())
            return receipt

    monkeypatch.setattr(shards, "ShardTask", Overtaken)
    assert sum(start().write(rows(spark), 0, 3).values()) == ROWS
    assert (tmp_path / "fenced-0").exists()
    assert written(kafka, start) == list(range(ROWS))


LOSING = """
import sys, uuid
from pathlib import Path
from confluent_kafka import Producer
from floodmark.schemas.errors import NondeterministicBatchError
from floodmark.spark_jobs import local_session
from floodmark.spark_jobs.batch import shards
from pyspark.sql import functions as F

servers, topic, random, rows, lost = sys.argv[1:]
config, random, rows, lost = {"bootstrap.servers": servers}, random == "True", int(rows), Path(lost)
spark = local_session("losing", cores=2)
manager = spark._jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager()
folders = [str(folder) for folder in manager.localDirsString()]

class Losing(shards.ShardTask):
    def __call__(self, batches):
        yield from super().__call__(batches)
        if not lost.exists():  # more shards than cores: some have not begun to read
            lost.touch()
            for folder in folders:
                for block in Path(folder).rglob("shuffle_*.data"):
                    block.unlink()

shards.ShardTask = Losing
writer = shards.ShardWriter(config, "shops", topic, "c", "run-1", 4)
writer.fence(Producer(config))
writer.open(None)
changing = F.udf(lambda _: uuid.uuid4().bytes, "binary").asNondeterministic()
text = F.col("id").cast("string").cast("binary")
frame = spark.range(rows).select(F.lit(None).cast("binary"), changing(text) if random else text).toDF("key", "value")
try:
    print(sum(writer.write(frame, 0, 3).values()))
except NondeterministicBatchError:
    print("refused")
"""
"""A batch whose rows Spark loses after the first shard; ten minutes later, Spark would end its own process."""


@pytest.mark.parametrize("random", [False, True])
def test_rows_that_spark_computes_again_between_two_shards_are_compared(kafka, start, tmp_path, random):
    arguments = [kafka.bootstrap_servers, start.topic, str(random), str(ROWS), str(tmp_path / "lost")]
    command = [sys.executable, "-c", LOSING, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.splitlines()[-1:] == ["refused" if random else str(ROWS)], done.stderr[-3_000:]
    assert random or written(kafka, start) == list(range(ROWS))


def test_the_shards_that_wait_are_counted(spark, kafka, start, tmp_path, monkeypatch):
    class Stuck(ShardTask):
        def _write(self, out, batches):
            receipt = super()._write(out, batches)
            deadline = time.monotonic() + 60
            while TaskContext.get().partitionId() == 0 and not (tmp_path / "counted").exists():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            return receipt

    monkeypatch.setattr(shards, "ShardTask", Stuck)
    writer = start()
    assert writer.waiting == 0
    with ThreadPoolExecutor() as pool:
        written = pool.submit(writer.write, rows(spark), 0, 3)
        until(lambda: writer.waiting == 1, "the other three")
        assert waiting_shards(kafka.config, receipts_topic("shops", start.topic)) == (1, 4), "others see it, too"
        (tmp_path / "counted").touch()
        assert sum(written.result(60).values()) == ROWS
    assert writer.waiting == 0


def test_a_new_checkpoint_does_not_write_behind_a_batch_that_is_written_in_part(spark, start):
    start().write(rows(spark), 0, 3)
    with pytest.raises(ContinueError, match="written batch 0 of its former checkpoint_location in part"):
        start("run-2", checkpoint="d")
    with pytest.raises(ContinueError, match="batch 0 of this checkpoint_location in part"):
        start("run-2", shards=None)
    start("run-2", checkpoint="d", last=("c", 0))
    start("run-3", last=("c", 0), shards=None)


def test_a_batch_that_was_written_whole_is_judged_once_whatever_checkpoints_follow(spark, start):
    start().write(rows(spark), 0, 3)
    start("run-2", last=("c", 0), shards=None)
    start("run-3", last=("c", 1), shards=None)
    start("run-4", checkpoint="d", last=("c", 1), shards=None)
    start("run-5", checkpoint="d", last=("d", 0), shards=None)
    start("run-6", checkpoint="e", last=("d", 0), shards=None)
    start("run-7", checkpoint="f", last=("e", 0)).write(rows(spark), 0, 3)
    with pytest.raises(ContinueError, match="batch 0 of its former checkpoint_location in part"):
        start("run-8", checkpoint="e", last=("e", 0), shards=None)


def test_a_row_that_kafka_rejects_is_named_and_nothing_is_written(spark, kafka, start):
    large = rows(spark, 0, 1).withColumn("value", F.expr("cast(repeat('1', 2000000) as binary)"))
    with pytest.raises(InvalidOutputError, match="rejected by Kafka"):
        start().write(rows(spark).union(large), 0, 3)


def test_a_transaction_may_take_as_long_as_a_broker_allows_by_default_unless_the_client_says_otherwise(monkeypatch):
    monkeypatch.setattr(shards, "Transaction", given := Mock())
    for client in ({}, {"transaction.timeout.ms": 60_000}):
        Shards(client, "shops", "totals").fence(0)
    assert [call.args[0]["transaction.timeout.ms"] for call in given.call_args_list] == [900_000, 60_000]
