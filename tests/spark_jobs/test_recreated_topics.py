"""A topic that was deleted and created again is not the one that a job has read, though it has the same name."""

import pytest
from floodmark.producers.clients.admin import end_offsets
from floodmark.schemas.errors import RecreatedTopicError
from floodmark.spark_jobs import Start
from support.counting import counted, fails, read_events, windowed
from support.harness import Stream, recreate, until
from support.trial import quick

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
        windowed(read_events(quick(spark), kafka.bootstrap_servers, given)), out, place, **options
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
