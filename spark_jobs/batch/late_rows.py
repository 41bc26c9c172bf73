"""The late rows of a batch: judged one by one in its tasks, or counted after it by one watermark."""

import logging
from collections.abc import Sequence

from floodmark.schemas.classify import Offsets
from floodmark.schemas.errors.base import iso
from floodmark.spark_jobs.batch.observed_batch import ObservedBatch
from floodmark.spark_jobs.batch.reread import rows_of
from floodmark.spark_jobs.batch.sinks import LateRows
from floodmark.spark_jobs.progress.lateness import LateRow
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.reading.source_spec import SourceSpec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

_log = logging.getLogger(__name__)


def pass_thresholds(spark: SparkSession, specs: Sequence[SourceSpec], progress: Progress) -> None:
    """Pass the thresholds for late rows to the tasks of the next batch; call it on the query's own thread."""
    for spec in specs:
        thresholds = None if spec.late is None else progress.thresholds(spec.percentile, spec.shift, spec.derived)
        if thresholds is not None:
            spark.sparkContext.setLocalProperty(spec.name, thresholds.to_text(spec.topics))


def count_late_rows(
    job: str, spark: SparkSession, observed: ObservedBatch, watermark: int | None
) -> tuple[int, LateRows]:
    """Count the late rows of a batch, and return those that go to a topic of their own.

    Rows of a source without ``late=`` are late if they are earlier than ``watermark``.
    """
    judged = unjudged = 0
    routed = list[tuple[str, LateRow]]()
    for spec, found in observed.inputs:
        if spec.late is None:
            if found.is_late(watermark):
                rows = rows_of(spark, spec, observed.start, observed.end).where("kind = 'row'")
                unjudged += rows.where(F.unix_millis("event_time") < F.lit(watermark)).count()
        elif found.late:
            judged += found.late
            text = "job %s, late=%r: %d late row(s), %d of them in idle or unknown partitions, the first at %s"
            _log.warning(text, job, spec.late, found.late, found.late_by_batch, found.late_at)
            if spec.late_topic is not None:
                routed += [(spec.late_topic, row) for row in _late_rows(spark, spec, observed.start, observed.end)]
    if unjudged:
        text = (
            "job %s: %d row(s) behind the watermark %s; Spark drops those of closed windows, joins and dropDuplicates, "
            "and keeps the others. To decide it yourself, pass late="
        )
        _log.warning(text, job, unjudged, iso(watermark))
    return judged + unjudged, routed


def _late_rows(spark: SparkSession, spec: SourceSpec, start: Offsets, end: Offsets) -> list[LateRow]:
    """Return the late rows of a batch in the order of the log, judged again by the same thresholds."""
    late = rows_of(spark, spec, start, end).where("late")
    picked = late.select(
        *("topic", "partition", "offset", "key", "raw", "headers"),
        *(F.unix_millis("event_time").alias("event_time"), "threshold.watermark", "threshold.of_partition"),
    )
    found = [LateRow(**row.asDict()) for row in picked.withColumnRenamed("raw", "value").collect()]
    return sorted(found, key=lambda row: (row.topic, row.partition, row.offset))
