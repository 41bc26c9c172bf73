"""Producing as confluent-kafka does: delivery reports, timestamps, counts, closing."""

import time
from datetime import timedelta

import pytest
from floodmark.producers import Data, Mark, Observer, WatermarkedProducer, ascending, ingress
from floodmark.schemas.errors import InvalidEventTimeError, UsageError
from support.harness import records_by_partition, until

pytestmark = pytest.mark.kafka


def producer(kafka, target, strategy=None, **options):
    return WatermarkedProducer(kafka.config, topic=target, source="a", strategy=strategy or ascending(), **options)


def data_of(kafka, target):
    return [record for record in records_by_partition(kafka.config, target)[0] if isinstance(record, Data)]


def test_delivery_reports_reach_the_caller_as_confluent_kafka_gives_them(kafka, topic):
    reports = []
    target = topic(1)
    with producer(kafka, target) as ours:
        ours.produce(b"12", event_time=12, on_delivery=lambda error, message: reports.append((error, message.value())))
        ours.produce(b"13", event_time=13, headers={"h": b"v"})
        assert ours.flush() == 0
        assert reports == [(None, b"12")]
        ours.end()
    assert [record.headers for record in data_of(kafka, target)] == [None, [("h", b"v")]]


def test_the_setting_on_delivery_is_the_default_and_marks_are_not_reported(kafka, topic):
    reports = []
    config = {**kafka.config, "on_delivery": lambda _error, message: reports.append(message.value())}
    with WatermarkedProducer(config, topic=topic(3), source="a", strategy=ascending()) as ours:
        ours.produce(b"12", event_time=12)
        ours.produce(b"13", event_time=13, on_delivery=lambda _error, _message: None)
    assert reports == [b"12"]


def test_poll_counts_the_reports_that_it_serves(kafka, topic):
    ours = producer(kafka, topic(1), interval=timedelta(days=1))
    ours.flush()
    assert ours.poll() == 0
    ours.produce(b"12", event_time=12)
    served = []
    until(lambda: served.append(ours.poll(0.1)) or sum(served) > 0 or ours._outbox.settled, "the report")  # noqa: SLF001
    assert sum(served) <= 2, "the record, and the mark before it"


def test_what_a_callback_raises_comes_out_of_poll_and_flush_alone_and_once(kafka, topic):
    def fail(_error, _message):
        raise ValueError("the caller's own")

    ours = producer(kafka, topic(1), background=False)
    ours.produce(b"12", event_time=12, on_delivery=fail)
    until(lambda: ours.emit() or ours._emitter.watermark_hold is None, "delivery")  # noqa: SLF001
    ours.produce(b"13", event_time=13)
    with pytest.raises(ValueError, match="the caller's own"):
        ours.poll()
    ours.poll()
    ours.produce(b"14", event_time=14, on_delivery=fail)
    with pytest.raises(ValueError, match="the caller's own"):
        ours.flush()
    assert ours.metrics().records == 3
    ours.end()


def test_a_timestamp_is_kafkas_and_moves_no_watermark(kafka, topic):
    target, now = topic(1), time.time_ns() // 1_000_000
    with producer(kafka, target) as ours:
        ours.produce(b"12", event_time=12, timestamp=now - 5_000)
        ours.produce(b"13", event_time=13, timestamp=0)
        ours.flush()
        assert ours.watermark == 13
        for wrong in (-1, 1.5, True):
            with pytest.raises(UsageError, match="0 for now"):
                ours.produce(b"x", event_time=14, timestamp=wrong)
        with pytest.raises(InvalidEventTimeError):
            ours.produce(b"x", timestamp=now)
        ours.end()
    first, second = [
        record.log_time for record in records_by_partition(kafka.config, target)[0] if isinstance(record, Data)
    ]
    assert first == now - 5_000
    assert now <= second <= time.time_ns() // 1_000_000
    with pytest.raises(UsageError, match="pass none"):
        producer(kafka, topic(1), strategy=ingress()).produce(b"x", timestamp=now)


def test_close_waits_for_deliveries_and_promises_nothing(kafka, topic):
    target = topic(1)
    ours = producer(kafka, target, interval=timedelta(days=1), background=False)
    ours.produce(b"12", event_time=12)
    assert ours.close()
    assert ours.close(), "twice is as good as once"
    with Observer(kafka.config, [target]) as observer:
        found = []
        until(lambda: found.extend(observer.poll()) or len(found) >= 2, "the mark before the record, and the record")
    assert [record.record.watermark for record in found if isinstance(record, Mark)] == [None]
