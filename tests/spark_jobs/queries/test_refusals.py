"""What no watermark can drive is refused where it starts, by name and with a way out; and an edited query is, too."""

import json
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from floodmark.producers import WatermarkedProducer, ascending
from floodmark.producers.clients.admin import end_offsets
from floodmark.schemas import END_OF_TIME
from floodmark.schemas.errors import (
    ChangedQueryError,
    DeadlineError,
    JobFailedError,
    MissingSnapshotError,
    PlainQueryError,
    UnreadInputError,
    UnsupportedQueryError,
    UsageError,
)
from floodmark.spark_jobs import Start, write
from floodmark.spark_jobs.internals.texts import meaning
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.counting import WIDTH, counted, read_events, windowed
from support.harness import Stream, drain, events, window_counts

pytestmark = [pytest.mark.spark, pytest.mark.every_spark]

_LIMIT = 300


@pytest.fixture
def rows(spark, kafka, topic):
    return read_events(spark, kafka.bootstrap_servers, topic(1))


@pytest.fixture
def others(spark, kafka, topic):
    """Give the rows of another topic, under other names."""
    return read_events(spark, kafka.bootstrap_servers, topic(1)).selectExpr("user AS name", "at AS then")


def keep(rows):
    return lambda frame, _: rows.extend(frame.collect())


def counted_by(column):
    return lambda rows, _: rows.groupBy(column).count()


def by_the_clock(rows, _):
    def nothing(_key, _frames, _state):
        yield from ()

    return rows.groupBy("user").applyInPandasWithState(nothing, "n LONG", "n LONG", "append", "ProcessingTimeTimeout")


def with_state(rows):
    def nothing(_key, _frames, _state):
        yield from ()

    return rows.groupBy("user").applyInPandasWithState(nothing, "n LONG", "n LONG", "append", "EventTimeTimeout")


