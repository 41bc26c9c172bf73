"""A job that begins at a time of its output: nothing before it, and the first window is whole."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from floodmark.schemas.errors import MissingSnapshotError, RetentionError, UsageError
from floodmark.schemas.timestamps import to_datetime
from floodmark.spark_jobs import ReadOptions, Start, WriteOptions, avro, event_time, read, write
from floodmark.spark_jobs.start import find_start_point
from support import operators
from support.harness import delete_before
from support.streams import ROW, Log, Put, Say, batches_of, total
from support.trial import start

pytestmark = pytest.mark.spark
WIDTH = 10_000
NOON = 1_700_000_000_000 // WIDTH * WIDTH


@pytest.fixture
def source(kafka, spark):
    """Read a topic of rows."""

    def rows(topic, options=ReadOptions()):  # noqa: B008  # frozen
        given = {"value": avro(ROW), "event_time": "at", "bootstrap_servers": kafka.bootstrap_servers}
        return read(spark, topics=topic, options=options, **given)

    return rows


@pytest.fixture
def written(kafka, topic):
    """Write rows that arrive when they happen, or up to three seconds before; returns the topic and the rows.

    One source is silent from early on: only what stands before the start tells that it has ended.  Before these rows,
    both sources have ended a first run.
    """
    name, log = topic(2), Log(2)
    earlier = [Put("quiet", ("a", NOON - 60_000, 1)), Put("busy", ("a", NOON - 60_000, 1), 1)]
    Log(2, [*earlier, Say("quiet", "end"), Say("busy", "end")]).write(kafka.config, name)
    log.entries += [Put("quiet", ("a", NOON, 1)), Say("quiet", "end")]
    for second in range(120):
        now = NOON + 1_000 * second
        log.entries += [Put("busy", ("abc"[second % 3], now + ahead, 1), second % 2) for ahead in (0, 2_999, 1_200)]
        if second % 7 == 6:
            log.entries.append(Say("busy", now))
    log.entries.append(Say("busy", "end"))
    log.write(kafka.config, name, epoch=2)
    return name, log.rows


def windows(rows):
    return operators.Query(operators.one, (operators.tumbling(WIDTH),)).spark([rows])


@pytest.mark.newest_spark
def test_nothing_is_written_before_it_and_the_first_window_is_whole(kafka, topic, source, checkpoint, written, caplog):
    given, rows = written
    out, at = topic(1), NOON + 60_000
    wish = Start(output_at=to_datetime(at), early=timedelta(seconds=3))
    job = start(windows(source(given)), out, checkpoint, start=wish)
    job.processAllAvailable()
    job.stop()
    assert "again to restore its state" not in caplog.text
    assert "output_at is in the future" not in caplog.text
    again = start(windows(source(given)), out, checkpoint)  # who forgets it the second time changes nothing
    again.awaitTermination(60)
    expected = Counter((key, time // WIDTH * WIDTH + WIDTH) for key, time, _ in rows)
    found = {(key, end): n for key, end, n in total(batches_of(kafka.config, out))}
    assert found == {window: n for window, n in expected.items() if window[1] >= at}
    assert again.counts["records"] < len(rows) * 3 / 4, "it has read all"
    with pytest.raises(UsageError, match="has not begun with output_at"):
        start(windows(source(given)), out, checkpoint, start=Start(output_at=to_datetime(at + 1)))
    Path(checkpoint, "floodmark", "start.json").unlink()
    with pytest.raises(MissingSnapshotError, match=r"start\.json is missing; use a new checkpoint_location and a new"):
        start(windows(source(given)), out, checkpoint)


def test_a_time_in_the_future_is_told(kafka, topic, source, checkpoint, written, caplog):
    given, _ = written
    out, wish = topic(1), Start(output_at=datetime(2096, 1, 1, tzinfo=UTC))
    start(windows(source(given)), out, checkpoint, start=wish).awaitTermination(60)
    assert total(batches_of(kafka.config, out)) == Counter()
    assert "output_at is in the future, and it writes no result before: 2096-01-01" in caplog.text


def test_between_two_runs_the_first_one_does_not_end_the_job(kafka, topic, source, checkpoint, written):
    given, rows = written
    out, at = topic(1), NOON + WIDTH + 3_000
    job = start(
        windows(source(given)), out, checkpoint, start=Start(output_at=to_datetime(at), early=timedelta(seconds=3))
    )
    job.awaitTermination(60)
    expected = Counter((key, time // WIDTH * WIDTH + WIDTH) for key, time, _ in rows)
    found = {(key, end): n for key, end, n in total(batches_of(kafka.config, out))}
    assert found == {window: n for window, n in expected.items() if window[1] >= at}


def test_results_that_are_later_than_their_rows_are_whole_if_the_user_says_so(
    kafka, topic, source, checkpoint, written
):
    given, rows = written
    out, at = topic(1), NOON + 60_000
    end = f"timestamp_millis((unix_millis(at) DIV {WIDTH} + 1) * {WIDTH}) AS at"
    wish = Start(output_at=to_datetime(at), largest_window=timedelta(milliseconds=WIDTH), early=timedelta(seconds=3))
    with pytest.raises(UsageError, match="or how much later the query makes times"):
        start(source(given).selectExpr("k", end, "n"), out, checkpoint, start=replace(wish, largest_window=None))
    job = start(source(given).selectExpr("k", end, "n"), out, checkpoint, start=wish)
    job.awaitTermination(60)
    expected = Counter((key, time // WIDTH * WIDTH + WIDTH, n) for key, time, n in rows)
    assert total(batches_of(kafka.config, out)) == {row: n for row, n in expected.items() if row[1] >= at}
    assert job.counts["records"] < len(rows) * 3 / 4, "it has read all"


@pytest.mark.every_spark
def test_a_session_that_began_before_it_is_whole(kafka, topic, source, checkpoint, written):
    """Spark applies a filter on the end of sessions to the rows, before they are merged."""
    given, rows = written
    out, at, query = topic(1), NOON + 60_000, operators.Query(operators.one, (operators.session(4_000),))
    wish = Start(output_at=to_datetime(at), largest_window=timedelta(minutes=10))
    start(query.spark([source(given)]), out, checkpoint, start=wish).awaitTermination(60)
    found = {(key, end): n for key, end, n in total(batches_of(kafka.config, out))}
    assert found == {(key, end): n for key, end, n in query.results(rows) if end >= at}
    assert max(found.values()) > 100, "it began after"


@pytest.mark.parametrize("published", ["refuse", "continue"])
def test_windows_of_times_that_the_query_has_made_later_need_to_know_how_much(
    kafka, topic, source, checkpoint, written, published
):
    """Else the first windows would lack the rows that were made later."""
    given, rows = written
    out, at = topic(1), NOON + 60_000
    later = event_time(source(given).selectExpr("k", "at + INTERVAL 25 SECONDS AS at", "n"), "at")
    if published == "continue":
        start(windows(later), out, f"{checkpoint}-before").stop()
    wish = Start(published=published, output_at=to_datetime(at), early=timedelta(seconds=3))
    with pytest.raises(UsageError, match="or how much later the query makes times, plus its windows"):
        start(windows(later), out, checkpoint, start=wish)
    with pytest.raises(UsageError, match=r"largest_window is 0:00:09, and the windows of job .* need 0:00:10"):
        start(windows(later), out, checkpoint, start=replace(wish, largest_window=timedelta(seconds=9)))
    wish = replace(wish, published="repeat", largest_window=timedelta(seconds=25, milliseconds=WIDTH))
    job = start(windows(later), out, checkpoint, start=wish)
    job.awaitTermination(60)
    expected = Counter((key, (time + 25_000) // WIDTH * WIDTH + WIDTH) for key, time, _ in rows)
    found = {(key, end): n for key, end, n in total(batches_of(kafka.config, out))}
    assert found == {window: n for window, n in expected.items() if window[1] >= at}


def test_a_function_gets_no_row_before_it_and_a_whole_first_window(topic, source, checkpoint, written):
    given, rows = written
    at, found = NOON + 60_000, Counter()
    options = WriteOptions(start=Start(output_at=to_datetime(at), early=timedelta(seconds=3)))

    def take(frame, _batch_id):
        found.update(
            {(row["k"], row["ms"]): row["n"] for row in frame.selectExpr("k", "unix_millis(at) ms", "n").collect()}
        )

    def begin(**more):
        result = windows(source(given))
        return write(result, writer=take, job="function", checkpoint_location=checkpoint, options=options, **more)

    with pytest.raises(UsageError, match="needs event_time="):
        begin()
    job = begin(event_time="at")
    job.awaitTermination(60)
    expected = Counter((key, time // WIDTH * WIDTH + WIDTH) for key, time, _ in rows)
    assert found == {window: n for window, n in expected.items() if window[1] >= at}
    assert job.counts["records"] < len(rows) * 3 / 4, "it has read all"


def test_a_start_after_an_event_in_the_future_and_before_the_restart_of_its_source_is_refused(
    kafka, topic, source, checkpoint
):
    given = topic(1)
    jumped = [Put("web", ("a", NOON + second * 1_000, 1)) for second in range(30)]
    Log(1, [*jumped[:20], Say("web", NOON + 10**9), *jumped[20:]]).write(kafka.config, given)
    restarted = [
        entry
        for second in range(30, 90)
        for entry in (Put("web", ("a", NOON + second * 1_000, 1)), Say("web", NOON + second * 1_000))
    ]
    Log(1, [*restarted, Say("web", "end")]).write(kafka.config, given, epoch=2)
    wish = Start(output_at=to_datetime(NOON + 35_000), early=timedelta(seconds=1))
    rows, out = windows(source(given, ReadOptions(max_offsets_per_trigger=50))), topic(1)
    with pytest.raises(UsageError, match=r"the watermark of its input is already 2023-11-\S+ so .* after the restart"):
        start(rows, out, checkpoint, start=wish)
    wish = Start(output_at=to_datetime(NOON + 50_000), early=timedelta(seconds=1))
    start(rows, out, checkpoint, start=wish).awaitTermination(60)  # in the same checkpoint_location
    found = {end: n for (_, end, n) in total(batches_of(kafka.config, out))}
    assert found == {NOON + end: 10 for end in range(50_000, 91_000, WIDTH)}


def test_kafka_is_asked_once_where_the_job_begins(topic, source, checkpoint, written, monkeypatch):
    asked, ask = [], find_start_point.retained_since
    monkeypatch.setattr(find_start_point, "retained_since", lambda *given: asked.append(given) or ask(*given))
    start(windows(source(written[0])), topic(1), checkpoint, start=Start(output_at=to_datetime(NOON + 60_000))).stop()
    assert len(asked) == 1


def test_what_kafka_has_deleted_is_named_before_any_output(kafka, topic, source, checkpoint, written):
    given, _ = written
    delete_before(kafka.config, given, 150)
    with pytest.raises(RetentionError, match="give a later output_at"):
        start(windows(source(given)), topic(1), checkpoint, start=Start(output_at=to_datetime(NOON + 60_000)))


def test_slips_are_refused(kafka, topic, source, checkpoint, written):
    given, _ = written
    with pytest.raises(UsageError, match="no time zone"):
        Start(output_at=datetime(2026, 1, 1))  # noqa: DTZ001  # the slip
    with pytest.raises(UsageError, match="expected a datetime"):
        Start(output_at=NOON)
    rows = source(given, ReadOptions(source_options={"startingOffsets": "latest"}))
    with pytest.raises(UsageError, match="remove these source options"):
        start(windows(rows), topic(1), checkpoint, start=Start(output_at=to_datetime(NOON)))
