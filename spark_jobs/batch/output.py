"""What the driver learns of a job's results in one batch: the columns of the metrics, their values, and the check."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from floodmark.schemas.errors import InvalidOutputError, PromiseBrokenError
from floodmark.schemas.timestamps import is_late
from floodmark.spark_jobs.batch.snapshots import JobIdentity
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

_OBSERVATION: Final = "floodmark-output"


def counted(rows: DataFrame) -> DataFrame:
    """Let the rows for a user's writer be counted: nothing is known of their event times."""
    return rows.observe(_OBSERVATION, F.count(F.lit(1)).alias("rows"))


def watched(rows: DataFrame) -> DataFrame:
    """Let rows for Kafka be counted and their ``event_time`` (epoch milliseconds) and ``value`` be watched."""
    return rows.observe(
        _OBSERVATION,
        F.count(F.lit(1)).alias("rows"),
        F.min("event_time").alias("earliest"),
        F.count_if(F.col("event_time").isNull()).alias("without_event_time"),
        F.count_if(F.col("value").isNull()).alias("without_value"),
    )


@dataclass(frozen=True, slots=True)
class Output:
    """The results of one batch; of a user's writer only ``rows`` is known.

    ``earliest``: the lowest event time, epoch milliseconds.
    """

    rows: int = 0
    earliest: int | None = None
    without_event_time: int = 0
    without_value: int = 0

    @classmethod
    def of(cls, observed: Mapping[str, Mapping[str, Any]]) -> "Output":
        """Read it from what a batch observed, by the names of the observations.

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
        """Refuse rows that the next stage could not read, or that break what was handed on to it.

        Args:
            identity: whose they are.
            batch_id: of the batch.
            promised: the output watermark that was handed on; ``None``: none, or these rows may be behind it.

        Raises:
            InvalidOutputError: where rows lack an event time or a value.
            PromiseBrokenError: where a row is behind the watermark.
        """
        for count, reason, advice in (
            (self.without_event_time, "no event time", "give event_time= a column that is never null"),
            (self.without_value, "no value", "check that the value's columns fit its schema"),
        ):
            if count:
                raise InvalidOutputError(job=identity.job, count=count, batch_id=batch_id, reason=reason, advice=advice)
        if self.earliest is not None and is_late(self.earliest, promised):
            raise PromiseBrokenError(
                job=identity.job, event_time=self.earliest, watermark=promised, topic=identity.output
            )
