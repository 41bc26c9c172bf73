"""When and what a source promises in each partition.  Pure: the time is an argument, nothing is sent here.

The invariant: *a mark never promises more than what is safely in the log allows*.  A record that is still under way, or
that failed, may yet be sent (again), so every mark of the source is held at or below the event time of each of them.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from floodmark.producers.strategies import Generator
from floodmark.schemas.errors import EndedError, IdleError
from floodmark.schemas.records import Holder, Membership, Status, WatermarkRecord

SHIPMENT_SIZE: Final = 256
"""Records per `Shipment`: few enough that a mark is held no further back than the records really under way."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who writes: what every mark of a source says alike.

    Raises:
        InvalidRecordError: where no mark can say so.
    """

    source: str
    epoch: int
    membership: Membership = Membership()  # noqa: RUF009  # frozen
    lease: int | None = None

    def __post_init__(self) -> None:
        """Refuse at once what the first mark would be refused for."""
        WatermarkRecord(
            source=self.source,
            epoch=self.epoch,
            sequence=0,
            watermark=None,
            partitions=1,
            emitted_at=0,
            membership=self.membership,
            lease=self.lease,
        )


class Shipment:
    """Records sent together, not all of them acknowledged: one counter and the earliest event time.

    One object serves many records, so that a delivery report costs one call and no memory of its own.
    """

    __slots__ = ("_on_landed", "earliest", "failed", "pending", "sent", "since")

    def __init__(self, on_landed: Callable[["Shipment"], None]) -> None:
        """Begin empty; ``on_landed`` is told when the last of its records is acknowledged or has failed."""
        self.sent = 0
        self.pending = 0
        self.failed = 0
        self.earliest: int | None = None
        self.since: int | None = None
        """When the first of those still under way may have been sent, wall clock."""
        self._on_landed = on_landed

    def send(self, event_time: int, now: int | None = None) -> None:
        """Count a record as under way, since ``now``."""
        if not self.pending:
            self.since = now
        self.sent += 1
        self.pending += 1
        if self.earliest is None or event_time < self.earliest:
            self.earliest = event_time

    def land(self, *, failed: bool = False) -> None:
        """Count a record as acknowledged, or as failed: then its event time is held for good."""
        self.pending -= 1
        self.failed += failed
        if not self.pending:
            self._on_landed(self)


class Emitter:
    """The promises of one source over all partitions of its topic.

    >>> from floodmark.producers.strategies import ascending
    >>> emitter = Emitter(Identity("JFK", epoch=1), ascending().build(), partitions=1)
    >>> shipment = emitter.send(0, event_time=12)
    >>> emitter.marks(now=100)[0][1].watermark  # the record may still fail; 12 is as far as can be promised
    12
    >>> shipment.land()
    >>> _ = emitter.send(0, event_time=30)
    >>> mark = emitter.marks(now=200)[0][1]
    >>> mark.watermark, mark.sequence, mark.records
    (30, 1, 2)
    """

    def __init__(self, identity: Identity, generator: Generator, partitions: int, *, counts: bool = True) -> None:
        """Begin with nothing sent; ``counts``: whether it learns of every record, so that marks can state how many."""
        self.counts = counts
        self.identity = identity
        self.generator = generator
        self.partitions = partitions
        self.status = Status.ACTIVE
        self.announced = False
        """Whether readers have been told that this source is there, in this epoch and since it was last idle."""
        self.late = 0
        self.paused = False
        """Whether the source is held back by alignment: silent, but not idle."""
        self._waking = False
        self._records: Counter[int] = Counter()
        self._sequences: Counter[int] = Counter()
        self._promised: int | None = None
        self._shipments: dict[int, Shipment] = {}  # by identity, oldest first
        self._boarding = self._new_shipment()

    def _new_shipment(self) -> Shipment:
        shipment = Shipment(self._landed)
        self._shipments[id(shipment)] = shipment
        return shipment

    def _close_boarding(self) -> None:
        closed, self._boarding = self._boarding, self._new_shipment()
        if not closed.pending:
            self._landed(closed)

    def _landed(self, shipment: Shipment) -> None:
        # The one still boarding stays until the next mark closes it; failed ones stay, and hold, for good.
        if shipment is not self._boarding and not shipment.failed:
            del self._shipments[id(shipment)]

    def send(self, partition: int, event_time: int, now: int | None = None, value: bytes | None = None) -> Shipment:
        """Note that a record is about to be sent.

        Args:
            partition: where to.
            event_time: of the record.
            now: wall clock, for generators that look at it.
            value: of the record, for generators that look at it.

        Returns:
            The shipment to ``land`` when the record is acknowledged or has failed.
        """
        if self.status is not Status.ACTIVE:
            if self.status is Status.IDLE:
                raise IdleError(source=self.identity.source)
            raise EndedError(source=self.identity.source, action="send a record")
        if self._promised is not None and event_time < self._promised:
            self.late += 1
        self._waking = False
        self.generator.on_event(event_time, now, value)
        self._records[partition] += 1
        if self._boarding.sent >= SHIPMENT_SIZE:
            self._close_boarding()
        self._boarding.send(event_time, now)
        return self._boarding

    def count(self, partition: int, records: int) -> None:
        """Note records that are written together with the next marks, all or none (a transaction)."""
        self._records[partition] += records

    @property
    def records(self) -> int:
        """How many data records were sent in this epoch."""
        return self._records.total()

    def unsend(self, partition: int) -> None:
        """Take back a `send` whose record was never handed to Kafka (a full queue, an invalid argument)."""
        self._records[partition] -= 1
        self._boarding.land()

    def held_at(self) -> int | None:
        """Return the earliest event time under way or failed; ``None``: nothing is."""
        held = [
            shipment.earliest
            for shipment in self._shipments.values()
            if shipment.earliest is not None and (shipment.pending or shipment.failed)
        ]
        return min(held, default=None)

    def oldest_arrival(self) -> int | None:
        """Return when the oldest record that is not yet acknowledged was sent; ``None``: all are.

        The processing-time watermark of the source ("Streaming Systems", ch. 3): it tells a stuck system, whose oldest
        record ages, from data that is merely late.
        """
        return min(
            (one.since for one in self._shipments.values() if one.pending and one.since is not None), default=None
        )

    def _percentiles(self, watermark: int | None) -> dict[int, int] | None:
        said = self.generator.percentiles()
        if not said:
            return None
        # A part of the events is never behind what all of them have kept.
        return {percent: time if watermark is None else max(time, watermark) for percent, time in said.items()}

    @property
    def watermark(self) -> int | None:
        """What the source can promise now."""
        watermark, held = self.generator.watermark(), self.held_at()
        if watermark is not None and held is not None:
            watermark = min(watermark, held)
        if self._promised is not None and (watermark is None or watermark < self._promised):
            return self._promised
        return watermark

    @property
    def promised(self) -> int | None:
        """What the last marks promised."""
        return self._promised

    def marks(self, now: int, holder: Holder | None = None) -> list[tuple[int, WatermarkRecord]]:
        """Return one watermark record for every partition, to be sent at once and in this order.

        Args:
            now: wall clock, epoch milliseconds.
            holder: what holds the watermark, where the source itself is a stage behind others.
        """
        self.generator.on_tick(now)
        self._fall_asleep()
        watermark = self.watermark
        self._promised = watermark
        self.announced = self.status is Status.ACTIVE
        self._close_boarding()
        common = WatermarkRecord(
            source=self.identity.source,
            epoch=self.identity.epoch,
            sequence=0,
            watermark=watermark,
            partitions=self.partitions,
            emitted_at=now,
            status=self.status,
            membership=self.identity.membership,
            lease=self.identity.lease,
            processing_time_watermark=self.oldest_arrival(),
            percentiles=self._percentiles(watermark),
            holder=holder,
        )
        marks = []
        for partition in range(self.partitions):
            sequence = self._sequences[partition]
            self._sequences[partition] = sequence + 1
            marks.append(
                (
                    partition,
                    replace(common, sequence=sequence, records=self._records[partition] if self.counts else None),
                )
            )
        return marks

    def _fall_asleep(self) -> None:
        """Go idle where the generator says so; not while it is paused, about to send, or holds a record."""
        awake = self.paused or self._waking or self.held_at() is not None
        if self.generator.idle and self.status is Status.ACTIVE and not awake:
            self.mark_idle()

    def mark_idle(self) -> None:
        """Ask readers not to wait for this source until it is active again."""
        self._check_not_ended("go idle")
        self.status = Status.IDLE
        self.announced = False

    def mark_active(self) -> None:
        """Come back from idle; the marks that say so must stand in every partition before the next record.

        Else the others might move the watermark past that record while readers still take this source for idle.
        """
        self._check_not_ended("be active")
        self.status = Status.ACTIVE
        self._waking = True

    def end(self) -> None:
        """Say that nothing more will come in this epoch.  Safe only when every record is acknowledged."""
        self._check_not_ended("end again")
        self.status = Status.ENDED

    @property
    def ended(self) -> bool:
        """Whether the source has said that it ended."""
        return self.status is Status.ENDED

    def grow(self, partitions: int) -> bool:
        """Learn the topic's partition count; tells whether it grew.  Kafka never shrinks a topic."""
        grew = partitions > self.partitions
        self.partitions = max(self.partitions, partitions)
        return grew

    def change_membership(self, membership: Membership) -> None:
        """Speak under a newer membership from the next marks on."""
        self.identity = replace(self.identity, membership=membership)

    def _check_not_ended(self, action: str) -> None:
        if self.status is Status.ENDED:
            raise EndedError(source=self.identity.source, action=action)
