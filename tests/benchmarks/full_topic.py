"""One query over a topic that is full already, in plain Spark and with marks, and what a row costs each of them.

A thousand users with a row every ten seconds, summed up per user and two minutes: twelve rows make a result.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.job_chain import ROW, Spent, counted, plain_rows, plain_writer
from confluent_kafka import Producer
from floodmark.producers import EmbeddedKafka, ascending, create_topics
from floodmark.producers.clients.admin import end_offsets
from floodmark.producers.strategies.numbering import Identity, MarkWriter
from floodmark.schemas import AvroCodec
from floodmark.schemas.classify import mark_record
from floodmark.schemas.codec import without_logical_types
from floodmark.schemas.records import Status
from floodmark.spark_jobs import Batch, ReadOptions, WriteOptions, avro, delta, iceberg, read, write
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

ROCKSDB: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
TABLES: Final = {"Iceberg": ("iceberg", "lake.db"), "Delta": ("delta", "default")}
"""The format of each kind of table, and the database."""
TOPIC: Final = "backfill"
_USERS: Final = 1_000
_STEP: Final = 10
"""Milliseconds of event time between two rows."""
WIDTH: Final = 120_000
_FIRST: Final = WIDTH
_CHUNK: Final = 10_000
"""So many rows stand between two marks."""
_LIMIT: Final = 1_800.0
"""Seconds that a backfill may take."""
_LOOK: Final = 0.05
_rows = AvroCodec(without_logical_types(ROW))


def fill(config: dict[str, Any], rows: int, partitions: int, report: Callable[[str], None]) -> None:
    """Write the topic: rows, with marks among them, and the end.

    As `WatermarkedProducer` would, in a fraction of its time: no row is looked at one by one once it is sent.
    """
    create_topics(config, {TOPIC: partitions})
    settings = {"compression.type": "lz4", "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({**config, **settings, "enable.idempotence": True})
    generator, writer = ascending().build(), MarkWriter(Identity("all", epoch=1), partitions)
    users = [(f"u{user}", _rows.encode({"user": f"u{user}", "at": 0, "n": 1})[:-2]) for user in range(_USERS)]

    def mark(status: Status = Status.ACTIVE) -> None:
        for number, one in writer.marks(time.time_ns() // 1_000_000, watermark=generator.watermark(), status=status):
            key, value, headers = mark_record(one)
            producer.produce(TOPIC, value, key, number, headers=headers)

    mark()
    for first in range(0, rows, _CHUNK):
        counts = [0] * partitions
        for number in range(first, min(first + _CHUNK, rows)):
            user = number % _USERS
            key, prefix = users[user]
            producer.produce(TOPIC, prefix + _long(_FIRST + number * _STEP) + b"\x02", key, user % partitions)
            counts[user % partitions] += 1
        for partition, count in enumerate(counts):
            writer.count(partition, count)
        generator.on_event(_FIRST + (min(first + _CHUNK, rows) - 1) * _STEP)
        mark()
        while len(producer) > 500_000:
            producer.poll(0.05)
        producer.poll(0)
        if first % 100_000 == 0:
            report(f"filling the topic, {first:,} rows of {rows:,}")
    mark(Status.ENDED)
    if producer.flush(_LIMIT):
        raise RuntimeError("Kafka does not take the rows")


def _long(number: int) -> bytes:
    """Encode a number as Avro does.

    >>> [_long(number).hex() for number in (0, 64, 120_000)]
    ['00', '8001', '80d30e']
    """
    rest, found = number << 1, bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def results(rows: int) -> int:
    """Return how many results the query has."""
    windows, left = divmod(rows, WIDTH // _STEP)
    return windows * _USERS + min(left, _USERS)


def written(rows: int) -> Iterator[tuple[str, int, int]]:
    """Yield the rows as they stand in the topic."""
    return ((f"u{number % _USERS}", _FIRST + number * _STEP, 1) for number in range(rows))


def expected(rows: int) -> Iterator[tuple[str, int, int]]:
    """Yield the results that the query has: user, the last millisecond of the window, and the sum."""
    found = Counter((number % _USERS, (_FIRST + number * _STEP) // WIDTH) for number in range(rows))
    for (user, window), total in found.items():
        yield f"u{user}", (window + 1) * WIDTH - 1, total


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
    every_row: bool = False
    """Whether each row is a result, without operators."""

    def result(self, rows: DataFrame) -> DataFrame:
        """Return the query over some rows."""
        return rows.select("user", "at", "n").where("user IS NOT NULL") if self.every_row else counted(rows, WIDTH)

    @property
    def target(self) -> str:
        """A topic of the run's own."""
        return self.folder.name

    def table(self, kind: str) -> str:
        """Return the name of a table of the run's own."""
        return f"{TABLES[kind][1]}.{self.target.replace('-', '_')}"


