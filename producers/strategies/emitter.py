"""When and what a source promises in each partition.  Pure: the time is an argument, nothing is sent here.

The invariant: *a mark never promises more than what is safely in the log allows*.  A record that is still under way, or
that failed, may yet be sent (again), so every mark of the source is held at or below the event time of each of them.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from floodmark.producers.strategies.basic import Generator
from floodmark.schemas.errors import EndedError, IdleError, UsageError
from floodmark.schemas.records import Holder, Membership, Status, WatermarkRecord
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME

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

    One object serves many records, so that a delivery report costs one call and no memory of its own.  It holds the
    watermark at its earliest event time until every record is acknowledged: those that failed, by a later shipment.
    """

    __slots__ = ("earliest", "failed", "pending", "round", "sent", "since")

    def __init__(self, round_: int = 0) -> None:
        """Begin empty, behind so many rounds of marks."""
        self.round = round_
        self.sent = 0
        self.pending = 0
        self.failed = 0
        self.earliest: int | None = None
        self.since: int | None = None
        """When the first of those still under way may have been sent, by the clock that `Emitter.send` is given."""

    def send(self, event_time: int, now: int | None = None) -> None:
        """Count a record as under way, since ``now``."""
        if not self.pending:
            self.since = now
            self.earliest = self.earliest if self.failed else event_time
        self.sent += 1
        self.pending += 1
        if self.earliest is None or event_time < self.earliest:
            self.earliest = event_time

    def land(self, *, failed: bool = False) -> None:
        """Count a record as acknowledged; or as failed: then it is held for until `Emitter.resend`."""
        self.pending -= 1
        self.failed += failed

    @property
    def holds(self) -> bool:
        """Whether a record of it is not acknowledged."""
        return self.pending > 0 or self.failed > 0


class _Shipments:
    """All shipments that hold, ordered by their earliest event times; those that landed are forgotten on the way."""

    def __init__(self) -> None:
        self.boarding = Shipment()
        self._closed: list[tuple[int, int, Shipment]] = []
        self._number = 0
        self._limit = 64

    def close(self, round_: int) -> None:
        """Begin a new shipment; the one until now takes no more records."""
        closed, self.boarding = self.boarding, Shipment(round_)
        if closed.earliest is not None and closed.holds:
            self._number += 1
            heapq.heappush(self._closed, (closed.earliest, self._number, closed))
        if len(self._closed) > self._limit:  # one that holds for long must not keep all that landed behind it
            self._closed = [entry for entry in self._closed if entry[2].holds]
            heapq.heapify(self._closed)
            self._limit = 2 * len(self._closed) + 64

    def earliest(self) -> int | None:
        """Return the earliest event time that is not acknowledged; ``None``: there is none."""
        while self._closed and not self._closed[0][2].holds:
            heapq.heappop(self._closed)
        closed = self._closed[0][0] if self._closed else None
        boarding = self.boarding.earliest if self.boarding.holds else None
        return closed if boarding is None or (closed is not None and closed < boarding) else boarding

    def __iter__(self) -> Iterator[Shipment]:
        """Give all that may hold."""
        yield self.boarding
        yield from (shipment for _, _, shipment in self._closed)


