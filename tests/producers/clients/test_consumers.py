"""What a record of confluent-kafka is read as."""

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message
from floodmark.producers.clients.consumers import classified
from floodmark.producers.testing import mark
from floodmark.schemas.classify import Data, Mark, Unreadable, mark_record


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