@dataclass(frozen=True, slots=True)
class Running:
    """A backfill that runs: ``finish`` waits for its end, and returns what was wrong with it."""

    query: StreamingQuery
    finish: Callable[[], list[str]]


def _plain(place: Place, _rows: int, *, into: str | None = None) -> Running:
    servers = place.kafka.bootstrap_servers
    rows = plain_rows(place.spark, servers, TOPIC, maxOffsetsPerTrigger=str(place.batch))
    found = place.result(rows)
    writer = plain_writer(found, servers, place.target) if into == "Kafka" else found.writeStream.foreachBatch(noop)
    if into in TABLES:
        writer = found.writeStream.format(TABLES[into][0])
    writer = writer.option("checkpointLocation", str(place.folder)).outputMode("append")
    query = writer.toTable(place.table(into)) if into in TABLES else writer.start()

    def finish() -> list[str]:
        query.processAllAvailable()
        query.stop()
        read_, there = sum(batch["numInputRows"] for batch in query.recentProgress), _size(place.kafka)
        return [] if read_ == there else [f"{read_:,} records read of {there:,}"]

    return Running(query, finish)


def _floodmark(
    place: Place,
    rows: int,
    *,
    delivery: str | None = None,
    late: Literal["drop"] | None = None,
    into: str | None = None,
) -> Running:
    """Start the query with marks: into a kind of table, with a ``delivery`` to Kafka, or to a function."""
    batches: list[Batch] = []
    source = read(
        place.spark,
        topics=TOPIC,
        value=avro(ROW),
        event_time="at",
        bootstrap_servers=place.kafka.bootstrap_servers,
        late=late,
        options=ReadOptions(max_offsets_per_trigger=place.batch),
    )
    started = partial(write, place.result(source), checkpoint_location=str(place.folder))
    hold = timedelta(milliseconds=1)
    if into is not None:
        table = {"Iceberg": iceberg, "Delta": delta}[into](place.table(into), commit_every=timedelta(0))
        options = WriteOptions(watermark_hold=hold, on_batch=batches.append)
        job = started(table=table, event_time="at", job="backfill", options=options)
    elif delivery is None:
        job = started(writer=noop, job="backfill", options=WriteOptions(on_batch=batches.append))
    else:
        options = WriteOptions(delivery=delivery, watermark_hold=hold, on_batch=batches.append)
        job = started(topic=place.target, value=avro(ROW), event_time="at", key="user", options=options)

    def finish() -> list[str]:
        job.awaitTermination(_LIMIT)
        counts, due = job.counts, rows if place.every_row else results(rows)
        found = {
            "rows read": (counts["records"] - counts["marks"], rows),
            "results": (sum(batch.rows for batch in batches), due),
            "rows in the table": (due if into is None else place.spark.table(place.table(into)).count(), due),
            "late, lost or surplus": (sum(counts[name] for name in ("late", "lost", "surplus")), 0),
        }
        return [f"{seen:,} {name}, expected {due:,}" for name, (seen, due) in found.items() if seen != due]

    return Running(job.query, finish)


def _size(kafka: EmbeddedKafka) -> int:
    return sum(end_offsets(kafka.config, TOPIC).values())


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run the query; ``like`` is the way it is compared with."""

    name: str
    start: Callable[[Place, int], Running]
    like: str


WAYS: Final = (
    Way("plain, function", _plain, "plain, function"),
    Way("Floodmark, function", _floodmark, "plain, function"),
    Way("Floodmark, late='drop'", partial(_floodmark, late="drop"), "Floodmark, function"),
    Way("plain, Kafka", partial(_plain, into="Kafka"), "plain, Kafka"),
    Way("Floodmark, at least once", partial(_floodmark, delivery="at-least-once"), "plain, Kafka"),
    Way("Floodmark, exactly once", partial(_floodmark, delivery="exactly-once"), "plain, Kafka"),
    Way("Floodmark, executors", partial(_floodmark, delivery="exactly-once-executors"), "plain, Kafka"),
)
TABLE_WAYS: Final = tuple(
    Way(f"{name}, {kind}", partial(start, into=kind), f"plain, {kind}")
    for kind in TABLES
    for name, start in (("plain", _plain), ("Floodmark", _floodmark))
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
