"""When and what a source promises in each partition.  Pure: the time is an argument, nothing is sent here.

The invariant: *a mark (a watermark record) never promises more than what is safely in the log allows*.  A record that
is in flight, or that failed, may yet be sent (again), so every mark of the source is held at or below the event time of
each of them.
"""

from typing import NoReturn

from floodmark.producers.strategies.in_flight import IN_FLIGHT_SIZE, InFlight, InFlights
from floodmark.producers.strategies.interface import Generator
from floodmark.producers.strategies.numbering import Identity, MarkWriter
from floodmark.schemas.errors import EndedError, IdleError
from floodmark.schemas.records import Membership, Round, Status
from floodmark.schemas.timestamps import EARLIEST, is_late, promisable


class Emitter:
    """The promises of one source over all partitions of its topic.

    What is a property, and `oldest_arrival`, is a query: it changes nothing.  Everything else is a command.

    >>> from floodmark.producers.strategies.basic import ascending
    >>> emitter = Emitter(Identity("JFK", epoch=1), ascending().build(), partitions=1)
    >>> in_flight = emitter.send(0, event_time=12)
    >>> emitter.marks(now=100)[0][1].watermark  # the record may still fail; 12 is as far as can be promised
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
        """Whether every partition has a mark of this epoch since the source was last idle: readers wait for it."""
        self.promised: int | None = None
        """What the last marks promised, epoch milliseconds."""
        self.marked: Membership | None = None
        """The membership of the last marks."""
        self.fenced_by: int | None = None
        """The epoch of a later run of the source, which readers follow."""
        self.late = 0
        """How many records were sent behind the last marks."""
        self.failed = 0
        """How many records have failed and were not sent again."""
        self._registered_before = False
        self.punctual = generator.punctual
        """Whether marks may be due at any time, see `due`."""
        self._paused = False
        self._resuming = False
        self._rounds = 0
        self._writer = MarkWriter(identity, partitions)
        self.in_flight = InFlights()

    @property
    def identity(self) -> Identity:
        """Who writes."""
        return self._writer.identity

    @property
    def partitions(self) -> int:
        """How many the topic has, as far as the source knows."""
        return self._writer.partitions

    def send(self, partition: int, event_time: int, now: int | None = None, value: bytes | None = None) -> InFlight:
        """Note that a record is about to be sent.

        Args:
            partition: the partition it goes to.
            event_time: of the record.
            now: milliseconds of a clock that is never set (monotonic).
            value: of the record, for generators that look at it.

        Returns:
            What to ``ack`` when the record is acknowledged; see `fail` for one that is not.

        Raises:
            EndedError, IdleError: where the source is not active.
        """
        if self.status is not Status.ACTIVE:
            self._refuse()
        generator, all_in_flight = self.generator, self.in_flight
        generator.on_event(event_time, now, value)
        if is_late(event_time, self.promised):
            self.late += 1
        self._writer.count(partition, 1)
        if all_in_flight.open.sent >= IN_FLIGHT_SIZE:
            all_in_flight.close(self._rounds)
        in_flight = all_in_flight.open
        in_flight.send(event_time, now)
        if self.punctual and self._is_ahead(generator.watermark()):  # later records must not make it wait for theirs
            all_in_flight.close(self._rounds)
        return in_flight

    def fail(self, in_flight: InFlight, partition: int) -> None:
        """Note that a record was not delivered: it holds the watermark until it is sent again.

        Marks go on to count it where one of them has already, so that readers name it as lost; else not.
        """
        in_flight.ack(failed=True)
        self.failed += 1
        if in_flight.round == self._rounds:
            self._writer.count(partition, -1)

    def resend(self, in_flight: InFlight, partition: int, now: int | None = None) -> InFlight:
        """Note that a record that has failed is about to be sent again, which goes on to hold the watermark.

        Returns:
            What to ``ack``, or to `fail` again.

        Raises:
            EndedError, IdleError: where the source is not active.
        """
        if self.status is not Status.ACTIVE:
            self._refuse()
        again = self.in_flight.open
        again.resend(in_flight, now)
        self.failed -= 1
        self._writer.count(partition, 1)
        return again

    def fence(self, epoch: int) -> bool:
        """Note the newest epoch of the source in the topic; returns whether that fences this one, which was not before.

        Readers ignore the marks of a source that is fenced, so it has none to send, and must not send a record.
        """
        fenced = epoch > self.identity.epoch and self.fenced_by is None and not self.ended
        if fenced:
            self.fenced_by, self.registered = epoch, False
        return fenced

    def unsend(self, partition: int, in_flight: InFlight | None = None) -> None:
        """Take back the last `send`, whose record was never handed to Kafka (a full queue, an invalid argument)."""
        self._writer.count(partition, -1)
        (in_flight or self.in_flight.open).ack()

    def unmark(self, partition: int) -> None:
        """Take back the last mark of a partition, which was never handed to Kafka."""
        marked = self._writer.unmark(partition)
        self.registered = self.registered and self._registered_before and marked

    def fail_mark(self) -> None:
        """Note that a mark was not delivered: readers may not know of the source, so mark again before it sends."""
        self.registered = False

    @property
    def records(self) -> int:
        """How many data records were sent in this epoch."""
        return self._writer.records

    @property
    def watermark_hold(self) -> int | None:
        """The earliest event time in flight or failed, which holds the watermark; ``None``: there is none."""
        return self.in_flight.earliest()

    def oldest_arrival(self) -> int | None:
        """Return when the oldest record in flight or failed was sent, by the clock of `send`; ``None``: there is none.

        The processing-time watermark of the source ("Streaming Systems", ch. 3): it tells a stuck system, whose oldest
        record ages, from data that is merely late.
        """
        return min((one.since for one in self.in_flight if one.holds and one.since is not None), default=None)

    @property
    def watermark(self) -> int | None:
        """What the source can promise now, epoch milliseconds; ``None``: nothing yet."""
        watermark = self.generator.watermark()
        if watermark is not None:
            hold = self.watermark_hold
            watermark = promisable(watermark if hold is None else min(watermark, hold))
        if self.promised is not None and (watermark is None or watermark < self.promised):
            return self.promised
        return watermark

    @property
    def due(self) -> bool:
        """Whether the generator wants its watermark sent at once, and no record in flight holds it back."""
        if not self.punctual or self.status is Status.ENDED:
            return False
        watermark, hold = self.generator.watermark(), self.watermark_hold
        return self._is_ahead(watermark) and (hold is None or watermark is None or watermark <= hold)

    def _is_ahead(self, watermark: int | None) -> bool:
        return watermark is not None and (self.promised is None or watermark > self.promised)

    def marks(self, now: int, *, steady: int | None = None) -> Round:
        """Return one mark for every partition, to be sent at once and in this order.

        None for a source that has ended, once every partition has the mark that says so.

        Args:
            now: wall clock, epoch milliseconds.
            steady: the clock of `send`; default: ``now`` is that, too.
        """
        steady = now if steady is None else steady
        if self.status is not Status.ENDED:
            self.generator.on_tick(steady, now)
            self._follow_idleness()
        watermark, oldest = self.watermark, self.oldest_arrival()
        self.promised, self.marked = watermark, self.identity.membership
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
        # A part of the events is never behind what all of them have kept.
        least = EARLIEST if watermark is None else watermark
        return {percent: max(promisable(time), least) for percent, time in found.items()}

    def _follow_idleness(self) -> None:
        """Go idle where the generator says so; not while paused, about to send, or with a record in flight."""
        active = self._paused or self._resuming or self.watermark_hold is not None
        self._resuming = False
        if self.generator.idle and self.status is Status.ACTIVE and not active:
            self.mark_idle()

    def pause(self) -> None:
        """Note that alignment holds the source back: it is silent, but not idle."""
        self._paused = True

    def unpause(self) -> None:
        """Note that alignment lets the source go on."""
        self._paused = False

    def mark_idle(self) -> None:
        """Ask readers not to wait for this source until it is active again.  Safe only when all is acknowledged.

        Raises:
            EndedError: where the source has ended.
        """
        self._check_not_ended("go idle")
        self.status = Status.IDLE
        self.registered = False

    def mark_active(self) -> None:
        """Come back from idle; the marks that say so must stand in every partition before the next record.

        Else the others might move the watermark past that record while readers still take this source for idle.

        Raises:
            EndedError: where the source has ended.
        """
        self._check_not_ended("be active")
        self.status = Status.ACTIVE
        self._resuming = True

    def end(self) -> None:
        """Send nothing more in this epoch but the marks that say so.  Safe only when every record is acknowledged.

        Raises:
            EndedError: where the source has ended before.
        """
        self._check_not_ended("end again")
        self.status = Status.ENDED

    @property
    def ended(self) -> bool:
        """Whether `end` was called."""
        return self.status is Status.ENDED

    def grow(self, partitions: int) -> bool:
        """Learn the topic's partition count; returns whether it grew.  Kafka never shrinks a topic.

        A source that has ended marks no partition that is added later: it has no record there.
        """
        return not self.ended and self._writer.grow(partitions)

    def change_membership(self, membership: Membership) -> None:
        """Use a newer membership from the next marks on.

        Raises:
            EndedError: where the source has ended.
            UsageError: where the version is lower, or the same with another size.
        """
        self._check_not_ended("change its membership")
        self._writer.identity = self.identity.with_membership(membership)

    def _refuse(self) -> NoReturn:
        self._check_not_ended("send a record")
        raise IdleError(source=self.identity.source)

    def _check_not_ended(self, action: str) -> None:
        if self.status is Status.ENDED:
            raise EndedError(source=self.identity.source, action=action)
