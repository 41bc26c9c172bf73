"""A source of a topic: the client, what it may promise, and when its marks are sent."""

import logging
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Self

from confluent_kafka import Producer
from floodmark.producers.clients.admin import Config
from floodmark.producers.clients.clock import Clock
from floodmark.producers.clients.metrics import Metrics, delay, state_of
from floodmark.producers.outbox import Outbox
from floodmark.producers.partition_watch import PartitionWatch
from floodmark.producers.predecessors import Predecessors, last_marks
from floodmark.producers.schedule import Schedule
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.generator import Generator
from floodmark.producers.strategies.numbering import Identity
from floodmark.schemas.errors import BrokerUnavailableError, EndedError, UnknownTopicError
from floodmark.schemas.records import Membership, Status, check_membership
from floodmark.schemas.timestamps import are_seconds, event_time_of, to_datetime

_log = logging.getLogger(__name__)


class Source:
    """One source of one topic, which marks every partition; `WatermarkedProducer` adds the records.

    Args:
        config: confluent-kafka settings.
        topic: the topic; it must exist.
        identity: who writes.
        generator: what it may promise.
        interval: time between marks, milliseconds.
        clock: where the time comes from.
        follow: take the epoch from the clock, above what partition 0 holds of this source, and not from ``identity``.

    Raises:
        UnknownTopicError, BrokerUnavailableError: where the topic cannot be reached.
    """

    def __init__(
        self,
        config: Config,
        topic: str,
        identity: Identity,
        generator: Generator,
        interval: int,
        clock: Clock,
        *,
        follow: bool,
    ) -> None:
        self._generator, self._interval, self._clock = generator, interval, clock
        self.topic = topic
        self._timed = False
        self._producer = Producer({**config, "enable.idempotence": True}, logger=_log)
        self._watch = PartitionWatch(self._producer, topic, config.get("bootstrap.servers"))
        wall = clock.wall()
        before = Predecessors(identity.source, last_marks(config, topic, wall) if follow else {})
        identity = replace(identity, epoch=before.next_epoch(wall)) if follow else identity
        self._emitter = Emitter(identity, generator, self._watch.partitions)
        self._outbox = Outbox(self._producer, topic, self._emitter, clock)
        self._schedule = Schedule(self._emitter, self._outbox, self._watch, clock, interval)
        self._follow(before, wall)

    def _follow(self, before: Predecessors, wall: int) -> None:
        """Go on where the last run of this source ended; warn of others that no membership counts."""
        membership = self._emitter.identity.membership
        if self._generator.stamps and before.watermark is not None:
            self._generator.on_tick(self._clock.steady(), before.watermark)  # stamps do not go back, as epochs do not
        uncounted = before.uncounted(membership, wall)
        if uncounted:
            _log.warning(
                "%r: the membership says that one source writes to the topic, but lately %s wrote to it; readers may "
                "not wait for all of them: give each membership=Membership(version=%d, size=%d)",
                self,
                ", ".join(map(repr, uncounted)),
                membership.version + 1,
                len(uncounted) + 1,
            )

    def __repr__(self) -> str:
        """Show who writes where; never a setting, which may be a secret."""
        identity = self._emitter.identity
        return f"{type(self).__name__}(topic={self.topic!r}, source={identity.source!r}, epoch={identity.epoch})"

    def advance(self, watermark: int | datetime) -> None:
        """Promise that no later record of this source has an event time below ``watermark`` (strategy `explicit`).

        Raises:
            UsageError: where the strategy is another one.
            WatermarkRegressionError: where it is below the last promise.
        """
        self._generator.advance(self._checked_time(watermark))

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

    def poll(self, timeout: float = 0) -> int:
        """Serve delivery reports, and send the marks that are due; after the end there are none.

        Args:
            timeout: how long to wait for a report, seconds.

        Returns:
            How many reports were served, those of marks among them.
        """
        served = self._producer.poll(timeout)
        self._serve()
        self._outbox.raise_callback_error()
        return served

    def _serve(self) -> None:
        """Do what is due, whenever the caller is here."""
        self._schedule.serve(self._clock.steady())

    def emit(self) -> None:
        """Send the current watermark to every partition now; nothing after the end.

        Raises:
            BufferError: the queue stayed full for a minute.
        """
        self._schedule.emit()

    def mark_idle(self, timeout: float = 60) -> None:
        """Wait until all is acknowledged, then ask readers not to wait for this source until its next record.

        Args:
            timeout: seconds.

        Raises:
            DeliveryError: where Kafka did not accept a record; then the source stays active, for it may be sent again.
        """
        self._outbox.wait(timeout)
        self._emitter.mark_idle()
        self.emit()

    def change_membership(self, membership: Membership) -> None:
        """Use a newer membership from now on (the number of sources of the topic has changed).

        Raises:
            UsageError: where its version is not above the last one.
        """
        check_membership(membership, f"source {self._emitter.identity.source!r}")
        self._emitter.change_membership(membership)
        self.emit()

    def flush(self, timeout: float = 60) -> int:
        """Wait until all is acknowledged, then send marks that promise it, and wait for those.

        Looks for new partitions first.  After ``end`` it only waits.

        Args:
            timeout: of each wait, seconds.

        Returns:
            How many records are left, as confluent-kafka does: 0, since any that is left is an error here.

        Raises:
            DeliveryError: where Kafka did not accept a record or a mark; the watermark stays held below it.
        """
        self._outbox.wait(timeout)
        if not self._emitter.ended:
            with suppress(BrokerUnavailableError, UnknownTopicError):
                self._watch.ask(timeout)
        self.emit()
        self._outbox.wait(timeout, marks=True)
        self._outbox.raise_callback_error()
        return 0

    def end(self, timeout: float = 60) -> None:
        """Flush, then mark in every partition that this source has ended.

        Args:
            timeout: of each wait, seconds.

        Raises:
            DeliveryError: where Kafka did not accept a record; then no partition is marked.  Where it did not accept
                such a mark: call it again.
            BrokerUnavailableError: where the topic's partitions cannot be learnt; no partition is marked.
            EndedError: where all of them were marked before.
        """
        if not self._emitter.ended:
            self._outbox.wait(timeout)
            self._emitter.grow(self._watch.ask(timeout))
            self._emitter.end()
        elif self._outbox.settled:
            raise EndedError(source=self._emitter.identity.source, action="end again")
        self.emit()
        self._outbox.wait(timeout, marks=True)
        self._release()

    def close(self, timeout: float = 10) -> bool:
        """Wait for what is in flight, and close what only this source reads; no mark is sent.

        Call `flush` or `end` before to promise what was acknowledged, or use ``with``, which flushes.

        Args:
            timeout: seconds.

        Returns:
            Whether all was acknowledged or has failed, see `failed`.
        """
        try:
            return self._producer.flush(timeout) == 0
        finally:
            self._release()

    def _release(self) -> None:
        """Close what only this source reads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Flush; after an error only what is in flight is waited for, and no promise is made."""
        try:
            if kind is None:
                self.flush()
            else:
                self.close()
        finally:
            self._release()

    @property
    def watermark(self) -> int | None:
        """What the source can promise now, epoch milliseconds; ``None``: nothing yet."""
        return self._emitter.watermark

    @property
    def late(self) -> int:
        """How many records were sent behind the source's own promise."""
        return self._emitter.late

    def metrics(self) -> Metrics:
        """Return what is measured of this source."""
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
