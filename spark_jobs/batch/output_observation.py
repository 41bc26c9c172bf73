"""Metrics of a job's results in one batch: their columns, their values, and the check of both."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from floodmark.schemas.errors import InvalidOutputError, PromiseBrokenError
from floodmark.schemas.timestamps import is_late
from floodmark.spark_jobs.batch.snapshots import JobIdentity
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

_OBSERVATION: Final = "floodmark-output"


def counted(rows: DataFrame, *event_times: Column) -> DataFrame:
    """Count the rows for a user's writer, and those without an event time, if that is known."""
    missing = [F.count_if(time.isNull()).alias("without_event_time") for time in event_times]
    return rows.observe(_OBSERVATION, F.count(F.lit(1)).alias("rows"), *missing)


def timed(rows: DataFrame, event_time: Column) -> DataFrame:
    """Count the rows for a table, and observe their event times."""
    return rows.observe(
        _OBSERVATION,
        F.count(F.lit(1)).alias("rows"),
        F.min(F.unix_millis(event_time)).alias("earliest"),
        F.count_if(event_time.isNull()).alias("without_event_time"),
    )


def watched(rows: DataFrame) -> DataFrame:
    """Count the rows for Kafka, and observe their ``event_time`` (epoch milliseconds) and ``value``."""
    return rows.observe(
        _OBSERVATION,
        F.count(F.lit(1)).alias("rows"),
        F.min("event_time").alias("earliest"),
        F.count_if(F.col("event_time").isNull()).alias("without_event_time"),
        F.count_if(F.col("value").isNull()).alias("without_value"),
    )


@dataclass(frozen=True, slots=True)
class Output:
    """The results of one batch; for a user's writer only ``rows`` is known."""

    rows: int = 0
    earliest: int | None = None  # the lowest event time, epoch milliseconds
    without_event_time: int = 0
    without_value: int = 0

    @classmethod
    def of(cls, observed: Mapping[str, Mapping[str, Any]]) -> "Output":
        """Read it from the metrics of a batch, by the names of the observations.

        >>> Output.of({"floodmark-output": {"rows": 2, "earliest": 7, "without_event_time": 0, "without_value": 1}})
        Output(rows=2, earliest=7, without_event_time=0, without_value=1)
        >>> Output.of({})
        Output(rows=0, earliest=None, without_event_time=0, without_value=0)
        """
        metrics = observed.get(_OBSERVATION, {})
        earliest = metrics.get("earliest")
        counts = {name: int(metrics.get(name) or 0) for name in ("rows", "without_event_time", "without_value")}
        return cls(earliest=None if earliest is None else int(earliest), **counts)

    def check(self, identity: JobIdentity, batch_id: int, promised: int | None) -> None:
        """Refuse rows that the next stage could not read, or that are before the output watermark ``promised``."""
        for count, reason, advice in (
            (self.without_event_time, "no event time", "give event_time= a column that is never null"),
            (self.without_value, "no value", "check that the value's columns fit its schema"),
        ):
            if count:
                raise InvalidOutputError(job=identity.job, count=count, batch_id=batch_id, reason=reason, advice=advice)
        if self.earliest is not None and is_late(self.earliest, promised):
            job, topic = identity.job, identity.output
            raise PromiseBrokenError(job=job, event_time=self.earliest, watermark=promised, topic=topic)
