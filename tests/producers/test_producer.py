"""The producer against a real broker: order, failure, growth, refusal."""

import gc
import time
import weakref
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException
from floodmark.producers import (
    Data,
    EmbeddedKafka,
    Mark,
    Observer,
    SourcePool,
    Unreadable,
    WatermarkedProducer,
    ascending,
    create_topics,
    explicit,
    ingress,
    punctuated,
    with_idleness,
)
from floodmark.producers.clients.admin import answering, partition_count, redacted
from floodmark.producers.testing import ManualClock
from floodmark.schemas import Membership, Status
from floodmark.schemas.errors import (
    BrokerUnavailableError,
    DeliveryError,
    EndedError,
    InvalidEventTimeError,
    LateRecordError,
    MissingRightError,
    ReservedKeyError,
    UnknownTopicError,
    UsageError,
)
from support.harness import drain, grow, records_by_partition, until

pytestmark = pytest.mark.kafka


def producer(kafka, target, **options):
    given = {"source": "a", "strategy": ascending(), "epoch": 1, "config": kafka.config, **options}
    return WatermarkedProducer(topic=target, **given)


def test_no_record_comes_behind_its_partitions_mark(kafka, topic):
    """The invariant, on the log as it is: event times are the values."""
    target = topic(partitions=3)
    with producer(kafka, target, interval=timedelta(milliseconds=1)) as ours:
        for event_time in range(20_000):
            ours.produce(b"%d" % event_time, event_time=event_time, key=b"k%d" % (event_time % 40))
            if event_time % 2_000 == 0:
                ours.flush()
        ours.end()
    marks = 0
    for records in records_by_partition(kafka.config, target).values():
        watermark, seen = None, 0
        for record in records:
            if isinstance(record, Data):
                seen += 1
                assert watermark is None or int(record.value) >= watermark
            else:
                marks += 1
                assert isinstance(record, Mark)
                assert record.record.records == seen
                watermark = record.record.watermark
    assert marks > 30


def test_flush_promises_all_that_was_acknowledged(kafka, topic):
    target = topic(partitions=2)
    ours = producer(kafka, target)
    ours.produce(b"x", event_time=datetime(2013, 1, 1, tzinfo=UTC), key="k")
    ours.flush()
    with Observer(kafka.config, [target]) as observer:
        tracker = observer.trackers[target]

        def promised():
            list(observer.poll())
            tracker.advance()
            return tracker.watermark == 1356998400000

        until(promised, "the promise")
    ours.end()


def test_two_sources_are_both_waited_for(kafka, topic):
    target = topic(partitions=1)
    membership = Membership(version=1, size=2)
    one = producer(kafka, target, source="one", membership=membership)
    one.produce(b"x", event_time=30)
    one.end()
    with Observer(kafka.config, [target]) as observer:
        until(lambda: list(observer.poll()) or observer.counts[target]["marks"] > 0, "the first source's marks")
        assert observer.trackers[target].advance() is None
        assert "1 of 2" in str(observer.trackers[target].holders()[0])
    producer(kafka, target, source="two", membership=membership).end()
    drain(kafka.config, target)


def test_a_source_back_from_idle_says_so_before_its_record(kafka, topic):
    target = topic(partitions=1)
    ours = producer(kafka, target)
    ours.mark_idle()
    ours.produce(b"x", event_time=12)
    ours.end()
    records = records_by_partition(kafka.config, target)[0]
    said = [record.record.status if isinstance(record, Mark) else record.value for record in records]
    assert said == [Status.IDLE, Status.ACTIVE, b"x", Status.ENDED]


@pytest.mark.parametrize("idle", [False, True])
def test_new_partitions_are_found_and_marked_while_nothing_is_sent(kafka, topic, idle):
    target, clock = topic(partitions=1), ManualClock(wall=datetime.now(UTC))
    ours = producer(kafka, target, interval=timedelta(days=1), clock=clock)
    ours.produce(b"x", event_time=12)
    if idle:
        ours.mark_idle()
    grow(kafka.config, target, 3)
    clock.advance(timedelta(seconds=10))
    with Observer(kafka.config, [target]) as observer:
        marked = set()

        def everywhere():
            ours.poll(0.01)
            marked.update(record.partition for record in observer.poll() if isinstance(record, Mark))
            return marked == {0, 1, 2}

        until(everywhere, "marks in the new partitions")
    ours.end()
    found = records_by_partition(kafka.config, target)
    assert [record.record.partitions for record in found[2]] == [3, 3]


