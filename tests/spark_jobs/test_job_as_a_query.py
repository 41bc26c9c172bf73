"""A job, asked as PySpark's `StreamingQuery` is."""

import os
import re
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from floodmark.producers import WatermarkedProducer, explicit
from floodmark.producers.clients.admin import end_offsets
from floodmark.schemas.errors import ChangedQueryError, FencedError, JobFailedError, UsageError
from floodmark.spark_jobs import Job, write
from floodmark.spark_jobs.queries import source_options
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.counting import WIDTH, counted, fails, read_events, windowed
from support.harness import Stream, drain, events, until, window_counts

pytestmark = pytest.mark.spark

_LIMIT = 120
_PROGRAM = """
import sys, threading
from floodmark.spark_jobs import local_session, write
from pyspark.errors import StreamingQueryException
from support.counting import read_events, windowed
from support.harness import SMALL_BATCHES

servers, topic, checkpoint = sys.argv[1:]
in_work, go_on = threading.Event(), threading.Event()

def writer(frame, batch_id):
    if not in_work.is_set():
        in_work.set()
        go_on.wait()
        frame.collect()
        print("the batch is done")

rows = windowed(read_events(local_session("cell", settings=SMALL_BATCHES), servers, topic))

def failing(frame, batch_id):
    raise ValueError("disk full")

full = write(rows, writer=failing, job="full", checkpoint_location=checkpoint + "-full")
try:
    full.query.awaitTermination()  # behind the log of Spark
except StreamingQueryException:
    print(full.exception(), file=sys.stderr)
job = write(rows, writer=writer, job="cell", checkpoint_location=checkpoint)
in_work.wait()
print("the program ends", flush=True)
print("the program ends", file=sys.stderr)
go_on.set()
"""
_TO_KAFKA = """
import atexit, sys, time
from pathlib import Path
from floodmark.spark_jobs import local_session
from pyspark.sql import functions as F
from support.counting import counted, read_events, windowed
from support.harness import SMALL_BATCHES

servers, topic, checkpoint, out = sys.argv[1:]
begun, go_on = Path(checkpoint + "-begun"), Path(checkpoint + "-go-on")
spark = local_session("cell", settings=SMALL_BATCHES)

@F.udf("string")
def held(user):
    begun.touch()
    while not go_on.exists():
        time.sleep(0.01)
    return user

rows = read_events(spark, servers, topic).withColumn("user", held("user"))
job = counted(windowed(rows), out, checkpoint)
while not begun.exists():
    time.sleep(0.01)
atexit.register(go_on.touch)
"""

_CUT = _TO_KAFKA.replace("atexit.register(go_on.touch)", "handler._PATIENCE = 0.5").replace(
    "import atexit", "from floodmark.spark_jobs.batch import handler\nimport atexit"
)


_LONG = """
import sys, threading, time
from floodmark.spark_jobs import local_session, write
from support.counting import read_events, windowed
from support.harness import SMALL_BATCHES

servers, topic, checkpoint = sys.argv[1:]
queries = []

def writer(frame, batch_id):
    while not queries:
        time.sleep(0.01)
    threading.Thread(target=queries[0].stop, daemon=True).start()
    while queries[0].isActive:
        time.sleep(0.01)
    raise ValueError("disk full, " + "and so on" * 100_000)

rows = windowed(read_events(local_session("cell", settings=SMALL_BATCHES), servers, topic))
job = write(rows, writer=writer, job="cell", checkpoint_location=checkpoint)
queries.append(job.query)
try:
    job.awaitTermination()
except Exception as error:
    print(str(error).split(",")[0])
"""


_CTRL_C = """
import os, signal, sys, threading, time
from floodmark.spark_jobs import local_session, write
from support.counting import read_events, windowed
from support.harness import SMALL_BATCHES

servers, topic, checkpoint = sys.argv[1:]
in_work = threading.Event()
spark = local_session("cell", settings=SMALL_BATCHES)

def writer(frame, batch_id):
    in_work.set()
    frame.sparkSession.range(1).selectExpr("reflect('java.lang.Thread', 'sleep', 60000L)").collect()
    print("the batch is done")

def interrupt():
    in_work.wait()
    while not spark.sparkContext.statusTracker().getActiveJobsIds():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
rows = windowed(read_events(spark, servers, topic))
write(rows, writer=writer, job="cell", checkpoint_location=checkpoint).awaitTermination()
"""


