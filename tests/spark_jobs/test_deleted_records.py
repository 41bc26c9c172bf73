"""Kafka may delete rows before a job has read them: the job fails, and never goes on without them."""

import pytest
from confluent_kafka import OFFSET_END
from floodmark.producers.clients.admin import end_offsets
from floodmark.schemas.errors import JobFailedError
from support.counting import counted, fails, read_events, windowed
from support.harness import Stream, delete_before, until


@pytest.mark.spark
@pytest.mark.newest_spark
def test_a_job_fails_if_kafka_deletes_rows_before_it_has_read_them(kafka, spark, topic, checkpoint):
    given, out = topic(2), topic(2)

    def start():
        return counted(windowed(read_events(spark, kafka.bootstrap_servers, given)), out, checkpoint)

    Stream.seeded(41, sources=2, steps=3).produce(kafka.config, given, end=False)
    job = start()
    job.processAllAvailable()
    job.stop()
    Stream.seeded(42, sources=2, steps=6).produce(kafka.config, given, end=False)
    delete_before(kafka.config, given, OFFSET_END)
    Stream.seeded(43, sources=2, steps=6).produce(kafka.config, given)
    before = end_offsets(kafka.config, out)
    for _ in range(2):
        job = start()
        with pytest.raises(JobFailedError, match=r"deleted records that it had not .*not available in Kafka any more"):
            until(lambda job=job: fails(job), "the error", 60)
        until(lambda job=job: job._handler._closed.is_set(), "its clients to be closed", 60)  # noqa: SLF001  # no other sign
        assert end_offsets(kafka.config, out) == before