BETWEEN = "user = name AND then BETWEEN at AND at + INTERVAL 10 SECONDS"
REFUSED = {
    "a second event time": (lambda rows, _: windowed(rows.withWatermark("at", "1 hour")), {}, "withWatermark is not"),
    "an order": (lambda rows, _: rows.orderBy("at"), {}, "sorting is not supported: .*leave orderBy.. out"),
    "a join without a time bound": (lambda a, b: a.join(b, F.expr("user = name")), {}, "a join of streams.*BETWEEN"),
    "a join with half a bound": (lambda a, b: a.join(b, F.expr("user = name AND then >= at")), {}, "a join of streams"),
    "two event times without duplicates": (
        lambda a, b: a.join(b, F.expr(BETWEEN)).dropDuplicates(),
        {},
        "Deduplicate is not supported: .* event times at, then, .*unix_millis",
    ),
    "two event times in groups": (
        lambda rows, _: rows.withColumn("copy", F.col("at")).groupBy(F.window("at", "1 second"), "copy").count(),
        {},
        "Aggregate is not supported: .* event times window, copy, ",
    ),
    "two event times on one side of a join": (
        lambda a, b: a.withColumn("copy", F.col("at")).join(b, F.expr(BETWEEN)),
        {},
        "Join is not supported: .* event times at, copy, ",
    ),
    "two event times with a function's state": (
        lambda rows, _: with_state(rows.withColumn("copy", F.col("at"))),
        {},
        "WithState is not supported: .* event times at, copy, ",
    ),
    "complete": (lambda rows, _: windowed(rows), {"output_mode": "complete"}, "output_mode='complete'.*'append'"),
    "once": (lambda rows, _: windowed(rows), {"trigger": {"once": True}}, "trigger 'once'.*availableNow"),
    "continuous": (lambda rows, _: rows, {"trigger": {"continuous": "1 second"}}, "trigger 'continuous'"),
    "real time": (lambda rows, _: rows, {"trigger": {"realTime": "1 second"}}, "trigger 'realTime'"),
    "no event time in append": (counted_by("user"), {}, "aggregations.*watermark.*window of the event time"),
    "a window of a time that the query computes": (
        lambda rows, _: windowed(rows.withColumn("at", F.date_trunc("minute", "at"))),
        {},
        r"aggregations.*watermark.*the event time is at, .*event_time\(rows, column, shift=\)",
    ),
    "sessions without another key": (
        lambda rows, _: rows.groupBy(F.session_window("at", "8 seconds")).count(),
        {},
        "session_window is not supported: .*another key",
    ),
    "sessions with a key that is the same for all rows": (
        lambda rows, _: rows.groupBy(F.lit("all"), F.session_window("at", "8 seconds")).count(),
        {},
        "session_window is not supported: .*another key",
    ),
    "an outer join in update": (
        lambda a, b: a.join(b, F.expr(BETWEEN), "leftOuter"),
        {"output_mode": "update"},
        "the query is not supported: .*Update output mode",
    ),
    "timers by the clock": (by_the_clock, {}, "WithState is not supported: it follows the clock"),
    "a plain stream beside": (
        lambda rows, _: rows.select("at").union(
            rows.sparkSession.readStream.format("rate")
            .load()
            .selectExpr("timestamp AS at")
            .withWatermark("at", "1 second")
        ),
        {},
        "the stream .*not from read.*floodmark inject",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_watermark_can_drive_is_refused_at_the_start(rows, others, checkpoint, name):
    query, options, message = REFUSED[name]
    with pytest.raises(UnsupportedQueryError, match=f"(?s){message}"):
        write(query(rows, others), writer=keep([]), job="j", checkpoint_location=checkpoint, **options)
    assert not Path(checkpoint).exists()


def test_the_start_of_a_session_is_refused_as_event_time(rows, topic, checkpoint):
    sessions = rows.groupBy("user", F.session_window("at", "1 minute")).count()
    started = sessions.select("user", F.col("session_window.start").alias("ended"), F.col("count").alias("n"))
    with pytest.raises(UnsupportedQueryError, match="longest session"):
        counted(started, topic(1), checkpoint)
    assert not Path(checkpoint).exists()


@pytest.mark.parametrize("setting", ["statefulOperator.allowMultiple", "noDataMicroBatches.enabled"])
def test_settings_that_would_stop_the_watermark_are_refused(spark, rows, checkpoint, setting):
    name = f"spark.sql.streaming.{setting}"
    spark.conf.set(name, "false")
    try:
        with pytest.raises(UnsupportedQueryError, match=f"{name}=false.*leave it on"):
            write(windowed(rows), writer=keep([]), job="j", checkpoint_location=checkpoint)
    finally:
        spark.conf.unset(name)


def test_a_plain_query_over_read_is_refused_and_others_are_not(spark, rows, tmp_path):
    with pytest.raises(PlainQueryError, match=r"write\(\)"):
        windowed(rows).writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(PlainQueryError):
        rows.writeStream.option("checkpointLocation", str(tmp_path)).toTable("t")
    rate = spark.readStream.format("rate").load()
    rate.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "rate")).start().stop()


@pytest.mark.newest_spark
def test_joins_that_bound_both_sides_and_tables_are_taken(spark, kafka, topic, checkpoint):
    """And a writer may run as many actions as it likes after the job has asked the operators how far they are."""
    given, taken = [topic(1), topic(1)], []
    for name in given:
        Stream({"a": [([5, 7], 10), ([12], 20)]}).produce(kafka.config, name)
    left, right = (read_events(spark, kafka.bootstrap_servers, name) for name in given)
    table = spark.createDataFrame([("u0",), ("u2",)], "user STRING")
    equal = left.join(right.selectExpr("user AS name", "at AS then"), F.expr("user = name AND then = at"))

    def writer(frame, _):
        taken.extend(frame.collect())
        frame.count()

    write(equal.join(table, "user"), writer=writer, job="j", checkpoint_location=checkpoint).awaitTermination(_LIMIT)
    assert sorted(row.user for row in taken) == ["u0", "u2", "u2"]


def lines(frame):
    from floodmark.spark_jobs.internals.analysed import operators  # noqa: PLC0415

    return meaning(operators(frame, lambda name: name.startswith("floodmark-read")))


