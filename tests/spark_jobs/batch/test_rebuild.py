"""What a job works out from the topics again, where its snapshot is lost."""

import pytest
from confluent_kafka import Producer
from floodmark.producers.testing import mark
from floodmark.schemas import Status, encode_watermark, mark_key
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
        [SourceSpec("read", Connection((target,), kafka.bootstrap_servers), None, None)], {(target, 0): 4}
    )
    assert progress.watermark is None
    assert [str(hold) for hold in progress.holders()] == [f"{target}/0/a: unreadable mark of a at {target}/0@2"]
