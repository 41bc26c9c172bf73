"""Read the offsets of one batch a second time, outside the streaming query: exact whatever tasks are run again."""

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
"""Options of a streaming read that say which records it reads."""


def observation(
    spark: SparkSession, spec: SourceSpec, metrics: Mapping[str, Any], start: Offsets, end: Offsets
) -> Observation:
    """Return what a batch observed of a source, from its metrics where they are exact, else by reading it again.

    A limit that is full ends the tasks that read, so that they observe less than all: where offsets are missing, it may
    have been so.

    Args:
        spark: the session.
        spec: the source.
        metrics: what Spark observed of it, right after the batch ran; empty where nothing was.
        start: where the batch begins; partitions not named are new, and begin with their first record.
        end: where it ends.
    """
    observed = Observation.of(metrics, spec.topics)
    expected = sum(abs(at - start.get(place, 0)) for place, at in end.items() if place[0] in spec.topics)
    if observed.exact and observed.total >= (expected if spec.limited else min(expected, 1)):
        return observed
    _log.info("the counts of %s are taken by reading the batch again", ", ".join(spec.topics))
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
    """Return the records of a source between some offsets as Kafka has them, as a batch DataFrame."""
    ends = {place: at for place, at in end.items() if place[0] in spec.topics}
    options = {name: value for name, value in spec.connection.source_options().items() if name.lower() not in _BOUNDS}
    return spark.read.format("kafka").options(**options, **range_options(start, ends)).load()
