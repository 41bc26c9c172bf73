"""A topic that was deleted and created again is not the one that a job has read, though it has the same name."""

import re

import pytest
from confluent_kafka import Producer
from floodmark.producers.clients import admin
from floodmark.producers.clients.admin import end_offsets
from floodmark.schemas.errors import (
    BrokerUnavailableError,
    DeadlineError,
    PublishedError,
    RecreatedTopicError,
    UnknownTopicError,
)
from floodmark.schemas.tracker import UNMARKED
from floodmark.spark_jobs import Start
from support.counting import counted, fails, read_events, windowed
from support.harness import Stream, delete_topic, events, recreate, until

pytestmark = pytest.mark.spark


@pytest.fixture
def given(kafka, topic):
    """Give a short topic."""
    name = topic(2)
    Stream.seeded(41, sources=2, steps=3).produce(kafka.config, name, end=False)
    return name


@pytest.fixture
def start(kafka, spark, topic, given, checkpoint):
    """Start a job that reads it."""
    out = topic(2)
    return lambda place=checkpoint, **options: counted(
        windowed(read_events(spark, kafka.bootstrap_servers, given)), out, place, **options
    )


@pytest.mark.parametrize("stored", ["in its checkpoint", "in its output topic"])
def test_a_job_does_not_start_with_the_offsets_of_another_topic(kafka, given, start, checkpoint, stored):
    """Also where the new topic is longer, so that all offsets are there."""
    job = start()
    job.processAllAvailable()
    job.stop()
    out = job.name
    recreate(kafka.config, given, 2)
    Stream.seeded(42, sources=2, steps=12).produce(kafka.config, given)
    before = end_offsets(kafka.config, out)
    new = {"place": f"{checkpoint}-new", "start": Start(published="continue")}
    for _ in range(2):
        with pytest.raises(RecreatedTopicError, match=out):
            start(**({} if stored == "in its checkpoint" else new))
    assert end_offsets(kafka.config, out) == before


def test_a_job_names_an_input_topic_without_marks_and_one_that_was_deleted(kafka, start, given, checkpoint, caplog):
    """And a start with another checkpoint does not claim results that the first job may not have."""
    recreate(kafka.config, given, 2)
    plain = Producer(kafka.config)
    plain.produce(given, events.encode({"user": "u", "at": 1_000}))
    plain.flush(30)
    job = start()
    early = [hold.sentence for hold in job.holders()]
    job.processAllAvailable()
    assert early == [f"{given}: not read yet: the job has not finished its first batch"]
    assert f"job {job.name} has read rows, but has no watermark. Topic {given}: {UNMARKED}" in caplog.messages
    waiting = re.escape(f"job {job.name!r} did not finish within 0 s. Last seen: {given}: {UNMARKED}")
    with pytest.raises(DeadlineError, match=waiting):
        job.awaitTermination(0)
    with pytest.raises(PublishedError, match=r"has started on topic .* none, use WriteOptions\(start=.*'repeat'"):
        start(f"{checkpoint}-new")
    delete_topic(kafka.config, given)
    with pytest.raises(UnknownTopicError, match=f"{given!r} does not exist"):
        until(lambda: fails(job), "the error", 60)


def test_a_running_job_names_a_topic_that_was_created_again_with_fewer_records(kafka, given, start, monkeypatch):
    """Spark finds that before it plans a batch; Kafka is busy, and does not answer within a second."""
    job = start()
    job.processAllAvailable()
    describe = admin.described

    def slow(client, topics, servers, timeout):
        if timeout <= 1:
            raise BrokerUnavailableError(bootstrap_servers=servers, reason="busy", seconds=timeout)
        return describe(client, topics, servers, timeout)

    monkeypatch.setattr(admin, "described", slow)
    recreate(kafka.config, given, 2)
    with pytest.raises(RecreatedTopicError, match=given):
        until(lambda: fails(job), "the error", 60)


def test_a_running_job_names_a_topic_that_was_created_again_with_as_many_records(kafka, given, start, monkeypatch):
    """Though Spark sees no new record, and runs no batch."""
    monkeypatch.setattr("floodmark.spark_jobs.batch.handler._IDLE", 0.3)
    job, ends = start(), end_offsets(kafka.config, given)
    job.processAllAvailable()
    recreate(kafka.config, given, 2)
    Stream.seeded(41, sources=2, steps=3).produce(kafka.config, given, end=False)
    assert end_offsets(kafka.config, given) == ends
    with pytest.raises(RecreatedTopicError, match=given):
        job.awaitTermination(60)


def test_a_job_does_not_write_the_rest_of_its_results_to_another_topic(kafka, given, start):
    """Neither while it runs, nor at its next start."""
    job = start()
    job.processAllAvailable()
    recreate(kafka.config, job.name, 2)
    Stream.seeded(42, sources=2, steps=12).produce(kafka.config, given)
    with pytest.raises(RecreatedTopicError, match=job.name):
        until(lambda: fails(job), "the error", 60)
    with pytest.raises(RecreatedTopicError, match=job.name):
        start()
    assert not any(end_offsets(kafka.config, job.name).values())


def test_a_running_job_writes_nothing_of_another_topic(kafka, given, start, monkeypatch):
    """No batch is written that was read after the topic got another id."""
    job = start()
    job.processAllAvailable()
    before = end_offsets(kafka.config, job.name)
    monkeypatch.setattr("floodmark.producers.clients.admin.described", lambda *_, **_more: {given: ("another", 1)})
    Stream.seeded(42, sources=2, steps=12).produce(kafka.config, given)
    with pytest.raises(RecreatedTopicError):
        until(lambda: fails(job), "the error")
    assert end_offsets(kafka.config, job.name) == before