def test_the_meaning_of_a_query_is_the_same_for_equal_plans_and_for_no_others(spark, kafka, topic):
    given = topic(1)

    def fresh():
        return read_events(spark, kafka.bootstrap_servers, given)

    def hinted():
        return windowed(fresh().alias("e").hint("broadcast").observe("mine", F.count(F.lit(1))))

    base = lines(windowed(fresh()))
    assert base == lines(windowed(fresh())) == lines(hinted())
    assert base == lines(windowed(fresh()).select("user", "n").where("n > 3"))  # behind the state: free
    assert lines(fresh().select("user")) == []
    others = [
        windowed(fresh(), width=5_000),
        windowed(fresh().where("user > 'u1'")),
        fresh().groupBy(F.window("at", "10 seconds")).count(),
        fresh().groupBy("user", F.session_window("at", "10 seconds")).count(),
        fresh().dropDuplicates(["user", "at"]),
        fresh().dropDuplicates(["at"]),
        fresh().limit(3),
        windowed(fresh()).limit(3),
    ]
    meanings = [base, *map(lines, others)]
    assert len({json.dumps(found) for found in meanings}) == len(meanings)


def test_chance_in_a_query_changes_nothing_of_its_meaning_and_its_own_values_do(spark, kafka, topic):
    given = topic(1)

    def meaning_with(*columns):
        rows = read_events(spark, kafka.bootstrap_servers, given).withColumn("all", F.array("user"))
        return json.dumps(lines(windowed(rows.select("*", *columns))))

    def by_chance(order):
        return meaning_with(
            F.rand(),
            F.randn(),
            F.expr("uuid()"),
            F.shuffle("all"),
            F.randstr(F.lit(5)),
            F.uniform(F.lit(1), F.lit(5)),
            F.expr("shuffle(concat(all, array(uuid())))"),
            F.col("user").isin(order),
            F.transform("all", lambda one: F.concat(one, F.lit("x"))),
        )

    names = ["a", "b", "c (d)"]
    assert by_chance(names) == by_chance(names[::-1])
    own = [
        F.rand(7),
        F.rand(8),
        F.shuffle("all", 7),
        F.shuffle("all", 8),
        F.col("user").isin(["a"]),
        F.rand(),
        F.randn(),
    ]
    assert len({meaning_with(column) for column in own}) == len(own)


@pytest.mark.newest_spark
def test_names_of_a_with_clause_are_what_they_stand_for(spark, kafka, topic, checkpoint):
    given, found = topic(1), []
    Stream({"a": [([5, 7], 10), ([12], 20)]}).produce(kafka.config, given)
    read_events(spark, kafka.bootstrap_servers, given).createOrReplaceTempView("events")
    counts = "SELECT user, window.end AS ended, count(*) AS n FROM {} GROUP BY user, window(at, '10 seconds')"
    named = spark.sql(" ".join(["WITH some AS (SELECT * FROM events WHERE user <> 'u2')", counts.format("some")]))
    assert lines(named) == lines(spark.sql(counts.format("(SELECT * FROM events WHERE user <> 'u2')")))
    both = "SELECT * FROM some UNION ALL SELECT * FROM others"
    twice = "WITH some AS (SELECT user, at FROM events), others AS (SELECT * FROM some WHERE user = 'u2')"
    union = spark.sql(f"{twice} {counts.format(f'({both})')}")
    write(union, writer=keep(found), job="j", checkpoint_location=checkpoint).awaitTermination(_LIMIT)
    assert sorted((row.user, row.n) for row in found) == [("u0", 1), ("u2", 4)]


