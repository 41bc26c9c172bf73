"""A source of JSON rows, and a job that keeps its rows: for tests of what a job reads."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from floodmark.producers import EmbeddedKafka, WatermarkedProducer, explicit
from floodmark.spark_jobs import Job, ReadOptions, WriteOptions, formats, read, write
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.counting import with_options

LIMIT = 180
BASE = 1_000_000
SCHEMA = "k STRING, at TIMESTAMP"


class Source:
    """A source that promises what it is told to."""

    def __init__(self, kafka: EmbeddedKafka, topic: str) -> None:
        self.topic = topic
        options = {"strategy": explicit(), "interval": timedelta(hours=1)}
        self._producer = WatermarkedProducer(kafka.config, topic=topic, source="a", **options)

    def send(self, *times: int, key: str = "k") -> None:
        for time in times:
            self.raw({"k": key, "at": datetime.fromtimestamp(time / 1000, UTC).isoformat()}, time)

    def raw(self, value: object, time: int = BASE) -> None:
        """Write any value, with the event time that the source takes it for."""
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        self._producer.produce(text, event_time=time)

    def mark(self, watermark: int) -> None:
        """Promise that nothing earlier comes."""
        self._producer.advance(watermark)
        self._producer.flush()

    def end(self) -> None:
        """Say that nothing more comes."""
        self._producer.end()


@pytest.fixture
def source(kafka: EmbeddedKafka, topic: Callable[..., str]) -> Source:
    """Give a source in a topic of its own."""
    return Source(kafka, topic(1))


@pytest.fixture
def rows(spark: SparkSession, kafka: EmbeddedKafka, source: Source) -> Callable[..., DataFrame]:
    """Give a function that reads what the source writes: ``rows(late="drop")``."""

    def reader(**options: Any) -> DataFrame:
        usual = {"value": formats.json(SCHEMA), "event_time": "at", "bootstrap_servers": kafka.bootstrap_servers}
        return read(spark, topics=source.topic, **with_options(ReadOptions, {**usual, **options}))

    return reader


def windows(rows: DataFrame) -> DataFrame:
    """Count in windows of ten seconds; ``end`` is in milliseconds."""
    grouped = rows.groupBy(F.window("at", "10 seconds")).agg(F.count("*").alias("n"))
    return grouped.select(F.unix_millis("window.end").alias("end"), "n")


def keep(result: DataFrame, checkpoint: str, **options: Any) -> tuple[Job, list[tuple[Any, ...]]]:
    """Start a job whose rows end up in a list."""
    kept: list[tuple[Any, ...]] = []
    writer = lambda frame, _: kept.extend(map(tuple, frame.collect()))  # noqa: E731
    given = with_options(WriteOptions, options)
    return write(result, writer=writer, job="keep", checkpoint_location=checkpoint, **given), kept
