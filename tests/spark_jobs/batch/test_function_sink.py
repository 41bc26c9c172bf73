"""Whatever a user's writer does with its batch, marks and counts are taken once and whole."""

import sys
from collections import Counter
from threading import Event

import pytest
from floodmark.schemas.errors import JobFailedError
from floodmark.spark_jobs import WriteOptions, write
from floodmark.spark_jobs.batch.sinks import FunctionSink
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.counting import WIDTH, read_events, windowed
from support.harness import Stream, until
from support.trial import STATE_STORES

pytestmark = pytest.mark.spark

_LIMIT = 120
_STREAM = Stream.seeded(31, sources=2, steps=6, per_step=20)


def nothing_kept(spark):
    """Ask Spark anew, since what it returns is a copy."""
    return spark.sparkContext._jsc.getPersistentRDDs().isEmpty()  # noqa: SLF001


def noop(frame):
    frame.write.format("noop").mode("append").save()


def unless_empty(frame):
    if not frame.isEmpty():
        noop(frame)


def counted_first(frame):
    frame.count()
    noop(frame)


def twice(frame):
    noop(frame)
    noop(frame)


def let_go(frame):
    """The advice of most tutorials."""
    frame.persist()
    noop(frame)
    frame.unpersist()
    noop(frame)


def in_part(frame):
    frame.limit(1).collect()
    frame.take(1)
    frame.where("user = 'u1'").collect()


def not_at_all(frame):
    pass


WRITERS = (noop, unless_empty, counted_first, twice, let_go, in_part, not_at_all)


@pytest.fixture
def stream(kafka, topic):
    """Give a topic of three partitions with `_STREAM`."""
    given = topic(3)
    _STREAM.produce(kafka.config, given)
    return given


def mapped(rows):
    return rows


@pytest.mark.parametrize("query", [mapped, windowed])
def test_counts_are_the_same_whatever_the_writer_does(spark, kafka, stream, checkpoint, query):
    """Each batch is written in another of the `WRITERS`' ways, and the job has not ended before."""
    batches, known, ended = [], Event(), set()

    def writer(frame, batch_id):
        assert known.wait(_LIMIT)
        ended.add(job.ended)
        WRITERS[batch_id % len(WRITERS)](frame)

    job = write(
        query(read_events(spark, kafka.bootstrap_servers, stream, max_offsets_per_trigger=40)),
        writer=writer,
        job="counts",
        checkpoint_location=checkpoint,
        options=WriteOptions(on_batch=batches.append),
    )
    known.set()
    job.awaitTermination(_LIMIT)
    assert (ended, job.ended) == ({False}, True)
    counts = job.counts
    assert counts["records"] - counts["marks"] == _STREAM.size
    assert [counts[name] for name in ("late", "lost", "surplus")] == [0, 0, 0]
    assert "replayed" not in counts, "no mark was taken in twice"
    assert len(batches) >= len(WRITERS)
    expected = _STREAM.size if query is mapped else len(_STREAM.windows(WIDTH))
    assert sum(batch.rows for batch in batches) == expected
    until(lambda: nothing_kept(spark), "the release of the last batch")


@pytest.mark.newest_spark
def test_a_writer_that_fails_is_given_the_batch_again(spark, kafka, stream, checkpoint):
    found, failures = Counter(), iter([0, 0, 1, 0, 1])

    def writer(frame, _batch_id):
        rows = frame.collect()
        if next(failures, 0):
            raise OSError("the disk is full")
        for row in rows:
            found[row["user"], int(row["ended"].timestamp() * 1000)] += row["n"]

    def start():
        rows = read_events(spark, kafka.bootstrap_servers, stream, max_offsets_per_trigger=60)
        return write(windowed(rows), writer=writer, job="failing", checkpoint_location=checkpoint)

    for _ in range(2):
        with pytest.raises(JobFailedError, match="the disk is full"):
            start().awaitTermination(_LIMIT)
        until(lambda: nothing_kept(spark), "the release of the batch")
    job = start()
    job.awaitTermination(_LIMIT)
    assert found == _STREAM.windows(WIDTH)
    assert [job.counts[name] for name in ("late", "lost", "surplus")] == [0, 0, 0]
    assert job.counts["records"] - job.counts["marks"] == _STREAM.size


