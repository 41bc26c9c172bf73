"""A Kafka producer that writes watermark records between its data.  A thin shell around `Emitter`."""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, Self

from floodmark.producers.channel import Channel, check_settings
from floodmark.producers.clients.admin import Config
from floodmark.producers.clients.clock import Clock, Deadline
from floodmark.producers.clients.consumers import client_log
from floodmark.producers.clients.partitioners import partitioner
from floodmark.producers.metrics import Metrics, delay, state_of
from floodmark.producers.other_runs import Predecessors
from floodmark.producers.readers.alignment import Alignment, AlignmentReader
from floodmark.producers.record_checks import RecordChecks
from floodmark.producers.sender import FailedRecord, Headers, MergedSender, OnDelivery, Sender
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.in_flight import IN_FLIGHT_SIZE
from floodmark.producers.strategies.interface import Strategy, strategy_of
from floodmark.producers.strategies.numbering import Identity
from floodmark.producers.strategies.scopes import generators
from floodmark.schemas.errors import BrokerUnavailableError, EndedError, LateRecordError, UnknownTopicError, UsageError
from floodmark.schemas.errors.base import iso
from floodmark.schemas.records import Held, Membership, Status, check_versioned
from floodmark.schemas.timestamps import duration_of, event_time_of, event_times_of, is_late

_log = client_log(__name__)
_LOOK_INTERVAL: Final = 20  # milliseconds between two looks at the marks of others, for alignment
_WAIT_REPORT: Final = 60_000  # milliseconds


