"""How early a column may be is read from the plan, or not recognised, and no result of fixed windows is earlier."""

from datetime import timedelta

import pytest
from benchmarks import stamps
from floodmark.spark_jobs import drop_duplicates_within, event_time
from floodmark.spark_jobs.internals.stamped import stamp_of
from floodmark.spark_jobs.progress.watermarks import UNLIMITED, Bound, Stamp, spark_watermark
from floodmark.spark_jobs.queries.plan import Windows
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

SECOND = 1_000_000


@pytest.fixture(scope="module")
def rows(spark):
    given_ = spark.readStream.format("rate").load().selectExpr("timestamp AS at", "value AS n")
    return given_.withWatermark("at", "1 second")


def windows(rows, *width):
    picked = [F.min("at").alias("least"), F.max("at").alias("most"), F.min_by("at", "n").alias("by")]
    return rows.groupBy(F.col("n") % 7, F.window("at", *width or ("10 seconds",))).agg(*picked)


def sessions(rows, gap="1 minute 500 milliseconds"):
    return rows.groupBy("n", F.session_window("at", gap)).agg(F.min("at").alias("least"), F.max("at").alias("most"))


def joined(rows):
    bound = F.expr("n = n2 AND at2 BETWEEN at AND at + INTERVAL 10 SECONDS")
    return rows.join(rows.selectExpr("at AS at2", "n AS n2"), bound, "left_outer")


def in_sql(rows):
    rows.createOrReplaceTempView("stamped")
    return rows.sparkSession.sql(
        "WITH w AS (SELECT window.start AS begun, n FROM stamped GROUP BY window(at, '10 seconds', '5 seconds'), n) "
        "SELECT begun AS stamp FROM w WHERE n > 3"
    )


# The query, its time as `stamp`; how much earlier than its completion it may be, microseconds; () if not recognised.
ROWS = {
    "the event time": (lambda rows: rows.select(F.col("at").alias("stamp")), {0}),
    "the same in milliseconds": (lambda rows: rows.selectExpr("timestamp_millis(unix_millis(at)) AS stamp"), {0}),
    "another time": (lambda rows: rows.selectExpr("timestamp_millis(n) AS stamp"), ()),
    "behind Python": (lambda rows: rows.mapInPandas(lambda frames: frames, "stamp TIMESTAMP"), ()),
    "made the event time": (
        lambda rows: event_time(rows.select(F.date_trunc("hour", "at").alias("stamp")), "stamp"),
        {0},
    ),
    "without duplicates": (
        lambda rows: drop_duplicates_within(rows, ["n"], timedelta(seconds=3)).selectExpr("at AS stamp"),
        {0},
    ),
}
ENDS = {
    "end": (lambda rows: windows(rows).selectExpr("window.end AS stamp"), {0}),
    "window_time": (lambda rows: windows(rows).select(F.window_time("window").alias("stamp")), {1}),
    "start": (lambda rows: windows(rows).selectExpr("window.start AS stamp"), {10 * SECOND}),
    "start of sliding windows": (
        lambda rows: windows(rows, "10 seconds", "5 seconds").selectExpr("window.start AS stamp"),
        {10 * SECOND},
    ),
    "in SQL": (in_sql, {10 * SECOND}),
    "earliest row": (lambda rows: windows(rows).selectExpr("least AS stamp"), {10 * SECOND}),
    "latest row": (lambda rows: windows(rows).selectExpr("most AS stamp"), {10 * SECOND}),
    "row of the least number": (lambda rows: windows(rows).selectExpr("by AS stamp"), {10 * SECOND}),
    "one of two": (lambda rows: windows(rows).selectExpr("coalesce(least, window.end) AS stamp"), {10 * SECOND, 0}),
    "earliest start in a window of windows": (
        lambda rows: windows(rows).groupBy(F.window("window", "1 minute")).agg(F.min("window.start").alias("stamp")),
        {70 * SECOND},
    ),
    "latest row of a session": (lambda rows: sessions(rows).selectExpr("most AS stamp"), {60_500_000}),
    "end of a session": (lambda rows: sessions(rows).selectExpr("session_window.end AS stamp"), {0}),
    "start of a session": (lambda rows: sessions(rows).selectExpr("session_window.start AS stamp"), {UNLIMITED}),
    "earliest row of a session": (lambda rows: sessions(rows).selectExpr("least AS stamp"), {UNLIMITED}),
    "latest row of a session with a gap of its own": (
        lambda rows: sessions(rows, F.expr("CASE WHEN n > 3 THEN '5 seconds' ELSE '9 seconds' END")).selectExpr(
            "most AS stamp"
        ),
        (),
    ),
    "left time of an outer join": (lambda rows: joined(rows).selectExpr("at AS stamp"), {0}),
    "a union": (lambda rows: windows(rows).select("least").union(sessions(rows).select("most")).toDF("stamp"), None),
    "the time itself": (lambda rows: rows.groupBy(F.col("at").alias("stamp")).count(), {0}),
    "earliest other time in a window over a join": (
        lambda rows: (
            joined(rows)
            .selectExpr("at2", "timestamp_millis(unix_millis(at)) AS first")
            .groupBy(F.window("at2", "10 seconds"))
            .agg(F.min("first").alias("stamp"))
        ),
        (),
    ),
    "less an hour": (lambda rows: windows(rows).selectExpr("window.end - INTERVAL 1 HOUR AS stamp"), ()),
    "a rollup": (
        lambda rows: (
            rows.withColumn("w", F.window("at", "10 seconds")).rollup("w").count().selectExpr("w.end AS stamp")
        ),
        (),
    ),
}


@pytest.mark.spark
@pytest.mark.every_spark
@pytest.mark.parametrize("name", [*ROWS, *ENDS])
def test_how_early_a_stamp_may_be_is_read_from_the_plan(rows, name):
    query, before = (ROWS | ENDS)[name]
    bounds = stamp_of(query(rows), "stamp").bounds
    assert {bound.before for bound in bounds} == ({10 * SECOND, 60_500_000} if before is None else set(before))
    assert all(bound.is_end is (name in ENDS) for bound in bounds)


@given(
    st.integers(1, 9),
    st.integers(0, 20),
    st.integers(1, 30),
    st.sampled_from([0, 1, 1_000]),
    st.integers(0, 100),
    st.sampled_from(["after", "at"]),
)
def test_the_watermark_is_the_earliest_start_of_an_open_window_or_the_input_s(slide, start, width, micros, at, close):
    """Widths and ends need not be whole milliseconds."""
    kind = Windows(slide * 1_000 + micros, start * 1_000, width * 1_000 + micros)
    ends = [kind.start + kind.width + number * kind.slide for number in range(-400, 400)]
    open_ = min(end for end in ends if end > spark_watermark(at, close) * 1_000)
    starts = Stamp([Bound(before=kind.width, is_end=True, windows=kind)])
    assert starts.output(at, close) == min(at, (open_ - kind.width) // 1_000)


def test_the_picture_of_the_page_shows_what_the_watermarks_are():
    assert stamps.PICTURE.read_text(encoding="utf-8") == stamps.drawn()
