"""A Kafka producer that interleaves its data with watermark records.  The thin shell around `emitter`."""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Final, Literal, Self

from confluent_kafka import KafkaError, Message, Producer
from floodmark.producers.alignment import Alignment
from floodmark.producers.emitter import Emitter, Identity, Shipment
from floodmark.producers.kafka import Config, partition_count
from floodmark.producers.metrics import Metrics, delay
from floodmark.producers.partitioners import partitioner
from floodmark.producers.strategies import Explicit, Ingress, Strategy
from floodmark.schemas.codec import encode_watermark
from floodmark.schemas.errors import DeliveryError, InvalidEventTimeError, LateRecordError, ReservedKeyError, UsageError
from floodmark.schemas.records import (
    FORMAT_VERSION,
    HEADER,
    KEY_PREFIX,
    Membership,
    Status,
    control_key,
    is_control_key,
)
from floodmark.schemas.timestamps import event_time_of, is_late, milliseconds

_log = logging.getLogger(__name__)
_METADATA_INTERVAL: Final = 10.0
_QUEUE_TIMEOUT: Final = 60.0
_LOOK_INTERVAL: Final = 0.1


def _now() -> int:
    return time.time_ns() // 1_000_000


class WatermarkedProducer:
    """One source of one topic: produces records and, on an interval, its watermark to every partition.

    Marks travel through the same client and partitions as the data, so they keep its order.  They are never ahead of a
    record that is not yet acknowledged (see `emitter`).  Marks are due inside ``produce``, ``poll``, ``flush`` and
    ``emit``: like any confluent-kafka producer, a quiet one must be polled.  Not thread-safe.

    Args:
        config: confluent-kafka settings; all pass through.  Idempotence is on and must stay on.
        topic: the topic; it must exist.
        source: this writer's id, unique among the topic's sources.
        strategy: how the source knows its watermark, see `strategies`.
        membership: how many sources write to the topic.  Raise the version when that changes.
        epoch: generation of this writer, larger than that of any run before; default: wall clock, milliseconds.
        interval: time between marks.
        lease: if readers may take this source for idle after so much silence (in log time); default: never.
        on_late: what to do with a record behind the source's own promise: ``send`` it and count it, or ``raise``.
        early: refuse records whose event time is further ahead of the clock: one of them would carry the watermark
            along, and make all others late; default: any is taken.
        alignment: how far this source may run ahead of the slowest other one of the topic; ``produce`` waits then.

    Raises:
        UnknownTopicError, BrokerUnavailableError: at once, not at the first record.
        UsageError: where idempotence is switched off.
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
    ) -> None:
        """Connect, and learn the topic's partitions."""
        if str(config.get("enable.idempotence", "true")).lower() != "true":
            raise UsageError(
                reason=f"source {source!r}: enable.idempotence is off; without it a retry can come behind a mark"
            )
        if interval <= timedelta(0):
            raise UsageError(reason=f"source {source!r}: the interval of marks is {interval}, expected more than 0")
        self.topic = topic
        self._servers = config.get("bootstrap.servers")
        self._partitioner = partitioner(str(config.get("partitioner", "consistent_random")))
        self._producer = Producer({**config, "enable.idempotence": True}, logger=_log)
        generator = strategy.build()
        identity = Identity(
            source=source,
            epoch=_now() if epoch is None else epoch,
            membership=membership,
            lease=None if lease is None else milliseconds(lease),
        )
        self._emitter = Emitter(identity, generator, partition_count(self._producer, topic, self._servers))
        self._generator = generator
        self._explicit = generator if isinstance(generator, Explicit) else None
        self._ingress = generator if isinstance(generator, Ingress) else None
        # Neither the clock nor the value nor anything else is looked at for each record.
        self._plain = early is None and not generator.looks_closer
        self._alignment = None
        if alignment is not None:
            self._alignment = Alignment(config, topic=topic, source=source, bound=alignment)
        self._next_look = 0.0
        self._key = control_key(source)
        self._headers: list[tuple[str, str | bytes | None]] = [(HEADER, FORMAT_VERSION)]
        self._interval = interval.total_seconds()
        if early is not None and early < timedelta(0):
            raise UsageError(reason=f"source {source!r}: early is {early}, expected 0 or more")
        self._early = None if early is None else milliseconds(early)
        self._raise_late = on_late == "raise"
        self._next_mark = time.monotonic() + self._interval
        self._next_metadata = time.monotonic() + _METADATA_INTERVAL
        self._failure: KafkaError | None = None
        self._failed = 0
        self._shipment: Shipment | None = None
        self._on_delivery: Callable[[KafkaError | None, Message], None] = partial(
            self._delivered, Shipment(lambda _: None)
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
        headers: Sequence[tuple[str, str | bytes | None]] | None = None,
    ) -> None:
        """Send one record; returns at once, as confluent-kafka does.

        Args:
            value: as it is to stand in Kafka; not touched.
            event_time: epoch milliseconds or an aware datetime; none with the strategy `ingress`.
            key: as it is to stand in Kafka; decides the partition.
            partition: overrules the key.
            headers: as it is to stand in Kafka.

        Raises:
            InvalidEventTimeError, ReservedKeyError, EndedError, LateRecordError: nothing was sent, nothing changed.
            BufferError: the queue stayed full for a minute.
        """
        event_time = event_time_of(event_time) if self._plain else self._time_of(event_time)
        raw_key = key.encode() if isinstance(key, str) else key
        if is_control_key(raw_key):
            raise ReservedKeyError(key=raw_key, prefix=KEY_PREFIX)
        emitter = self._emitter
        if self._raise_late:
            self._refuse_late(event_time)
        if partition is None:
            partition = self._partitioner(raw_key, emitter.partitions)
        if self._alignment is not None or not emitter.announced:
            self._get_ready()
        if self._plain:
            shipment = emitter.send(partition, event_time)
        else:
            shipment = emitter.send(partition, event_time, _now(), value)
        if shipment is not self._shipment:
            self._shipment = shipment
            self._on_delivery = partial(self._delivered, shipment)
        if shipment.since is None:
            shipment.since = _now()
        try:
            self._enqueue(value, raw_key, partition, self._on_delivery, headers)
        except BaseException:
            emitter.unsend(partition)
            raise
        if not self._plain and self._generator.due:
            self.emit()
        self.poll(0)

    def _refuse_late(self, event_time: int) -> None:
        promised = self._emitter.promised
        if is_late(event_time, promised):
            raise LateRecordError(source=self._emitter.identity.source, event_time=event_time, watermark=promised)

    def _time_of(self, event_time: int | datetime | None) -> int:
        if self._ingress is None:
            found = event_time_of(event_time)
            ahead = found - _now()
            if self._early is not None and ahead > self._early:
                reason = f"it is {ahead / 1000:,.0f} s ahead of the clock, expected at most {self._early / 1000:,}"
                raise InvalidEventTimeError(value=found, reason=reason)
            return found
        if event_time is not None:
            raise UsageError(reason=f"{self!r}: the strategy is ingress(), so records are given no event time")
        return self._ingress.stamp(_now())

    @property
    def ahead(self) -> bool:
        """Whether ``produce`` would wait now, because the source is too far ahead of the slowest other one."""
        if self._alignment is None:
            return False
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + min(self._interval, _LOOK_INTERVAL)
            self._alignment.poll()
        return self._alignment.peers.is_ahead(self._generator.watermark())

    def _wait_for_peers(self) -> None:
        """Wait while this source is ahead; marks go out meanwhile, so that it is not taken for idle or dead."""
        self._emitter.paused = self.ahead
        while self._emitter.paused:
            self.poll(_LOOK_INTERVAL)
            self._emitter.paused = self.ahead

    def _get_ready(self) -> None:
        """Mark before the first record, and before the first after idleness: readers must know whom to wait for."""
        if self._alignment is not None:
            self._wait_for_peers()
        if self._emitter.announced:
            return
        if self._emitter.status is Status.IDLE:
            self._emitter.mark_active()
        if self._emitter.status is Status.ACTIVE:
            self.emit()

    def advance(self, watermark: int | datetime) -> None:
        """Promise that no later record of this source has an event time below ``watermark`` (strategy `explicit`).

        Raises:
            UsageError: where the strategy is another one.
            WatermarkRegressionError: where it is below the last promise.
        """
        if self._explicit is None:
            raise UsageError(reason=f"{self!r}: advance() needs the explicit strategy")
        self._explicit.advance(event_time_of(watermark))

    def poll(self, timeout: float = 0) -> None:
        """Serve delivery reports, and send the marks that are due."""
        self._producer.poll(timeout)
        if time.monotonic() >= self._next_mark:
            self.emit()

    def emit(self) -> None:
        """Send the current watermark to every partition now."""
        now = time.monotonic()
        self._next_mark = now + self._interval
        if now >= self._next_metadata:
            self._next_metadata = now + _METADATA_INTERVAL
            self._emitter.grow(partition_count(self._producer, self.topic, self._servers))
        self._producer.poll(0)
        for partition, mark in self._emitter.marks(_now()):
            self._enqueue(encode_watermark(mark), self._key, partition, self._mark_delivered, self._headers)

    def mark_idle(self) -> None:
        """Ask readers not to wait for this source until its next record, and send that at once."""
        self._emitter.mark_idle()
        self.emit()

    def change_membership(self, membership: Membership) -> None:
        """Speak under a newer membership from now on (the number of sources of the topic has changed)."""
        self._emitter.change_membership(membership)
        self.emit()

    def flush(self, timeout: float = 60) -> None:
        """Wait until all is acknowledged, then send marks that promise it, and wait for those.

        Raises:
            DeliveryError: where Kafka did not take a record; the watermark stays held below it.
        """
        self._wait(timeout)
        self.emit()
        self._wait(timeout)

    def end(self, timeout: float = 60) -> None:
        """Flush, then say in every partition that this source has ended.

        Raises:
            DeliveryError: where Kafka did not take a record; then nothing is said to have ended.
        """
        self._wait(timeout)
        self._emitter.end()
        self.emit()
        self._wait(timeout)

    def __enter__(self) -> Self:
        """Use as a context manager: flushes at the end of a block without error."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Flush; after an error only what is under way is waited for, and no promise is made."""
        if kind is not None or self._emitter.status is Status.ENDED:
            self._producer.flush(10)
        else:
            self.flush()

    @property
    def watermark(self) -> int | None:
        """What the source can promise now, epoch milliseconds."""
        return self._emitter.watermark

    def metrics(self) -> Metrics:
        """Return what is measured of this source."""
        now, oldest = _now(), self._emitter.oldest_arrival()
        return Metrics(
            "source",
            self._emitter.identity.source,
            records=self._emitter.records,
            late_events=self._emitter.late,
            watermark_delay_seconds=delay(now, self._emitter.watermark),
            processing_time_delay_seconds=0.0 if oldest is None else delay(now, oldest),
        )

    @property
    def late(self) -> int:
        """How many records were sent behind the source's own promise."""
        return self._emitter.late

    def _enqueue(
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: Callable[[KafkaError | None, Message], None],
        headers: Sequence[tuple[str, str | bytes | None]] | None,
    ) -> None:
        deadline: float | None = None
        while True:
            try:
                if headers is None:
                    self._producer.produce(self.topic, value, key, partition, on_delivery)
                else:
                    self._producer.produce(self.topic, value, key, partition, on_delivery, headers=list(headers))
            except BufferError:
                now = time.monotonic()
                deadline = deadline or now + _QUEUE_TIMEOUT
                if now > deadline:
                    raise
                self._producer.poll(0.05)
            else:
                return

    def _wait(self, timeout: float) -> None:
        left = self._producer.flush(timeout)
        if left or self._failed:
            reason = str(self._failure) if self._failure else f"no acknowledgement within {timeout} s"
            raise DeliveryError(
                source=self._emitter.identity.source,
                topic=self.topic,
                failed=self._failed or left,
                reason=reason,
                held_at=self._emitter.held_at(),
            )

    def _delivered(self, shipment: Shipment, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            shipment.land()
            return
        shipment.land(failed=True)
        self._fail(error)

    def _mark_delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._fail(error)

    def _fail(self, error: KafkaError) -> None:
        self._failed += 1
        self._failure = self._failure or error
        _log.error("%r: a record was not delivered: %s", self, error)
