"""What a source hands to Kafka, and what becomes of it: its records, its marks, and those that were not taken."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException, Message, Producer
from floodmark.producers.clients.clock import Clock
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.in_flight import InFlight
from floodmark.schemas.codec import encode_watermark
from floodmark.schemas.errors import DeliveryError
from floodmark.schemas.records import FORMAT_VERSION, HEADER, mark_key

_log = logging.getLogger(__name__)
_QUEUE_TIMEOUT: Final = 60.0
_MOST_ROUNDS: Final = 8
"""Rounds of marks under way; while Kafka is away, more of them would fill the queue and say nothing new."""

Headers = Sequence[tuple[str, str | bytes | None]]
OnDelivery = Callable[[KafkaError | None, Message], None]


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """A record that Kafka did not take: it holds the watermark until `WatermarkedProducer.resend` has sent it again."""

    value: bytes | None
    key: bytes | None
    partition: int
    headers: Headers | None
    reason: str
    timestamp: int | None
    """Kafka's timestamp, where the source gave one."""
    in_flight: InFlight = field(repr=False)


class Outbox:
    """One source's way into one topic.

    Args:
        client: confluent-kafka's producer, with idempotence on.
        topic: the topic.
        emitter: the source's; it learns of each record before it is sent, and what became of it.
        clock: where the time comes from.
    """

    def __init__(self, client: Producer, topic: str, emitter: Emitter, clock: Clock) -> None:
        """Begin with nothing sent."""
        self.failed: list[FailedRecord] = []
        """In the order in which they failed; those sent again are not here any more."""
        self._client = client
        self._produce = client.produce
        self._topic = topic
        self._emitter = emitter
        self._clock = clock
        self._key = mark_key(emitter.identity.source)
        self._headers: Headers = [(HEADER, FORMAT_VERSION)]
        self._failed_marks: dict[int, tuple[bytes, str]] = {}
        self._marks_under_way = 0
        self._in_flight = InFlight()
        self._on_delivery: OnDelivery = partial(self._delivered, self._in_flight, None)

    def send(  # the parts of a record
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: Headers | None,
        *,
        event_time: int,
        now: int,
        timestamp: int | None = None,
    ) -> None:
        """Send one record; after an error it was not sent.

        Raises:
            BufferError: the queue stayed full for a minute.
            KafkaException: the client refuses it, for example for its size.
        """
        in_flight = self._emitter.send(partition, event_time, now, value)
        if in_flight is not self._in_flight:
            self._in_flight = in_flight
            self._on_delivery = partial(self._delivered, in_flight, None)
        on_delivery = self._on_delivery if headers is None else partial(self._delivered, in_flight, headers)
        try:
            self._enqueue(value, key, partition, on_delivery, headers, timestamp)
        except BaseException:
            self._emitter.unsend(partition, in_flight)
            raise

    def resend(self) -> int:
        """Send all failed records again, in the order in which they failed; returns how many.

        Raises:
            BufferError: the queue stayed full for a minute; what was not sent again is still in ``failed``.
        """
        failed, self.failed = self.failed, []
        for position, record in enumerate(failed):
            partition = record.partition
            in_flight = self._emitter.resend(record.in_flight, partition, self._clock.steady())
            on_delivery = partial(self._delivered, in_flight, record.headers)
            try:
                self._enqueue(record.value, record.key, partition, on_delivery, record.headers, record.timestamp)
            except BaseException:
                self._emitter.fail(in_flight, partition)
                self.failed[:0] = [replace(record, in_flight=in_flight), *failed[position + 1 :]]
                raise
        return len(failed)

    @property
    def crowded(self) -> bool:
        """Whether so many marks are under way that more of them would help nobody."""
        return self._marks_under_way > _MOST_ROUNDS * self._emitter.partitions

    def send_marks(self, *, insist: bool) -> bool:
        """Send a mark to every partition; tells whether all were taken.

        Args:
            insist: wait for room in a full queue; else leave those out that it has no room for.

        Raises:
            BufferError: the queue stayed full for a minute, and they had to go.
        """
        emitter = self._emitter
        self._client.poll(0)
        # Once a source has ended nothing but what was not delivered is sent, again and unchanged: it may have arrived.
        failed, self._failed_marks = self._failed_marks, {}
        for partition, (value, _) in failed.items() if emitter.ended else ():
            self._send_mark(partition, value, insist=True)
        marks = emitter.marks(self._clock.wall(), steady=self._clock.steady())
        for position, (partition, mark) in enumerate(marks):
            try:
                self._send_mark(partition, encode_watermark(mark), insist=insist)
            except BaseException as error:
                for left, _ in marks[position:]:
                    emitter.unmark(left)
                if insist or not isinstance(error, (BufferError, KafkaException)):
                    raise
                return False
        return True

    def _send_mark(self, partition: int, value: bytes, *, insist: bool) -> None:
        self._enqueue(value, self._key, partition, self._mark_delivered, self._headers, insist=insist)
        self._marks_under_way += 1

    @property
    def settled(self) -> bool:
        """Whether nothing is under way, and no mark has failed."""
        return not self._failed_marks and not len(self._client)

    def wait(self, timeout: float, *, marks: bool = False) -> None:
        """Wait for all acknowledgements.

        Args:
            timeout: seconds.
            marks: whether a mark that was not delivered is an error, too.

        Raises:
            DeliveryError: where one does not come, or a record has failed.
        """
        left = self._client.flush(timeout)
        reasons = [record.reason for record in self.failed]
        if marks and not reasons:
            reasons = [reason for _, reason in self._failed_marks.values()]
        if left or reasons:
            raise DeliveryError(
                source=self._emitter.identity.source,
                topic=self._topic,
                failed=len(reasons) or left,
                reason=reasons[0] if reasons else f"no acknowledgement within {timeout} s",
                held_at=self._emitter.watermark_hold,
            )

    def _enqueue(
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: OnDelivery,
        headers: Headers | None,
        timestamp: int | None = None,
        *,
        insist: bool = True,
    ) -> None:
        """Hand a record to the client; wait up to a minute for room in its queue where it has to go now."""
        deadline: float | None = None
        produce = self._produce
        while True:
            try:
                if timestamp is None:
                    if headers is None:
                        produce(self._topic, value, key, partition, on_delivery)
                    else:
                        produce(self._topic, value, key, partition, on_delivery, headers=list(headers))
                else:  # 0 would be confluent-kafka's word for now
                    at = max(1, timestamp)
                    produce(self._topic, value, key, partition, on_delivery, timestamp=at, headers=list(headers or ()))
            except BufferError:
                now = time.monotonic()
                deadline = deadline or now + _QUEUE_TIMEOUT
                if not insist or now > deadline:
                    raise
                self._client.poll(0.05)
            else:
                return

    def _delivered(
        self, in_flight: InFlight, headers: Headers | None, error: KafkaError | None, message: Message
    ) -> None:
        """Take a delivery report; the headers are the record's, which a report does not carry."""
        if error is None:
            in_flight.ack()
            return
        partition, (kind, timestamp) = int(message.partition() or 0), message.timestamp()
        self._emitter.fail(in_flight, partition)
        if not self.failed:
            source = self._emitter.identity.source
            _log.error("source %r: a record for %r failed, and holds the watermark: %s", source, self._topic, error)
        record = FailedRecord(
            value=_bytes(message.value()),
            key=_bytes(message.key()),
            partition=partition,
            headers=headers,
            reason=str(error),
            timestamp=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
            in_flight=in_flight,
        )
        self.failed.append(record)

    def _mark_delivered(self, error: KafkaError | None, message: Message) -> None:
        self._marks_under_way -= 1
        if error is not None:
            partition = int(message.partition() or 0)
            self._emitter.fail_mark()
            self._failed_marks[partition] = _bytes(message.value()) or b"", str(error)
            source = self._emitter.identity.source
            _log.error("source %r: a mark for %r/%d failed: %s", source, self._topic, partition, error)


def _bytes(part: str | bytes | None) -> bytes | None:
    return part.encode() if isinstance(part, str) else part