def run(program, *arguments):
    """Run a program to its end, in a process of its own that sees the tests."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", program, *arguments]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT, check=False)


@pytest.fixture
def read(spark, kafka):
    """Read a topic of `harness.EVENT`."""
    return lambda topic, **options: read_events(spark, kafka.bootstrap_servers, topic, **options)


def test_a_job_is_asked_as_a_streaming_query_is(kafka, topic, read, checkpoint):
    given, out, batches = topic(1), topic(1), []
    stream = Stream.seeded(5, sources=1)
    stream.produce(kafka.config, given, end=False)
    job = counted(windowed(read(given)), out, checkpoint, on_batch=batches.append)
    job.processAllAvailable(_LIMIT)
    until(lambda: fails(job) or job.watermark is not None, "the watermark")
    assert job.isActive
    assert (job.id, job.runId) == (job.query.id, job.query.runId)
    assert job.name == out
    assert "message" in job.status
    assert re.fullmatch(rf"<Job '{out}': running, batch \d+, watermark [\d-]+T[\d:.]+\+00:00>", repr(job))
    assert job.recentProgress[: len(batches)] == batches[: len(job.recentProgress)]
    assert job.exception() is None
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(job.awaitTermination()))
    waiting.start()
    job.stop()
    waiting.join(_LIMIT)
    assert answers == [True], "a stop ends the wait, as in Spark"
    assert not job.isActive
    assert not job.ended
    assert f"<Job '{out}': stopped, batch " in repr(job)
    assert job.lastProgress == batches[-1]
    assert job.awaitTermination() is True
    again = counted(windowed(read(given)), out, checkpoint)
    assert again.id == job.id
    assert again.runId != job.runId
    assert again.recentProgress == [], "progress is that of one start"
    again.stop()


def test_the_wait_for_what_has_arrived_ends_though_marks_come_all_the_time(kafka, topic, read, checkpoint):
    """The marks of 50 a second make each batch find new records, so that Spark's own method never returns."""
    given, written, interval = topic(2), [], timedelta(milliseconds=20)
    with WatermarkedProducer(kafka.config, topic=given, source="a", strategy=explicit(), interval=interval) as source:
        job = write(
            windowed(read(given), 1_000),
            writer=lambda frame, _: written.extend(frame.collect()),
            job="all the time",
            checkpoint_location=checkpoint,
        )
        until(lambda: fails(job) or job.watermark is not None or job.lastProgress is not None, "a batch")
        for second in range(3):
            for time in range(second * 1_000 + 1, (second + 1) * 1_000, 100):
                source.produce(events.encode({"user": "u", "at": time}), event_time=time)
            source.advance((second + 1) * 1_000 + 1)
            source.flush()
            job.processAllAvailable(_LIMIT)
            assert [row["n"] for row in written] == [10] * (second + 1)
        job.stop()


@pytest.fixture
def _few(spark):
    """Let Spark remember two batches."""
    setting = "spark.sql.streaming.numRecentProgressUpdates"
    usual = spark.conf.get(setting)
    spark.conf.set(setting, "2")
    yield
    spark.conf.set(setting, usual)


@pytest.mark.newest_spark
@pytest.mark.usefixtures("_few")
def test_a_job_says_how_much_it_has_still_to_read(kafka, topic, read, checkpoint):
    given, out, seen = topic(2), topic(1), []
    Stream.seeded(5, sources=1).produce(kafka.config, given)
    job = counted(windowed(read(given, max_offsets_per_trigger=60)), out, checkpoint)

    def at_the_end():
        found = job.backlog()
        if found is not None and found not in seen:
            seen.append(found)
        return fails(job) or not job.isActive or (found is not None and not found.unread)

    until(at_the_end, "the end of the topic", _LIMIT)
    job.awaitTermination(_LIMIT)
    assert len(seen) > 1, "it was seen on its way"
    unread = [backlog.unread for backlog in seen]
    assert unread == sorted(unread, reverse=True)
    assert unread[-1] == 0
    records = sum(end_offsets(kafka.config, given).values())
    assert {backlog.read + backlog.unread for backlog in seen} == {records}


