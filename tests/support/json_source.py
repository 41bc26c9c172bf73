"""A source of JSON rows, and a job that keeps its rows: for tests of what a job reads."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from floodmark.producers import EmbeddedKafka, WatermarkedProducer, explicit
from floodmark.spark_jobs import Job, WriteOptions, formats, write
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.counting import read_events, with_options

LIMIT = 180
BASE = 1_000_000
SCHEMA = "k STRING, at TIMESTAMP"


class Source(WatermarkedProducer):
    """A source that promises what it is told to."""

    def send(self, *times: int, key: str = "k") -> None:
        for time in times:
            self.raw({"k": key, "at": datetime.fromtimestamp(time / 1000, UTC).isoformat()}, time)

    def raw(self, value: object, time: int = BASE) -> None:
        """Write any value, with the event time that the source takes it for."""
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.produce(text, event_time=time)

    def mark(self, watermark: int) -> None:
        self.advance(watermark)
        self.flush()


@pytest.fixture
def source(kafka: EmbeddedKafka, topic: Callable[..., str]) -> Source:
    return Source(kafka.config, topic=topic(1), source="a", strategy=explicit(), interval=timedelta(hours=1))


@pytest.fixture
def rows(spark: SparkSession, kafka: EmbeddedKafka, source: Source) -> Callable[..., DataFrame]:
    """Give a function that reads what the source writes: ``rows(late="drop")``."""
    given = partial(read_events, spark, kafka.bootstrap_servers, source.topic)
    return lambda **options: given(**{"value": formats.json(SCHEMA), **options})


def windows(rows: DataFrame) -> DataFrame:
    """Count in windows of ten seconds; ``end`` is in milliseconds."""
    grouped = rows.groupBy(F.window("at", "10 seconds")).agg(F.count("*").alias("n"))
    return grouped.select(F.unix_millis("window.end").alias("end"), "n")


def keep(result: DataFrame, checkpoint: str, **options: Any) -> tuple[Job, list[tuple[Any, ...]]]:
    kept: list[tuple[Any, ...]] = []
    usual = {"writer": lambda frame, _: kept.extend(map(tuple, frame.collect())), "job": "keep"}
    return write(result, checkpoint_location=checkpoint, **with_options(WriteOptions, {**usual, **options})), kept
