"""A Kafka producer that interleaves its data with watermark records.  The thin shell around `emitter`."""

import logging
from contextlib import suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, Literal, Self

from confluent_kafka import Producer
from floodmark.producers.clients.admin import Config
from floodmark.producers.clients.clock import Clock
from floodmark.producers.clients.metrics import Metrics, delay
from floodmark.producers.clients.partitioners import partitioner
from floodmark.producers.outbox import FailedRecord, Headers, Outbox
from floodmark.producers.partition_watch import PartitionWatch
from floodmark.producers.predecessors import last_marks
from floodmark.producers.readers.alignment import Alignment
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.generator import Strategy, duration_of, strategy_of
from floodmark.producers.strategies.numbering import Identity
from floodmark.schemas.errors import (
    BrokerUnavailableError,
    EndedError,
    InvalidEventTimeError,
    LateRecordError,
    ReservedKeyError,
    UnknownTopicError,
    UsageError,
)
from floodmark.schemas.records import (
    HEADER,
    KEY_PREFIX,
    Membership,
    Status,
    WatermarkRecord,
    is_mark_key,
)
from floodmark.schemas.timestamps import event_time_of, is_late

_log = logging.getLogger(__name__)
_LOOK_INTERVAL: Final = 10_000
_ALIGNMENT_INTERVAL: Final = 100
_RETRY_INTERVAL: Final = 100
_WAIT_REPORT: Final = 60_000
_RECENT: Final = 60_000


