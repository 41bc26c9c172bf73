"""A Kafka producer that interleaves its data with watermark records.  The thin shell around `emitter`."""

import logging
from datetime import datetime, timedelta
from numbers import Integral
from typing import Final, Literal

from floodmark.producers.clients.admin import Config
from floodmark.producers.clients.clock import Clock
from floodmark.producers.clients.partitioners import partitioner
from floodmark.producers.closing_source import ClosingSource
from floodmark.producers.outbox import FailedRecord, Headers, OnDelivery, Record
from floodmark.producers.readers.alignment import Alignment
from floodmark.producers.settings import check_settings
from floodmark.producers.strategies.generator import Strategy, strategy_of
from floodmark.producers.strategies.mark_writer import Identity
from floodmark.schemas.errors import EndedError, InvalidEventTimeError, LateRecordError, ReservedKeyError, UsageError
from floodmark.schemas.errors.base import iso
from floodmark.schemas.records import HEADER, KEY_PREFIX, Membership, Status, is_mark_key
from floodmark.schemas.timestamps import duration_of, is_late
from typing_extensions import override

_log = logging.getLogger(__name__)
_ALIGNMENT_INTERVAL: Final = 100
_WAIT_REPORT: Final = 60_000


class WatermarkedProducer(ClosingSource):
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
        membership: how many sources write to the topic.  Raise the version when that changes.
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
        background: bool = False,
        clock: Clock = Clock(),  # noqa: B008  # frozen
    ) -> None:
        check_settings(config, source, membership, on_late)
        self._early = None if early is None else duration_of(early, f"source {source!r}: early")
        self._raise_late = on_late == "raise"
        self._partitioner = partitioner(str(config.get("partitioner", "consistent_random")))
        self._on_delivery: OnDelivery | None = config.get("on_delivery")
        interval_ms = duration_of(interval, f"source {source!r}: the interval of marks", 1)
        lease_ms = None if lease is None else duration_of(lease, f"source {source!r}: the lease", 1)
        bound_ms = None if alignment is None else duration_of(alignment, f"source {source!r}: the bound of alignment")
        generator = strategy_of(strategy).build()
        identity = Identity(source, 0 if epoch is None else epoch, membership, lease_ms)
        super().__init__(config, topic, identity, generator, interval_ms, clock, follow=epoch is None)
        self._stamps = generator.stamps
        self._alignment: Alignment | None = None
        if bound_ms is not None:
            self._alignment = Alignment(config, topic=topic, source=source, bound=bound_ms)
        self._next_alignment = clock.steady()
        if background:
            self._start_background()

    def produce(
        self,
        value: bytes | None,
        *,
        event_time: int | datetime | None = None,
        key: bytes | str | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Send one record; returns at once, as confluent-kafka does.

        Args:
            value: as it is to stand in Kafka; not touched.
            event_time: epoch milliseconds or an aware datetime (NumPy's integers and pandas' ``Timestamp`` are taken,
                too): the time that watermarks are about.  A first one that looks like seconds is warned of.  None with
                the strategy `ingress`, whose time is written as Kafka's timestamp.
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
        with self._lock:
            if self._background is not None:
                self._check_background()
            emitter = self._emitter
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
            self._producer.poll(0)
            self._schedule.serve(now)

    def _time_of(self, event_time: int | datetime | None) -> int:
        if self._stamps:
            raise UsageError(reason=f"{self!r}: the strategy is ingress(), so a record has no event time of its own")
        time = self._checked_time(event_time)
        if self._early is not None:
            ahead = time - self._clock.wall()
            if ahead > self._early:
                reason = f"it is {ahead / 1000:,.0f} s ahead of the clock, expected at most {self._early / 1000:,}"
                raise InvalidEventTimeError(value=time, reason=reason)
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
        if partition >= 0 and self._emitter.grow(self._watch.ask()) and self._emitter.registered:
            self.emit()
        if not 0 <= partition < self._emitter.partitions:
            reason = f"the topic has the partitions 0 to {self._emitter.partitions - 1}, not {partition}"
            raise UsageError(reason=f"{self!r}: {reason}; pass none (or -1) to let the key decide")

    @property
    def ahead(self) -> bool:
        """Whether ``produce`` would wait, by the other sources' marks up to the last call that served any."""
        with self._lock:
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
            self._producer.poll(_ALIGNMENT_INTERVAL / 1000)
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
        self._check_fenced()
        if self._emitter.status is Status.IDLE:
            self._emitter.mark_active()
        if not self._emitter.registered:
            self.emit()

    @property
    def failed(self) -> list[FailedRecord]:
        """The records that Kafka did not accept and that were not sent again; the watermark is held below each."""
        with self._lock:
            return list(self._outbox.failed)

    def resend(self) -> int:
        """Send all records again that Kafka did not accept; returns how many.

        This alone lets go of the watermark: each holds it until it is acknowledged.  They stand behind what was sent
        since.  A record whose time ran out may be in the topic all the same, and then stands there twice.

        Raises:
            BufferError: the queue stayed full for a minute; what was not sent again still holds.
        """
        with self._lock:
            self._producer.poll(0)
            if self._outbox.failed:
                self._register()
            return self._outbox.resend()

    @override
    def _serve(self) -> None:
        self._poll_peers(self._clock.steady())
        super()._serve()

    @override
    def _release(self) -> None:
        super()._release()
        alignment, self._alignment = self._alignment, None
        if alignment is not None:
            alignment.close()
