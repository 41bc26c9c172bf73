"""What a record of confluent-kafka is read as, and that no client creates a topic by asking for it."""

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message
from confluent_kafka.admin import AdminClient
from floodmark.producers import WatermarkedConsumer, WatermarkedProducer, ascending
from floodmark.producers.clients.admin import offset_bounds, require_topics
from floodmark.producers.clients.consumers import classified
from floodmark.producers.testing import mark
from floodmark.schemas.classify import Data, Mark, Unreadable, mark_record
from floodmark.schemas.errors import UnknownTopicError


class OddHeaders:
    """A record with a header whose name is no UTF-8, as librdkafka gives it."""

    def __init__(self, key, value):
        self.key, self.value = lambda: key, lambda: value

    topic, partition, offset = (lambda _: "clicks"), (lambda _: 0), (lambda _: 7)

    def timestamp(self):
        return TIMESTAMP_CREATE_TIME, 5

    def headers(self):
        raise SystemError


def test_a_record_is_data_a_mark_or_unreadable_by_its_key():
    key, value, headers = mark_record(mark("a", 12))
    place = {"topic": "clicks", "partition": 0, "offset": 7, "timestamp": (TIMESTAMP_CREATE_TIME, 5)}
    assert classified(Message(**place, key=key, value=value, headers=headers)) == Mark(
        "clicks", 0, 7, 5, mark("a", 12), headers
    )
    assert classified(Message(**place, key=b"k", value=None)) == Data("clicks", 0, 7, 5, b"k", None)
    unreadable = classified(Message(**place, key=key, value=b"of the future"))
    assert isinstance(unreadable, Unreadable)
    assert unreadable.source == "a"


def test_a_record_without_a_timestamp_has_log_time_0():
    message = Message(topic="t", partition=0, offset=0, key=None, value=b"", timestamp=(TIMESTAMP_NOT_AVAILABLE, -1))
    assert classified(message).log_time == 0


def test_headers_that_cannot_be_read_lose_no_record(caplog):
    key, value, _ = mark_record(mark("a", 12))
    assert classified(OddHeaders(b"k", b"v")) == Data("clicks", 0, 7, 5, b"k", b"v")
    assert classified(OddHeaders(key, value)).record == mark("a", 12)
    assert "clicks/0@7: its headers cannot be read" in caplog.text


def test_asking_for_a_topic_that_does_not_exist_does_not_create_it():
    # librdkafka's own broker for tests creates topics when asked, as Kafka's do by default.
    with_broker = AdminClient({"bootstrap.servers": "none", "test.mock.num.brokers": 1})
    broker = next(iter(with_broker.list_topics(timeout=30).brokers.values()))
    config = {"bootstrap.servers": f"{broker.host}:{broker.port}", "allow.auto.create.topics": True}
    for ask in (
        lambda: require_topics(config, ["a"]),
        lambda: offset_bounds(config, "b"),
        lambda: WatermarkedProducer(config, topic="c", source="web", strategy=ascending()),
        lambda: WatermarkedConsumer(config, ["d"], lambda _: 0),
    ):
        with pytest.raises(UnknownTopicError):
            ask()
    assert not with_broker.list_topics(timeout=30).topics
