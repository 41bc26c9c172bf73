"""The job that most tests of Spark run: the events of each user counted in tumbling windows."""

from dataclasses import fields
from typing import Any

from floodmark.spark_jobs import Job, ReadOptions, WriteOptions, avro, read, write
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.harness import COUNT, EVENT

WIDTH = 10_000


def with_options(kind: type[ReadOptions | WriteOptions], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call, the rarer settings among them (those of ``kind``) in one, as ``options``."""
    chosen = {field.name: arguments.pop(field.name) for field in fields(kind) if field.name in arguments}
    return {**arguments, "options": kind(**chosen)}


def read_events(spark: SparkSession, bootstrap_servers: str, *topics: str, **options: Any) -> DataFrame:
    """Read topics, by default of `harness.EVENT`."""
    given = {"value": avro(EVENT), "event_time": "at", "bootstrap_servers": bootstrap_servers, **options}
    return read(spark, topics=topics, **with_options(ReadOptions, given))


def windowed(rows: DataFrame, width: int = WIDTH) -> DataFrame:
    """Count per user and tumbling window, stamped with the window's end."""
    grouped = rows.groupBy("user", F.window("at", f"{width} milliseconds")).count()
    return grouped.select("user", F.col("window.end").alias("ended"), F.col("count").alias("n"))


def counted(result: DataFrame, topic: str, checkpoint: str, **options: Any) -> Job:
    given = {"value": avro(COUNT), "event_time": "ended", "key": "user", **options}
    return write(result, topic=topic, checkpoint_location=checkpoint, **with_options(WriteOptions, given))


def fails(job: Job) -> bool:
    """Raise what failed a job; return ``False`` where nothing did."""
    if job.exception() is not None:
        raise job.exception()
    return False
