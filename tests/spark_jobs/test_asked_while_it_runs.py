"""A job is asked from another thread than the one that runs its batches, at any moment."""

import sys

import pytest
from confluent_kafka import Producer
from floodmark.producers.testing import mark
from floodmark.schemas import encode_watermark, mark_key
from floodmark.spark_jobs import write
from support.counting import read_events
from support.harness import until

SOURCES = 1_500


@pytest.fixture
def busy_threads():
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.spark
@pytest.mark.usefixtures("busy_threads")
def test_who_holds_it_can_be_asked_while_a_batch_brings_new_sources(spark, kafka, topic, checkpoint):
    target = topic(1)
    producer = Producer(kafka.config)
    for number in range(SOURCES):
        one = mark(f"s{number}", 5, size=SOURCES, emitted_at=1_000 + number)
        producer.produce(target, key=mark_key(one.source), value=encode_watermark(one), partition=0)
    assert producer.flush(30) == 0
    rows = read_events(spark, kafka.bootstrap_servers, target)
    job = write(rows, writer=lambda *_: None, job="asked", checkpoint_location=checkpoint)
    try:

        def known():
            job.holders()
            return job.metrics().watermark == 5

        until(known, "the watermark")
        assert len(job.holders()) == SOURCES
        until(lambda: job.lastProgress, "the first batch")
        assert job.lastProgress.processing_time_watermark == 1_000, "the source that was first to speak is the oldest"
        assert job.metrics().processing_time_delay_seconds > 1_000_000, "and it has been silent since 1970"
    finally:
        job.stop()