@pytest.mark.newest_spark
def test_an_edited_query_on_an_old_checkpoint_is_refused(spark, kafka, topic, checkpoint):
    given, out = topic(1), topic(1)
    Stream.seeded(21, sources=1, steps=2).produce(kafka.config, given, end=False)

    def start(width=10_000, **options):
        return counted(windowed(read_events(spark, kafka.bootstrap_servers, given), width), out, checkpoint, **options)

    job = start()
    job.processAllAvailable(_LIMIT)
    job.stop()
    with pytest.raises(ChangedQueryError, match="new checkpoint_location") as caught:
        start(5_000)
    assert (caught.value.stored, caught.value.found) == ("a window of 0:00:10", "a window of 0:00:05")
    for window, change in (
        (F.window("at", "5 seconds"), ("a window of 0:00:10", "a window of 0:00:05")),
        (F.window("at", "10 seconds", "5 seconds"), ("a window of 0:00:10", "a window of 0:00:10 every 0:00:05")),
        (
            F.window("at", "10 seconds", startTime="3 seconds"),
            ("a window of 0:00:10", "a window of 0:00:10 from 0:00:03"),
        ),
        (F.window("at", "10 seconds"), ("count(1) AS count", "approx_count_distinct(user, 0.05, 0, 0) AS count")),
    ):
        grouped = read_events(spark, kafka.bootstrap_servers, given).groupBy("user", window)
        rows = grouped.agg(F.approx_count_distinct("user").alias("count"))
        with pytest.raises(ChangedQueryError) as caught:
            counted(rows.select("user", F.col("window.end").alias("ended"), F.col("count").alias("n")), out, checkpoint)
        assert (caught.value.stored, caught.value.found) == change
    with pytest.raises(ChangedQueryError, match=r"windows_close='after'.*windows_close='at'"):
        start(windows_close="at")
    start().stop()
    noted = Path(checkpoint, "floodmark", "query.json")
    written = noted.read_text()
    noted.unlink()
    Path(noted.parent, f".{noted.name}.crc").unlink(missing_ok=True)
    with pytest.raises(MissingSnapshotError, match=r"floodmark/query\.json is missing; start with .*rebuild=true"):
        start(5_000)
    start(rebuild=True).stop()
    assert noted.read_text() == written
    spark.conf.set("spark.floodmark.same-query", "true")
    try:
        start(windows_close="at").stop()
    finally:
        spark.conf.unset("spark.floodmark.same-query")
    start(windows_close="at").stop()


@pytest.mark.newest_spark
def test_a_changed_gap_of_sessions_is_named(spark, kafka, topic, checkpoint):
    given = topic(1)
    Stream.seeded(21, sources=1, steps=2).produce(kafka.config, given, end=False)

    def start(gap):
        rows = read_events(spark, kafka.bootstrap_servers, given)
        sessions = rows.groupBy("user", F.session_window("at", gap)).count()
        return write(sessions, writer=keep([]), job="j", checkpoint_location=checkpoint)

    job = start("8 seconds")
    job.processAllAvailable(_LIMIT)
    job.stop()
    with pytest.raises(ChangedQueryError) as caught:
        start("9 minutes")
    assert (caught.value.stored, caught.value.found) == ("a session gap of 8 seconds", "a session gap of 9 minutes")


@pytest.mark.newest_spark
def test_an_ended_job_refuses_to_pass_over_what_came_since(spark, kafka, topic, checkpoint):
    given, out = topic(2), topic(1)
    Stream.seeded(22, sources=1, steps=1).produce(kafka.config, given)

    def start():
        return counted(windowed(read_events(spark, kafka.bootstrap_servers, given)), out, checkpoint)

    start().awaitTermination(_LIMIT)
    again = WatermarkedProducer(kafka.config, topic=given, source="source-0", strategy=ascending())
    again.end()
    start().awaitTermination(_LIMIT)  # marks alone: nothing is lost
    more = WatermarkedProducer(kafka.config, topic=given, source="source-0", strategy=ascending())
    for number in range(3):
        value = events.encode({"user": "u", "at": 1_000 + number})
        more.produce(value, event_time=1_000 + number, partition=1)
    more.end()
    with pytest.raises(UnreadInputError, match=f"3 record.*{given}/1 from offset .*new checkpoint_location.*store"):
        start()


def two_runs():
    """Return two runs of one source, of which the second one is later by 100 seconds."""
    first, second = Stream.seeded(22, sources=1, steps=3), Stream.seeded(23, sources=1, steps=3)
    moved = {
        name: [([time + 100_000 for time in times], mark + 100_000) for times, mark in script]
        for name, script in second.steps.items()
    }
    return first, Stream(moved)


