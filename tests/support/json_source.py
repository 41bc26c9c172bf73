"""A job that keeps its rows, and what the tests of the fixture ``source`` share: for tests of what a job reads."""

from typing import Any

from floodmark.spark_jobs import Job, WriteOptions, write
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.counting import with_options

LIMIT = 180
BASE = 1_000_000
SCHEMA = "k STRING, at TIMESTAMP"


def windows(rows: DataFrame) -> DataFrame:
    """Count in windows of ten seconds; ``end`` is in milliseconds."""
    grouped = rows.groupBy(F.window("at", "10 seconds")).agg(F.count("*").alias("n"))
    return grouped.select(F.unix_millis("window.end").alias("end"), "n")


def keep(result: DataFrame, checkpoint: str, **options: Any) -> tuple[Job, list[tuple[Any, ...]]]:
    kept: list[tuple[Any, ...]] = []
    usual = {"writer": lambda frame, _: kept.extend(map(tuple, frame.collect())), "job": "keep"}
    return write(result, checkpoint_location=checkpoint, **with_options(WriteOptions, {**usual, **options})), kept
