"""The table of marks, three times: the pure tracker, an observer on a real Kafka, a Spark job on a real Kafka."""

import time

import pytest
from confluent_kafka import Producer
from floodmark.producers import Observer
from floodmark.schemas import Tracker, decode_watermark, encode_watermark, mark_key
from floodmark.schemas.conformance.reader_cases import TABLE, table_records
from floodmark.schemas.errors import UnreadableMarkError
from floodmark.spark_jobs import WriteOptions, avro, read, write
from support.counting import fails
from support.harness import EVENT, until

NOW = time.time_ns() // 1_000_000
cases = pytest.mark.parametrize("case", TABLE, ids=[f"{case['origin']}: {case['name']}" for case in TABLE])


def send(kafka, topic, partition, record, log_time):
    producer = Producer(kafka.config)
    source, value = (record, b"garbage") if isinstance(record, str) else (record.source, encode_watermark(record))
    producer.produce(topic, key=mark_key(source), value=value, partition=partition, timestamp=NOW + log_time)
    assert producer.flush(30) == 0


@cases
def test_the_tracker(case):
    tracker = Tracker({"t"})
    for offset, (partition, record, log_time, expected) in enumerate(table_records(case)):
        if isinstance(record, str):
            with pytest.raises(UnreadableMarkError):
                decode_watermark(mark_key(record), b"garbage")
            tracker.apply_unreadable(record, topic="t", partition=partition, offset=offset, log_time=log_time)
        else:
            tracker.apply(record, topic="t", partition=partition, log_time=log_time)
        assert tracker.advance() == expected


@pytest.mark.kafka
@cases
def test_over_kafka(kafka, topic, case):
    target = topic(case.get("kafka_partitions", case.get("partitions", 1)))
    with Observer(kafka.config, [target]) as observer:
        for number, (partition, record, log_time, expected) in enumerate(table_records(case), start=1):
            send(kafka, target, partition, record, log_time)
            until(lambda due=number: list(observer.poll(0.05)) or observer.counts[target].total() >= due, "the mark")
            assert observer.trackers[target].advance() == expected


@pytest.mark.spark
@cases
def test_in_a_spark_job(spark, kafka, topic, checkpoint, case):
    """After each mark's batch the job has the expected watermark."""
    target = topic(case.get("kafka_partitions", case.get("partitions", 1)))
    batches = []
    rows = read(spark, topics=target, value=avro(EVENT), event_time="at", bootstrap_servers=kafka.bootstrap_servers)
    job = write(
        rows,
        writer=lambda frame, _: frame.write.format("noop").mode("append").save(),
        job="conformance",
        checkpoint_location=checkpoint,
        options=WriteOptions(on_batch=batches.append),
    )
    last = None
    try:
        for number, (partition, record, log_time, expected) in enumerate(table_records(case), start=1):
            send(kafka, target, partition, record, log_time)
            until(
                lambda due=number: fails(job) or sum(batch.marks for batch in batches) >= due,
                f"the batch of mark {number}",
            )
            last = last if expected is None else expected
            assert job.watermark == last
    finally:
        job.stop()