@pytest.mark.newest_spark
def test_a_run_that_begins_before_the_last_results_is_refused_and_can_be_continued(spark, kafka, topic, checkpoint):
    given, out = topic(1), topic(1)
    first, second = two_runs()
    first.produce(kafka.config, given)

    def start(place=checkpoint, **options):
        return counted(windowed(read_events(spark, kafka.bootstrap_servers, given)), out, place, **options)

    def write_more(batch):
        assert batch.watermark == END_OF_TIME
        second.produce(kafka.config, given)

    with pytest.raises(UnreadInputError, match=f"{second.size} record.*{given}/0 from offset"):
        start(on_batch=write_more).awaitTermination(_LIMIT)
    with pytest.raises(UnreadInputError, match="published='continue'"):
        start()
    start(f"{checkpoint}-new", start=Start(published="continue")).awaitTermination(_LIMIT)
    assert window_counts(values := drain(kafka.config, out)[0]) == first.windows(WIDTH) + second.windows(WIDTH)
    assert len(values) == len(first.windows(WIDTH) + second.windows(WIDTH))


@pytest.mark.newest_spark
def test_a_run_that_begins_after_an_end_is_read_though_a_batch_ends_between_them(spark, kafka, topic, checkpoint):
    given, out, sizes = topic(1), topic(1), list[int]()
    first, second = two_runs()
    first.produce(kafka.config, given)
    (limit,) = end_offsets(kafka.config, given).values()
    second.produce(kafka.config, given)
    rows = read_events(spark, kafka.bootstrap_servers, given, max_offsets_per_trigger=limit)
    job = counted(windowed(rows), out, checkpoint, on_batch=lambda batch: sizes.append(batch.records))
    job.awaitTermination(_LIMIT)
    assert sizes[0] == limit
    assert (job.ended, job.counts["late"]) == (True, 0)
    assert window_counts(drain(kafka.config, out)[0]) == first.windows(WIDTH) + second.windows(WIDTH)


@pytest.mark.newest_spark
def test_available_now_ends_by_itself_and_says_what_holds(spark, kafka, topic, checkpoint, caplog):
    given, out = topic(1), topic(1)
    stream = Stream.seeded(23, sources=1, steps=2)
    stream.produce(kafka.config, given, end=False)

    def start():
        rows = read_events(spark, kafka.bootstrap_servers, given)
        return counted(windowed(rows), out, checkpoint, trigger={"availableNow": True})

    for _ in range(2):
        job = start()
        with pytest.raises(UsageError, match="timeout is a value of type timedelta, expected a number of seconds"):
            job.awaitTermination(timedelta(seconds=_LIMIT))
        job.awaitTermination(_LIMIT)
        assert not job.ended
        assert f"its input has not ended: {given}/0/source-0: " in caplog.messages[-1], "also without a batch"
    WatermarkedProducer(kafka.config, topic=given, source="source-0", strategy=ascending()).end()
    last = start()
    last.awaitTermination(_LIMIT)
    assert last.ended
    assert len(drain(kafka.config, out)[0]) == len(stream.windows(10_000))


def test_the_cause_of_a_failure_in_python_is_named(spark, kafka, topic, checkpoint):
    given = topic(1)
    Stream.seeded(24, sources=1, steps=1).produce(kafka.config, given)

    def failing(_user: str) -> str:
        message = "no such user"
        raise LookupError(message)

    rows = read_events(spark, kafka.bootstrap_servers, given)
    broken = rows.withColumn("user", F.udf(failing, "string", useArrow=False)("user"))
    job = write(windowed(broken), writer=keep([]), job="j", checkpoint_location=checkpoint)
    with pytest.raises(JobFailedError, match=r"LookupError: no such user$"):
        job.processAllAvailable(_LIMIT)


@pytest.mark.newest_spark
def test_the_work_has_a_deadline(spark, kafka, topic, checkpoint):
    given = topic(1)
    Stream.seeded(25, sources=1, steps=1).produce(kafka.config, given)
    open_ = threading.Event()

    def slow(frame, _):
        open_.wait(_LIMIT)
        frame.collect()

    rows = read_events(spark, kafka.bootstrap_servers, given)
    job = write(windowed(rows), writer=slow, job="j", checkpoint_location=checkpoint)
    ended = "all input has ended, and the last results are not written yet"
    seen = f"(no batch yet|{ended})"  # the batch that waits may have read its records
    with pytest.raises(DeadlineError, match=rf"job 'j' did not process the records within 0\.5 s\. Last seen: {seen}"):
        job.processAllAvailable(0.5)
    open_.set()
    job.awaitTermination(_LIMIT)
