"""Jobs that share one `read` share the expressions of its plan, and Spark asks for their metrics at the same time."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from floodmark.spark_jobs.progress.unusable import UNUSABLE
from floodmark.spark_jobs.reading.observation import Observation, columns, prepared
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

pytestmark = pytest.mark.spark

_MARKS = 2_000
_EACH = 7
_PLANS = 12


@pytest.fixture
def records(spark):
    """Return decoded records of one partition: some marks, and a few of each other kind."""
    kinds = dict(enumerate(("row", "tombstones", *UNUSABLE)))
    number = F.col("id") - _MARKS
    kind = F.coalesce(*(F.when(number % len(kinds) == key, kind) for key, kind in kinds.items()))
    return spark.range(_MARKS + _EACH * len(kinds), numPartitions=2).select(
        F.lit("clicks").alias("topic"),
        F.lit(0).alias("partition"),
        F.col("id").alias("offset"),
        F.timestamp_seconds(F.lit(5)).alias("timestamp"),
        F.lit(b"__floodmark__/web").alias("key"),
        F.lit(b"\0").alias("raw"),
        (number < 0).alias("control"),
        F.spark_partition_id().alias("task"),
        F.lit(None).cast("timestamp").alias("adjusted"),
        F.timestamp_seconds("id").alias("event_time"),
        F.when(number < 0, "mark").otherwise(kind).alias("kind"),
    )


def seen(frame):
    """Run a query, and ask for what it observed as the engine does."""
    frame.collect()
    metrics = frame._jdf.queryExecution().observedMetrics()  # noqa: SLF001  # only the engine asks so early
    row = metrics.apply("floodmark-read-shared")
    names = row.schema().fieldNames()
    return Observation.of({name: row.get(index) for index, name in enumerate(names)}, ["clicks"])


def test_jobs_that_share_a_read_are_asked_at_once(records):
    observed = prepared(records, ["offset"], ["clicks"]).observe("floodmark-read-shared", *columns())
    frames = [observed.where(F.col("offset") >= number) for number in range(_PLANS)]
    with ThreadPoolExecutor(_PLANS) as threads:
        for found in threads.map(seen, frames):
            assert sorted(mark["offset"] for mark in json.loads(found.marks)) == list(range(_MARKS))
            assert (found.rows, found.tombstones, found.exact) == (_EACH, _EACH, True)
            assert found.total == _MARKS + _EACH * (2 + len(UNUSABLE))
            for offset, kind in enumerate(UNUSABLE, _MARKS + 2):
                assert (found.unusable[kind].count, found.unusable[kind].offset) == (_EACH, offset)