@pytest.mark.parametrize("how", ["flush", "end"])
def test_flush_and_end_mark_partitions_that_were_added_a_moment_ago(kafka, topic, how):
    target = topic(partitions=1)
    ours = producer(kafka, target)
    ours.produce(b"x", event_time=12)
    ours.flush()
    grow(kafka.config, target, 3)
    getattr(ours, how)()
    if how == "flush":
        ours.end()
    found = records_by_partition(kafka.config, target)
    assert set(found) == {0, 1, 2}
    assert all(records[-1].record.status is Status.ENDED for records in found.values())
    assert [len(found[partition]) for partition in (1, 2)] == [2, 2] if how == "flush" else [1, 1]


def test_a_garbage_mark_is_seen_and_moves_nothing(kafka, topic):
    target = topic(partitions=1)
    with producer(kafka, target) as ours:
        ours._channel.client.produce(target, key=b"__floodmark__/a", value=b"garbage")  # noqa: SLF001
        ours.end()
    records = records_by_partition(kafka.config, target)[0]
    assert isinstance(records[0], Unreadable)
    assert "begins with" in records[0].reason


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"event_time": None}, InvalidEventTimeError),
        ({"event_time": 1.5}, InvalidEventTimeError),
        ({"event_time": True}, InvalidEventTimeError),
        ({"event_time": 2**60}, InvalidEventTimeError),
        ({"event_time": datetime(2013, 1, 1)}, InvalidEventTimeError),  # noqa: DTZ001  # naive on purpose
        ({"event_time": 1, "key": b"__floodmark__/x"}, ReservedKeyError),
        *(({"event_time": 1, "key": key}, UsageError) for key in (5, ["a"], "\ud800")),
        ({"event_time": 1, "headers": [("floodmark", b"1")]}, UsageError),
        ({"event_time": 1, "headers": [("a", b"1"), ("floodmark-time", b"2")]}, UsageError),
        ({"event_time": 1, "headers": {"floodmark-substream": b"1"}}, UsageError),
    ],
)
def test_bad_records_are_refused_and_change_nothing(kafka, topic, arguments, error):
    ours = producer(kafka, topic())
    with pytest.raises(error):
        ours.produce(b"x", **arguments)
    assert ours.watermark is None


def test_a_record_behind_the_own_promise_is_counted_and_logged_once_or_refused(kafka, topic, caplog):
    target = topic()
    ours = producer(kafka, target)
    ours.produce(b"x", event_time=30)
    ours.flush()
    ours.produce(b"x", event_time=29)
    assert ours.late == 1
    for _ in range(2):
        ours.flush()
    logged = [one.message for one in caplog.records if "find them late" in one.message]
    assert len(logged) == 1
    assert logged[0].startswith("source 'a': 1 record(s) are below its watermark 1970-01-01T00:00:00.030+00:00, so ")
    strict = producer(kafka, target, source="b", on_late="raise", strategy=explicit())
    strict.advance(30)
    strict.flush()
    with pytest.raises(LateRecordError):
        strict.produce(b"x", event_time=29)
    strict.produce(b"x", event_time=30)


def test_an_ended_source_is_refused(kafka, topic):
    ours = producer(kafka, topic())
    ours.end()
    with pytest.raises(EndedError):
        ours.produce(b"x", event_time=1)


def test_settings_that_cannot_be_right_are_refused(kafka, topic):
    target = topic()
    with pytest.raises(UsageError, match="idempotence"):
        WatermarkedProducer(
            {**kafka.config, "enable.idempotence": False}, topic=target, source="a", strategy=ascending()
        )
    with pytest.raises(UsageError, match="interval"):
        producer(kafka, target, interval=timedelta(0))
    with pytest.raises(UsageError, match="explicit"):
        producer(kafka, target).advance(1)


def test_an_unknown_topic_is_named(kafka):
    with pytest.raises(UnknownTopicError, match="no-such-topic"):
        producer(kafka, "no-such-topic")