class Emitter:
    """The promises of one source over all partitions of its topic.

    >>> from floodmark.producers.strategies.basic import ascending
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
        self.failed = 0
        """How many records have failed and were not sent again."""
        self._announced_before = False
        self._punctual = generator.punctual
        self._waking = False
        self._rounds = 0
        self._records: Counter[int] = Counter()
        self._sequences: Counter[int] = Counter()
        self._ended_in: set[int] = set()
        self._promised: int | None = None
        self._shipments = _Shipments()

    def send(self, partition: int, event_time: int, now: int | None = None, value: bytes | None = None) -> Shipment:
        """Note that a record is about to be sent.

        Args:
            partition: the partition it goes to.
            event_time: of the record.
            now: milliseconds of a clock that is never set (monotonic).
            value: of the record, for generators that look at it.

        Returns:
            The shipment to ``land`` when the record is acknowledged; see `fail` for one that is not.
        """
        if self.status is not Status.ACTIVE:
            self._refuse()
        generator, shipments, promised = self.generator, self._shipments, self._promised
        generator.on_event(event_time, now, value)
        if promised is not None and event_time < promised:
            self.late += 1
        self._records[partition] += 1
        shipment = shipments.boarding
        if shipment.sent >= SHIPMENT_SIZE:
            shipments.close(self._rounds)
            shipment = shipments.boarding
        shipment.send(event_time, now)
        if self._punctual and self._is_ahead(generator.watermark()):  # later records must not make it wait for theirs
            shipments.close(self._rounds)
        return shipment

    def fail(self, shipment: Shipment, partition: int) -> None:
        """Note that a record was not delivered: it is held for until it is sent again.

        Marks go on to count it where one of them has already, so that readers name it as lost; else not.
        """
        shipment.land(failed=True)
        self.failed += 1
        if shipment.round == self._rounds:
            self._records[partition] -= 1

    def resend(self, shipment: Shipment, partition: int, now: int | None = None) -> Shipment:
        """Note that a record that has failed is about to be sent again; what `fail` held for is held for until then.

        Args:
            shipment: the one that the record failed in.
            partition: the partition it goes to.
            now: as for `send`.

        Returns:
            The shipment to ``land``, or to `fail` again.
        """
        if self.status is not Status.ACTIVE:
            self._refuse()
        again = self._shipments.boarding
        # Which of the shipment's event times it has is not known; the earliest is never too high.
        again.send(EARLIEST if shipment.earliest is None else shipment.earliest, now)
        shipment.failed -= 1
        self.failed -= 1
        self._records[partition] += 1
        return again

    def count(self, partition: int, records: int) -> None:
        """Note records that are written together with the next marks, all or none (a transaction)."""
        self._records[partition] += records

    @property
    def records(self) -> int:
        """How many data records were sent in this epoch."""
        return self._records.total()

    def unsend(self, partition: int, shipment: Shipment | None = None) -> None:
        """Take back the last `send`, whose record was never handed to Kafka (a full queue, an invalid argument)."""
        self._records[partition] -= 1
        (shipment or self._shipments.boarding).land()

    def unmark(self, partition: int) -> None:
        """Take back the last mark of a partition, which was never handed to Kafka."""
        self._sequences[partition] -= 1
        self._ended_in.discard(partition)
        self.announced = self.announced and self._announced_before and self._sequences[partition] > 0

    def held_at(self) -> int | None:
        """Return the earliest event time under way or failed; ``None``: nothing is."""
        return self._shipments.earliest()

    def oldest_arrival(self) -> int | None:
        """Return when the oldest record under way was sent, by the clock of `send`; ``None``: there is none.

        The processing-time watermark of the source ("Streaming Systems", ch. 3): it tells a stuck system, whose oldest
        record ages, from data that is merely late.
        """
        return min((one.since for one in self._shipments if one.pending and one.since is not None), default=None)

    def _percentiles(self, watermark: int | None) -> dict[int, int] | None:
        said = self.generator.percentiles()
        if not said:
            return None
        # A part of the events is never behind what all of them have kept.
        least = EARLIEST if watermark is None else watermark
        return {percent: max(_clamped(time), least) for percent, time in said.items()}

    @property
    def watermark(self) -> int | None:
        """What the source can promise now."""
        watermark = self.generator.watermark()
        if watermark is not None:
            held = self.held_at()
            watermark = _clamped(watermark if held is None else min(watermark, held))
        if self._promised is not None and (watermark is None or watermark < self._promised):
            return self._promised
        return watermark

    @property
    def promised(self) -> int | None:
        """What the last marks promised."""
        return self._promised

    @property
    def due(self) -> bool:
        """Whether the generator wants its watermark out at once, and no record under way holds it back."""
        if not self._punctual or self.status is Status.ENDED:
            return False
        watermark, held = self.generator.watermark(), self.held_at()
        return self._is_ahead(watermark) and (held is None or watermark is None or watermark <= held)

    def _is_ahead(self, watermark: int | None) -> bool:
        return watermark is not None and (self._promised is None or watermark > self._promised)

    def marks(
        self, now: int, holder: Holder | None = None, *, steady: int | None = None
    ) -> list[tuple[int, WatermarkRecord]]:
        """Return one watermark record for every partition, to be sent at once and in this order.

        None for a source that has ended, once every partition has the mark that says so.

        Args:
            now: wall clock, epoch milliseconds.
            holder: what holds the watermark, where the source itself is a stage behind others.
            steady: the clock of `send`; default: ``now`` is that, too.
        """
        steady = now if steady is None else steady
        if self.status is not Status.ENDED:
            self.generator.on_tick(steady, now)
            self._fall_asleep()
            self._waking = False
        watermark, oldest = self.watermark, self.oldest_arrival()
        self._promised = watermark
        self._announced_before, self.announced = self.announced, self.status is Status.ACTIVE
        self._rounds += 1
        self._shipments.close(self._rounds)
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
            processing_time_watermark=None if oldest is None else now - (steady - oldest),
            percentiles=self._percentiles(watermark),
            holder=holder,
        )
        marks = []
        for partition in range(self.partitions):
            if partition in self._ended_in:
                continue
            sequence = self._sequences[partition]
            self._sequences[partition] = sequence + 1
            records = self._records[partition] if self.counts else None
            marks.append((partition, replace(common, sequence=sequence, records=records)))
        if self.status is Status.ENDED:
            self._ended_in.update(range(self.partitions))
        return marks

    def _fall_asleep(self) -> None:
        """Go idle where the generator says so; not while it is paused, about to send, or holds a record."""
        awake = self.paused or self._waking or self.held_at() is not None
        if self.generator.idle and self.status is Status.ACTIVE and not awake:
            self.mark_idle()

    def mark_idle(self) -> None:
        """Ask readers not to wait for this source until it is active again.  Safe only when all is acknowledged."""
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
        """Learn the topic's partition count; tells whether it grew.  Kafka never shrinks a topic.

        A source that has ended says nothing in partitions that are added later: it has no record there.
        """
        grew = partitions > self.partitions and not self.ended
        self.partitions = partitions if grew else self.partitions
        return grew

    def change_membership(self, membership: Membership) -> None:
        """Speak under a newer membership from the next marks on.

        Raises:
            EndedError: where the source has ended.
            UsageError: where the version is lower, or the same with another size.
        """
        self._check_not_ended("change its membership")
        last = self.identity.membership
        if membership.version < last.version or (membership.version == last.version and membership != last):
            reason = f"membership {membership} after {last}, expected a version of at least {last.version + 1}"
            raise UsageError(reason=f"source {self.identity.source!r}: {reason}")
        self.identity = replace(self.identity, membership=membership)

    def _refuse(self) -> NoReturn:
        self._check_not_ended("send a record")
        raise IdleError(source=self.identity.source)

    def _check_not_ended(self, action: str) -> None:
        if self.status is Status.ENDED:
            raise EndedError(source=self.identity.source, action=action)


def _clamped(time: int) -> int:
    """Return the nearest watermark that may be promised: no event is before the first time, nor above the last."""
    return max(EARLIEST, min(time, END_OF_TIME - 1))
