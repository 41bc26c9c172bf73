"""A job killed at the steps of a batch, one after the other, ends with the results of a batch computation.

It is killed at each step of a shard, and at every second one of the others; with ``FLOODMARK_EVERY_STEP=1``, at all.
"""

import os
import signal
import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest
from floodmark.producers import Data, Mark, Observer
from support.counting import WIDTH, counted, fails, read_events, windowed
from support.crashing_job import AHEAD, SHARDS, STEPS, run
from support.harness import Stream, drain, until, window_counts

pytestmark = pytest.mark.spark
_EACH = 1 if os.environ.get("FLOODMARK_EVERY_STEP") else 2


@pytest.mark.minutes
def test_killed_at_each_step_and_started_again_it_equals_a_batch_computation(kafka, topic, checkpoint):
    given, out = topic(3), topic(2)
    stream = Stream.seeded(21, sources=3, steps=16)
    stream.produce(kafka.config, given)
    place = (kafka.bootstrap_servers, given, out, checkpoint)
    kill_at_each([*STEPS][_EACH - 1 :: _EACH], place)
    assert_exact(run(*place, "none"), stream, kafka, out)


@pytest.mark.minutes
def test_killed_at_each_step_of_a_shard_it_equals_a_batch_computation(kafka, topic, checkpoint):
    """Each start has another number of cores, so another number of tasks finishes what the one before has begun."""
    given, out = topic(3), topic(2)
    stream = Stream.seeded(21, sources=3, steps=16)
    stream.produce(kafka.config, given)
    place, delivery = (kafka.bootstrap_servers, given, out, checkpoint), "exactly-once-executors"
    for cores, step in zip("3214", SHARDS, strict=True):
        kill_at_each([step], place, delivery=delivery, CORES=cores)
    assert_exact(run(*place, "none", delivery=delivery), stream, kafka, out)


def kill_at_each(steps, place, **options):
    for step in steps:
        done = run(*place, step, **options)
        assert done.returncode == -signal.SIGKILL, f"{step}: {done.stdout}{done.stderr[-2000:]}"


def assert_exact(done, stream, kafka, out):
    """Hold what the job that has just ended, and those before it, wrote against a batch computation."""
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "late=0\n"
    values, _ = drain(kafka.config, out)
    assert len(values) == len(stream.windows(WIDTH)), "a row was lost or written twice"
    assert window_counts(values) == stream.windows(WIDTH)
    assert_no_row_behind_a_mark(kafka, out)


@contextmanager
def fed(kafka, topic, stream):
    """Write a stream, step by step, while the block runs; yields what has been written."""
    stop, written = threading.Event(), Stream({name: [] for name in stream.steps})
    producers = stream.producers(kafka.config, topic, timedelta(milliseconds=100))

    def feed():
        for steps in zip(*stream.steps.values(), strict=True):
            for name, (times, watermark) in zip(stream.steps, steps, strict=True):
                stream.produce_step(producers[name], times)
                producers[name].advance(watermark)
                producers[name].flush()
                written.steps[name].append((times, watermark))
            if stop.wait(0.5):  # as a source that follows the clock
                break
        for producer in producers.values():
            producer.end()

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield written
    finally:
        stop.set()
        feeder.join(60)


def test_killed_at_each_step_of_a_look_ahead_it_equals_a_batch_computation(kafka, topic, checkpoint):
    given, out = topic(3), topic(2)
    place = (kafka.bootstrap_servers, given, out, checkpoint)
    with fed(kafka, given, Stream.seeded(23, sources=3, steps=3_000, per_step=4)) as stream:
        kill_at_each([*AHEAD][::_EACH], place)
    assert_exact(run(*place, "none", LOOKAHEAD="yes"), stream, kafka, out)


def assert_no_row_behind_a_mark(kafka, out):
    from support.harness import counts  # noqa: PLC0415  # next to its only use

    with Observer(kafka.config, [out]) as observer:
        watermarks, epochs = {}, set()
        while not observer.trackers[out].ended:
            for record in observer.poll():
                if isinstance(record, Mark):
                    epochs.add(record.record.epoch)
                    watermarks[record.partition] = max(
                        record.record.watermark or 0, watermarks.get(record.partition, 0)
                    )
                elif isinstance(record, Data):
                    assert counts.decode(record.value)["ended"] >= watermarks.get(record.partition, 0)
            observer.trackers[out].advance()
    assert len(epochs) > 2, "the restarts are epochs of their own"


def test_at_least_once_loses_nothing_and_says_what_it_may_double(kafka, topic, checkpoint):
    given, out = topic(2), topic(1)
    stream = Stream.seeded(22)
    stream.produce(kafka.config, given)
    place = (kafka.bootstrap_servers, given, out, checkpoint)
    done = run(*place, "after the batch ran, before its snapshot", "4", delivery="at-least-once")
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert run(*place, "none", delivery="at-least-once").returncode == 0
    found = window_counts(drain(kafka.config, out)[0])
    assert set(found) == set(stream.windows(WIDTH))
    assert all(found[window] in {n, 2 * n} for window, n in stream.windows(WIDTH).items())


SELDOM = {"processingTime": "1000000 hours"}
"""Spark runs a batch at each full multiple since 1970: the next one is in 2084."""


def test_a_job_stopped_before_its_last_empty_batch_still_ends(kafka, topic, spark, checkpoint):
    """The end has been read and committed; the batch that would close the windows was never planned."""
    given, out = topic(1), topic(1)
    stream = Stream.seeded(5, sources=1)
    stream.produce(kafka.config, given)
    batches = []
    rows = windowed(read_events(spark, kafka.bootstrap_servers, given))
    first = counted(rows, out, checkpoint, trigger=SELDOM, on_batch=batches.append)
    until(lambda: fails(first) or batches, "the first batch")
    first.stop()
    assert len(batches) == 1
    counted(windowed(read_events(spark, kafka.bootstrap_servers, given)), out, checkpoint).awaitTermination(60)
    assert window_counts(drain(kafka.config, out)[0]) == stream.windows(WIDTH)
