"""When a source sends marks, and which watermark they have.  Pure: it sends nothing, and the time is an argument.

Kafka may reject a record after a mark was sent, and the caller may send that record again.  So no mark is above the
event time of a record that is in flight or has failed.
"""

from typing import NoReturn

from floodmark.producers.strategies.in_flight import IN_FLIGHT_SIZE, InFlight, InFlights
from floodmark.producers.strategies.interface import Generator
from floodmark.producers.strategies.numbering import Identity, MarkWriter
from floodmark.schemas.errors import EndedError, IdleError
from floodmark.schemas.records import Membership, Round, Status
from floodmark.schemas.timestamps import EARLIEST, is_late, promisable


class Emitter:
    """The state of one source over all partitions of its topic.

    >>> from floodmark.producers.strategies.basic import ascending
    >>> emitter = Emitter(Identity("JFK", epoch=1), ascending().build(), partitions=1)
    >>> in_flight = emitter.send(0, event_time=12)
    >>> emitter.marks(now=100)[0][1].watermark  # at most 12: the record may still fail
    12
    >>> in_flight.ack()
    >>> _ = emitter.send(0, event_time=30)
    >>> mark = emitter.marks(now=200)[0][1]
    >>> mark.watermark, mark.sequence, mark.records
    (30, 1, 2)
    """

    def __init__(self, identity: Identity, generator: Generator, partitions: int) -> None:
        self.generator = generator
        self.status = Status.ACTIVE
        self.registered = False
        """Whether every partition has a mark of this epoch since the source was last idle, as readers need."""
        self.promised: int | None = None
        """The watermark of the last marks, epoch milliseconds."""
        self.marked_membership: Membership | None = None
        """The membership of the last marks."""
        self.fenced_by: int | None = None
        """A higher epoch of this source in the topic; readers ignore lower ones."""
        self.late = 0
        """Number of records that were sent below the watermark of the last marks."""
        self.failed = 0
        """Number of records that have failed and were not sent again."""
        self._registered_before = False
        self.punctual = generator.punctual
        self._paused = False
        self._resuming = False
        self._rounds = 0
        self._writer = MarkWriter(identity, partitions)
        self.in_flight = InFlights()

    @property
    def identity(self) -> Identity:
        """Source id, epoch, membership and lease."""
        return self._writer.identity

    @property
    def partitions(self) -> int:
        """The last known number of partitions of the topic."""
        return self._writer.partitions

    def send(self, partition: int, event_time: int, now: int | None = None, value: bytes | None = None) -> InFlight:
        """Count a record that is about to be sent; return the `InFlight` to ``ack`` on delivery, or to `fail`.

        ``event_time``: epoch milliseconds; ``now``: steady clock, milliseconds; ``value``: for generators that examine
        it.
        """
        if self.status is not Status.ACTIVE:
            self._refuse_send()
        generator, groups = self.generator, self.in_flight
        generator.on_event(event_time, now, value)
        if is_late(event_time, self.promised):
            self.late += 1
        self._writer.count(partition, 1)
        if groups.open.sent >= IN_FLIGHT_SIZE:
            groups.close(self._rounds)
        in_flight = groups.open
        in_flight.send(event_time, now)
        if self.punctual and self._is_ahead(generator.watermark()):
            groups.close(self._rounds)  # so that the mark does not wait for the acknowledgement of later records
        return in_flight

    def fail(self, in_flight: InFlight, partition: int) -> None:
        """Count a record that Kafka rejected: it holds the watermark until `resend`.

        If a mark has counted the record, later marks count it, too, and readers report it as lost.
        """
        in_flight.ack(failed=True)
        self.failed += 1
        if in_flight.round == self._rounds:
            self._writer.count(partition, -1)

    def resend(self, in_flight: InFlight, partition: int, now: int | None = None) -> InFlight:
        """Count a failed record that is about to be sent again, which holds the watermark; otherwise as `send`."""
        if self.status is not Status.ACTIVE:
            self._refuse_send()
        again = self.in_flight.open
        again.resend(in_flight, now)
        self.failed -= 1
        self._writer.count(partition, 1)
        return again

    def fence(self, epoch: int) -> bool:
        """Note the highest epoch of the source in the topic; return whether it fences this emitter for the first time.

        Readers ignore the marks of a fenced source, so it must send neither marks nor records.
        """
        fenced = epoch > self.identity.epoch and self.fenced_by is None and not self.ended
        if fenced:
            self.fenced_by, self.registered = epoch, False
        return fenced

    def unsend(self, partition: int, in_flight: InFlight) -> None:
        """Undo the last `send`: the client did not take the record (full queue, invalid argument)."""
        self._writer.count(partition, -1)
        in_flight.ack()

    def unmark(self, partition: int) -> None:
        """Undo the last mark of a partition: the client did not take it."""
        marked = self._writer.unmark(partition)
        self.registered = self.registered and self._registered_before and marked

    def fail_mark(self) -> None:
        """Note that Kafka rejected a mark: all partitions need one again before the next record."""
        self.registered = False

    @property
    def records(self) -> int:
        """Number of data records sent in this epoch."""
        return self._writer.records

    @property
    def watermark_hold(self) -> int | None:
        """The earliest event time in flight or failed, an upper limit of the watermark; ``None``: nothing is."""
        return self.in_flight.earliest()

    def oldest_arrival(self) -> int | None:
        """Return when the oldest record in flight or failed was sent, by the clock of `send`; ``None``: there is none.

        This is the processing-time watermark ("Streaming Systems", ch. 3): it tells a stuck source from late data.
        """
        return min((one.since for one in self.in_flight if one.holds and one.since is not None), default=None)

    @property
    def watermark(self) -> int | None:
        """The watermark that a mark would have now, epoch milliseconds; ``None``: unknown."""
        watermark = self.generator.watermark()
        if watermark is not None:
            hold = self.watermark_hold
            watermark = promisable(watermark if hold is None else min(watermark, hold))
        if self.promised is not None and (watermark is None or watermark < self.promised):
            return self.promised
        return watermark

    @property
    def due(self) -> bool:
        """Whether to send marks at once: the generator asks for it, and no record in flight holds them back."""
        if not self.punctual or self.status is Status.ENDED:
            return False
        watermark, hold = self.generator.watermark(), self.watermark_hold
        return self._is_ahead(watermark) and (hold is None or watermark is None or watermark <= hold)

    def _is_ahead(self, watermark: int | None) -> bool:
        return watermark is not None and (self.promised is None or watermark > self.promised)

    def marks(self, now: int, *, steady: int | None = None) -> Round:
        """Return one mark for every partition, to be sent at once and in this order; after the end, each only once.

        ``now``: wall clock, epoch milliseconds; ``steady``: the clock of `send`, default ``now``.
        """
        steady = now if steady is None else steady
        if self.status is not Status.ENDED:
            self.generator.on_tick(steady, now)
            self._mark_idle_if_silent()
        watermark, oldest = self.watermark, self.oldest_arrival()
        self.promised, self.marked_membership = watermark, self.identity.membership
        self._registered_before, self.registered = self.registered, self.status is Status.ACTIVE
        self._rounds += 1
        self.in_flight.close(self._rounds)
        return self._writer.marks(
            now,
            watermark=watermark,
            status=self.status,
            processing_time_watermark=None if oldest is None else now - (steady - oldest),
            percentiles=self._percentiles(watermark),
        )

    def _percentiles(self, watermark: int | None) -> dict[int, int] | None:
        found = self.generator.percentiles()
        if not found:
            return None
        lowest = EARLIEST if watermark is None else watermark  # a percentile is never below the watermark
        return {percent: max(promisable(time), lowest) for percent, time in found.items()}

    def _mark_idle_if_silent(self) -> None:
        busy = self._paused or self._resuming or self.watermark_hold is not None
        self._resuming = False
        if self.generator.idle and self.status is Status.ACTIVE and not busy:
            self.mark_idle()

    def pause(self) -> None:
        """Note that alignment makes the source wait: it sends nothing, but is not idle."""
        self._paused = True

    def unpause(self) -> None:
        """Note that alignment no longer makes the source wait."""
        self._paused = False

    def mark_idle(self) -> None:
        """Go idle: readers do not wait for the source.  Call it only when Kafka has acknowledged all records."""
        self._check_not_ended("go idle")
        self.status = Status.IDLE
        self.registered = False

    def mark_active(self) -> None:
        """Leave the idle state; send `marks` to every partition before the next record.

        Otherwise, readers that still see this source as idle may advance the watermark beyond that record.
        """
        self._check_not_ended("be active")
        self.status = Status.ACTIVE
        self._resuming = True

    def end(self) -> None:
        """End the source in this epoch; only marks follow.  Call it only when Kafka has acknowledged all records."""
        self._check_not_ended("end again")
        self.status = Status.ENDED

    @property
    def ended(self) -> bool:
        """Whether `end` was called."""
        return self.status is Status.ENDED

    def grow(self, partitions: int) -> bool:
        """Set the partition count, if it is higher; return whether it was.  After the end the count stays."""
        return not self.ended and self._writer.grow(partitions)

    def change_membership(self, membership: Membership) -> None:
        """Use a newer membership in all later marks; a `UsageError` if it is not newer."""
        self._check_not_ended("change its membership")
        self._writer.identity = self.identity.with_membership(membership)

    def _refuse_send(self) -> NoReturn:
        self._check_not_ended("send a record")
        raise IdleError(source=self.identity.source)

    def _check_not_ended(self, action: str) -> None:
        if self.status is Status.ENDED:
            raise EndedError(source=self.identity.source, action=action)