class WatermarkedProducer:
    """One source of one topic: produces records and, on an interval, its watermark to every partition.

    Marks (watermark records) use the same client and partitions as the data, so they keep its order.  A mark is never
    ahead of a record that Kafka has not acknowledged.  ``produce``, ``poll``, ``flush``, ``emit`` and a thread send the
    marks that are due.  Threads may share a producer.  In a forked process, its calls raise `ForkedError`.

    While the broker is unreachable, ``produce`` queues records.  It blocks only when confluent-kafka's queue is full
    (``queue.buffering.max.messages``), for a minute at most.  A thread looks for new partitions every 10 seconds.

    Args:
        config: confluent-kafka settings, passed through.  Idempotence is on and must stay on.
        topic: must exist.
        source: id of this writer, unique among the topic's sources.
        strategy: how the source knows its watermark, see `strategies`.
        membership: number of sources that write to the topic.  A number is version 1; when it changes, pass a
            `Membership` with a higher version.
        epoch: number of this start, higher than at any earlier start, or calls raise `FencedError`; default: wall
            clock, milliseconds, or above the last epoch in the topic, if the clock was set back.
        interval: time between marks.
        lease: after one to three leases of silence (in log time) while others mark, readers treat this source as idle;
            at least twice ``interval``; default: never.
        on_late: what to do with a record below this source's watermark: ``"send"`` it and count it, or ``"raise"``.
        early: refuse records whose event time is further ahead of the clock; default: accept all.
        alignment: how far this source may be ahead of the slowest other source of the topic before ``produce`` blocks,
            or an `Alignment`, also to stay near another topic.
        background: send marks from a thread, too.  ``close`` and the end of the process then flush, ``on_delivery`` may
            be called in the thread, and the next call raises its errors.  With ``False``, call ``poll`` at least once
            an interval, or readers wait.
        clock: for tests, a `ManualClock`.
        channel, speaker: set by `SourcePool.join`; default: a Kafka client and marks for this source alone.

    Raises:
        UnknownTopicError, BrokerUnavailableError: at once, not at the first record.
        UsageError: a setting is wrong.
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
        alignment: Alignment | timedelta | None = None,
        background: bool = True,
        clock: Clock = Clock(),
        channel: Channel | None = None,
        speaker: MergedSender | None = None,
    ) -> None:
        membership = check_settings(config, source, membership, on_late)
        early_ms = None if early is None else duration_of(early, f"source {source!r}: early")
        self._raise_late = on_late == "raise"
        self._partitioner = partitioner(str(config.get("partitioner", "consistent_random")))
        self._interval = duration_of(interval, f"source {source!r}: the interval of marks", 1)
        lease_what = f"source {source!r}: the lease (twice the interval or more)"
        lease_ms = None if lease is None else duration_of(lease, lease_what, 2 * self._interval)
        if alignment is not None:
            alignment = alignment if isinstance(alignment, Alignment) else Alignment(alignment)
        build, apart = generators(strategy_of(strategy))
        generator = self._generator = build()
        identity = Identity(source, 0 if epoch is None else epoch, membership, lease_ms)
        self.topic = topic
        self._clock, self._steady = clock, clock.steady
        self._served = clock.steady()
        self._end_returned = False  # whether `end` has seen the mark of the end in each partition
        self._next_look = clock.steady()
        channel = self._channel = Channel(config, topic, clock) if channel is None else channel
        wall = clock.wall()
        before = channel.predecessors(source if speaker is None else speaker.emitter.identity.source, wall)
        if epoch is None:
            identity = replace(identity, epoch=before.next_epoch(wall))
        if speaker is None:
            emitter = Emitter(identity, generator, channel.partitions, apart)
            self._sender = Sender(channel, emitter, clock, self._interval)
        else:
            self._sender = speaker.joining(identity, generator)
        self._emitter = self._sender.emitter
        self._checks = RecordChecks(repr(self), clock, stamps=generator.stamps, early=early_ms)
        if generator.stamps:
            channel.require_timestamps(repr(self))
        self._outbox = self._sender.outbox
        self._outbox.on_delivery = config.get("on_delivery")
        self._resume(before, wall, joined=speaker is not None)
        if alignment is not None:
            channel.alignment = AlignmentReader(config, alignment, topic=topic, source=source)
            channel.alignment.begin_with(before.marks, wall, clock.steady())
        if channel.on_source_ended is None:
            channel.owner = repr(self)
            if background:
                channel.start_background(self._background_step, self.close, self._interval)
        self._sender.polled = channel.background is None

    def _resume(self, before: Predecessors, wall: int, *, joined: bool) -> None:
        """Continue after the last run of this source; warn of sources that the membership does not count."""
        identity = self._emitter.identity
        for known in (before.watermark, self._emitter.scope(0).promised):
            if self._generator.stamps and known is not None:
                self._generator.on_tick(self._clock.steady(), known)  # stamps never go back
        if not joined:
            self._channel.tell(f"source {identity.source!r}", before.advice(identity.membership, wall))
        if identity.epoch <= before.epoch:
            self._emitter.fenced_by = before.epoch
            _log.error("%r is fenced: the topic has marks of its epoch %d; pass a higher epoch=", self, before.epoch)

    def __repr__(self) -> str:
        """Show no setting: it may be a secret."""
        identity = self._emitter.identity
        return f"{type(self).__name__}(topic={self.topic!r}, source={identity.source!r}, epoch={identity.epoch})"

    @property
    def source(self) -> str:
        """Its id."""
        return self._emitter.identity.source

    @property
    def epoch(self) -> int:
        """The number of this start."""
        return self._emitter.identity.epoch

    @property
    def ended(self) -> bool:
        """Whether `end` was called."""
        return self._emitter.ended

    def advance(self, watermark: float | datetime) -> None:
        """Set the watermark of the next mark: no later record has an event time below it (strategy `explicit`).

        ``watermark``: epoch milliseconds (rounded down), or an aware datetime.

        Raises `UsageError` with another strategy, `WatermarkRegressionError` if the watermark is below the last one.
        """
        with self._channel.lock:
            self._emitter.advance(self._checks.watermark(watermark))

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
        """Send one record without waiting for Kafka's acknowledgement.

        Args:
            value: written unchanged.
            event_time: epoch milliseconds (rounded down), or an aware datetime, also of pandas.  NumPy's ``datetime64``
                is in UTC.  ``None`` with the strategy `ingress`, which uses Kafka's timestamp.
            key: written unchanged; decides the partition.
            partition: overrides the key; -1: none, as in confluent-kafka.
            on_delivery: called with an error or ``None``, and the message, inside any call that serves reports.
                The next ``poll`` or ``flush`` raises its errors.  Default: the setting ``on_delivery``.
            timestamp: Kafka's timestamp, epoch milliseconds; 0 or ``None``: now.  Watermarks do not depend on it.
            headers: pairs or a dict, written unchanged; names that begin with ``floodmark`` are for readers.

        Raises:
            InvalidEventTimeError, ReservedKeyError, EndedError, LateRecordError, UsageError: nothing was sent.
            FencedError: nothing was sent.  Another process writes as this source (checked once a minute).
            BufferError: the queue stayed full for a minute; nothing was sent.
        """
        if self._channel.alignment is not None:
            self._wait_for_others()
        with self._channel.lock:
            emitter, outbox, checks, background = self._emitter, self._outbox, self._checks, self._channel.background
            if background is not None and (background.stopped or background.failure or outbox.callback_error):
                self._check_background()
            time = event_time_of(event_time) if checks.plain_times else checks.event_time(event_time)
            if timestamp is not None or headers is not None:
                timestamp, headers = checks.timestamp(timestamp), checks.headers(headers, time)
            key = checks.key(key)
            if partition is None or partition == -1:
                partition = self._partitioner(key, emitter.partitions)
            else:
                self._require_partition(partition)
            if not emitter.registered:
                self._prepare(partition, time)
            if time is None:  # not before `_prepare`, whose marks have the time until now
                time = self._generator.stamp(self._clock.wall())
                timestamp = max(1, time)  # 0 is "now" to confluent-kafka
            elif self._raise_late:
                self._refuse_late(time, emitter.scope(partition).promised)
            now = self._steady()
            outbox.send(value, key, partition, time, now, headers, timestamp, on_delivery)
            if now != self._served:
                self._serve(now)

    def produce_many(
        self,
        values: Sequence[bytes | None],
        *,
        event_times: Iterable[Any] | None = None,
        keys: Sequence[bytes | str | None] | None = None,
    ) -> None:
        """Send many records, in order, as `produce` does; faster with a strategy that has one watermark for all.

        ``event_times``: a list, or an array of NumPy (``datetime64`` is in UTC), pandas (with a zone) or Arrow, one
        each.

        Raises:
            InvalidEventTimeError, ReservedKeyError, UsageError: nothing was sent.
            EndedError, LateRecordError, FencedError, BufferError, and TypeError or KafkaException for a value that is
                not bytes or too large: the records before were sent, and a note of the error has their number.  So it
                is with an InvalidEventTimeError of `punctuated`, which cannot read a value.
        """
        times: list[Any] = [None] * len(values) if event_times is None else event_times_of(event_times)
        raw_keys = [None] * len(values) if keys is None else [self._checks.key(key) for key in keys]
        if not len(values) == len(times) == len(raw_keys):
            given = f"{len(values)} values, {len(times)} event times" + (f", {len(raw_keys)} keys" if keys else "")
            raise UsageError(reason=f"{self!r}: there are {given}: expected one for each value")
        with self._channel.lock:
            self._checks.event_times(times)
            emitter = self._emitter
            together = emitter.takes_many and not (self._raise_late or self._generator.stamps)
        if not together or self._channel.alignment is not None:  # `produce` may wait, which it does without the lock
            for sent, (value, time, key) in enumerate(zip(values, times, raw_keys, strict=True)):
                try:
                    self.produce(value, event_time=time, key=key)
                except Exception as error:
                    error.add_note(f"{sent} of these {len(values)} records were sent")
                    raise
            return
        with self._channel.lock:
            before = emitter.records
            try:
                for begin in range(0, len(values), IN_FLIGHT_SIZE):
                    part = slice(begin, begin + IN_FLIGHT_SIZE)
                    self._produce_part(values[part], raw_keys[part], times[part])
            except Exception as error:
                error.add_note(f"{emitter.records - before} of these {len(values)} records were sent")
                raise

    def _produce_part(self, values: Sequence[bytes | None], keys: Sequence[bytes | None], times: Sequence[Any]) -> None:
        if self._channel.background is not None:
            self._check_background()
        if not self._emitter.registered:
            self._prepare(0, None)
        partitions = [self._partitioner(key, self._emitter.partitions) for key in keys]
        now = self._steady()
        self._outbox.send_many(values, keys, partitions, times, now)
        self._serve(now)

    def _serve(self, now: int) -> None:
        """Serve delivery reports, and send the marks that are due: at most once a millisecond, since it takes time."""
        self._served = now
        self._channel.client.poll(0)
        try:
            self._sender.send_due_marks(now)
        except Exception as failure:
            if self._channel.background is None:
                raise
            self._channel.keep_failure(failure)  # the record was sent: the next call raises it

    def _refuse_late(self, event_time: int, promised: int | None) -> None:
        if is_late(event_time, promised):
            raise LateRecordError(source=self._emitter.identity.source, event_time=event_time, watermark=promised)

    def _require_partition(self, partition: int) -> None:
        """Refuse a partition that the topic does not have; ask Kafka whether it is new."""
        if 0 <= partition < self._emitter.partitions:
            return
        if partition >= 0 and self._emitter.grow(self._channel.ask_partitions()) and self._emitter.registered:
            self.emit()
        if not 0 <= partition < self._emitter.partitions:
            reason = f"the topic has the partitions 0 to {self._emitter.partitions - 1}, not {partition}"
            raise UsageError(reason=f"{self!r}: {reason}; pass none (or -1) to let the key decide")

    @property
    def ahead(self) -> bool:
        """Whether ``produce`` would wait for `alignment`, as of the last call that read the marks of others."""
        with self._channel.lock:
            return self._held(self._clock.steady()) is not None

    def _held(self, now: int) -> Held | None:
        alignment = self._channel.alignment
        if alignment is None or self._emitter.ended:
            return None
        return alignment.held(self._emitter.reached, now, self.source)

    def _poll_alignment(self, now: int) -> None:
        """Read the marks of others; send own ones after half the bound, or in a backlog all would wait for them."""
        alignment = self._channel.alignment
        if alignment is None or now < self._next_look:
            return
        self._next_look = now + _LOOK_INTERVAL
        alignment.poll(now)
        self._sender.announce(alignment.bound // 2)

    def _wait_for_others(self) -> None:
        """Wait while this source is ahead, without the lock, which other sources of a pool and other threads need."""
        report = self._clock.steady() + _WAIT_REPORT
        try:
            while (held := self._check_held()) is not None:
                if self._clock.steady() >= report:
                    report += _WAIT_REPORT
                    _log.warning("%r waits for %s, whose watermark is %s", self, held.what, iso(held.watermark))
                time.sleep(_LOOK_INTERVAL / 1000)
        finally:
            with self._channel.lock:
                self._emitter.unpause(self._clock.steady())

    def _check_held(self) -> Held | None:
        """Return what to wait for; send marks meanwhile, so that readers do not take the source for idle or dead."""
        with self._channel.lock:
            now = self._clock.steady()
            self._poll_alignment(now)
            held = self._held(now)
            if held is not None:
                self._emitter.pause(now, held)
                self._channel.client.poll(0)
                self._sender.send_due_marks(now)
                self._sender.check_fenced()
            return held

    def _prepare(self, partition: int, event_time: int | None) -> None:
        """Before the first record, or the first after idleness, send marks: readers must know the source."""
        self._sender.check_fenced()
        if self._emitter.ended:
            raise EndedError(source=self._emitter.identity.source, action="send a record")
        if self._raise_late and event_time is not None and not self._emitter.registered:
            self._refuse_late(event_time, self._emitter.next_watermark(partition))
        self._register()

    def _register(self) -> None:
        self._sender.check_fenced()
        if not self._emitter.registered:
            self._emitter.mark_active()  # also if it is: these marks must not find that it has been silent
            self.emit()

    @property
    def failed(self) -> list[FailedRecord]:
        """The records that Kafka rejected and that were not sent again; each holds the watermark."""
        with self._channel.lock:
            return list(self._outbox.failed)

    def resend(self) -> int:
        """Send all failed records again, the oldest failure first; return their number.

        They are written after the records sent since, and hold the watermark until Kafka acknowledges them.  A record
        that timed out may already be in the topic, and is then there twice.  After a `BufferError`, the rest is in
        `failed`.
        """
        with self._channel.lock:
            self._channel.client.poll(0)
            if self._outbox.failed:
                self._register()
            return self._outbox.resend(self._clock.steady())

    def poll(self, timeout: float = 0) -> int:
        """Serve delivery reports, and send the marks that are due; return the number of reports served.

        Waits up to ``timeout`` seconds for a report; below 0: without limit.  Reports of marks count, too.
        """
        deadline = Deadline(timeout)
        while True:
            with self._channel.lock:
                served = self._poll_client()
                self._sender.raise_failures()
            if served or (timeout >= 0 and deadline.passed):
                return served
            # A poll that waits would keep the lock from `produce`, or take a report that a thread in `flush` waits for.
            time.sleep(0.005)

    def _background_step(self) -> None:
        with self._channel.lock:
            if not self._channel.stopped:
                self._poll_client()

    def _check_background(self) -> None:
        """Raise errors of the thread before anything is sent; refuse a producer whose thread was stopped."""
        self._sender.raise_failures()
        if self._channel.stopped and not self._emitter.ended:
            raise UsageError(reason=f"{self!r} is closed, and its marks would wait for poll(): make a new one")

    def _poll_client(self) -> int:
        """Serve delivery reports, and send the marks that are due; return the number of reports."""
        served, now = self._channel.client.poll(0), self._clock.steady()
        self._poll_alignment(now)
        self._sender.send_due_marks(now)
        return served

    def emit(self) -> None:
        """Send the current watermark to every partition now; nothing after the end.  Errors are as of `produce`."""
        with self._channel.lock:
            self._sender.emit_unless_fenced()

    def mark_idle(self, timeout: float = 60) -> None:
        """Wait until Kafka has acknowledged all records, then mark the source as idle.

        It is active again with its next record or watermark.

        ``timeout``: seconds.  After a DeliveryError the source stays active: a rejected record may be sent again.
        """
        with self._channel.lock:
            self._sender.wait(timeout)
            self._emitter.mark_idle()
            self.emit()

    def change_membership(self, membership: Membership) -> None:
        """Use a newer membership, since the number of sources of the topic has changed, or raise `UsageError`."""
        if self._channel.on_source_ended is not None:
            raise UsageError(reason=f"{self!r} uses the membership of its pool: call the pool's change_membership()")
        with self._channel.lock:
            identity = self._emitter.identity
            check_versioned(membership, identity.membership, f"source {identity.source!r}")
            self._emitter.change_membership(membership)
            self.emit()

    @property
    def watermark(self) -> int | None:
        """The source's watermark now, the lowest of all partitions, epoch milliseconds; ``None``: unknown."""
        with self._channel.lock:
            return self._emitter.watermark

    @property
    def late(self) -> int:
        """Number of records sent below this source's own watermark."""
        return self._emitter.late

    def metrics(self) -> Metrics:
        """Return the counters and the state of this source."""
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
        """Wait until Kafka has acknowledged all records, then send marks that cover them, and wait for the marks.

        After ``end`` it only waits.  ``timeout``: of each wait, seconds.  Returns 0: a remaining record is an error.

        Raises:
            DeliveryError: Kafka rejected a record or a mark; failed records hold the watermark.
            FencedError: a later run of this source marks the topic.
        """
        with self._channel.lock:
            self._sender.wait(timeout)
            if not self._emitter.ended:
                with suppress(BrokerUnavailableError, UnknownTopicError):
                    self._channel.ask_partitions(timeout)
            self.emit()
            self._sender.wait(timeout, marks=True)
            self._sender.raise_failures()
        return 0

    def end(self, timeout: float = 60) -> None:
        """Flush, then mark the source as ended in every partition; ``timeout``: of each wait, seconds.

        Raises:
            DeliveryError: Kafka rejected a record, and no partition was marked; or a mark: call ``end`` again.
            BrokerUnavailableError: Kafka does not return the topic's partitions; no partition was marked.
            EndedError, FencedError: it has already ended, or a later run of this source marks the topic.
        """
        with self._channel.lock:
            if not self._emitter.ended:
                self._sender.wait(timeout)
                self._channel.ask_partitions(timeout)
                self._channel.successors.read()
            elif self._end_returned:
                raise EndedError(source=self._emitter.identity.source, action="end again")
            self._sender.emit_end()
            self._sender.wait(timeout, marks=True)
            self._end_returned = True
            self._release()
            if self._channel.on_source_ended is not None:
                self._channel.on_source_ended(self.source)
            if self._channel.background is not None:
                self._sender.raise_failures()

    def close(self, timeout: float = 10) -> bool:
        """Wait until Kafka has acknowledged all records, and close what this source does not share.

        Without ``background``, ``close`` sends no marks: call `flush` or `end` first, or use ``with``, which flushes.
        ``timeout``: seconds.  Returns whether each record and mark was acknowledged or has failed, see `failed`.
        """
        running = self._channel.background is not None and not self._channel.stopped
        return self._close(timeout, promise=running and self._emitter.fenced_by is None)

    def _close(self, timeout: float, *, promise: bool) -> bool:
        with self._channel.lock:
            emit = partial(self._sender.emit, wait=False) if promise and not self._emitter.ended else None
            try:
                closed = self._channel.settle(timeout, emit, lambda: self._outbox.unacknowledged)
            finally:
                self._release()
            if promise:
                self._sender.raise_failures()
            return closed

    def _release(self) -> None:
        """Close what the source does not share; a pool keeps its channel open."""
        self._outbox.release()
        if self._channel.on_source_ended is None:
            self._channel.stop_background()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Flush, or after an error only wait for the records in flight.  In a forked process, do nothing."""
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
