"""How a source hands its records and marks to Kafka, when it sends marks, and what Kafka rejects."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException, Message, Producer
from floodmark.producers.channel import Channel, lacks_partition
from floodmark.producers.clients.clock import Clock
from floodmark.producers.clients.transaction import send
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.in_flight import InFlight
from floodmark.producers.strategies.interface import Generator
from floodmark.producers.strategies.merged import JoinedEmitter, MergedEmitter
from floodmark.producers.strategies.numbering import Identity
from floodmark.schemas.classify import MarkRecord, round_records
from floodmark.schemas.errors import DeliveryError, FencedError, UnacknowledgedError
from floodmark.schemas.errors.base import iso
from floodmark.schemas.records import WatermarkRecord
from typing_extensions import override

_log = logging.getLogger(__name__)
_RETRY_INTERVAL: Final = 100  # milliseconds
_QUEUE_TIMEOUT: Final = 60.0  # seconds to wait for room in the client's queue
_MOST_ROUNDS: Final = 8  # rounds of marks in flight: while Kafka is away, more would say nothing new

Headers = list[tuple[str, str | bytes | None]] | dict[str, str | bytes | None]
OnDelivery = Callable[[KafkaError | None, Message], None]


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """A record that Kafka rejected: it holds the watermark until `WatermarkedProducer.resend` sends it again."""

    value: bytes | None
    key: bytes | None
    partition: int
    headers: Headers | None
    reason: str
    timestamp: int | None
    """Kafka's timestamp, epoch milliseconds; ``None``: Kafka's client gave none."""
    on_delivery: OnDelivery | None = field(repr=False)
    in_flight: InFlight = field(repr=False)


class Outbox:
    """Sends the records and marks of one source to one topic, and follows their delivery reports."""

    def __init__(
        self, client: Producer, topic: str, emitter: Emitter, explain: Callable[[BaseException], None] = lambda _: None
    ) -> None:
        self.failed: list[FailedRecord] = []  # the oldest failure first; without records that were sent again
        self.on_delivery: OnDelivery | None = None  # of records without one of their own
        self._explain = explain  # raises the reason of an error, if that is another one
        self._client = client
        self._topic = topic
        self._emitter = emitter
        self.callback_error: Exception | None = None  # the first error of an ``on_delivery`` that was not raised yet
        self._failed_marks: dict[int, tuple[MarkRecord, str]] = {}  # by partition, until one is delivered there
        self._marks_in_flight = set[object]()
        self._plain_report: tuple[InFlight | None, OnDelivery | None] = None, None
        """A group, and the delivery report of all its records without headers and an ``on_delivery`` of their own."""

    def send(  # the arguments of the client's ``produce``, and two times
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        event_time: int,
        now: int,
        headers: Headers | None = None,
        timestamp: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Send one record; after an error it was not sent: `BufferError` if the queue stayed full for a minute."""
        in_flight = self._emitter.begin(partition, event_time, now, value)
        group, report = self._plain_report
        if report is None or group is not in_flight or headers is not None or on_delivery is not None:
            report = self._report(in_flight, headers, on_delivery or self.on_delivery)
        try:
            try:  # without keyword arguments: they would double the time of the client's call
                self._client.produce(self._topic, value, key, partition, report, None, timestamp or 0, headers)
            except BufferError:
                self._enqueue(value, key, partition, report, None, timestamp or 0, headers)
        except Exception as error:  # not Ctrl-C: the client may have taken the record, so that it stays in flight
            self._emitter.unsend(partition, in_flight)
            self._explain(error)
            raise
        self._emitter.sent(partition, event_time, now, value)

    def send_many(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        partitions: Sequence[int],
        event_times: Sequence[int],
        now: int,
    ) -> None:
        """Send records in order, as `send`; after an error, those before the one that the client did not take."""
        in_flight = self._emitter.send_many(partitions, event_times, now)
        report = self._report(in_flight, None, self.on_delivery)
        produce, topic, taken = self._client.produce, self._topic, 0
        try:
            for value, key, partition in zip(values, keys, partitions, strict=True):
                try:
                    produce(topic, value, key, partition, report)
                except BufferError:
                    self._enqueue(value, key, partition, report)
                taken += 1
        except BaseException as error:
            taken += not isinstance(error, Exception)  # as in `send`
            for partition in partitions[taken:]:
                self._emitter.unsend(partition, in_flight)
            self._explain(error)
            raise
        finally:
            self._emitter.observe(event_times[:taken], values[:taken], now)

    def _report(self, in_flight: InFlight, headers: Headers | None, on_delivery: OnDelivery | None) -> OnDelivery:
        """Return a delivery report, a closure: of all calls it costs the least."""

        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                in_flight.pending -= 1
            else:
                self._keep_failed(error, message, in_flight, headers, on_delivery)
            if on_delivery is not None:
                try:
                    on_delivery(error, message)
                except Exception as failure:  # noqa: BLE001  # of the caller; `raise_callback_error` raises it
                    self.callback_error = self.callback_error or failure

        if headers is None and on_delivery is self.on_delivery:
            self._plain_report = in_flight, report
        return report

    def resend(self, now: int) -> int:
        """Send all failed records again, in order; return their number.  After an error, the rest is in ``failed``."""
        failed, self.failed = self.failed, []
        for position, lost in enumerate(failed):
            in_flight = self._emitter.resend(lost.in_flight, lost.partition, now)
            report = self._report(in_flight, lost.headers, lost.on_delivery)
            try:
                self._enqueue(lost.value, lost.key, lost.partition, report, None, lost.timestamp or 0, lost.headers)
            except BaseException as error:
                left = failed[position + 1 :]
                if isinstance(error, Exception):  # as in `send`
                    self._emitter.fail(in_flight, lost.partition)
                    left = [replace(lost, in_flight=in_flight), *left]
                self.failed[:0] = left
                self._explain(error)
                raise
        return len(failed)

    def release(self) -> None:
        """Break the reference cycle with the client, which otherwise stays until a garbage collection."""
        self._plain_report = None, None

    @property
    def has_mark_backlog(self) -> bool:
        """Whether more than `_MOST_ROUNDS` rounds of marks are in flight, or decide what the next ones count."""
        emitter = self._emitter
        return len(self._marks_in_flight) > _MOST_ROUNDS * emitter.partitions or emitter.counter.doubtful

    def send_marks(self, clock: Clock, *, wait: bool) -> bool:
        """Send a mark to every partition; return whether the client accepted all.  ``wait``: for room in its queue."""
        emitter = self._emitter
        self._client.poll(0)
        if emitter.fenced_by is not None:
            return True
        # After the end, rejected marks are sent again unchanged: Kafka may have written one all the same.
        for partition, (record, _) in list(self._failed_marks.items()) if emitter.ended else ():
            self._send_mark(partition, record, wait=True)
        marks = emitter.marks(clock.wall(), steady=clock.steady())
        numbers, sent = marks.numbers[::-1], 0
        try:
            records = round_records(marks, () if emitter.held is None else emitter.held.headers())
            # The highest first: a topic that was created again with fewer partitions then gets no mark at all.
            for number, record in zip(numbers, reversed(records), strict=True):
                self._send_mark(number.partition, record, wait=wait)
                sent += 1
        except BaseException as error:
            for number in numbers[sent + (not isinstance(error, Exception)) :]:  # as in `_send_mark`
                emitter.unmark(number.partition)
            if wait or not isinstance(error, (BufferError, KafkaException)):
                self._explain(error)
                raise
            if lacks_partition(error):
                emitter.registered = False  # the next record is refused before it is sent
                self._explain(error)
            return False
        return True

    def _enqueue(self, *record: Any, wait: bool = True) -> None:  # noqa: ANN401  # as in `send`
        send(self._client, self._topic, *record, seconds=_QUEUE_TIMEOUT if wait else 0.0)

    def _send_mark(self, partition: int, record: MarkRecord, *, wait: bool) -> None:
        token = object()
        report = partial(self._mark_delivered, token, partition, record)
        self._marks_in_flight.add(token)
        try:
            self._enqueue(record.value, record.key, partition, report, None, 0, list(record.headers), wait=wait)
        except BaseException as error:
            self._marks_in_flight.discard(token)
            if not isinstance(error, Exception):  # the client may have taken the mark: treat it as one that failed
                self._failed_marks[partition] = record, "its sending was interrupted"
                self._emitter.mark_delivered(partition, failed=True)
            raise

    def end(self) -> None:
        """End the source: the next marks, its last ones, also replace those that have failed."""
        self._emitter.end()
        self._failed_marks.clear()

    @property
    def unacknowledged(self) -> int:
        """Number of records and marks of this source in flight; other sources may use the same client."""
        return sum(group.pending for group in self._emitter.groups()) + len(self._marks_in_flight)

    @property
    def settled(self) -> bool:
        """Whether nothing is in flight, no mark has failed, and after the end each partition has its mark."""
        marked = self._emitter.end_marked or not self._emitter.ended
        return marked and not self._failed_marks and not self.unacknowledged

    def check(self, waited: float, *, marks: bool = False) -> None:
        """Raise a `DeliveryError` if anything is in flight after ``waited`` seconds, or a record (or mark) failed."""
        left, kind = self.unacknowledged, DeliveryError if self.failed else UnacknowledgedError
        reasons = [record.reason for record in self.failed]
        if marks and not reasons:
            reasons = [reason for _, reason in self._failed_marks.values()]
        if left or reasons:
            raise kind(
                source=self._emitter.identity.source,
                topic=self._topic,
                failed=len(reasons) or left,
                reason=reasons[0] if reasons else f"no answer within {waited} s",
                held_at=self._emitter.watermark_hold,
            )

    def _keep_failed(
        self,
        error: KafkaError,
        message: Message,
        in_flight: InFlight,
        headers: Headers | None,
        on_delivery: OnDelivery | None,
    ) -> None:
        partition, (kind, timestamp) = int(message.partition() or 0), message.timestamp()
        self._emitter.fail(in_flight, partition)
        if not self.failed:
            source = self._emitter.identity.source
            _log.error("source %r: a record for %r failed, and holds the watermark: %s", source, self._topic, error)
        record = FailedRecord(
            value=_bytes(message.value()),
            key=_bytes(message.key()),
            partition=partition,
            reason=str(error),
            timestamp=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
            headers=headers,
            on_delivery=on_delivery,
            in_flight=in_flight,
        )
        self.failed.append(record)

    def _mark_delivered(
        self, token: object, partition: int, record: MarkRecord, error: KafkaError | None, _message: Message
    ) -> None:
        if token in self._marks_in_flight:
            self._marks_in_flight.remove(token)
            self._emitter.mark_delivered(partition, failed=error is not None)
        if error is None:
            self._failed_marks.pop(partition, None)
        else:
            first, source = not self._failed_marks, self._emitter.identity.source
            self._failed_marks[partition] = record, str(error)
            log = _log.error if first else _log.debug
            log("source %r: a mark for %r/%d failed: %s", source, self._topic, partition, error)

    def raise_callback_error(self) -> None:
        """Raise the first error of an ``on_delivery``, once."""
        error, self.callback_error = self.callback_error, None
        if error is not None:
            raise error


