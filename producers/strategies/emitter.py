"""When a source sends marks, and which watermark they have.  Pure: it sends nothing, and the time is an argument.

No mark is above the event time of a record of its scope that is in flight or has failed: it may be sent again.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

from floodmark.producers.strategies.in_flight import IN_FLIGHT_SIZE, InFlight
from floodmark.producers.strategies.interface import Generator
from floodmark.producers.strategies.numbering import Identity, MarkWriter, Promise
from floodmark.producers.strategies.scopes import PerPartition, Scope
from floodmark.schemas.errors import EndedError, IdleError, WatermarkRegressionError
from floodmark.schemas.partition_state import lowest
from floodmark.schemas.records import Held, Membership, Round, Status, WatermarkRecord
from floodmark.schemas.timestamps import is_late

_ACTIVE: Final = Status.ACTIVE  # a class gives its member slowly, and `Emitter.send` compares for each record


class Emitter:
    """The state of one source over all partitions of its topic; ``apart``: each partition has its own generator.

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

    def __init__(
        self, identity: Identity, generator: Generator, partitions: int, apart: PerPartition | None = None
    ) -> None:
        self.generator = generator
        self.status = Status.ACTIVE
        self.registered = False  # whether all partitions have a mark of this epoch since it was last idle
        self.marked_membership: Membership | None = None  # the membership of the last marks
        self.fenced_by: int | None = None  # the epoch of another run of this source, which readers follow
        self.records = 0  # number of data records sent in this epoch
        self.late = 0  # number of records that were sent below the watermark of the last marks
        self.failed = 0  # number of records that have failed and were not sent again
        self._registered_before = False
        self._before: tuple[Generator, dict[str, Any]] | None = None  # a punctual generator before the last record
        self.punctual = generator.punctual
        self.held: Held | None = None  # what alignment makes the source wait for
        self._was_paused = False
        self._paused_since: int | None = None
        self._paused_for = 0
        self._resuming = False
        self._rounds = 0
        self._oldest: tuple[int, int] | None = None
        """The `oldest_arrival` of the last marks, by both clocks, whose difference varies by some milliseconds."""
        self._writer = MarkWriter(identity, partitions)
        self.partitions = partitions  # the last known number of partitions of the topic
        self.counter = self._writer  # counts the records, and the marks that are sent
        self._apart = apart
        self._scopes = [Scope(generator)]
        self._add_scopes()

    def _add_scopes(self) -> None:
        """Give each new partition its own watermark, if partitions have their own."""
        if self._apart is not None:
            new = range(len(self._scopes), self.partitions)
            self._scopes += [Scope(self._apart.inner.build(), self._rounds) for _ in new]

    def scope(self, partition: int) -> Scope:
        """Return the watermark of a partition, and what holds it."""
        return self._scopes[0 if self._apart is None else partition]

    def next_watermark(self, partition: int) -> int | None:
        """Return the watermark of the next mark of a partition, if the source is active by then."""
        return self.scope(partition).watermark

    @property
    def identity(self) -> Identity:
        """Source id, epoch, membership and lease."""
        return self._writer.identity

    def send(self, partition: int, event_time: int, now: int | None = None, value: bytes | None = None) -> InFlight:
        """Count a record that is sent, by `begin` and `sent`; return the `InFlight` to ``ack`` or to `fail`."""
        in_flight = self.begin(partition, event_time, now, value)
        self.sent(partition, event_time, now, value)
        return in_flight

    def begin(self, partition: int, event_time: int, now: int | None, value: bytes | None) -> InFlight:
        """Count a record that is about to be sent; then call `sent` or `unsend`.  ``now``: steady clock."""
        if self.status is not _ACTIVE:
            self._refuse_send()
        scope = self._scopes[0 if self._apart is None else partition]
        if self.punctual:  # it may refuse the value
            self._before = scope.generator, scope.generator.snapshot()
            scope.generator.on_event(event_time, None if now is None else self._awake(now), value)
        self.records += 1
        self.counter.counts[partition] += 1  # `MarkWriter.count`, whose call takes time
        in_flight = scope.in_flight.open
        if in_flight.sent >= IN_FLIGHT_SIZE:
            scope.in_flight.close(self._rounds)
            in_flight = scope.in_flight.open
        in_flight.send(event_time, now)
        if self.punctual and scope.is_ahead(scope.generator.watermark()):
            scope.in_flight.close(self._rounds)  # or the mark would wait for the acknowledgement of later records
        return in_flight

    def sent(self, partition: int, event_time: int, now: int | None, value: bytes | None) -> None:
        """Let the strategy take note of a record that the client has taken: of another, the watermark knows nothing."""
        scope = self._scopes[0 if self._apart is None else partition]
        awake = now if now is None or not self._was_paused else self._awake(now)
        if scope.promised is not None and event_time < scope.promised:  # `is_late`, whose call takes time
            self.late += 1
        if self._apart is not None:
            scope.last_event = awake
        if not self.punctual:
            scope.generator.on_event(event_time, awake, value)

    @property
    def takes_many(self) -> bool:
        """Whether records of any partition may share a group, as `send_many` needs."""
        return self._apart is None and not self.punctual

    def send_many(self, partitions: Sequence[int], event_times: Sequence[int], now: int) -> InFlight:
        """Count records that are about to be sent, `IN_FLIGHT_SIZE` at most, as one group; otherwise as `send`.

        Pass those that the client has taken to `observe` before the next marks.  With the others, a mark could be above
        records that are sent again.
        """
        if self.status is not _ACTIVE:
            self._refuse_send()
        scope = self._scopes[0]
        earliest = min(event_times)
        if is_late(earliest, scope.promised):
            self.late += sum(is_late(event_time, scope.promised) for event_time in event_times)
        self.records += len(partitions)
        for partition, records in Counter(partitions).items():
            self.counter.count(partition, records)
        if scope.in_flight.open.sent:
            scope.in_flight.close(self._rounds)
        scope.in_flight.open.send(earliest, now, len(partitions))
        return scope.in_flight.open

    def observe(self, event_times: Sequence[int], values: Sequence[bytes | None], now: int) -> None:
        """Let the strategy take note of records of `send_many`."""
        on_event, awake = self.generator.on_event, self._awake(now)
        for event_time, value in zip(event_times, values, strict=True):
            on_event(event_time, awake, value)

    def fail(self, in_flight: InFlight, partition: int) -> None:
        """Note a rejected record, which holds the watermark until `resend`; if a mark counts it, readers miss it."""
        in_flight.ack(failed=True)
        self.failed += 1
        if in_flight.round == self._rounds:
            self.counter.count(partition, -1)
        else:
            self.counter.discount(partition)

    def resend(self, in_flight: InFlight, partition: int, now: int | None = None) -> InFlight:
        """Count a failed record that is about to be sent again, which holds the watermark; otherwise as `send`."""
        if self.status is not _ACTIVE:
            self._refuse_send()
        again = self.scope(partition).in_flight.open
        again.resend(in_flight, now)
        self.failed -= 1
        self.counter.count(partition, 1)
        return again

    def fence(self, last: WatermarkRecord) -> bool:
        """Take the last mark of the source in partition 0; return whether it shows for the first time another run."""
        later = (last.epoch, last.sequence) > (self.identity.epoch, self._writer.next_sequence)
        fenced = later and self.fenced_by is None and not self.ended
        if fenced:
            self.fenced_by, self.registered = last.epoch, False
        return fenced

    def unsend(self, partition: int, in_flight: InFlight) -> None:
        """Undo the last `begin`: the client did not take the record (full queue, invalid argument)."""
        self.records -= 1
        self.counter.count(partition, -1)
        in_flight.ack()
        if self._before is not None:  # a record that carries a watermark above itself may be sent again
            generator, state = self._before
            generator.restore(state)

    def unmark(self, partition: int) -> None:
        """Undo the last mark of a partition: the client did not take it."""
        marked = self._writer.unmark(partition)
        self.registered = self.registered and self._registered_before and marked

    def mark_delivered(self, partition: int, *, failed: bool) -> None:
        """Take the delivery report of a mark; after a failed one, all partitions need one before the next record."""
        self.registered = self.registered and not failed
        self.counter.delivered(partition, failed=failed)

    @property
    def watermark_hold(self) -> int | None:
        """The earliest event time in flight or failed, an upper limit of the watermark; ``None``: nothing is."""
        holds = [scope.in_flight.earliest() for scope in self._scopes]
        return min((hold for hold in holds if hold is not None), default=None)

    def groups(self) -> Iterator[InFlight]:
        """Return all records in flight or failed, in groups."""
        return (group for scope in self._scopes for group in scope.in_flight)

    def oldest_arrival(self) -> int | None:
        """Return when the oldest record in flight or failed was sent, by the clock of `begin`; ``None``: none is."""
        return min((one.since for one in self.groups() if one.holds and one.since is not None), default=None)

    @property
    def watermark(self) -> int | None:
        """The watermark that marks would have now, epoch milliseconds, the lowest of all; ``None``: unknown."""
        return lowest([scope.watermark for scope in self._scopes])

    @property
    def reached(self) -> int | None:
        """The watermark if all records were acknowledged, the lowest of all; ``None``: unknown."""
        return lowest([scope.generator.watermark() for scope in self._scopes])

    def advance(self, watermark: int) -> None:
        """Set the watermark of all partitions (strategy `explicit`); an idle source is active again."""
        try:
            for scope in self._scopes:
                scope.generator.advance(watermark)
        except WatermarkRegressionError as error:  # a generator does not know whose it is
            source = self.identity.source
            raise WatermarkRegressionError(source=source, last=error.last, received=error.received) from None
        if self.status is Status.IDLE:
            self.mark_active()

    @property
    def due(self) -> bool:
        """Whether to send marks at once: a generator asks for it, and no record in flight holds them back."""
        return self.punctual and self.status is not Status.ENDED and any(scope.due for scope in self._scopes)

    def marks(self, now: int, *, steady: int | None = None) -> Round:
        """Return one mark for every partition, to be sent at once and in this order; after the end, each only once."""
        steady = now if steady is None else steady
        self.tick(steady, now)
        oldest = self.oldest_arrival()
        if oldest is None:
            self._oldest = None
        elif self._oldest is None or self._oldest[0] != oldest:
            self._oldest = oldest, now - (steady - oldest)
        self._rounds += 1
        promises = self._promises()
        marks = self._writer.marks(
            now,
            apart=None if self._apart is None else promises,
            watermark=promises[0]["watermark"],
            percentiles=promises[0]["percentiles"],
            status=self.status,
            processing_time_watermark=None if self._oldest is None else self._oldest[1],
        )
        # Last: if a strategy has failed, there are no marks.
        self.marked_membership = self.identity.membership
        self._registered_before, self.registered = self.registered, self.status is Status.ACTIVE
        return marks

    def tick(self, steady: int, wall: int | None) -> None:
        """Take note of the clocks, and go idle after silence."""
        if self.status is not Status.ENDED:
            awake = self._awake(steady)
            for scope in self._scopes:
                scope.generator.on_tick(awake, wall)
                scope.listen(awake, None if self._apart is None else self._apart.quiet)
            self._mark_idle_if_silent()

    def _promises(self) -> list[Promise]:
        """Return what the next marks promise, for each scope."""
        others = lowest([scope.watermark for scope in self._scopes if not scope.quiet])
        promises: list[Promise] = []
        for scope in self._scopes:
            scope.in_flight.close(self._rounds)
            promises.append({"watermark": scope.promise(others), "percentiles": scope.percentiles()})
        return promises

    def _mark_idle_if_silent(self) -> None:
        busy = self._paused_since is not None or self._resuming
        self._resuming = False
        if self.status is Status.ACTIVE and not busy and all(scope.quiet for scope in self._scopes):
            self.mark_idle()

    def pause(self, now: int, held: Held | None = None) -> None:
        """Note that alignment makes the source wait: it sends nothing, but is not idle; ``now``: as in `begin`."""
        self.held, self._was_paused = held, True
        if self._paused_since is None:
            self._paused_since = now

    def unpause(self, now: int) -> None:
        """Note that alignment no longer makes the source wait: it is about to send."""
        self._resuming = self._resuming or self._paused_since is not None
        self._paused_for, self._paused_since, self.held = now - self._awake(now), None, None

    def _awake(self, now: int) -> int:
        """Return the clock of `begin` without the time in which alignment made the source wait: that is no silence."""
        return (now if self._paused_since is None else self._paused_since) - self._paused_for

    def mark_idle(self) -> None:
        """Go idle: readers do not wait for the source.  Call it only when Kafka has acknowledged all records."""
        self._check_not_ended("go idle")
        self.status = Status.IDLE
        self.registered = False

    def mark_active(self) -> None:
        """Leave the idle state; send `marks` to every partition before the next record, or readers may find it late."""
        self._check_not_ended("be active")
        self.status = Status.ACTIVE
        self._resuming = True
        for scope in self._scopes:  # otherwise, partitions that are about to send would follow the first that does
            scope.last_event = None

    def end(self) -> None:
        """End the source in this epoch; only marks follow.  Call it only when Kafka has acknowledged all records."""
        self._check_not_ended("end again")
        self.status = Status.ENDED

    @property
    def ended(self) -> bool:
        """Whether `end` was called."""
        return self.status is Status.ENDED

    @property
    def end_marked(self) -> bool:
        """Whether `marks` has returned the mark of the end for every partition."""
        return self._writer.ended

    def grow(self, partitions: int) -> bool:
        """Set the partition count, if it is higher; return whether it was.  After the end the count stays."""
        grew = not self.ended and self._writer.grow(partitions)
        self.partitions = self._writer.partitions
        self._add_scopes()
        return grew

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
