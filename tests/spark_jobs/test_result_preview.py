"""A look at the results of a query: complete rows, the watermark and its holder; nothing is written."""

import re
import time
from datetime import timedelta

import pytest
from floodmark.producers.clients.admin import end_offsets
from floodmark.schemas.errors import JobFailedError, UsageError
from floodmark.spark_jobs import Job, preview
from floodmark.spark_jobs.batch.handler import BatchHandler
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.counting import WIDTH, read_events, windowed
from support.harness import Stream

pytestmark = pytest.mark.spark

_WAIT = timedelta(seconds=120)


@pytest.fixture
def result(spark, kafka):
    """Count the windows of a topic."""
    return lambda topic, **options: windowed(read_events(spark, kafka.bootstrap_servers, topic, **options))


def table(text):
    """Return the rows of a table that Spark has printed, and the line behind it."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return lines[1:], text.splitlines()[-1]


def test_all_windows_of_an_input_that_has_ended(kafka, topic, result, capsys, tmp_path, monkeypatch):
    given = topic(2)
    stream = Stream.seeded(21)
    stream.produce(kafka.config, given)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    preview(result(given), wait=_WAIT, rows=10_000)
    rows, last = table(capsys.readouterr().out)
    assert sum(int(count) for _, _, count in rows) == stream.size
    assert len(rows) == len(stream.windows(WIDTH))
    assert last == f"{len(rows)} rows, the input has ended"
    assert not list(tmp_path.glob("floodmark-preview-*"))


def test_it_shows_what_spark_shows_also_in_the_hour_that_a_clock_repeats(spark, kafka, topic, capsys, monkeypatch):
    """Python's local times do not tell which of the two hours it is."""
    given = topic(1)
    Stream.seeded(26).produce(kafka.config, given)
    columns = [
        "TIMESTAMP '2026-10-25 00:30:00+00:00' AS at",
        "1D AS n",
        "2 AS n",
        "struct(1, TIMESTAMP '2026-10-25 00:30:00+00:00') AS both",
        "array(1) AS few",
        "CAST('a' AS BINARY) AS raw",
        "CAST(NULL AS STRING) AS text",
    ]
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        preview(read_events(spark, kafka.bootstrap_servers, given).selectExpr(*columns), wait=_WAIT, rows=1)
    finally:
        monkeypatch.undo()
        time.tzset()
    shown = capsys.readouterr().out.rpartition("the first")[0]
    spark.range(1).selectExpr(*columns).show(truncate=False)
    assert shown.strip() == capsys.readouterr().out.strip()


def test_an_interrupt_stops_its_job(spark, kafka, topic, result, monkeypatch):
    given = topic(1)
    Stream.seeded(22).produce(kafka.config, given, end=False)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "isActive", property(interrupt))
    with pytest.raises(KeyboardInterrupt):
        preview(result(given), wait=_WAIT)
    assert not spark.streams.active


def test_it_stops_when_it_has_enough_rows(kafka, topic, result, capsys):
    given = topic(1)
    Stream.seeded(22).produce(kafka.config, given, end=False)
    end = end_offsets(kafka.config, given)
    preview(result(given), wait=_WAIT, rows=3)
    rows, last = table(capsys.readouterr().out)
    assert len(rows) == 3
    assert re.fullmatch(r"the first 3 of more rows, watermark \S+", last)
    assert end_offsets(kafka.config, given) == end


def test_seconds_count_from_the_first_batch_and_an_ended_input_has_more_rows(kafka, topic, result, capsys, monkeypatch):
    given, clock, late = topic(1), time.monotonic, []
    Stream.seeded(25).produce(kafka.config, given)
    run = BatchHandler.__call__

    def run_late(handler, frame, batch_id):
        late.append(2 * _WAIT.total_seconds())
        run(handler, frame, batch_id)

    monkeypatch.setattr(BatchHandler, "__call__", run_late)
    monkeypatch.setattr(time, "monotonic", lambda: clock() + (late[0] if late else 0))
    preview(result(given), wait=_WAIT, rows=3)
    rows, last = table(capsys.readouterr().out)
    assert len(rows) == 3
    assert last == "the first 3 of more rows, the input has ended"


def test_an_input_without_a_record(topic, result, capsys):
    given = topic(1)
    preview(result(given), wait=timedelta(seconds=1))
    assert capsys.readouterr().out.startswith(f"0 rows, watermark unknown; {given}: no watermark record")


def test_without_a_complete_row_it_names_who_holds_the_watermark(spark, kafka, topic, capsys):
    given = topic(1)
    Stream.seeded(23, sources=1).produce(kafka.config, given, end=False)
    rows = read_events(spark, kafka.bootstrap_servers, given)
    preview(windowed(rows, width=10**12), wait=timedelta(seconds=8))
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert re.fullmatch(rf"0 rows, watermark \S+; {given}/0/\S+.*\n", out)


def test_an_error_of_the_query_is_raised(kafka, topic, result):
    given = topic(1)
    Stream.seeded(24).produce(kafka.config, given)
    with pytest.raises(JobFailedError, match="preview"):
        preview(result(given).select(F.expr("raise_error('broken')").alias("fault")), wait=_WAIT)


def test_a_number_of_rows_below_one_is_refused(topic, result):
    with pytest.raises(UsageError, match="rows is 0"):
        preview(result(topic(1)), rows=0)