def _bytes(part: str | bytes | None) -> bytes | None:
    return part.encode() if isinstance(part, str) else part


class Sender:
    """Sends the records and marks of one source, a round of marks every ``interval`` milliseconds."""

    def __init__(self, channel: Channel, emitter: Emitter, clock: Clock, interval: int) -> None:
        self.emitter = emitter
        self.outbox = Outbox(channel.client, channel.topic, emitter, channel.explain)
        self.polled = True  # whether marks are sent only when the caller calls; then a long silence is logged, once
        self._channel = channel
        self._clock = clock
        self._interval = interval
        self._next_mark = clock.steady() + interval
        self._partitions = emitter.partitions
        self._announced: int | None = None  # the watermark of the last marks of `announce`
        self._told_of_late = False

    def send_due_marks(self, now: int) -> None:
        """Send the marks that are due, if the client's queue has room: ``produce`` must not fail because of a mark."""
        channel, emitter = self._channel, self.emitter
        if channel.recreated is not None:
            channel.raise_fatal()
        if now >= channel.next_refresh:
            channel.refresh_in_background(now)
        if now >= self._next_mark or channel.partitions > self._partitions or (emitter.punctual and emitter.due):
            self._warn_of_silence(now - self._next_mark)
            self._next_mark = now + _RETRY_INTERVAL
            if not self.outbox.has_mark_backlog:
                self.emit(wait=False)

    def send_due_marks_in_background(self) -> None:
        """Take the lock and send the marks that are due, unless the background thread was stopped."""
        with self._channel.lock:
            if not self._channel.stopped:
                self.send_due_marks(self._clock.steady())

    @property
    def due_at(self) -> int:
        """When marks are due, by the steady clock, milliseconds; 0: ask again each time."""
        soon = self.emitter.punctual or self._channel.partitions > self._partitions
        return 0 if soon else self._next_mark

    def emit(self, *, wait: bool = True) -> None:
        """Send a mark to every partition now; nothing after the end.  ``wait``: for room in the queue."""
        now = self._clock.steady()
        self._next_mark, self._partitions = now + self._interval, self._channel.partitions
        self.emitter.grow(self._partitions)
        self._follow(self._channel.successors.marks)
        self._warn_of_late()
        if not self.outbox.send_marks(self._clock, wait=wait):
            self._next_mark = now + _RETRY_INTERVAL

    def _follow(self, marks: Mapping[str, WatermarkRecord]) -> None:
        """Note another run of this source, and tell if the membership does not count all sources."""
        identity, last = self.emitter.identity, marks.get(self.emitter.identity.source)
        if last is not None and self.emitter.fence(last):
            _log.error(
                "source %r, epoch %d, was fenced: readers follow another run, whose marks in its topic have epoch %d",
                *(identity.source, identity.epoch, self.emitter.fenced_by),
            )
        elif self.emitter.fenced_by is None and not self.emitter.ended:
            self._channel.follow(marks, identity, self._clock.wall())

    def emit_unless_fenced(self) -> None:
        """As `emit`, and wait for room in the queue; raise `FencedError` if a later run marks the topic."""
        self.check_fenced()
        self.emit()

    def emit_end(self) -> None:
        """End the source and send the marks that say so; a second call sends rejected ones again."""
        if not self.emitter.ended:
            self._follow(self._channel.successors.marks)
            self.check_fenced()
            self.emitter.grow(self._channel.partitions)
            self._channel.source_ended = True
            self.outbox.end()
        self.emit_unless_fenced()

    def wait(self, timeout: float, *, marks: bool = False) -> None:
        """Wait for all acknowledgements (``timeout``: seconds), then `Outbox.check`."""
        self._channel.client.flush(timeout)
        self._channel.raise_fatal()
        self.outbox.check(timeout, marks=marks)

    def check_fenced(self) -> None:
        """Raise `FencedError` if a later run of this source marks the topic, or the error that broke the client."""
        self._channel.raise_fatal()
        fenced_by, identity = self.emitter.fenced_by, self.emitter.identity
        if fenced_by is not None:
            reason = f"it has epoch {identity.epoch}, and readers follow another run there, with epoch {fenced_by}"
            advice = "if two processes have its id, stop one, or rename it; if you pass epoch=, pass a higher one"
            raise FencedError(
                writer=f"source {identity.source!r}", topic=self._channel.topic, reason=reason, advice=advice
            )

    def announce(self, step: int) -> None:
        """Send marks early if the watermark is over ``step`` milliseconds above the last ones that were sent early."""
        watermark = self.emitter.watermark
        if watermark is not None and (self._announced is None or watermark - self._announced > step):
            self._announced = watermark
            if self.emitter.registered and not self.outbox.has_mark_backlog:
                self.emit(wait=False)

    def raise_failures(self) -> None:
        """Raise `FencedError`, or an error of an ``on_delivery`` or of the background thread."""
        self.check_fenced()
        self.outbox.raise_callback_error()
        self._channel.raise_failure()

    def _warn_of_silence(self, overdue_ms: int) -> None:
        """Warn, once, that readers had to wait because nobody called the source."""
        if self.polled and overdue_ms > max(10_000, 3 * self._interval) and self.emitter.registered:
            self.polled = False
            _log.warning(
                "source %r sent no marks for %d s, because nothing called it, and readers waited; call poll() at least "
                "once an interval, or leave out background=False",
                *(self.emitter.identity.source, (overdue_ms + self._interval) // 1000),
            )

    def _warn_of_late(self) -> None:
        """Warn, once, that readers find records late."""
        if self.emitter.late and not self._told_of_late:
            self._told_of_late, known = True, self.emitter.watermark
            _log.warning(
                "source %r: %d record(s) are below its watermark%s, so readers find them late. The strategy's bound "
                "is too small, their event times are wrong, or it joined a pool behind the watermark. Later ones are "
                "only counted (late)",
                *(self.emitter.identity.source, self.emitter.late, "" if known is None else f" {iso(known)}"),
            )


class MergedSender(Sender):
    """Sends the marks of one source that others join."""

    def __init__(self, channel: Channel, emitter: MergedEmitter, clock: Clock, interval: int) -> None:
        super().__init__(channel, emitter, clock, interval)
        self._merged = emitter
        self.polled = False

    def joining(self, identity: Identity, generator: Generator) -> "JoinedSender":
        """Return the sender of a source that is about to join."""
        emitter = JoinedEmitter(identity, generator, self._merged)
        return JoinedSender(self, self._channel, emitter, self._clock)

    def join(self, senders: Iterable[Sender]) -> None:
        """Let them join."""
        self._merged.join(sender.emitter for sender in senders if isinstance(sender.emitter, JoinedEmitter))


class JoinedSender(Sender):
    """Sends the records of a source that has joined others; its marks are those of ``speaker``."""

    def __init__(self, speaker: Sender, channel: Channel, emitter: JoinedEmitter, clock: Clock) -> None:
        super().__init__(channel, emitter, clock, interval=0)
        self._speaker = speaker

    @override
    def send_due_marks(self, now: int) -> None:
        self._warn_of_late()
        self._speaker.send_due_marks(now)

    @override
    def emit(self, *, wait: bool = True) -> None:
        self._warn_of_late()
        self._speaker.emit(wait=wait)

    @override
    def emit_end(self) -> None:
        """End the source: the next marks that are due no longer wait for it."""
        if not self.emitter.ended:
            self.emitter.end()
        self.check_fenced()

    @override
    def check_fenced(self) -> None:
        self._speaker.check_fenced()

    @override
    def announce(self, step: int) -> None:
        self._speaker.announce(step)
