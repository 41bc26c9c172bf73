"""A Kafka producer that interleaves its data with watermark records.  The thin shell around `emitter`."""

import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from numbers import Integral
from typing import Final, Literal, Self

from floodmark.producers.channel import Channel, check_settings
from floodmark.producers.clients.admin import Config, client_log
from floodmark.producers.clients.clock import Clock, Deadline
from floodmark.producers.clients.metrics import Metrics, delay, state_of
from floodmark.producers.clients.partitioners import partitioner
from floodmark.producers.outbox import FailedRecord, Headers, OnDelivery, Record
from floodmark.producers.predecessors import Predecessors
from floodmark.producers.readers.alignment import Alignment
from floodmark.producers.sender import Sender
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.interface import Strategy, strategy_of
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
from floodmark.schemas.errors.base import iso
from floodmark.schemas.records import HEADER, KEY_PREFIX, Membership, Status, check_versioned, is_mark_key
from floodmark.schemas.timestamps import are_seconds, duration_of, event_time_of, is_late, to_datetime

_log = client_log(__name__)
_ALIGNMENT_INTERVAL: Final = 100
_WAIT_REPORT: Final = 60_000
_SLICE: Final = 0.005
"""Seconds that `WatermarkedProducer.poll` leaves to other threads between two looks at the client.

It does not wait in the client: with the lock, no other thread could produce; without it, a delivery report would wait
for the lock of a thread that waits in `flush` for this report.
"""


