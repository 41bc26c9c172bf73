"""Producing as confluent-kafka does: delivery reports, timestamps, counts, closing."""

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from floodmark.producers import (
    Data,
    Mark,
    Observer,
    WatermarkedProducer,
    ascending,
    bounded_out_of_orderness,
    ingress,
    per_partition,
    punctuated,
)
from floodmark.producers.clients.admin import end_offsets
from floodmark.producers.readers.check import checker_of, findings
from floodmark.producers.testing import ManualClock
from floodmark.schemas.errors import (
    DeliveryError,
    InvalidEventTimeError,
    LateRecordError,
    RecreatedTopicError,
    ReservedKeyError,
    UnknownTopicError,
    UsageError,
)
from support.harness import records_by_partition, recreate, until

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


BATCH = {
    "list": list,
    "NumPy": np.array,
    "NumPy's times": lambda times: np.array(times, "datetime64[ms]").astype("datetime64[ns]"),
    "Arrow": pa.array,
    "Arrow's times": lambda times: pa.chunked_array([pa.array(times, pa.timestamp("ms", "UTC"))]),
}


@pytest.mark.parametrize("strategy", [bounded_out_of_orderness(timedelta(milliseconds=50)), per_partition(ascending())])
def test_many_records_at_once_keep_their_order_and_stay_before_the_marks_that_cover_them(kafka, topic, strategy):
    """An interval of a millisecond sends marks between all parts of a batch; `findings` judges times and counts."""
    target, reports = topic(3), []
    config = {**kafka.config, "on_delivery": lambda error, _message: reports.append(error)}
    with WatermarkedProducer(
        config, topic=target, source="a", strategy=strategy, interval=timedelta(milliseconds=1)
    ) as ours:
        for number, array in enumerate(BATCH.values()):
            times = range(number * 1_000, (number + 1) * 1_000)
            keys = [f"k{time % 7}" if time % 2 else b"k%d" % (time % 7) for time in times]
            ours.produce_many([b"%d" % time for time in times], event_times=array(times), keys=keys)
            ours.produce(b"%d" % times.stop, event_time=times[-1], key=keys[-1])
        ours.produce_many([], event_times=[])
        ours.end()
        assert (ours.late, ours.metrics().records, reports) == (0, 5_005, [None] * 5_005)
    partitions = records_by_partition(kafka.config, target)
    values = [[int(record.value) for record in one if isinstance(record, Data)] for one in partitions.values()]
    assert all(found == sorted(found) for found in values)
    assert sum(map(len, values)) == 5_005
    marks = [record for one in partitions.values() for record in one if isinstance(record, Mark)]
    assert len(marks) > 3 * 6, "between the parts, too"
    assert list(map(str, findings(kafka.config, target, None, checker_of(kafka.config, target)))) == []


def test_of_many_records_those_before_a_refused_one_are_sent_and_counted(kafka, topic):
    target = topic(1)
    ours = producer(kafka, target, interval=timedelta(days=1))
    wrong = [
        ({"event_times": [1, "x"]}, InvalidEventTimeError),
        ({"event_times": np.array([1, "NaT"], "datetime64[ms]")}, InvalidEventTimeError),
        ({"event_times": [1, 2], "keys": [None, b"__floodmark__/a"]}, ReservedKeyError),
        ({"event_times": [1]}, UsageError),
        ({}, InvalidEventTimeError),
    ]
    for arguments, error in wrong:
        with pytest.raises(error):
            ours.produce_many([b"1", b"2"], **arguments)
    assert ours.metrics().records == 0
    with pytest.raises(KafkaException, match="too large") as refused:
        ours.produce_many([b"1", b"2", b"x" * 2_000_000, b"4"], event_times=[1, 2, 3, 4])
    assert ours.metrics().records == 2
    assert refused.value.__notes__ == ["2 of these 4 records were sent"]
    ours.end()
    assert [record.value for record in data_of(kafka, target)] == [b"1", b"2"]
    assert list(map(str, findings(kafka.config, target, None, checker_of(kafka.config, target)))) == []


