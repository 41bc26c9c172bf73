"""What a job works out from the topics again, where its snapshot is lost."""

import pytest
from confluent_kafka import Producer
from floodmark.producers.testing import mark
from floodmark.schemas import END_OF_TIME, Status, encode_watermark, mark_key
from floodmark.spark_jobs.batch.resume import rebuild
from floodmark.spark_jobs.reading.source_spec import Connection, SourceSpec


@pytest.mark.kafka
def test_an_unreadable_mark_holds_a_rebuilt_job_too(kafka, topic):
    target = topic(1)
    producer = Producer(kafka.config)
    for record in (mark("a", 10, size=2, status=Status.IDLE), mark("b", 10, size=2)):
        producer.produce(target, key=mark_key(record.source), value=encode_watermark(record))
    producer.produce(target, key=mark_key("a"), value=b"of the future")
    producer.produce(target, key=mark_key("b"), value=encode_watermark(mark("b", 50, 1, size=2)))
    assert producer.flush(30) == 0
    progress = rebuild(
        [SourceSpec("read", Connection((target,), kafka.bootstrap_servers), None, None)], {(target, 0): 4}, 0
    )
    assert progress.watermark is None
    assert [str(hold) for hold in progress.holders()] == [f"{target}/0/a: unreadable mark of a at {target}/0@2"]


@pytest.mark.kafka
def test_the_end_of_a_run_ends_a_rebuilt_job_only_if_no_run_follows_or_spark_had_the_end(kafka, topic):
    target = topic(1)
    producer = Producer(kafka.config)
    specs = [SourceSpec("read", Connection((target,), kafka.bootstrap_servers), None, None)]

    def rebuilt(next_watermark=0):
        return rebuild(specs, {(target, 0): 1}, next_watermark).watermark

    for record, expected in ((mark("a", 10, status=Status.ENDED), END_OF_TIME), (mark("a", 20, epoch=2), None)):
        producer.produce(target, key=mark_key("a"), value=encode_watermark(record))
        assert producer.flush(30) == 0
        assert rebuilt() == expected
    assert rebuilt(END_OF_TIME) == END_OF_TIME
