"""What a job hands on: no later row of it lies below its marks, whatever its operators, and the marks move."""

import json
import random
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest
from floodmark.producers import Data, Mark, Observer, WatermarkedProducer, explicit
from floodmark.schemas import END_OF_TIME
from floodmark.schemas.errors import PromiseBrokenError
from floodmark.spark_jobs import ReadOptions, WriteOptions, event_time, formats, read, write
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.harness import until

pytestmark = pytest.mark.spark

_LIMIT = 300
_BASE = 1_000_000
_OUTPUT = {"value": formats.json("at TIMESTAMP, n LONG"), "event_time": "at"}


class Feed:
    """A topic with one source, its rows and its marks."""

    def __init__(self, spark, kafka, topic):
        self._spark, self._kafka, self._rows = spark, kafka, None
        self.topic = topic(1)
        self.producer = WatermarkedProducer(
            kafka.config, topic=self.topic, source="a", strategy=explicit(), interval=timedelta(hours=1)
        )

    def rows(self, **options):
        if self._rows is None:
            self._rows = read(
                self._spark,
                topics=self.topic,
                value=formats.json("k STRING, at TIMESTAMP"),
                event_time="at",
                bootstrap_servers=self._kafka.bootstrap_servers,
                options=ReadOptions(**options),
            )
        return self._rows

    def send(self, *times, key="k"):
        for time in times:
            at = datetime.fromtimestamp((_BASE + time) / 1000, UTC)
            self.producer.produce(json.dumps({"k": key, "at": str(at)}).encode(), event_time=_BASE + time)

    def mark(self, watermark):
        self.producer.advance(_BASE + watermark)
        self.producer.flush()


@pytest.fixture
def feeds(spark, kafka, topic):
    return Feed(spark, kafka, topic), Feed(spark, kafka, topic)


def joined(left, right, **options):
    other = right.rows(**options).select(F.col("k").alias("k2"), F.col("at").alias("at2"))
    bound = F.expr("k = k2 AND at2 BETWEEN at AND at + INTERVAL 10 SECONDS")
    return left.rows(**options).join(other, bound)


def windows(rows, column="at", width="10 seconds"):
    return rows.groupBy(F.window(column, width)).agg(F.count("*").alias("n"))


def ends(grouped):
    return grouped.select(F.col("window.end").alias("at"), "n")


def stateful_function(left, _right, **options):
    def remember(_key, frames, state):
        """Give each key's first row 5 s after it, when the watermark allows."""
        first = state.get[0] if state.exists else None
        if not state.hasTimedOut:
            times = [int(frame["ms"].min()) for frame in frames]
            first = min(times if first is None else [first, *times])
        if first + 5000 > state.getCurrentWatermarkMs():
            state.update((first,))
            state.setTimeoutTimestamp(first + 5000)
            return
        if state.exists:
            state.remove()
        yield pd.DataFrame({"at": pd.to_datetime([first + 5000], unit="ms"), "n": [1]})

    keyed = left.rows(**options).withColumn("ms", F.unix_millis("at")).groupBy("k")
    return keyed.applyInPandasWithState(remember, "at TIMESTAMP, n LONG", "s LONG", "append", "EventTimeTimeout")


QUERIES = {
    "map": lambda a, _, **o: a.rows(**o).select("at", F.lit(1).cast("long").alias("n")),
    "window": lambda a, _, **o: ends(windows(a.rows(**o))),
    "window of windows": lambda a, _, **o: ends(windows(windows(a.rows(**o)), "window", "20 seconds")),
    "join, the older time": lambda a, b, **o: joined(a, b, **o).select("at", F.lit(1).cast("long").alias("n")),
    "join, then a window": lambda a, b, **o: ends(windows(joined(a, b, **o), "at2")),
    "union of a window and a map": lambda a, b, **o: ends(windows(a.rows(**o))).union(
        b.rows(**o).select("at", F.lit(1).cast("long"))
    ),
    "union of a window and a join": lambda a, b, **o: ends(windows(a.rows(**o))).union(
        joined(a, b, **o).select("at", F.lit(1).cast("long"))
    ),
    "applyInPandasWithState": stateful_function,
    "dropDuplicates": lambda a, _, **o: a.rows(**o).dropDuplicates(["k", "at"]).selectExpr("at", "1L AS n"),
    "a limit": lambda a, _, **o: a.rows(**o).limit(50).selectExpr("at", "1L AS n"),
}


_MARKS = {
    "dropDuplicates": pytest.mark.newest_spark,
    "union of a window and a join": pytest.mark.newest_spark,
}
"""Some run on the newest Spark, too."""


