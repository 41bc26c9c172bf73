"""Kafka dies under a running job: back soon, nothing is lost; gone for good, the job says so."""

import re

import pytest
from floodmark.producers import EmbeddedKafka, WatermarkedProducer, create_topics, explicit
from floodmark.schemas import FloodmarkError, Membership
from floodmark.schemas.errors import BrokerUnavailableError
from support.counting import WIDTH, counted, read_events, windowed
from support.harness import Stream, drain, until, window_counts

pytestmark = pytest.mark.spark


def start(spark, broker, checkpoint, batches):
    impatient = {"kafka.default.api.timeout.ms": "15000", "kafka.request.timeout.ms": "10000"}
    rows = read_events(spark, broker.bootstrap_servers, "in", max_offsets_per_trigger=100, source_options=impatient)
    return counted(windowed(rows), "out", checkpoint, on_batch=batches.append)


def test_a_broker_that_crashes_and_comes_back_loses_nothing(spark, tmp_path, checkpoint):
    stream = Stream.seeded(31)
    batches = []
    with EmbeddedKafka(tmp_path / "kafka") as broker:
        create_topics(broker.config, {"in": 2, "out": 2})
        stream.produce(broker.config, "in", end=False)
        job = start(spark, broker, checkpoint, batches)
        until(lambda: len(batches) > 3, "some batches")
        broker.kill()
        broker.start()
        for name in stream.steps:
            WatermarkedProducer(
                broker.config, topic="in", source=name, strategy=explicit(), membership=Membership(1, len(stream.steps))
            ).end()
        try:
            job.awaitTermination(120)
        except FloodmarkError:  # Spark may have given up meanwhile; started again, it goes on
            job.stop()
            start(spark, broker, checkpoint, batches).awaitTermination(120)
        assert window_counts(drain(broker.config, "out")[0]) == stream.windows(WIDTH)


def test_a_broker_that_is_gone_fails_the_job_with_a_clear_error(spark, tmp_path, checkpoint):
    batches = []
    with EmbeddedKafka(tmp_path / "kafka") as broker:
        create_topics(broker.config, {"in": 1, "out": 1})
        Stream.seeded(32, sources=1).produce(broker.config, "in", end=False)
        job = start(spark, broker, checkpoint, batches)
        until(lambda: len(batches) > 1, "some batches")
        broker.kill()
        with pytest.raises(FloodmarkError) as caught:
            job.awaitTermination(200)
        named = re.search(r"broker|failed|Timed out|timed out", str(caught.value))
        assert named or isinstance(caught.value, BrokerUnavailableError), caught.value
        job.stop()
