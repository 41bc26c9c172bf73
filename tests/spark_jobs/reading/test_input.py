"""What a job does with records that cannot be rows, with where its input begins, and with times that are derived."""

import json
import logging
from datetime import UTC, datetime, timedelta

import pytest
from floodmark.producers import Observer
from floodmark.schemas.errors import ChangedQueryError, UnreadableTopicError, UsageError
from floodmark.spark_jobs import event_time, formats, local_session, write
from floodmark.spark_jobs.reader import _load
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.harness import until
from support.json_source import BASE, LIMIT, SCHEMA, keep, windows

pytestmark = pytest.mark.spark


def unusable(job):
    return {
        name: job.counts[name]
        for name in ("unreadable", "missing_event_time", "out_of_range", "late")
        if job.counts[name]
    }


OPERATORS = {
    "map": lambda rows: rows.select("k"),
    "window": windows,
    "dedup": lambda rows: rows.dropDuplicates(["k", "at"]).select("k"),
    "session": lambda rows: rows.groupBy("k", F.session_window("at", "1 seconds")).count().select("count"),
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_times_that_no_watermark_can_judge_are_counted(source, rows, checkpoint, operator, caplog):
    for time in (-5, 0, BASE):
        source.send(time)
    source.raw({"k": "k", "at": 1_700_000_000_000})  # milliseconds, read as seconds
    source.raw({"k": "k", "at": "9999-12-31T00:00:00Z"})
    source.end()
    with caplog.at_level(logging.WARNING):
        job, kept = keep(OPERATORS[operator](rows()), checkpoint)
        job.awaitTermination(LIMIT)
    assert len(kept) == 1
    assert unusable(job) == {"out_of_range": 4}
    assert any(f"{source.topic}/0@" in line for line in caplog.messages)


def test_another_unit_on_old_state_is_refused(source, rows, checkpoint):
    """Its times would not be those of the rows in the state, and the results would be wrong."""

    def start(unit, query=windows):
        return keep(query(rows(value=formats.json(SCHEMA, unit=unit))), checkpoint)[0]

    source.send(BASE)
    job = start("ms")
    job.processAllAvailable(LIMIT)
    job.stop()
    for unit in ("us", None):
        with pytest.raises(ChangedQueryError) as caught:
            start(unit)
        about = f"of the times in {source.topic}"
        found = caught.value.stored, caught.value.found
        assert found == (f"unit='ms' {about}", f"unit={unit or 's'!r} {about}")
    start("ms").stop()


def test_another_time_zone_on_old_state_is_refused(source, rows, checkpoint, spark):
    """Text without a zone would be read as other times."""
    zone = "spark.sql.session.timeZone"

    def start(name):
        spark.conf.set(zone, name)
        return keep(windows(rows()), checkpoint)[0]

    try:
        source.send(BASE)
        job = start("Europe/Berlin")
        job.processAllAvailable(LIMIT)
        job.stop()
        with pytest.raises(ChangedQueryError) as caught:
            start("Etc/UTC")
        about = f"of the times in {source.topic}"
        found = caught.value.stored, caught.value.found
        assert found == (f"unit='s' and time zone 'Europe/Berlin' {about}", f"unit='s' {about}")
        start("Europe/Berlin").stop()
        result = windows(rows())
        assert local_session("another cell").conf.get(zone) == "Europe/Berlin"
        local_session("another cell", settings={zone: "UTC"})
        with pytest.raises(UsageError, match=r"timeZone was 'Europe/Berlin' in read\(\), and is 'UTC' now"):
            keep(result, checkpoint)
    finally:
        spark.conf.set(zone, "UTC")


def test_another_event_time_of_the_same_name_on_old_state_is_refused(source, rows, checkpoint):
    """Its windows would have rows of both times."""
    second = "date_trunc('second', at) AS time"

    def start(time):
        query = rows(event_time=time).groupBy(F.window("time", "10 seconds")).count()
        return keep(query.select("count"), checkpoint)[0]

    source.send(BASE)
    job = start(second)
    job.processAllAvailable(LIMIT)
    job.stop()
    with pytest.raises(ChangedQueryError, match=f"of the rows in {source.topic}") as caught:
        start("at AS time")
    assert "event_time=date_trunc(second, at, Some(UTC)) AS time" in caught.value.stored
    start(second).stop()


def test_other_promises_on_old_progress_are_refused(source, rows, checkpoint):
    """A source keeps the watermark that its marks gave it before, which may be too high now, also without state."""

    def start(shift=0, **options):
        return keep(event_time(rows(**options), "at", shift=timedelta(seconds=shift)), checkpoint)[0]

    source.send(BASE)
    job = start(percentile=50)
    job.processAllAvailable(LIMIT)
    job.stop()
    about = f"of the marks in {source.topic}"
    before, shifted = f"percentile=50, shift=0:00:00 {about}", f"shift=0:01:30 {about}"
    for options, change in (
        ({}, (before, "nothing in its place")),
        ({"percentile": 90}, (before, f"percentile=90, shift=0:00:00 {about}")),
        ({"percentile": 50, "shift": 90}, (before.partition(", ")[2], shifted)),
    ):
        with pytest.raises(ChangedQueryError) as caught:
            start(**options)
        assert (caught.value.stored, caught.value.found) == change
    start(percentile=50).stop()


def test_garbage_is_unreadable_and_a_row_without_a_time_is_counted(source, rows, checkpoint):
    for value in (b"{", b"[]", b"null", b"\xff", b'{"at": "2024-13-01"}', b'{"k": 1, "at": true}'):
        source.raw(value)
    for value in ({"k": "k"}, {"k": "k", "at": None}):
        source.raw(value)
    source.send(BASE)
    source.end()
    job, kept = keep(windows(rows()), checkpoint)
    job.awaitTermination(LIMIT)
    assert unusable(job) == {"unreadable": 6, "missing_event_time": 2}
    assert kept == [(BASE + 10_000, 1)]


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ({"k": "k", "at": 1_700_000_000_000}, 'use unit="ms" instead of "s"'),
        ({"k": "k", "time": 5}, "event_time="),
        (b"\x00garbage", "value="),
    ],
)
def test_an_input_without_one_usable_row_is_an_error_with_its_cause(source, rows, checkpoint, value, cause):
    source.raw(value)
    source.raw(value)
    job, _ = keep(windows(rows()), checkpoint)
    job.processAllAvailable(LIMIT)
    job.stop()
    source.end()
    job, _ = keep(windows(rows()), checkpoint)
    with pytest.raises(UnreadableTopicError, match=cause):
        job.awaitTermination(LIMIT)
    job.stop()