@pytest.mark.parametrize(
    ("name", "windows_close"),
    [
        *(pytest.param(name, "after", marks=_MARKS.get(name, ())) for name in QUERIES),
        ("join, then a window", "at"),
    ],
)
def test_no_row_comes_behind_a_mark(kafka, topic, feeds, checkpoint, name, windows_close):
    """Random input in many batches, no hold: the job does not fail, and its topic keeps its promises to the end."""
    chance = random.Random(name)  # noqa: S311  # a repeatable stream
    watermark = 0
    for _ in range(7):
        for feed in feeds:
            feed.send(*(watermark + chance.randrange(15_000) for _ in range(4)), key=chance.choice("kl"))
        watermark += chance.choice([1, 4_999, 5_000, 5_001, 9_999, 10_000, 10_001])
        for feed in feeds:
            feed.mark(watermark)
    for feed in feeds:
        feed.producer.end()
    out, batches = topic(1), []
    query = QUERIES[name](*feeds, max_offsets_per_trigger=10)
    options = WriteOptions(windows_close=windows_close, on_batch=batches.append)
    write(query, topic=out, checkpoint_location=checkpoint, options=options, **_OUTPUT).awaitTermination(_LIMIT)
    marks, rows = kept_promises(kafka.config, out)
    assert rows > 0
    assert len(marks) > 3
    assert batches[-1].output == END_OF_TIME


def kept_promises(config, topic):
    """Read a topic to its end; return its marks and the number of its rows, each checked against the mark before it."""
    marks, rows = [], 0
    with Observer(config, [topic]) as observer:
        tracker = observer.trackers[topic]

        def ended():
            nonlocal rows
            for record in observer.poll():
                if isinstance(record, Mark):
                    if record.record.watermark is not None:
                        marks.append(record.record.watermark)
                elif isinstance(record, Data):
                    rows += 1
                    at = datetime.fromisoformat(json.loads(record.value)["at"]).timestamp() * 1000
                    assert not marks or at >= marks[-1]
            tracker.advance()
            return tracker.ended

        until(ended, "the end of the output")
    return marks, rows


@pytest.mark.parametrize(
    ("watermark", "output", "rows"),
    [
        # Rows of the join are at most 10 s older than its input's watermark, less the 1 ms of an inclusive bound.
        (10_000, -1, 0),
        (10_001, 0, 0),
        (20_000, 9_999, 0),
        (20_001, 10_000, 0),
        pytest.param(20_002, 10_001, 1, marks=pytest.mark.newest_spark),
    ],
)
def test_a_window_behind_a_join_is_handed_on_when_the_join_is_complete(
    topic, feeds, checkpoint, watermark, output, rows
):
    left, right = feeds
    left.send(1)
    right.send(2)
    batches = []
    options = WriteOptions(on_batch=batches.append)
    query = QUERIES["join, then a window"](left, right)
    job = write(query, topic=topic(1), checkpoint_location=checkpoint, options=options, **_OUTPUT)
    for feed in feeds:
        feed.mark(watermark)
    until(lambda: job.watermark == _BASE + watermark, "the watermark")
    job.processAllAvailable(_LIMIT)
    job.stop()
    assert batches[-1].output == _BASE + output
    assert sum(batch.rows for batch in batches) == rows


@pytest.mark.newest_spark
def test_a_session_that_ends_between_two_milliseconds_is_not_behind_the_mark_before_it(kafka, topic, feeds, checkpoint):
    left, _ = feeds
    rows = event_time(left.rows().withColumn("at", F.expr("at + INTERVAL 500 MICROSECONDS")), "at")
    sessions = rows.groupBy("k", F.session_window("at", "10 seconds")).agg(F.count("*").alias("n"))
    ended = sessions.select(F.col("session_window.end").alias("at"), "n")
    left.send(1)
    left.mark(10_002)  # a watermark without microseconds, which Spark gets a millisecond lower
    out = topic(1)
    job = write(ended, topic=out, checkpoint_location=checkpoint, **_OUTPUT)
    until(lambda: job.watermark == _BASE + 10_002, "the watermark")
    job.processAllAvailable(_LIMIT)
    left.mark(10_003)
    left.producer.end()
    job.awaitTermination(_LIMIT)
    marks, rows = kept_promises(kafka.config, out)
    assert (_BASE + 10_001 in marks, rows) == (True, 1)


def test_a_late_row_does_not_switch_the_check_off(topic, feeds, checkpoint):
    """The window starts below the mark; the row is late, but no excuse: the window drops late rows itself."""
    left, _ = feeds
    started = windows(left.rows()).select(F.col("window.start").alias("at"), "n")
    options = WriteOptions(watermark_hold=timedelta(0))
    job = write(started, topic=topic(1), checkpoint_location=checkpoint, options=options, **_OUTPUT)
    left.send(1)
    left.mark(5_000)
    until(lambda: job.watermark == _BASE + 5_000, "the watermark")
    job.processAllAvailable(_LIMIT)
    left.send(2)
    left.mark(10_001)
    with pytest.raises(PromiseBrokenError, match="hold="):
        job.awaitTermination(_LIMIT)