def test_the_first_batches_of_each_start_are_small_and_repeated_as_planned(kafka, topic, read, checkpoint, monkeypatch):
    """Of two inputs, one has a fixed limit; the first start fails before Spark commits its second batch."""
    monkeypatch.setattr(source_options, "_FIRST_BATCH", 40)
    monkeypatch.setattr(source_options, "_SECOND_BATCH", 100)
    growing, fixed, out, batches = topic(2), topic(1), topic(1), []
    one, other = Stream.seeded(5, steps=30), Stream.seeded(6, sources=1, steps=2)
    one.produce(kafka.config, growing)
    other.produce(kafka.config, fixed)

    def start():
        rows = read(growing).unionByName(read(fixed, max_offsets_per_trigger=10))
        return counted(windowed(rows), out, checkpoint, on_batch=note)

    def note(batch):
        batches.append(batch.records)
        assert len(batches) != 2, "fail"

    job = start()
    with pytest.raises(JobFailedError, match="fail"):
        job.awaitTermination(_LIMIT)
    start().awaitTermination(_LIMIT)
    first, second, again, following, left = batches[:5]
    assert [first, second, following] == [pytest.approx(limit + 10, abs=3) for limit in (40, 100, 100)]
    assert again == second
    assert left > 1_000, "all that one topic has left, in one batch"
    assert window_counts(drain(kafka.config, out)[0]) == one.windows(WIDTH) + other.windows(WIDTH)


@pytest.mark.usefixtures("_few")
def test_recent_progress_is_bounded_as_spark_bounds_its_own(kafka, topic, read, checkpoint):
    given, out, batches = topic(1), topic(1), []
    Stream.seeded(5, sources=1).produce(kafka.config, given)
    job = counted(windowed(read(given, max_offsets_per_trigger=60)), out, checkpoint, on_batch=batches.append)
    job.awaitTermination(_LIMIT)
    assert len(batches) > 2
    assert job.recentProgress == batches[-2:]


@pytest.fixture
def broken(kafka, topic, read, checkpoint):
    """Start a job whose writer raises a ValueError."""

    def start(text, name):
        def fail(_frame, _batch):
            raise ValueError(text)

        given = topic(1)
        Stream.seeded(5, sources=1).produce(kafka.config, given)
        return write(windowed(read(given)), writer=fail, job=name, checkpoint_location=checkpoint)

    return start


def test_what_failed_a_job_is_its_exception(broken):
    job = broken("no such table", "broken")
    with pytest.raises(JobFailedError, match="no such table"):
        job.awaitTermination(_LIMIT)
    assert str(job.exception()) == "job 'broken' failed: ValueError: no such table"
    assert isinstance(job.exception().__cause__, ValueError)
    until(lambda: not job.isActive, "the end of the query")


def test_a_query_whose_checkpoint_another_one_uses_is_fenced(broken):
    """As Spark says it, if a second process has written to the log of its offsets or commits."""
    job = broken("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log.", "twin")
    with pytest.raises(FencedError, match="start again"):
        job.awaitTermination(_LIMIT)
    until(lambda: not job.isActive, "the end of the query")


def test_a_cell_that_is_run_again_replaces_its_job_between_two_batches(spark, kafka, topic, read, checkpoint, caplog):
    given, stream = topic(1), Stream.seeded(5, sources=1)
    stream.produce(kafka.config, given)
    in_work, go_on, written = threading.Event(), threading.Event(), []

    def cell(*, slow=False, user="user"):
        def writer(frame, batch_id):
            rows = frame.collect()
            if slow and rows:
                in_work.set()
                assert go_on.wait(_LIMIT)
            written.append((batch_id, sum(row["n"] for row in rows)))

        rows = read(given, max_offsets_per_trigger=60).withColumn("user", F.expr(user))
        return write(windowed(rows), writer=writer, job="cell", checkpoint_location=checkpoint)

    first = cell(slow=True)
    until(lambda: fails(first) or in_work.is_set(), "a batch in progress")
    with pytest.raises(ChangedQueryError):
        cell(user="concat(user, '!')")
    assert first.isActive, "a start that is refused replaces nothing"
    again = []
    starting = threading.Thread(target=lambda: again.append(cell()))
    starting.start()
    until(lambda: first._handler.stopping.is_requested, "the stop of the first run")  # noqa: SLF001
    assert not again, "it waits for the batch in progress"
    go_on.set()
    starting.join(_LIMIT)
    assert not first.isActive
    assert first.exception() is None
    assert first.awaitTermination() is True
    again[0].awaitTermination(_LIMIT)
    assert [number for number, _ in written] == list(range(len(written))), "each batch ran once"
    assert sum(count for _, count in written) == stream.size
    assert len([record for record in caplog.records if "already runs" in record.message]) == 1