class WatermarkedProducer:
    """One source of one topic: produces records and, on an interval, its watermark to every partition.

    Marks travel through the same client and partitions as the data, so they keep its order.  They are never ahead of a
    record that is not yet acknowledged (see `emitter`).  Marks are due inside ``produce``, ``poll``, ``flush`` and
    ``emit``: like any confluent-kafka producer, a quiet one must be polled.  Not thread-safe.

    A broker that is away delays nothing until confluent-kafka's own queue is full (``queue.buffering.max.messages``);
    then ``produce`` waits for room up to a minute.  New partitions are looked for every 10 seconds, beside the caller.

    Args:
        config: confluent-kafka settings; all pass through.  Idempotence is on and must stay on.
        topic: the topic; it must exist.
        source: this writer's id, unique among the topic's sources.
        strategy: how the source knows its watermark, see `strategies`.
        membership: how many sources write to the topic.  Raise the version when that changes.
        epoch: generation of this writer, larger than that of any run before; default: wall clock, milliseconds, or one
            more than the last epoch where partition 0 has records of that time or later (the clock was set back).
        interval: time between marks.
        lease: if readers may take this source for idle after so much silence (in log time); default: never.
        on_late: what to do with a record behind the source's own promise: ``send`` it and count it, or ``raise``.
        early: refuse records whose event time is further ahead of the clock: one of them would carry the watermark
            along, and make all others late; default: any is taken.
        alignment: how far this source may run ahead of the slowest other one of the topic; ``produce`` waits then.  A
            source that has died is waited for as long as its lease says, a minute without one.
        clock: where the time comes from.

    Raises:
        UnknownTopicError, BrokerUnavailableError: at once, not at the first record.
        UsageError: for settings that cannot be right.
    """

    def __init__(  # noqa: PLR0913  # each is a decision of the user, most have defaults
        self,
        config: Config,
        *,
        topic: str,
        source: str,
        strategy: Strategy,
        membership: Membership = Membership(),  # noqa: B008  # frozen
        epoch: int | None = None,
        interval: timedelta = timedelta(seconds=1),
        lease: timedelta | None = None,
        on_late: Literal["send", "raise"] = "send",
        early: timedelta | None = None,
        alignment: timedelta | None = None,
        clock: Clock = Clock(),  # noqa: B008  # frozen
    ) -> None:
        """Connect, learn the topic's partitions, and what it says of this source's earlier runs."""
        _check(config, source, membership, on_late)
        self._interval = duration_of(interval, f"source {source!r}: the interval of marks", 1)
        self._early = None if early is None else duration_of(early, f"source {source!r}: early")
        lease_ms = None if lease is None else duration_of(lease, f"source {source!r}: the lease", 1)
        self._generator = strategy_of(strategy).build()
        self._partitioner = partitioner(str(config.get("partitioner", "consistent_random")))
        self.topic = topic
        self._clock = clock
        self._steady = clock.steady
        self._stamps = self._generator.stamps
        self._producer = Producer({**config, "enable.idempotence": True}, logger=_log)
        self._watch = PartitionWatch(self._producer, topic, config.get("bootstrap.servers"))
        wall = clock.wall()
        last = last_marks(config, topic, wall) if epoch is None else {}
        own = last.pop(source, None)
        if epoch is None:
            epoch = wall if own is None else max(wall, own.epoch + 1)
        self._emitter = Emitter(Identity(source, epoch, membership, lease_ms), self._generator, self._watch.partitions)
        self._warn_of([name for name, mark in last.items() if _is_uncounted(mark, membership, wall)])
        if self._stamps and own is not None and own.watermark is not None:
            self._generator.on_tick(self._steady(), own.watermark)  # stamps do not go back, as epochs do not
        self._alignment = None
        if alignment is not None:
            self._alignment = Alignment(config, topic=topic, source=source, bound=alignment)
        self._outbox = Outbox(self._producer, topic, self._emitter, clock)
        self._raise_late = on_late == "raise"
        now = clock.steady()
        self._next_mark = now + self._interval
        self._next_look = now + _LOOK_INTERVAL
        self._next_alignment = now

    def _warn_of(self, others: list[str]) -> None:
        if others:
            _log.warning(
                "%r: the membership says that one source writes to the topic, but lately %s wrote to it; readers may "
                "not wait for all of them: give each membership=Membership(version=%d, size=%d)",
                self,
                ", ".join(map(repr, sorted(others))),
                self._emitter.identity.membership.version + 1,
                len(others) + 1,
            )

    def __repr__(self) -> str:
        """Show who writes where; never a setting, which may be a secret."""
        identity = self._emitter.identity
        return f"WatermarkedProducer(topic={self.topic!r}, source={identity.source!r}, epoch={identity.epoch})"

    def produce(
        self,
        value: bytes | None,
        *,
        event_time: int | datetime | None = None,
        key: bytes | str | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Send one record; returns at once, as confluent-kafka does.

        Args:
            value: as it is to stand in Kafka; not touched.
            event_time: epoch milliseconds or an aware datetime; none with the strategy `ingress`, whose time is written
                as Kafka's timestamp.
            key: as it is to stand in Kafka; decides the partition.
            partition: overrules the key; -1 is none, as in confluent-kafka.
            headers: as they are to stand in Kafka; none may be called ``floodmark``.

        Raises:
            InvalidEventTimeError, ReservedKeyError, EndedError, LateRecordError, UsageError: nothing was sent.
            BufferError: the queue stayed full for a minute; nothing was sent.
        """
        emitter = self._emitter
        time = None if self._stamps and event_time is None else self._time_of(event_time)
        raw_key = key.encode() if isinstance(key, str) else key
        if is_mark_key(raw_key):
            raise ReservedKeyError(key=raw_key, prefix=KEY_PREFIX)
        if headers is not None and any(name == HEADER for name, _ in headers):
            reason = f"{self!r}: the header {HEADER!r} is that of watermark records, and plain consumers skip it"
            raise UsageError(reason=f"{reason}; choose another name")
        if partition is None or partition == -1:
            partition = self._partitioner(raw_key, emitter.partitions)
        elif not 0 <= partition < emitter.partitions:
            self._require(partition)
        if self._alignment is not None or not emitter.registered:
            self._get_ready(time)
        if time is None:  # after the marks of `_get_ready`, which promise the time until now
            time = timestamp = self._generator.stamp(self._clock.wall())
        else:
            timestamp = None
            if self._raise_late:
                self._refuse_late(time, emitter.promised)
        now = self._steady()
        self._outbox.send(value, raw_key, partition, headers, event_time=time, now=now, timestamp=timestamp)
        self._producer.poll(0)
        self._serve(now)

    def _time_of(self, event_time: int | datetime | None) -> int:
        if self._stamps:
            raise UsageError(reason=f"{self!r}: the strategy is ingress(), so records are given no event time")
        time = event_time_of(event_time)
        if self._early is not None:
            ahead = time - self._clock.wall()
            if ahead > self._early:
                reason = f"it is {ahead / 1000:,.0f} s ahead of the clock, expected at most {self._early / 1000:,}"
                raise InvalidEventTimeError(value=time, reason=reason)
        return time

    def _refuse_late(self, event_time: int, promised: int | None) -> None:
        if is_late(event_time, promised):
            raise LateRecordError(source=self._emitter.identity.source, event_time=event_time, watermark=promised)

    def _require(self, partition: int) -> None:
        """Learn whether the topic has a partition that was not there before."""
        if partition >= 0 and self._emitter.grow(self._watch.ask()) and self._emitter.registered:
            self.emit()
        if not 0 <= partition < self._emitter.partitions:
            reason = f"the topic has the partitions 0 to {self._emitter.partitions - 1}, not {partition}"
            raise UsageError(reason=f"{self!r}: {reason}; pass none (or -1) to let the key decide")

    @property
    def ahead(self) -> bool:
        """Whether ``produce`` would wait now, because the source is too far ahead of the slowest other one."""
        return self._waits_for() is not None

    def _waits_for(self) -> tuple[int, str] | None:
        """Return the watermark and the name of the source that this one waits for."""
        if self._alignment is None:
            return None
        now = self._steady()
        if now >= self._next_alignment:
            self._next_alignment = now + min(self._interval, _ALIGNMENT_INTERVAL)
            self._alignment.poll(now)
        peers = self._alignment.peers
        return peers.slowest(now) if peers.is_ahead(self._generator.watermark(), now) else None

    def _wait_for_peers(self) -> None:
        """Wait while this source is ahead; marks go out meanwhile, so that it is not taken for idle or dead."""
        report = self._steady() + _WAIT_REPORT
        while (slowest := self._waits_for()) is not None:
            self._emitter.pause()
            if self._steady() >= report:
                report += _WAIT_REPORT
                _log.warning("%r waits for source %r, whose watermark is %d", self, slowest[1], slowest[0])
            self.poll(_ALIGNMENT_INTERVAL / 1000)
        self._emitter.unpause()

    def _get_ready(self, event_time: int | None) -> None:
        """Mark before the first record, and before the first after idleness: readers must know whom to wait for."""
        if self._emitter.ended:
            raise EndedError(source=self._emitter.identity.source, action="send a record")
        if self._raise_late and event_time is not None and not self._emitter.registered:
            self._refuse_late(event_time, self._emitter.watermark)  # what the marks are about to promise
        if self._alignment is not None:
            self._wait_for_peers()
        self._announce()

    def _announce(self) -> None:
        if self._emitter.status is Status.IDLE:
            self._emitter.mark_active()
        if not self._emitter.registered:
            self.emit()

    def advance(self, watermark: int | datetime) -> None:
        """Promise that no later record of this source has an event time below ``watermark`` (strategy `explicit`).

        Raises:
            UsageError: where the strategy is another one.
            WatermarkRegressionError: where it is below the last promise.
        """
        self._generator.advance(event_time_of(watermark))

    def poll(self, timeout: float = 0) -> None:
        """Serve delivery reports, and send the marks that are due; after the end there are none."""
        self._producer.poll(timeout)
        self._serve(self._steady())

    def _serve(self, now: int) -> None:
        """Send the marks that are due, if there is room: a record that was taken must not end in an error."""
        if now >= self._next_look:
            self._next_look = now + _LOOK_INTERVAL
            self._watch.ask_beside(self._mark_soon)
        if now >= self._next_mark or self._emitter.due:
            self._next_mark = now + _RETRY_INTERVAL
            if not self._outbox.crowded:
                self._send_marks(insist=False)

    def _mark_soon(self) -> None:
        self._next_mark = 0

    def emit(self) -> None:
        """Send the current watermark to every partition now; nothing after the end.

        Raises:
            BufferError: the queue stayed full for a minute.
        """
        self._send_marks(insist=True)

    def _send_marks(self, *, insist: bool) -> None:
        now = self._steady()
        self._next_mark = now + self._interval
        self._emitter.grow(self._watch.partitions)
        if not self._outbox.send_marks(insist=insist):
            self._next_mark = now + _RETRY_INTERVAL

    def mark_idle(self, timeout: float = 60) -> None:
        """Wait until all is acknowledged, then ask readers not to wait for this source until its next record.

        Raises:
            DeliveryError: where Kafka did not take a record; then the source stays active, for it may be sent again.
        """
        self._outbox.wait(timeout)
        self._emitter.mark_idle()
        self.emit()

    def change_membership(self, membership: Membership) -> None:
        """Speak under a newer membership from now on (the number of sources of the topic has changed).

        Raises:
            UsageError: where its version is not above the last one.
        """
        _check_membership(self._emitter.identity.source, membership)
        self._emitter.change_membership(membership)
        self.emit()

    @property
    def failed(self) -> list[FailedRecord]:
        """The records that Kafka did not take and that were not sent again; the watermark is held below each."""
        return list(self._outbox.failed)

    def resend(self) -> int:
        """Send all records again that Kafka did not take; returns how many.

        This alone lets go of the watermark: each is held for until it is acknowledged.  They come behind what was sent
        since.  A record whose time ran out may be in the topic all the same, and then stands there twice.

        Raises:
            BufferError: the queue stayed full for a minute; what was not sent again still holds.
        """
        self._producer.poll(0)
        if self._outbox.failed:
            self._announce()
        return self._outbox.resend()

    def flush(self, timeout: float = 60) -> None:
        """Wait until all is acknowledged, then send marks that promise it, and wait for those.

        Looks for new partitions first.  After ``end`` it only waits.

        Raises:
            DeliveryError: where Kafka did not take a record or a mark; the watermark stays held below it.
        """
        self._outbox.wait(timeout)
        if not self._emitter.ended:
            with suppress(BrokerUnavailableError, UnknownTopicError):
                self._watch.ask(timeout)
        self.emit()
        self._outbox.wait(timeout, marks=True)

    def end(self, timeout: float = 60) -> None:
        """Flush, then say in every partition that this source has ended.

        Raises:
            DeliveryError: where Kafka did not take a record; then nothing is said to have ended.  Where it did not take
                what says so: call it again.
            BrokerUnavailableError: where the topic's partitions cannot be learnt; nothing is said to have ended.
            EndedError: where all of it was said before.
        """
        if not self._emitter.ended:
            self._outbox.wait(timeout)
            self._emitter.grow(self._watch.ask(timeout))
            self._emitter.end()
        elif self._outbox.settled:
            raise EndedError(source=self._emitter.identity.source, action="end again")
        self.emit()
        self._outbox.wait(timeout, marks=True)
        self.close()

    def close(self) -> None:
        """Let go of the client that alignment reads with.  Sends nothing, and waits for nothing."""
        alignment, self._alignment = self._alignment, None
        if alignment is not None:
            alignment.close()

    def __enter__(self) -> Self:
        """Use as a context manager: flushes at the end of a block without error."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Flush; after an error only what is under way is waited for, and no promise is made."""
        try:
            if kind is not None:
                self._producer.flush(10)
            else:
                self.flush()
        finally:
            self.close()

    @property
    def watermark(self) -> int | None:
        """What the source can promise now, epoch milliseconds."""
        return self._emitter.watermark

    def metrics(self) -> Metrics:
        """Return what is measured of this source."""
        oldest = self._emitter.oldest_arrival()
        return Metrics(
            "source",
            self._emitter.identity.source,
            records=self._emitter.records,
            late_events=self._emitter.late,
            failed=self._emitter.failed,
            watermark_delay_seconds=delay(self._clock.wall(), self._emitter.watermark),
            processing_time_delay_seconds=0.0 if oldest is None else (self._steady() - oldest) / 1000,
        )

    @property
    def late(self) -> int:
        """How many records were sent behind the source's own promise."""
        return self._emitter.late


def _check(config: Config, source: object, membership: object, on_late: object) -> None:
    """Refuse settings that cannot be right."""
    if not isinstance(source, str) or not source:
        raise UsageError(reason=f"the source is {source!r}, expected a name, as source='web-1'")
    if str(config.get("enable.idempotence", "true")).lower() != "true":
        raise UsageError(
            reason=f"source {source!r}: enable.idempotence is off; without it a retry can come behind a mark"
        )
    if str(config.get("delivery.report.only.error", "false")).lower() != "false":
        raise UsageError(
            reason=f"source {source!r}: delivery.report.only.error is on; the watermark would wait for reports for ever"
        )
    if on_late not in {"send", "raise"}:
        raise UsageError(reason=f"source {source!r}: on_late is {on_late!r}, expected 'send' or 'raise'")
    _check_membership(source, membership)


def _check_membership(source: str, membership: object) -> None:
    if not isinstance(membership, Membership):
        expected = f"Membership(version=1, size={membership if isinstance(membership, int) else 3})"
        raise UsageError(reason=f"source {source!r}: the membership is {membership!r}, expected {expected}")


def _is_uncounted(mark: WatermarkRecord, membership: Membership, wall: int) -> bool:
    """Tell whether another source is there under a membership that says there is one."""
    same = membership.size == 1 and mark.membership.version == membership.version
    return same and mark.status is not Status.ENDED and wall - mark.emitted_at <= _RECENT