def test_many_records_of_any_strategy_are_sent_as_one_by_one(kafka, topic):
    target = topic(1)
    with producer(kafka, target, ingress()) as ours:
        ours.produce_many([b"1", b"2"], keys=["a", None])
        with pytest.raises(UsageError, match="ingress"):
            ours.produce_many([b"1"], event_times=[1])
        ours.end()
    assert [(record.key, record.value) for record in data_of(kafka, target)] == [(b"a", b"1"), (None, b"2")]
    with producer(kafka, topic(1), on_late="raise", background=False) as ours:
        ours.produce_many([b"1"], event_times=[10])
        ours.flush()
        with pytest.raises(LateRecordError):
            ours.produce_many([b"1", b"2"], event_times=[11, 9])
        assert ours.metrics().records == 2
    with producer(kafka, topic(1), punctuated({b"p": 50, b"x": "50"}.get)) as ours:
        ours.produce_many([b"1", b"p"], event_times=[49, 50])
        ours.flush()
        assert ours.watermark == 50
        with pytest.raises(InvalidEventTimeError) as refused:
            ours.produce_many([b"2", b"x", b"3"], event_times=[51, 52, 53])
        assert refused.value.__notes__ == ["1 of these 3 records were sent"]
        assert ours.metrics().records == 3


def test_a_topic_that_was_deleted_is_named(kafka, topic):
    target = topic(1)
    soon = {"topic.metadata.refresh.interval.ms": 100, "topic.metadata.propagation.max.ms": 100}
    settings = {"source": "a", "strategy": ascending(), "background": False}
    ours = WatermarkedProducer({**kafka.config, **soon}, topic=target, **settings)
    ours.produce(b"1", event_time=1)
    ours.flush()
    admin = AdminClient(kafka.config)
    admin.delete_topics([target])[target].result(30)

    def refused():
        ours.produce(b"2", event_time=2)
        ours.poll(0.1)

    with pytest.raises(UnknownTopicError, match=f"topic '{target}' does not exist"):
        until(refused, "an error")


@pytest.mark.parametrize("background", [True, False])
def test_a_topic_that_is_created_again_with_fewer_partitions_is_named_and_not_flooded(kafka, topic, background):
    target = topic(4)
    soon = {"topic.metadata.refresh.interval.ms": 100, "topic.metadata.propagation.max.ms": 100}
    settings = {"source": "a", "strategy": ascending(), "interval": timedelta(milliseconds=200)}
    ours = WatermarkedProducer({**kafka.config, **soon}, topic=target, background=background, **settings)
    ours.produce(b"1", event_time=1)
    ours.flush()
    recreate(kafka.config, target, 2)
    errors = []

    def refused():
        try:
            ours.produce(b"2", event_time=2, partition=len(errors) % 2)
        except (RecreatedTopicError, UnknownTopicError) as error:
            errors.append(error)
        return len(errors) >= 40

    until(refused, "errors")
    assert isinstance(errors[-1], RecreatedTopicError)
    assert "Restart it: until then, readers report records of the old topic as lost" in str(errors[-1])
    with pytest.raises((RecreatedTopicError, DeliveryError)):
        ours.flush()
    with suppress(RecreatedTopicError):  # a thread has marks to send
        ours.close(1)
    assert sum(end_offsets(kafka.config, target).values()) < 20


def test_a_topic_that_is_created_again_with_as_many_partitions_is_logged(kafka, topic, caplog):
    target, clock = topic(1), ManualClock(wall=datetime.now(UTC))
    with producer(kafka, target, clock=clock) as ours:
        ours.produce(b"1", event_time=1)
        ours.flush()
        recreate(kafka.config, target, 1)

        def told():
            clock.advance(timedelta(minutes=1))
            return f"topic '{target}' was deleted and created again" in caplog.text

        until(told, "the log")
