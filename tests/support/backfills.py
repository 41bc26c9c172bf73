"""One query over a topic that is full already, in plain Spark and with marks, and what a row costs each of them.

A thousand users with a row every ten seconds, summed up per user and two minutes: twelve rows make a result.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from floodmark.producers import EmbeddedKafka, WatermarkedProducer, ascending, create_topics
from floodmark.producers.clients.admin import end_offsets
from floodmark.schemas import AvroCodec
from floodmark.schemas.codec import without_logical_types
from floodmark.spark_jobs import Batch, ReadOptions, WriteOptions, avro, read, write
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from support.chains import ROW, Spent, counted, plain_rows, plain_writer

ROCKSDB: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
TOPIC: Final = "backfill"
_USERS: Final = 1_000
_STEP: Final = 10
"""Milliseconds of event time between two rows."""
_WIDTH: Final = 120_000
_FIRST: Final = _WIDTH
_MARKS: Final = timedelta(milliseconds=100)
_LIMIT: Final = 1_800.0
"""Seconds that a backfill may take."""
_LOOK: Final = 0.05
_rows = AvroCodec(without_logical_types(ROW))


def fill(config: dict[str, Any], rows: int, partitions: int, report: Callable[[str], None]) -> None:
    """Write the topic: rows, with marks among them, and the end."""
    create_topics(config, {TOPIC: partitions})
    with WatermarkedProducer(
        {**config, "compression.type": "lz4"}, topic=TOPIC, source="all", strategy=ascending(), interval=_MARKS
    ) as producer:
        for number in range(rows):
            user, at = f"u{number % _USERS}", _FIRST + number * _STEP
            producer.produce(_rows.encode({"user": user, "at": at, "n": 1}), key=user, event_time=at)
            if number % 100_000 == 0:
                report(f"filling the topic, {number:,} rows of {rows:,}")
        producer.end()


def results(rows: int) -> int:
    """Return how many results the query has."""
    windows, left = divmod(rows, _WIDTH // _STEP)
    return windows * _USERS + min(left, _USERS)


def noop(frame: DataFrame, _batch_id: int) -> None:
    """Write a batch to nowhere."""
    frame.write.format("noop").mode("append").save()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a backfill reads and writes."""

    spark: SparkSession
    kafka: EmbeddedKafka
    batch: int
    """The most records of a batch."""
    folder: Path
    """A new one for each run."""

    @property
    def target(self) -> str:
        """A topic of the run's own."""
        return self.folder.name


@dataclass(frozen=True, slots=True)
class Running:
    """A backfill that runs: ``finish`` waits for its end, and returns what was wrong with it."""

    query: StreamingQuery
    finish: Callable[[], list[str]]


def _plain(place: Place, *, to_kafka: bool) -> Running:
    servers = place.kafka.bootstrap_servers
    rows = plain_rows(place.spark, servers, TOPIC, maxOffsetsPerTrigger=str(place.batch))
    found = counted(rows, _WIDTH)
    writer = plain_writer(found, servers, place.target) if to_kafka else found.writeStream.foreachBatch(noop)
    query = writer.option("checkpointLocation", str(place.folder)).outputMode("append").start()

    def finish() -> list[str]:
        query.processAllAvailable()
        query.stop()
        read_, there = sum(batch["numInputRows"] for batch in query.recentProgress), _size(place.kafka)
        return [] if read_ == there else [f"{read_:,} records read of {there:,}"]

    return Running(query, finish)


def _floodmark(place: Place, rows: int, *, delivery: str | None) -> Running:
    batches: list[Batch] = []
    source = read(
        place.spark,
        topics=TOPIC,
        value=avro(ROW),
        event_time="at",
        bootstrap_servers=place.kafka.bootstrap_servers,
        options=ReadOptions(max_offsets_per_trigger=place.batch),
    )
    started = partial(write, counted(source, _WIDTH), checkpoint_location=str(place.folder))
    if delivery is None:
        job = started(writer=noop, job="backfill", options=WriteOptions(on_batch=batches.append))
    else:
        options = WriteOptions(delivery=delivery, watermark_hold=timedelta(milliseconds=1), on_batch=batches.append)
        job = started(topic=place.target, value=avro(ROW), event_time="at", key="user", options=options)

    def finish() -> list[str]:
        job.awaitTermination(_LIMIT)
        counts = job.counts
        found = {
            "rows read": (counts["records"] - counts["marks"], rows),
            "results": (sum(batch.rows for batch in batches), results(rows)),
            "late, lost or surplus": (sum(counts[name] for name in ("late", "lost", "surplus")), 0),
        }
        return [f"{seen:,} {name}, expected {due:,}" for name, (seen, due) in found.items() if seen != due]

    return Running(job.query, finish)


def _size(kafka: EmbeddedKafka) -> int:
    return sum(end_offsets(kafka.config, TOPIC).values())


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run the query; ``like`` is the plain one it is compared with."""

    name: str
    start: Callable[[Place, int], Running]
    like: str


WAYS: Final = (
    Way("plain, function", lambda place, _: _plain(place, to_kafka=False), "plain, function"),
    Way("Floodmark, function", lambda place, rows: _floodmark(place, rows, delivery=None), "plain, function"),
    Way("plain, Kafka", lambda place, _: _plain(place, to_kafka=True), "plain, Kafka"),
    Way("Floodmark, at least once", partial(_floodmark, delivery="at-least-once"), "plain, Kafka"),
    Way("Floodmark, exactly once", partial(_floodmark, delivery="exactly-once"), "plain, Kafka"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """What a row of one backfill has cost, microseconds, after the first batch, which starts the query."""

    wall: float
    """Of its batches."""
    jvm: float
    """Processor time."""
    python: float
    """Processor time of the driver."""
    wrong: list[str]

    @property
    def cpu(self) -> float:
        """Processor time."""
        return self.jvm + self.python


def measure(way: Way, place: Place, rows: int, report: Callable[[str], None]) -> Run:
    """Run a backfill of so many rows, and more than one batch."""
    create_topics(place.kafka.config, {place.target: 2})
    running = way.start(place, rows)
    deadline = time.monotonic() + _LIMIT
    while not (begun := _with_input(running.query)):
        if not running.query.isActive or time.monotonic() > deadline:
            raise RuntimeError(f"{way.name} has no first batch: {running.query.exception()}")
        time.sleep(_LOOK)
    report("running")
    before = Spent.now(place.spark)
    wrong = running.finish()
    after = Spent.now(place.spark)
    batches = [batch for batch in _with_input(running.query) if batch["batchId"] > begun[-1]["batchId"]]
    count = sum(batch["numInputRows"] for batch in batches)
    wall = sum(batch["durationMs"]["triggerExecution"] for batch in batches) * 1_000
    return Run(
        wall / count, (after.jvm - before.jvm) / count * 1e6, (after.python - before.python) / count * 1e6, wrong
    )


def _with_input(query: StreamingQuery) -> list[Any]:
    return [batch for batch in query.recentProgress if batch["numInputRows"]]