def test_the_end_of_a_program_stops_its_job_between_two_batches(kafka, topic, checkpoint):
    given = topic(1)
    Stream.seeded(5, sources=1).produce(kafka.config, given, end=False)
    done = run(_PROGRAM, kafka.bootstrap_servers, given, checkpoint)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["the program ends", "the batch is done"]
    failed, _, said = done.stderr.partition("the program ends")
    assert failed.rstrip().endswith("job 'full' failed: ValueError: disk full")
    assert failed.count("Traceback") == 1, failed
    assert "\tat " not in failed, "no stack of the JVM"
    # Spark may log that its stop broke off the plan of a next batch: those lines begin with their time.
    told = "its input has not ended. Start it again to continue; awaitTermination() without a timeout waits for the end"
    assert [line for line in said.splitlines() if line and not re.match(r"\d\d/\d\d/\d\d \d\d:", line)] == [
        f"job cell is stopped, because the program ends: {told}"
    ]


def test_ctrl_c_in_a_batch_stops_the_job_and_is_no_error(kafka, topic, checkpoint):
    """PySpark then cancels what the batch runs."""
    given = topic(1)
    Stream.seeded(5, sources=1).produce(kafka.config, given, end=False)
    done = run(_CTRL_C, kafka.bootstrap_servers, given, checkpoint)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "KeyboardInterrupt" in done.stderr
    assert re.search(
        r"job cell is stopped(: its batch was cancelled|, because the program ends).* Start it again", done.stderr
    )
    assert not any(said in done.stderr for said in ("StackOverflowError", "terminated with error", "\tat ")), (
        done.stderr
    )


def test_a_batch_that_runs_at_the_end_of_a_program_is_written(kafka, topic, checkpoint):
    """Its rows are still to be collected when Python no longer lets a module register what ends with the program."""
    given, out = topic(1), topic(1)
    Stream.seeded(5, sources=1).produce(kafka.config, given, end=False)
    done = run(_TO_KAFKA, kafka.bootstrap_servers, given, checkpoint, out)
    assert done.returncode == 0, done.stderr
    assert "RuntimeError" not in done.stderr, done.stderr
    assert sum(end_offsets(kafka.config, out).values()) > 0


def test_a_batch_that_the_end_of_a_program_cuts_is_no_error(kafka, topic, checkpoint):
    """Spark looks for an interrupt in the text of an error, and its stack overflows if that is long."""
    given, out = topic(1), topic(1)
    Stream.seeded(5, sources=1).produce(kafka.config, given, end=False)
    done = run(_CUT, kafka.bootstrap_servers, given, checkpoint, out)
    assert done.returncode == 0, done.stderr
    assert "is stopped, because the program ends" in done.stderr
    assert "StackOverflowError" not in done.stderr, done.stderr
    assert "terminated with error" not in done.stderr, done.stderr
    assert sum(end_offsets(kafka.config, out).values()) == 0


def test_a_long_error_of_a_batch_while_spark_stops_the_query_does_not_overflow_its_stack(kafka, topic, checkpoint):
    given = topic(1)
    Stream.seeded(5, sources=1).produce(kafka.config, given, end=False)
    done = run(_LONG, kafka.bootstrap_servers, given, checkpoint)
    assert "StackOverflowError" not in done.stderr, done.stderr[:5_000]
    assert done.stdout.splitlines() == ["job 'cell' failed: ValueError: disk full"]


def test_a_job_that_fails_while_it_is_asked_says_its_own_error():
    """Spark's error comes later, and only names it."""
    handler, own = SimpleNamespace(failure=None), UsageError(reason="it lacks batch 7")

    def exception():
        handler.failure = own
        return PySparkException("Traceback")

    asked = SimpleNamespace(_handler=handler, query=SimpleNamespace(exception=exception), _is_being_stopped=bool)
    assert Job.exception(asked) is own
