"""A source of a topic: the client, what it may promise, and when its marks are sent."""

import threading
import time
from dataclasses import replace
from datetime import datetime
from typing import Final, NamedTuple

from confluent_kafka import Producer
from floodmark.producers.background import Background
from floodmark.producers.clients.admin import Config, client_log, overwrites_timestamps, shared
from floodmark.producers.clients.clock import Clock
from floodmark.producers.clients.metrics import Metrics, delay, state_of
from floodmark.producers.forks import Guarded, Lock
from floodmark.producers.outbox import Outbox
from floodmark.producers.partition_watch import PartitionWatch
from floodmark.producers.predecessors import Predecessors, last_marks
from floodmark.producers.schedule import Schedule
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.generator import Generator
from floodmark.producers.strategies.mark_writer import Identity
from floodmark.producers.successors import Successors
from floodmark.schemas.errors import FencedError, UsageError
from floodmark.schemas.records import Membership, Status, check_membership
from floodmark.schemas.timestamps import are_seconds, event_time_of, to_datetime

_log = client_log(__name__)
_SLICE: Final = 0.005
"""Seconds that `Source.poll` leaves to other threads between two looks at the client."""


class Link(NamedTuple):
    """A source's way to Kafka; the sources of a pool share one."""

    client: Producer
    watch: PartitionWatch
    successors: Successors
    lock: Lock


class Source(Guarded):
    """One source of one topic, which marks every partition; `WatermarkedProducer` adds the records.

    Args:
        config: confluent-kafka settings.
        topic: the topic; it must exist.
        identity: who writes.
        generator: what it may promise.
        interval: time between marks, milliseconds.
        clock: where the time comes from.
        follow: take the epoch from the clock, above the last one of this source, and not from ``identity``.

    Raises:
        UnknownTopicError, BrokerUnavailableError: where the topic cannot be reached.
        UsageError: where the strategy is `ingress`, and the topic does not keep its times.
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
        self._background: Background | None = None
        self._producer, self._watch, successors, lock = self._link(config)
        super().__init__(lock)
        wall = clock.wall()
        before = self._predecessors(config, identity.source, wall)
        if follow:
            identity = replace(identity, epoch=before.next_epoch(wall))
        self._emitter = Emitter(identity, generator, self._watch.partitions)
        if generator.stamps:
            self._require_timestamps(config)
        self._outbox = Outbox(self._producer, topic, self._emitter, clock)
        self._schedule = Schedule(self._emitter, self._outbox, self._watch, successors, clock, interval)
        self._follow(before, wall)
        if identity.epoch <= before.epoch:
            self._emitter.fenced_by = before.epoch
            _log.error("%r is fenced: the topic has marks of its epoch %d; pass a higher epoch=", self, before.epoch)

    def _link(self, config: Config) -> Link:
        client = Producer({**config, "enable.idempotence": True}, logger=_log)
        watch = PartitionWatch(client, self.topic, config.get("bootstrap.servers"))
        return Link(client, watch, Successors(config, self.topic, self._clock), threading.RLock())

    def _require_timestamps(self, config: Config) -> None:
        """Refuse a topic whose brokers put their clocks' times in place of the stamps that the marks speak of."""
        if overwrites_timestamps(shared(config), self.topic):
            reason = "the topic has message.timestamp.type=LogAppendTime, so its brokers replace the times of ingress()"
            raise UsageError(reason=f"{self!r}: {reason}; set CreateTime, or pass event times with another strategy")

    def _predecessors(self, config: Config, source: str, wall: int) -> Predecessors:
        return Predecessors(source, last_marks(config, self.topic, wall))

    def _follow(self, before: Predecessors, wall: int) -> None:
        """Go on where the last run of this source ended; warn of others that no membership counts."""
        membership = self._emitter.identity.membership
        if self._generator.stamps and before.watermark is not None:
            self._generator.on_tick(self._clock.steady(), before.watermark)  # stamps do not go back, as epochs do not
        if before.version > membership.version:
            _log.warning(
                "%r: the topic has marks of membership version %d, so readers ignore the marks of this source, whose "
                "version is %d: give it the membership that counts all sources",
                *(self, before.version, membership.version),
            )
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
        with self._lock:
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
            timeout: how long to wait for a report, seconds; below 0: as long as it takes.

        Returns:
            How many reports were served, those of marks among them.
        """
        deadline = time.monotonic() + timeout
        while True:
            with self._lock:
                served = self._producer.poll(0)
                self._serve()
                self._raise_kept()
            left = deadline - time.monotonic()
            if served or (timeout >= 0 and left <= 0):
                return served
            time.sleep(_SLICE if timeout < 0 else min(_SLICE, left))  # others may produce meanwhile

    def _start_background(self) -> None:
        self._background = Background(self, self._attend, self._interval)
        self._schedule.polled = False

    def _attend(self) -> None:
        """Serve in the background."""
        with self._lock:
            if self._background is not None and not self._background.stopped:
                self._producer.poll(0)
                self._serve()

    def _raise_kept(self) -> None:
        """Raise what a delivery report has raised, or what the background has, or that a later run has taken over."""
        self._check_fenced()
        self._outbox.raise_callback_error()
        if self._background is not None:
            self._background.raise_failure()

    def _check_fenced(self) -> None:
        fenced_by, identity = self._emitter.fenced_by, self._emitter.identity
        if fenced_by is not None:
            reason = f"it has epoch {identity.epoch}, and readers follow its epoch {fenced_by} there"
            advice = "if two processes have its id, stop one, or rename it; if you pass epoch=, pass a higher one"
            raise FencedError(writer=identity.source, topic=self.topic, reason=reason, advice=advice)

    def _check_background(self) -> None:
        """Raise what came up beside the caller, before anything is sent; refuse to go on without it, unheard."""
        self._raise_kept()
        if self._background is not None and self._background.stopped and not self._emitter.ended:
            raise UsageError(reason=f"{self!r} is closed, and its marks would wait for poll(): make a new one")

    def _serve(self) -> None:
        """Do what is due, whenever the caller is here."""
        self._schedule.serve(self._clock.steady())

    def emit(self) -> None:
        """Send the current watermark to every partition now; nothing after the end.

        Raises:
            BufferError: the queue stayed full for a minute.
            FencedError: a later run of this source marks the topic.
        """
        with self._lock:
            self._check_fenced()
            self._schedule.emit()

    def mark_idle(self, timeout: float = 60) -> None:
        """Wait until all is acknowledged, then ask readers not to wait for this source until its next record.

        Args:
            timeout: seconds.

        Raises:
            DeliveryError: where Kafka did not accept a record; then the source stays active, for it may be sent again.
        """
        with self._lock:
            self._outbox.wait(timeout)
            self._emitter.mark_idle()
            self.emit()

    def change_membership(self, membership: Membership) -> None:
        """Use a newer membership from now on (the number of sources of the topic has changed).

        Raises:
            UsageError: where its version is not above the last one.
        """
        check_membership(membership, f"source {self._emitter.identity.source!r}")
        with self._lock:
            self._emitter.change_membership(membership)
            self.emit()

    @property
    def watermark(self) -> int | None:
        """What the source can promise now, epoch milliseconds; ``None``: nothing yet."""
        with self._lock:
            return self._emitter.watermark

    @property
    def late(self) -> int:
        """How many records were sent behind the source's own promise."""
        return self._emitter.late

    def metrics(self) -> Metrics:
        """Return what is measured of this source."""
        with self._lock:
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
