"""What a source hands to Kafka's client, step by step: interrupts between two steps, and marks that fail late."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError
from floodmark.producers.sender import Outbox
from floodmark.producers.strategies.basic import ascending, punctuated
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.interface import Generator
from floodmark.producers.strategies.numbering import Identity
from floodmark.producers.testing import ManualClock
from floodmark.schemas import Status, decode_watermark
from floodmark.schemas.timestamps import END_OF_TIME

TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT)  # noqa: SLF001  # public


class Client:
    """Kafka's client, whose reports come when a test says so; ``interrupts``: Ctrl-C right after it takes a record."""

    def __init__(self):
        self.taken, self.interrupts = [], False

    def poll(self, _timeout=0):
        return 0

    def produce(self, _topic, value, key, partition, report, *_):
        self.taken.append((partition, key, value, report))
        if self.interrupts:
            raise KeyboardInterrupt

    def report(self, number, error=None):
        partition, key, value, report = self.taken[number]
        parts = {"partition": partition, "key": key, "value": value, "timestamp": (0, 0)}
        report(error, SimpleNamespace(**{name: lambda part=part: part for name, part in parts.items()}))

    def marks(self, partition=0):
        found = [(key, value) for number, key, value, _ in self.taken if key is not None and number == partition]
        return [(mark.sequence, mark.status) for mark in (decode_watermark(*one) for one in found)]


def sending(strategy, partitions=1):
    emitter, client = Emitter(Identity("a", 1), strategy, partitions), Client()
    return emitter, client, Outbox(client, "t", emitter)


def test_a_mark_whose_sending_was_interrupted_has_its_number_for_itself_and_a_source_can_end():
    emitter, client, outbox = sending(ascending().build(), partitions=2)
    client.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        outbox.send_marks(ManualClock(0), wait=True)
    client.interrupts = False
    assert not emitter.registered, "the next record needs marks before it"
    assert not emitter.counter.doubtful
    client.report(0)
    outbox.end()
    outbox.send_marks(ManualClock(1), wait=True)
    for number in range(1, len(client.taken)):
        client.report(number)
    outbox.check(0, marks=True)
    assert outbox.settled
    assert [client.marks(number)[-1][1] for number in range(2)] == [Status.ENDED] * 2
    assert all(len(dict(client.marks(number))) == len(client.marks(number)) for number in range(2))


def test_an_end_whose_mark_was_interrupted_is_marked_in_each_partition_by_the_next_call():
    _, client, outbox = sending(ascending().build(), partitions=2)
    outbox.end()
    client.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        outbox.send_marks(ManualClock(0), wait=True)
    client.interrupts = False
    del client.taken[:]  # the interrupt came before the client had it
    outbox.send_marks(ManualClock(1), wait=True)
    for number in range(len(client.taken)):
        client.report(number)
    assert outbox.settled
    assert [client.marks(number) for number in range(2)] == [[(0, Status.ENDED)]] * 2


def test_a_record_whose_resending_was_interrupted_holds_the_watermark_until_it_is_acknowledged():
    emitter, client, outbox = sending(ascending().build())
    outbox.send_marks(ManualClock(0), wait=True)
    client.report(0)
    outbox.send(b"a", None, 0, 10, 1)
    client.report(1, TIMED_OUT)
    client.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        outbox.resend(2)
    client.interrupts = False
    assert outbox.resend(3) == 0, "the client may have it: it is not sent twice"
    outbox.send(b"b", None, 0, 20, 4)
    assert (emitter.watermark_hold, outbox.unacknowledged) == (10, 2)
    client.report(3)
    assert emitter.watermark_hold == 10, "the report of another record says nothing of it"
    client.report(2)
    assert (emitter.watermark_hold, outbox.unacknowledged) == (None, 0)


def test_a_mark_from_before_the_end_that_arrives_late_does_not_stand_for_the_mark_of_the_end():
    _, client, outbox = sending(ascending().build())
    outbox.send_marks(ManualClock(0), wait=True)
    client.report(0, TIMED_OUT)
    outbox.end()
    outbox.send_marks(ManualClock(1), wait=True)
    assert client.marks() == [(0, Status.ACTIVE), (1, Status.ENDED)], "nothing older comes after it"
    client.report(1, TIMED_OUT)
    assert not outbox.settled
    outbox.send_marks(ManualClock(2), wait=True)
    client.report(2)
    assert outbox.settled
    assert client.marks()[-1] == (1, Status.ENDED)


class Fails(Generator):
    """A strategy that fails while marks are built."""

    def on_event(self, event_time, now=None, value=None):
        pass

    def watermark(self):
        raise TypeError("no event yet")


def test_a_source_without_marks_because_its_strategy_fails_may_send_no_record():
    emitter, client, outbox = sending(Fails())
    with pytest.raises(TypeError, match="no event yet"):
        outbox.send_marks(ManualClock(0), wait=True)
    assert not client.taken
    assert not emitter.registered


def test_a_value_that_says_that_all_is_done_makes_marks_due_once():
    emitter = Emitter(Identity("a", 1), punctuated(lambda value: END_OF_TIME if value else None).build(), 1)
    emitter.send(0, 5, 0, b"done").ack()
    assert emitter.due
    emitter.marks(100)
    assert not emitter.due