class WatermarkedProducer:
    """One source of one topic: produces records and, on an interval, its watermark to every partition.

    Marks (watermark records) travel through the same client and partitions as the data, so they keep its order.  They
    are never ahead of a record that is not yet acknowledged (see `emitter`).  Marks are due inside ``produce``,
    ``poll``, ``flush`` and ``emit``: like any confluent-kafka producer, a quiet one must be polled, unless
    ``background`` does it.  Threads may share it; one call at a time is served, and ``flush`` waits in its own.  A
    process forked from this one may not use it (`ForkedError`).

    A broker that is away delays nothing until confluent-kafka's own queue is full (``queue.buffering.max.messages``);
    then ``produce`` waits for room up to a minute.  New partitions are looked for every 10 seconds, beside the caller.

    Args:
        config: confluent-kafka settings; all pass through.  Idempotence is on and must stay on.
        topic: the topic; it must exist.
        source: this writer's id, unique among the topic's sources.
        strategy: how the source knows its watermark, see `strategies`.
        membership: how many sources write to the topic: a number, or a `Membership` once it has changed, with a higher
            version.  A number is version 1.
        epoch: generation of this writer, larger than that of any run before, or its calls raise `FencedError`;
            default: wall clock, milliseconds, or one more than the last epoch if the topic has records of that time or
            later (the clock was set back).
        interval: time between marks.
        lease: if readers may take this source for idle after so much silence (in log time); default: never.
        on_late: what to do with a record behind the source's own promise: ``send`` it and count it, or ``raise``.
        early: refuse records whose event time is further ahead of the clock: one of them would raise the watermark,
            and make all others late; default: any is accepted.
        alignment: how far this source may run ahead of the slowest other one of the topic; ``produce`` waits then.  A
            source that has died is waited for as long as its lease says, a minute without one.
        background: send marks from a thread too, while nobody calls; ``close``, or the end of the process, flushes.
            ``on_delivery`` may be called in it.  What fails there is raised by the next ``produce``, ``poll``,
            ``flush``, ``end`` or ``close``.
        clock: where the time comes from; tests pass a `ManualClock`.
        channel: set by `SourcePool.join`, whose sources share one; default: a Kafka client of its own.

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
        membership: Membership | int = 1,
        epoch: int | None = None,
        interval: timedelta = timedelta(seconds=1),
        lease: timedelta | None = None,
        on_late: Literal["send", "raise"] = "send",
        early: timedelta | None = None,
        alignment: timedelta | None = None,
        background: bool = False,
        clock: Clock = Clock(),  # noqa: B008  # frozen
        channel: Channel | None = None,
    ) -> None:
        membership = check_settings(config, source, membership, on_late)
        self._early = None if early is None else duration_of(early, f"source {source!r}: early")
        self._raise_late = on_late == "raise"
        self._partitioner = partitioner(str(config.get("partitioner", "consistent_random")))
        self._on_delivery: OnDelivery | None = config.get("on_delivery")
        self._interval = duration_of(interval, f"source {source!r}: the interval of marks", 1)
        lease_ms = None if lease is None else duration_of(lease, f"source {source!r}: the lease", 1)
        bound_ms = None if alignment is None else duration_of(alignment, f"source {source!r}: the bound of alignment")
        generator = self._generator = strategy_of(strategy).build()
        identity = Identity(source, 0 if epoch is None else epoch, membership, lease_ms)
        self.topic = topic
        self._clock = clock
        self._timed = False
        self._stamps = generator.stamps
        self._alignment: Alignment | None = None
        self._next_alignment = clock.steady()
        channel = self._channel = Channel(config, topic, clock) if channel is None else channel
        wall = clock.wall()
        before = channel.predecessors(source, wall)
        if epoch is None:
            identity = replace(identity, epoch=before.next_epoch(wall))
        self._emitter = Emitter(identity, generator, channel.partitions)
        if self._stamps:
            channel.require_timestamps(repr(self))
        self._sender = Sender(channel, topic, self._emitter, clock, self._interval)
        self._outbox = self._sender.outbox
        self._follow(before, wall)
        if bound_ms is not None:
            self._alignment = Alignment(config, topic=topic, source=source, bound=bound_ms)
        if channel.leave is None:
            channel.owner = repr(self)
            if background:
                channel.start(self._attend, self.close, self._interval)
        self._sender.polled = channel.background is None

    def _follow(self, before: Predecessors, wall: int) -> None:
        """Go on where the last run of this source ended; warn of others that no membership counts."""
        identity = self._emitter.identity
        if self._generator.stamps and before.watermark is not None:
            self._generator.on_tick(self._clock.steady(), before.watermark)  # stamps do not go back, as epochs do not
        advice = before.advice(identity.membership, wall)
        if advice is not None:
            _log.warning("%r: %s", self, advice)
        if identity.epoch <= before.epoch:
            self._emitter.fenced_by = before.epoch
            _log.error("%r is fenced: the topic has marks of its epoch %d; pass a higher epoch=", self, before.epoch)

    def __repr__(self) -> str:
        """Show who writes where; never a setting, which may be a secret."""
        identity = self._emitter.identity
        return f"{type(self).__name__}(topic={self.topic!r}, source={identity.source!r}, epoch={identity.epoch})"

    @property
    def source(self) -> str:
        """Its id."""
        return self._emitter.identity.source

    @property
    def epoch(self) -> int:
        """The generation of this writer."""
        return self._emitter.identity.epoch

    @property
    def ended(self) -> bool:
        """Whether it sends no records any more."""
        return self._emitter.ended

    def advance(self, watermark: float | datetime) -> None:
        """Promise that no later record of this source has an event time below ``watermark`` (strategy `explicit`).

        Raises:
            UsageError: where the strategy is another one.
            WatermarkRegressionError: where it is below the last promise.
        """
        with self._channel.lock:
            self._generator.advance(self._checked_time(watermark))

    def produce(
        self,
        value: bytes | None,
        *,
        event_time: float | datetime | None = None,
        key: bytes | str | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Send one record; returns at once, as confluent-kafka does.

        Args:
            value: as it is to stand in Kafka; not touched.
            event_time: the time that watermarks are about: epoch milliseconds (``time.time() * 1000`` is rounded down)
                or an aware datetime, also of NumPy and pandas.  If the first one looks like seconds, a warning says so.
                ``None`` with the strategy `ingress`, whose time becomes Kafka's timestamp.
            key: as it is to stand in Kafka; decides the partition.
            partition: overrules the key; -1 is none, as in confluent-kafka.
            on_delivery: called with an error or ``None``, and the message, once it was delivered or has failed; inside
                any later call that serves reports.  What it raises comes out of the next ``poll`` or ``flush``.
                Default: the setting ``on_delivery``.
            timestamp: Kafka's own timestamp, epoch milliseconds; 0 or none: now.  It is no event time: marks and
                lateness go by ``event_time`` alone.
            headers: pairs or a dict, as they are to stand in Kafka; none may be called ``floodmark``.

        Raises:
            InvalidEventTimeError, ReservedKeyError, EndedError, LateRecordError, UsageError: nothing was sent.
            FencedError: nothing was sent; another process writes as this source, and readers follow that one.  It
                looks for one once a minute.
            BufferError: the queue stayed full for a minute; nothing was sent.
        """
        with self._channel.lock:
            channel, emitter = self._channel, self._emitter
            if channel.background is not None:
                self._check_background()
            if timestamp is not None:
                timestamp = self._checked_timestamp(timestamp)
            time = None if self._stamps and event_time is None else self._time_of(event_time)
            raw_key = key.encode() if isinstance(key, str) else key
            if is_mark_key(raw_key):
                raise ReservedKeyError(key=raw_key, prefix=KEY_PREFIX)
            if headers is not None:
                headers = self._checked_headers(headers)
            if partition is None or partition == -1:
                partition = self._partitioner(raw_key, emitter.partitions)
            elif not 0 <= partition < emitter.partitions:
                self._require(partition)
            if self._alignment is not None or not emitter.registered:
                self._prepare(time)
            if time is None:  # after the marks of `_prepare`, which promise the time until now
                time = self._generator.stamp(self._clock.wall())
                timestamp = max(1, time)  # 0 is "now" to confluent-kafka
            elif self._raise_late:
                self._refuse_late(time, emitter.promised)
            now = self._clock.steady()
            record = Record(value, raw_key, partition, headers, timestamp, on_delivery or self._on_delivery)
            self._outbox.send(record, event_time=time, now=now)
            channel.client.poll(0)
            self._sender.serve(now)

    def _time_of(self, event_time: float | datetime | None) -> int:
        if self._stamps:
            raise UsageError(reason=f"{self!r}: the strategy is ingress(), so a record has no event time of its own")
        time = self._checked_time(event_time)
        if self._early is not None:
            ahead = time - self._clock.wall()
            if ahead > self._early:
                reason = f"it is {ahead / 1000:,.0f} s ahead of the clock, expected at most {self._early / 1000:,}"
                raise InvalidEventTimeError(value=time, reason=reason)
        return time

    def _checked_time(self, value: object) -> int:
        """Return a time that the caller passed; warn where the first one looks like seconds.

        No error: made-up times may lie in January 1970, and later correct ones are not held up by a time so low.
        """
        time = event_time_of(value)
        if not self._timed:
            self._timed = True
            if are_seconds(time, self._clock.wall()):
                _log.warning(
                    "%r: the first event time is %d, which is %s; times are epoch milliseconds: did you pass seconds? "
                    "then it would be %s, so pass time * 1000, or an aware datetime",
                    self,
                    time,
                    to_datetime(time).isoformat(),
                    to_datetime(time * 1000).isoformat(),
                )
        return time

    def _checked_timestamp(self, timestamp: object) -> int:
        if self._stamps:
            raise UsageError(
                reason=f"{self!r}: the strategy is ingress(), whose event time is the timestamp; pass none"
            )
        if isinstance(timestamp, bool) or not isinstance(timestamp, Integral) or timestamp < 0:
            reason = f"the timestamp is {timestamp!r}, expected milliseconds since 1970, or 0 for now"
            raise UsageError(reason=f"{self!r}: {reason}")
        return int(timestamp)

    def _checked_headers(self, headers: Headers) -> Headers:
        pairs = list(headers.items() if isinstance(headers, dict) else headers)
        if any(name == HEADER for name, _ in pairs):
            reason = f"{self!r}: the header {HEADER!r} is that of watermark records, and plain consumers skip it"
            raise UsageError(reason=f"{reason}; choose another name")
        return pairs

    def _refuse_late(self, event_time: int, promised: int | None) -> None:
        if is_late(event_time, promised):
            raise LateRecordError(source=self._emitter.identity.source, event_time=event_time, watermark=promised)

    def _require(self, partition: int) -> None:
        """Ask whether the topic has a partition that was not there before."""
        if partition >= 0 and self._emitter.grow(self._channel.ask_partitions()) and self._emitter.registered:
            self.emit()
        if not 0 <= partition < self._emitter.partitions:
            reason = f"the topic has the partitions 0 to {self._emitter.partitions - 1}, not {partition}"
            raise UsageError(reason=f"{self!r}: {reason}; pass none (or -1) to let the key decide")

    @property
    def ahead(self) -> bool:
        """Whether ``produce`` would wait, by the other sources' marks up to the last call that served any."""
        with self._channel.lock:
            return self._slower_peer() is not None

    def _slower_peer(self) -> tuple[int, str] | None:
        """Return the watermark and the name of the source that this one waits for."""
        if self._alignment is None:
            return None
        now, peers = self._clock.steady(), self._alignment.peers
        return peers.slowest(now) if peers.is_ahead(self._generator.watermark(), now) else None

    def _poll_peers(self, now: int) -> None:
        if self._alignment is not None and now >= self._next_alignment:
            self._next_alignment = now + min(self._interval, _ALIGNMENT_INTERVAL)
            self._alignment.poll(now)

    def _wait_for_peers(self) -> None:
        """Wait while this source is ahead; it sends marks meanwhile, so that it is not taken for idle or dead."""
        self._poll_peers(self._clock.steady())
        report = self._clock.steady() + _WAIT_REPORT
        while (slowest := self._slower_peer()) is not None:
            self._emitter.pause()
            if self._clock.steady() >= report:
                report += _WAIT_REPORT
                _log.warning("%r waits for source %r, whose watermark is %s", self, slowest[1], iso(slowest[0]))
            self._channel.client.poll(_ALIGNMENT_INTERVAL / 1000)
            self._serve()
        self._emitter.unpause()

    def _prepare(self, event_time: int | None) -> None:
        """Mark before the first record, and before the first after idleness: readers must know whom to wait for."""
        if self._emitter.ended:
            raise EndedError(source=self._emitter.identity.source, action="send a record")
        if self._raise_late and event_time is not None and not self._emitter.registered:
            self._refuse_late(event_time, self._emitter.watermark)  # what the marks are about to promise
        if self._alignment is not None:
            self._wait_for_peers()
        self._register()

    def _register(self) -> None:
        self._sender.check_fenced()
        if self._emitter.status is Status.IDLE:
            self._emitter.mark_active()
        if not self._emitter.registered:
            self.emit()

    @property
    def failed(self) -> list[FailedRecord]:
        """The records that Kafka did not accept and that were not sent again; the watermark is held below each."""
        with self._channel.lock:
            return list(self._outbox.failed)

    def resend(self) -> int:
        """Send all records again that Kafka did not accept; returns how many.

        This alone lets go of the watermark: each holds it until it is acknowledged.  They stand behind what was sent
        since.  A record whose time ran out may be in the topic all the same, and then stands there twice.

        Raises:
            BufferError: the queue stayed full for a minute; what was not sent again still holds.
        """
        with self._channel.lock:
            self._channel.client.poll(0)
            if self._outbox.failed:
                self._register()
            return self._outbox.resend()

    def poll(self, timeout: float = 0) -> int:
        """Serve delivery reports, and send the marks that are due; after the end there are none.

        Args:
            timeout: how long to wait for a report, seconds; below 0: as long as it takes.

        Returns:
            How many reports were served, those of marks among them.
        """
        deadline = Deadline(timeout)
        while True:
            with self._channel.lock:
                served = self._channel.client.poll(0)
                self._serve()
                self._sender.raise_kept()
            if served or (timeout >= 0 and deadline.passed):
                return served
            time.sleep(_SLICE if timeout < 0 else min(_SLICE, max(0.0, deadline.left)))  # others may produce meanwhile

    def _attend(self) -> None:
        """Serve in the background."""
        with self._channel.lock:
            if not self._channel.stopped:
                self._channel.client.poll(0)
                self._serve()

    def _check_background(self) -> None:
        """Raise what failed in the thread, before anything is sent; refuse to go on without the thread."""
        self._sender.raise_kept()
        if self._channel.stopped and not self._emitter.ended:
            raise UsageError(reason=f"{self!r} is closed, and its marks would wait for poll(): make a new one")

    def _serve(self) -> None:
        """Do what is due, whenever the caller is here."""
        now = self._clock.steady()
        self._poll_peers(now)
        self._sender.serve(now)

    def emit(self) -> None:
        """Send the current watermark to every partition now; nothing after the end.

        Raises:
            BufferError: the queue stayed full for a minute.
            FencedError: a later run of this source marks the topic.
        """
        with self._channel.lock:
            self._sender.check_fenced()
            self._sender.emit()

    def mark_idle(self, timeout: float = 60) -> None:
        """Wait until all is acknowledged, then ask readers not to wait for this source until its next record.

        Args:
            timeout: seconds.

        Raises:
            DeliveryError: where Kafka did not accept a record; then the source stays active, for it may be sent again.
        """
        with self._channel.lock:
            self._outbox.wait(timeout)
            self._emitter.mark_idle()
            self.emit()

    def change_membership(self, membership: Membership) -> None:
        """Use a newer membership from now on (the number of sources of the topic has changed).

        Raises:
            UsageError: where its version is not above the last one; for a source of a pool always.
        """
        if self._channel.leave is not None:
            raise UsageError(reason=f"{self!r} uses the membership of its pool: call the pool's change_membership()")
        with self._channel.lock:
            identity = self._emitter.identity
            check_versioned(membership, identity.membership, f"source {identity.source!r}")
            self._emitter.change_membership(membership)
            self.emit()

    @property
    def watermark(self) -> int | None:
        """What the source can promise now, epoch milliseconds; ``None``: nothing yet."""
        with self._channel.lock:
            return self._emitter.watermark

    @property
    def late(self) -> int:
        """How many records were sent behind the source's own promise."""
        return self._emitter.late

    def metrics(self) -> Metrics:
        """Return what is measured of this source."""
        with self._channel.lock:
            emitter = self._emitter
            oldest, watermark = emitter.oldest_arrival(), emitter.watermark
            return Metrics(
                "source",
                emitter.identity.source,
                records=emitter.records,
                late_events=emitter.late,
                failed=emitter.failed,
                watermark_delay_seconds=delay(self._clock.wall(), watermark),
                processing_time_delay_seconds=0.0 if oldest is None else (self._clock.steady() - oldest) / 1000,
                topic=self.topic,
                watermark=watermark,
                state=state_of(watermark, idle=emitter.status is Status.IDLE, ended=emitter.ended),
                epoch=emitter.identity.epoch,
            )

    def flush(self, timeout: float = 60) -> int:
        """Wait until all is acknowledged, then send marks that promise it, and wait for those.

        Looks for new partitions first.  After ``end`` it only waits.

        Args:
            timeout: of each wait, seconds.

        Returns:
            How many records are left, as confluent-kafka does: 0, since any that is left is an error here.

        Raises:
            DeliveryError: where Kafka did not accept a record or a mark; the watermark stays held below it.
            FencedError: a later run of this source marks the topic; this one has waited for its records.
        """
        with self._channel.lock:
            self._outbox.wait(timeout)
            if not self._emitter.ended:
                with suppress(BrokerUnavailableError, UnknownTopicError):
                    self._channel.ask_partitions(timeout)
            self.emit()
            self._outbox.wait(timeout, marks=True)
            self._sender.raise_kept()
        return 0

    def end(self, timeout: float = 60) -> None:
        """Flush, then mark in every partition that this source has ended.

        Args:
            timeout: of each wait, seconds.

        Raises:
            DeliveryError: where Kafka did not accept a record; then no partition is marked.  Where it did not accept
                such a mark: call it again.
            BrokerUnavailableError: where the topic's partitions cannot be learnt; no partition is marked.
            FencedError: a later run of this source marks the topic.
            EndedError: where all of them were marked before.
        """
        with self._channel.lock:
            if not self._emitter.ended:
                self._outbox.wait(timeout)
                self._sender.check_fenced()
                self._channel.ask_partitions(timeout)
            elif self._outbox.settled:
                raise EndedError(source=self._emitter.identity.source, action="end again")
            self._sender.emit_end()
            self._outbox.wait(timeout, marks=True)
            self._release()
            if self._channel.background is not None:
                self._sender.raise_kept()
            if self._channel.leave is not None:
                self._channel.leave(self.source)

    def close(self, timeout: float = 10) -> bool:
        """Wait for what is in flight, and close what only this source reads.

        No mark is sent; call `flush` or `end` before to promise what was acknowledged, or use ``with``, which flushes.
        With ``background`` marks that promise it are sent, as far as there is room for them, and waited for.

        Args:
            timeout: of each wait, seconds.

        Returns:
            Whether all was acknowledged or has failed, see `failed`.
        """
        running = self._channel.background is not None and not self._channel.stopped
        return self._close(timeout, promise=running and self._emitter.fenced_by is None)

    def _close(self, timeout: float, *, promise: bool) -> bool:
        with self._channel.lock:
            try:
                self._channel.client.flush(timeout)
                if promise and not self._emitter.ended:
                    self._sender.emit(wait=False)
                    self._channel.client.flush(timeout)
                closed = self._outbox.unacknowledged == 0
            finally:
                self._release()
            if promise:
                self._sender.raise_kept()
            return closed

    def _release(self) -> None:
        """Close what only this source uses; the sources of a pool leave the channel open."""
        self._outbox.release()
        alignment, self._alignment = self._alignment, None
        if alignment is not None:
            alignment.close()
        if self._channel.leave is None:
            self._channel.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Flush; after an error only what is in flight is waited for, and no promise is made.  In a fork: nothing."""
        if self._channel.forked:
            return
        try:
            if kind is None:
                self.flush()
            else:
                self._close(10, promise=False)
        finally:
            with self._channel.lock:
                self._release()