def test_results_are_not_complete_before_a_row_is_usable(source, rows, checkpoint):
    """Or a job with the right unit, which continues where these results end, would leave out what it can read."""
    batches = []

    def run(mark):
        source.mark(mark)
        job, _ = keep(windows(rows()), checkpoint, on_batch=batches.append)
        job.processAllAvailable(LIMIT)
        job.stop()

    source.raw({"k": "k", "at": 1_700_000_000_000})  # milliseconds, read as seconds
    run(BASE)
    assert (batches[-1].watermark, {batch.output for batch in batches}) == (BASE, {None})
    source.send(BASE + 1)
    run(BASE + 60_000)
    assert BASE <= batches[-1].output <= BASE + 60_000


def test_an_input_without_any_row_is_a_success(source, rows, checkpoint):
    source.end()
    job, kept = keep(windows(rows()), checkpoint)
    job.awaitTermination(LIMIT)
    assert kept == []


def test_milliseconds_are_read_in_their_unit(source, rows, checkpoint):
    source.raw({"k": "k", "at": 1_700_000_000_000}, 1_700_000_000_000)
    source.end()
    job, kept = keep(windows(rows(value=formats.json(SCHEMA, unit="ms"))), checkpoint)
    job.awaitTermination(LIMIT)
    assert (kept, unusable(job)) == ([(1_700_000_010_000, 1)], {})


@pytest.mark.parametrize("how", ["startingTimestamp", "STARTINGOFFSETSBYTIMESTAMP", "startingoffsets", "latest"])
def test_what_stands_before_the_start_is_not_lost(kafka, source, rows, checkpoint, how):
    source.send(*range(BASE, BASE + 20))
    source.mark(BASE + 20)
    cut = max(record.log_time for record in _records(kafka, source.topic)) + 1
    until(lambda: datetime.now(UTC).timestamp() * 1000 > cut, "the next millisecond")
    position = {"0": 22}  # two marks and twenty rows before it
    options = {
        "startingTimestamp": {"startingTimestamp": str(cut)},
        "STARTINGOFFSETSBYTIMESTAMP": {"STARTINGOFFSETSBYTIMESTAMP": json.dumps({source.topic: {"0": cut}})},
        "startingoffsets": {"startingoffsets": json.dumps({source.topic: position})},
        "latest": {"startingOffsets": "latest"},
    }

    def begin():
        return keep(rows(source_options=options[how]), checkpoint)

    if how == "latest":
        job, kept = begin()
        job.processAllAvailable(LIMIT)
        assert "has older marks, omit the source option startingOffsets" in job.holders()[0].sentence
    source.send(BASE + 30, BASE + 31)
    source.mark(BASE + 40)
    if how != "latest":  # Spark looks for a time at once, and some record has to have it
        job, kept = begin()
    job.processAllAvailable(LIMIT)
    source.send(BASE + 10)  # late, so that its batch is read again to count it
    source.end()
    job.awaitTermination(LIMIT)
    assert len(kept) == 3
    assert (job.counts["lost"], job.counts["surplus"]) == (0, 0)


def _records(kafka, topic):
    found = []
    with Observer(kafka.config, [topic]) as observer:
        until(lambda: found.extend(observer.poll()) or len(found) >= 22, "all records")
    return found


@pytest.mark.parametrize(
    ("schema", "reason"),
    [("k STRING, n BIGINT", "'n'"), ("at BIGINT", "'at' is a timestamp, and its JSON cannot be read as bigint")],
)
def test_columns_that_a_format_needs_are_asked_for_at_the_start(rows, topic, checkpoint, schema, reason):
    with pytest.raises(UsageError, match=reason):
        write(
            rows(),
            topic=topic(1),
            value=formats.json(schema),
            event_time="at",
            checkpoint_location=checkpoint,
        )


def test_a_session_without_the_kafka_connector_is_told_what_it_lacks():
    class Reader:
        def format(self, name):
            # As Spark says it of Kafka, while the jars of this session are there.
            raise AnalysisException(f"Failed to find data source: {name}. Please deploy the application as ...")

    class Session:
        readStream = Reader()  # noqa: N815  # Spark's name

    with pytest.raises(UsageError, match=r"packages\(\)"):
        _load(Session(), {})