@pytest.mark.parametrize("caller", ["writer", "on_batch"])
def test_a_batch_that_stops_its_own_job_is_committed(spark, kafka, stream, checkpoint, caller):
    jobs, known, written = [], Event(), []

    def stop_in(name):
        if name == caller:
            assert known.wait(_LIMIT)
            jobs[-1].stop()

    def writer(frame, batch_id):
        stop_in("writer")
        written.extend((batch_id, row["user"], row["at"]) for row in frame.collect())

    def start():
        rows = read_events(spark, kafka.bootstrap_servers, stream, max_offsets_per_trigger=60)
        options = WriteOptions(on_batch=lambda _: stop_in("on_batch"))
        jobs.append(write(rows, writer=writer, job="stopping", checkpoint_location=checkpoint, options=options))

    for _ in range(2):
        known.clear()
        start()
        known.set()
        jobs[-1].awaitTermination(_LIMIT)
    assert [job.lastProgress.batch_id for job in jobs] == [0, 1]
    assert [batch_id for batch_id, _, _ in written] == sorted(batch_id for batch_id, _, _ in written)
    assert len(written) == sum(job.lastProgress.rows for job in jobs)


def test_a_writer_that_ends_the_program_fails_the_job_as_any_error_does(spark, kafka, stream, checkpoint):
    """Py4J does not answer if a callback raises what is no ``Exception``: the query would wait for ever."""
    rows = read_events(spark, kafka.bootstrap_servers, stream)
    job = write(rows, writer=lambda *_: sys.exit("bye"), job="exits", checkpoint_location=checkpoint)
    with pytest.raises(JobFailedError, match="SystemExit: bye"):
        job.awaitTermination(_LIMIT)
    until(lambda: not job.isActive, "the end of the query")
    job.stop()


def test_tasks_that_ran_twice_are_counted_once(spark, kafka, stream, checkpoint, monkeypatch):
    """Spark adds a second run of a task to the counts of the first: that is seen, and the batch is measured again."""

    def consume(sink, frame):
        noop(frame)
        noop(frame)

    monkeypatch.setattr(FunctionSink, "consume", consume)
    job = write(
        read_events(spark, kafka.bootstrap_servers, stream, max_offsets_per_trigger=150),
        writer=lambda _frame, _batch_id: None,
        job="twice",
        checkpoint_location=checkpoint,
    )
    job.awaitTermination(_LIMIT)
    assert job.counts["records"] - job.counts["marks"] == _STREAM.size
    assert [job.counts[name] for name in ("late", "lost", "surplus")] == [0, 0, 0]
    assert "replayed" not in job.counts, "no mark was taken in twice"


@pytest.mark.parametrize("store", STATE_STORES)
def test_a_batch_that_runs_again_with_another_result_replaces_its_state(spark, kafka, stream, checkpoint, store):
    """A function is wrong, the writer refuses its results, the function is repaired, the next start loads the state."""
    session, found = spark.newSession(), Counter()
    session.conf.set(*store)

    def start(one):
        rows = read_events(session, kafka.bootstrap_servers, stream, max_offsets_per_trigger=60)
        ones = rows.withColumn("one", F.udf(lambda _: one, "long")("user"))
        sums = ones.groupBy("user", F.window("at", f"{WIDTH} milliseconds")).agg(F.sum("one").alias("n"))
        batches = []

        def writer(frame, _batch_id):
            for row in frame.collect() if one > 0 else []:
                found[row["user"], int(row["window"]["end"].timestamp() * 1000)] += row["n"]
            batches.append(one)
            if one < 0:
                raise ValueError("a negative sum")

        job = write(sums, writer=writer, job="repaired", checkpoint_location=checkpoint)
        until(lambda: batches or not job.isActive, "a batch")
        return job

    start(-1).stop()
    start(1).stop()
    start(1).awaitTermination(_LIMIT)
    assert found == _STREAM.windows(WIDTH)