def test_a_broker_that_is_back_within_the_timeout_is_asked_again():
    away = KafkaException(KafkaError(KafkaError._TRANSPORT))  # noqa: SLF001  # its public name
    there = SimpleNamespace(topics={"t": SimpleNamespace(error=None, partitions={0: None, 1: None})})
    client = Mock(list_topics=Mock(side_effect=[away, away, there]))
    assert partition_count(client, "t", "here:9092") == 2
    client = Mock(list_topics=Mock(side_effect=away))
    with pytest.raises(BrokerUnavailableError):
        partition_count(client, "t", "here:9092", 0.1)


def test_no_broker_is_named(monkeypatch):
    monkeypatch.setattr("floodmark.producers.clients.admin.partition_count.__defaults__", (1.0,))
    with pytest.raises(BrokerUnavailableError, match=r"127\.0\.0\.1:1 is not available: .*\. Check the address"):
        WatermarkedProducer({"bootstrap.servers": "127.0.0.1:1"}, topic="t", source="a", strategy=ascending())


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, MissingRightError, "refused: .*Your user lacks a right"),
        (KafkaError.INVALID_CONFIG, UsageError, "refused: .*Configuration is invalid"),
        (KafkaError.NOT_CONTROLLER, BrokerUnavailableError, "is not available: Broker: Not controller"),
    ],
)
def test_the_answer_of_a_broker_is_told_without_advice_about_its_address(code, kind, reason):
    answer = KafkaException(KafkaError(code))
    with pytest.raises(kind, match=f"^Kafka at k:9092 {reason}") as told, answering("k:9092"):
        raise answer
    assert "address" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "partitions", "settings", "reason"),
    [
        ("zero", 0, {}, "artitions"),
        ("a b", 1, {}, "a b"),
        ("a", 1, {"no.such": "1"}, "no.such"),
        ("a", 1, {"retention.ms": "x"}, "retention.ms"),
    ],
)
def test_a_topic_that_kafka_refuses_is_named_with_the_reason(kafka, name, partitions, settings, reason):
    with pytest.raises(UsageError, match=f"refused: topic '{name}': .*{reason}"):
        create_topics(kafka.config, {name: partitions}, settings)


def test_secrets_never_show(kafka, topic):
    config = {"sasl.password": "hunter2", "ssl.key.password": "hunter2", "sasl.jaas.config": "hunter2"}
    assert "hunter2" not in str(redacted(config))
    assert "bootstrap" not in repr(producer(kafka, topic()))


def test_a_dead_broker_holds_the_watermark_and_is_named(tmp_path, topic):
    from floodmark.producers import create_topics  # noqa: PLC0415  # next to its only use

    with EmbeddedKafka(tmp_path / "dying") as broker:
        create_topics(broker.config, {"t": 1})
        ours = WatermarkedProducer(
            {**broker.config, "message.timeout.ms": 5_000}, topic="t", source="a", strategy=ascending()
        )
        ours.produce(b"x", event_time=12)
        ours.flush()
        broker.kill()
        ours.produce(b"x", event_time=30)
        with pytest.raises(DeliveryError) as caught:
            ours.end(timeout=30)
        assert caught.value.held_at == 30
        ours._emitter.generator.on_event(99)  # noqa: SLF001  # even if the source could promise more
        assert ours.watermark == 30


def test_the_far_future_is_refused_where_asked_for(kafka, topic):
    ours = producer(kafka, topic(), early=timedelta(minutes=5))
    now = time.time_ns() // 1_000_000
    ours.produce(b"x", event_time=now + 200_000)
    with pytest.raises(InvalidEventTimeError, match="ahead of the clock, expected at most 300"):
        ours.produce(b"x", event_time=now + 400_000)
    with pytest.raises(InvalidEventTimeError):
        ours.produce_many([b"x", b"y"], event_times=[now, now + 400_000])
    assert ours.metrics().records == 1, "nothing of a batch is sent if one of its times is refused"
    ours.produce_many([b"x", b"y"], event_times=[now, now + 200_000])
    assert ours.watermark < now + 300_000
    with pytest.raises(UsageError, match="early"):
        producer(kafka, topic(), early=timedelta(-1))


