"""Read the offsets of one batch a second time, outside the streaming query."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from floodmark.schemas.classify import Offsets
from floodmark.spark_jobs.internals.checkpoint import range_options
from floodmark.spark_jobs.reading.observation import KINDS, Observation, columns, prepared
from floodmark.spark_jobs.reading.rows import decoded
from floodmark.spark_jobs.reading.source_spec import SourceSpec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

_log = logging.getLogger(__name__)
_BOUNDS: Final = {
    *("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp", "startingoffsetsbytimestampstrategy"),
    *("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp", "subscribe", "subscribepattern"),
    *("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay"),
}
"""Options of a streaming read that select its records."""


def observation(
    spark: SparkSession, spec: SourceSpec, metrics: Mapping[str, Any], start: Offsets, end: Offsets
) -> Observation:
    """Return the observation of a source in one batch: from its metrics, or by a second read if they are not exact.

    A full limit, or a Python function that does not read all of its input, ends tasks before they have read all
    records.  So of a larger batch than ``spec.limited``, all records must be there.  Not each offset has one: Kafka
    takes some for the ends of transactions, and compaction removes records.  If offsets are missing, Spark counts.

    A partition that ``start`` lacks is new and begins with its first record.
    """
    observed = Observation.of(metrics, spec.topics)
    expected = sum(abs(at - start.get(place, 0)) for place, at in end.items() if place[0] in spec.topics)
    if spec.limited is None or expected <= spec.limited:
        expected = min(expected, 1)
    elif observed.exact and 0 < observed.total < expected:
        expected = records_of(spark, spec, start, end).count()
    if observed.exact and observed.total >= expected:
        return observed
    _log.info("%s: the batch is read again for its counts", ", ".join(spec.topics))
    rows = rows_of(spark, spec, start, end).cache()
    try:
        judged = spec.late is not None
        found = prepared(rows, [], spec.topics, judged=judged).agg(*columns(judged=judged)).first()
        kind = F.when(F.col("control"), KINDS[0]).otherwise(F.col("kind"))
        counted = rows.groupBy(kind.alias("kind"), "topic", "partition").count().collect()
    finally:
        rows.unpersist()
    counts = {(row["kind"], row["topic"], row["partition"]): int(row["count"]) for row in counted}
    return Observation.of({} if found is None else found.asDict(), spec.topics, counts)


def rows_of(spark: SparkSession, spec: SourceSpec, start: Offsets, end: Offsets) -> DataFrame:
    """Return the decoded records of a batch, as a batch DataFrame."""
    return decoded(records_of(spark, spec, start, end), spec)


def records_of(spark: SparkSession, spec: SourceSpec, start: Offsets, end: Offsets) -> DataFrame:
    """Return the Kafka records of a source in a batch, as a batch DataFrame."""
    ends = {place: at for place, at in end.items() if place[0] in spec.topics}
    options = {name: value for name, value in spec.connection.source_options().items() if name.lower() not in _BOUNDS}
    return spark.read.format("kafka").options(**options, **range_options(start, ends)).load()
