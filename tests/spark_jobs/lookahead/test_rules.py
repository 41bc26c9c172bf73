"""The ends and the widths of a query's windows are those of the columns that it groups by."""

from datetime import timedelta

import pytest
from floodmark.spark_jobs import drop_duplicates_within
from floodmark.spark_jobs.internals.analysed import operators
from floodmark.spark_jobs.lookahead.rules import LookaheadRules
from floodmark.spark_jobs.queries.plan import widths
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

pytestmark = [pytest.mark.spark, pytest.mark.every_spark]
SECOND = 1_000_000


@pytest.fixture(scope="module")
def rows(spark):
    given = spark.readStream.format("rate").load().selectExpr("timestamp AS at", "value AS n", "array(value) AS all")
    return given.withWatermark("at", "1 second")


def two(rows, first=("10 seconds",), second=("1 minute",)):
    return rows.withColumn("one", F.window("at", *first)).withColumn("other", F.window("at", *second))


def in_sql(rows):
    rows.createOrReplaceTempView("given")
    return rows.sparkSession.sql(
        "WITH w AS (SELECT *, window(at, '10 seconds') AS one FROM given), v AS (SELECT *, one AS two FROM w) "
        "SELECT two, count(*) AS n FROM (SELECT *, window(at, '1 minute') AS other FROM v) GROUP BY two"
    )


def rolled_up(rows):
    return rows.withColumn("one", F.window("at", "10 seconds")).rollup("one").count()


def again(rows):
    first = rows.groupBy(F.window("at", "10 seconds")).count()
    return first.withColumn("other", F.window("window", "5 minutes")).groupBy(F.window("window", "1 minute")).count()


# The query; the periods and the ends of its windows, and their width, seconds.
CASES = {
    "tumbling": (lambda rows: rows.groupBy(F.window("at", "10 seconds")), {(10, 0)}, 10),
    "sliding": (lambda rows: rows.groupBy(F.window("at", "10 seconds", "3 seconds", "1 second")), {(3, 2)}, 10),
    "renamed": (lambda rows: rows.groupBy(F.window("at", "10 seconds").alias("w")), {(10, 0)}, 10),
    "the first of two": (lambda rows: two(rows).groupBy("one"), {(10, 0)}, 10),
    "the second of two": (lambda rows: two(rows).groupBy("other"), {(60, 0)}, 60),
    "the first of two that slide": (
        lambda rows: two(rows, ("10 seconds", "3 seconds"), ("1 minute", "7 seconds")).groupBy("one"),
        {(3, 1)},
        10,
    ),
    "renamed, filtered and exploded": (
        lambda rows: (
            two(rows)
            .where("n > 3")
            .withColumnRenamed("one", "w")
            .select("w", "other", F.explode("all").alias("each"))
            .alias("a")
            .groupBy("a.w", "each")
        ),
        {(10, 0)},
        10,
    ),
    "in SQL": (in_sql, {(10, 0)}, 10),
    "a window of windows": (again, {(10, 0), (60, 0)}, 70),
    "the raw time beside a window": (lambda rows: two(rows).groupBy("at"), None, None),
    "the raw time and an end": (
        lambda rows: rows.withColumn("end", F.window("at", "1 minute")["end"]).groupBy("n", "at"),
        None,
        None,
    ),
    "one window or the other": (
        lambda rows: (
            two(rows).withColumn("w", F.when(F.col("n") > 3, F.col("one")).otherwise(F.col("other"))).groupBy("w")
        ),
        None,
        None,
    ),
    "two windows": (lambda rows: two(rows).groupBy("one", "other"), None, None),
    "sessions beside a window": (
        lambda rows: rows.withColumn("one", F.window("at", "10 seconds")).groupBy(F.session_window("at", "5 seconds")),
        None,
        None,
    ),
    "a rollup": (rolled_up, None, None),
    "duplicates within a time": (
        lambda rows: drop_duplicates_within(rows, ["n"], timedelta(seconds=3)).groupBy(F.window("at", "10 seconds")),
        {(10, 0)},
        22,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_windows_are_recognised_by_the_column_that_is_grouped_by_or_not_at_all(rows, name):
    query, ends, width = CASES[name]
    found = query(rows)
    plan = operators(found if hasattr(found, "schema") else found.count(), lambda _: False)
    rules = LookaheadRules.of(plan, output_mode="append", trigger=None)
    grids = None if rules.ends is None else {(period, end) for period, end in rules.ends.grids}
    assert grids == (ends and {(period * SECOND, end * SECOND) for period, end in ends})
    assert widths(plan) == (width and width * 1_000)