def test_before_1970_is_a_time_like_any_other(kafka, topic):
    target = topic()
    with producer(kafka, target) as ours:
        ours.produce(b"x", event_time=-86_400_000)
    assert ours.watermark == -86_400_000


@pytest.mark.parametrize(
    ("value", "error"), [({"at": 99}, TypeError), (b"x" * 2_000_000, KafkaException)], ids=["no bytes", "too large"]
)
def test_a_record_that_the_client_refuses_moves_no_watermark(kafka, topic, value, error):
    with producer(kafka, topic()) as ours:
        ours.produce(b"x", event_time=12)
        with pytest.raises(error):
            ours.produce(value, event_time=99)
        ours.flush()
        assert (ours.watermark, ours.metrics().records) == (12, 1)


def test_a_queue_that_stays_full_is_an_error_and_counts_nothing(tmp_path, monkeypatch):
    from floodmark.producers import create_topics  # noqa: PLC0415  # next to its only use

    def send(begin, end):
        for time_ in range(begin, end):
            ours.produce(b"x", event_time=time_)

    with EmbeddedKafka(tmp_path / "full") as broker:
        create_topics(broker.config, {"t": 1})
        config = {**broker.config, "queue.buffering.max.messages": 5}
        ours = WatermarkedProducer(config, topic="t", source="a", strategy=ascending(), interval=timedelta(hours=1))
        send(0, 50)  # a full queue that empties is waited for
        ours.flush()
        broker.kill()
        monkeypatch.setattr("floodmark.producers.sender._QUEUE_TIMEOUT", 0.5)
        with pytest.raises(BufferError):
            send(50, 60)
        sent = ours._emitter.records  # noqa: SLF001
        assert 50 < sent <= 55
        assert ours.watermark == 50, "held at the first record under way"


def test_ingress_time_is_given_by_the_producer(kafka, topic):
    target = topic()
    before = time.time_ns() // 1_000_000
    with producer(kafka, target, strategy=ingress()) as ours:
        ours.produce(b"x")
        with pytest.raises(UsageError, match="ingress"):
            ours.produce(b"x", event_time=5)
        ours.flush()
        assert before <= ours.watermark <= time.time_ns() // 1_000_000


def test_ingress_needs_a_topic_that_keeps_its_times(kafka):
    create_topics(kafka.config, {"restamping": 1}, {"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(UsageError, match=r"'restamping'.*LogAppendTime, .* set CreateTime"):
        producer(kafka, "restamping", strategy=ingress(), config={**kafka.config, "on_delivery": print})
    with SourcePool(kafka.config, topic="restamping") as pool:
        for _ in range(2):
            with pytest.raises(UsageError, match="LogAppendTime"):
                pool.join("a", "b", strategy=with_idleness(ingress(), timedelta(seconds=1)))
        assert len(pool.join("a", "b", strategy=ascending())) == 2


def test_a_punctuation_goes_out_at_once(kafka, topic):
    target = topic()
    ours = producer(
        kafka,
        target,
        strategy=punctuated(lambda value: int(value[4:]) if value.startswith(b"all ") else None),
        interval=timedelta(hours=1),
    )
    ours.produce(b"x", event_time=12)
    ours.produce(b"all 10", event_time=11)
    ours._channel.client.flush(30)  # noqa: SLF001  # without a mark of its own
    with Observer(kafka.config, [target]) as observer:
        tracker = observer.trackers[target]
        until(lambda: list(observer.poll()) and tracker.advance() == 10, "the promise in every partition", 20)


def test_the_client_of_an_ended_source_goes_with_it_and_waits_for_no_garbage_collection(kafka, topic):
    """Its threads and connections go then: hundreds of sources would leave too many open files behind."""
    ours = WatermarkedProducer(kafka.config, topic=topic(1), source="a", strategy=ascending())
    ours.produce(b"x", event_time=1_700_000_000_000)
    ours.end()
    outbox = weakref.ref(ours._outbox)  # noqa: SLF001  # it has the client, which takes no weak references
    gc.disable()
    try:
        del ours
        until(lambda: outbox() is None, "the last look of the background thread", 30)
    finally:
        gc.enable()
