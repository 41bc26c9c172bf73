"""The partitions under injection: how far each is, what they promise together, and which are too far ahead."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from floodmark.producers.clients.clock import Clock
from floodmark.producers.clients.metrics import Metrics, delay, state_of
from floodmark.producers.event_times.injection import Injection, InjectorState
from floodmark.producers.event_times.input_partition import ByPolicy, InputPartition, Routed
from floodmark.producers.event_times.policy_fit import PolicyFit
from floodmark.producers.event_times.time_policy import Outcome
from floodmark.schemas.completeness.position import TopicIds
from floodmark.schemas.errors import InjectorError
from floodmark.schemas.holds import Hold
from floodmark.schemas.partition_state import lowest
from floodmark.schemas.records import Holder
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME, milliseconds

Decisions = Mapping[int, list[tuple[int, int]]]
"""By partition: before which input offset which watermark was in force."""

OVERTAKEN: Final = "records are lost to retention; inject into a new topic, or keep the input longer"
"""What to do where Kafka has deleted records before they were read."""


@dataclass(slots=True)
class InjectedPartition:
    """One partition of an injection: what becomes of its records, how far it is read, and what its next mark says."""

    input: InputPartition
    """Decides on the records, and what to promise."""
    next: int
    """The offset of the next record."""
    seen: int
    """When the last record came, steady clock, milliseconds."""
    used: bool = True
    """Whether the input has this partition; else nothing comes, and it follows the slowest of the others."""
    decisions: deque[tuple[int, int]] | None = None
    """What an earlier run decided without an event: before which offset which watermark was in force."""
    at_end: bool = False
    """Whether it was read to its end."""
    paused: bool = False
    """Whether it is not read, because it is too far ahead of the slowest."""
    processing_time: int | None = None
    """Up to when all that came is taken in, epoch milliseconds, as far as log times say it; ``None``: not known."""
    _empty: bool = False
    """Whether the client has seen the end of the partition, and goes on looking."""
    _marked: int | None = None
    _changed: bool = True
    """Whether there is something to say: a new epoch, new records."""

    def restore(self, state: InjectorState) -> None:
        """Go on where the last committed transaction ended."""
        self.next = state.next_offset
        self.input.restore(state.partition)
        self.input.counts.update(state.counts)

    def take(
        self, key: bytes | None, value: bytes | None, offset: int, log_time: int, *, taken: int, seen: int
    ) -> Routed:
        """Decide what becomes of a record, which was taken in at a time of the wall and of the steady clock."""
        while self.decisions and self.decisions[0][0] <= offset:
            _, watermark = self.decisions.popleft()
            if isinstance(self.input, ByPolicy):  # others move with their records alone
                self.input.follow(watermark)
        routed = self.input.take(key, value, log_time)
        self.next, self.seen, self.at_end, self._empty, self._changed = offset + 1, seen, False, False, True
        time = min(log_time, taken)
        if EARLIEST < time <= END_OF_TIME:
            self.advance(time)  # what comes next came later
        return routed

    def reach_end(self, now: int) -> None:
        """Note that all is read, at a time of the wall clock; a replay is told, not the time."""
        self.at_end = self._empty = True
        if self.decisions is None:
            self.input.open(now)

    def hold(self, *, paused: bool) -> None:
        """Note whether it is paused: its end is not looked at then."""
        self.paused, self._empty = paused, self._empty and not paused

    def advance(self, time: int) -> None:
        """Note that all that came before a time is taken in."""
        self.processing_time = time if self.processing_time is None else max(time, self.processing_time)

    def drained(self, at: int | None) -> None:
        """Note when the client had nothing more, wall clock; ``None``: it always had."""
        if self._empty and at is not None:
            self.advance(at)

    @property
    def due(self) -> bool:
        """Whether its next mark would say something new."""
        return self._changed or self.input.watermark != self._marked

    def mark(self) -> None:
        """Note that a mark says all of this."""
        self._marked, self._changed = self.input.watermark, False

    def state(self, injection: Injection, epoch: int, topic_id: str | None) -> InjectorState:
        """Return what the next mark must remember of this partition."""
        about, counts = injection.fmt.about, dict(self.input.counts)
        return InjectorState(self.next, epoch, about, self.input.snapshot(), counts, topic_id)


class InjectedPartitions:
    """The partitions of one injection, by their number.

    Args:
        injection: what is done.
        given: how many partitions the input has.
        begins: the first offset of each partition.
        states: what the instance before has left of each.
        clock: where the time comes from.
        decisions: what an earlier run decided, where it is repeated.

    Raises:
        InjectorError: if retention has overtaken the last committed transaction.
    """

    def __init__(
        self,
        injection: Injection,
        given: int,
        begins: Mapping[int, int],
        states: Mapping[int, InjectorState],
        clock: Clock,
        decisions: Decisions | None = None,
    ) -> None:
        self.epoch = max((state.epoch for state in states.values()), default=0)
        """The highest epoch of the instances before."""
        self.unproven = True
        """Whether no instance before has read a time by this format."""
        self.fit = PolicyFit(injection.policy)
        """How well the policy fits what this instance has read."""
        self.ids = TopicIds()
        """The id of the input."""
        self._injection, self._clock, self._decisions = injection, clock, decisions
        self._all: dict[int, InjectedPartition] = {}
        for number, begin in begins.items():
            partition = self._add(number, begin, used=number < given)
            if number in states:
                self._restore(number, partition, states[number], begin)
        self._before = self.outcomes

    def __getitem__(self, number: int) -> InjectedPartition:
        return self._all[number]

    def items(self) -> Iterable[tuple[int, InjectedPartition]]:
        """Return all of them, also those that the input lacks."""
        return self._all.items()

    def _restore(self, number: int, partition: InjectedPartition, state: InjectorState, begin: int) -> None:
        if state.topic_id is not None:
            self.ids.compare({self._injection.source_topic: state.topic_id}, f"injector {self._injection.source!r}")
        partition.restore(state)
        timed, about = partition.input.timed, self._injection.fmt.about
        self.unproven = self.unproven and not (timed and state.input_format == about)
        if partition.next < begin:
            reason = f"partition {number} was read up to {partition.next}, and Kafka has it from {begin} on"
            raise InjectorError(source=self._injection.source, reason=reason, advice=OVERTAKEN)

    def _add(self, number: int, begin: int, *, used: bool) -> InjectedPartition:
        decisions = None if self._decisions is None else deque(self._decisions.get(number, ()))
        decider, now = self._injection.input_partition(self.fit), self._clock.steady()
        partition = self._all[number] = InjectedPartition(decider, begin, now, used, decisions)
        return partition

    def grow(self, given: int, count: int) -> Iterator[tuple[int, int]]:
        """Take in partitions that were added; yield those that the input has now, each with its next offset.

        Args:
            given: how many the input has.
            count: how many the target has.
        """
        for number in range(count):
            if number not in self._all:
                self._add(number, 0, used=False)
                self.follow_slowest()
            partition = self._all[number]
            if number < given and not partition.used:
                partition.used = True
                yield number, partition.next

    @property
    def used(self) -> dict[int, InjectedPartition]:
        """The partitions that the input has."""
        return {number: partition for number, partition in self._all.items() if partition.used}

    def follow_slowest(self) -> None:
        """Let the partitions that the input lacks promise what the slowest of the others does."""
        slowest = lowest([partition.input.watermark for partition in self.used.values()])
        if slowest is not None:
            for partition in self._all.values():
                if not partition.used:
                    partition.input.follow(slowest)

    def estimate(self) -> None:
        """Let the partitions that are read to their end guess what has passed since their last record."""
        now = self._clock.steady()
        for partition in self.used.values() if self._decisions is None else ():
            if partition.at_end:
                partition.input.estimate(now - partition.seen)

    def follow_time(self, drained: int | None) -> int | None:
        """Return up to when all that came to the input is taken in, epoch milliseconds; ``None``: not known.

        Args:
            drained: when the client had nothing more, wall clock; ``None``: it always had.
        """
        for partition in self.used.values():
            partition.drained(drained)
        return lowest([partition.processing_time for partition in self.used.values()])

    def processing_time(self, partition: InjectedPartition) -> int:
        """Return what a mark says of a partition; one that the input lacks is as far as the slowest of the others."""
        time = partition.processing_time if partition.used else self.follow_time(None)
        return EARLIEST if time is None else time  # without one, readers would take the mark's own time

    def align(self, tolerance: timedelta) -> Iterator[tuple[int, bool]]:
        """Yield the partitions to pause (``True``), which are too far ahead of the slowest, and those to resume."""
        used = self.used
        behind = [partition.input.watermark for partition in used.values() if not partition.at_end]
        slowest = lowest(behind)
        for number, partition in used.items():
            watermark = partition.input.watermark
            # A partition with a backlog and no watermark yet may turn out to be the slowest, which is never paused.
            ahead = watermark is not None and (slowest is None or watermark > slowest + milliseconds(tolerance))
            paused = bool(behind) and ahead
            if paused != partition.paused:
                partition.hold(paused=paused)
                yield number, paused

    def require_time(self, first_trouble: str | None) -> None:
        """Refuse an injection of which no record had a readable time.

        Raises:
            InjectorError: if records were passed on, and none had one.
        """
        silent = self.outcomes["unreadable"] + self.outcomes["timeless"]
        if silent and not any(partition.input.timed for partition in self._all.values()):
            about = self._injection.fmt.about
            reason = f"all {silent:,} record(s) were passed on, and none told a time, read as {about}"
            reason += f"; {first_trouble}" if first_trouble else ""
            advice = "correct the field, unit, schema or format and begin anew with --reset, or pass --allow-unreadable"
            raise InjectorError(source=self._injection.source, reason=reason, advice=advice)

    @property
    def watermarks(self) -> dict[int, int | None]:
        """What each partition promises."""
        return {number: partition.input.watermark for number, partition in self._all.items()}

    def holders(self) -> list[Hold]:
        """Name the partitions of the input that hold the watermark: all that promise nothing, else the lowest."""
        watermarks = {number: partition.input.watermark for number, partition in self.used.items()}
        low = lowest(watermarks.values())
        reason = "has told no event time yet" if low is None else "lowest watermark"
        topic = self._injection.source_topic
        return [Hold(Holder(topic, number), low, reason) for number, at in watermarks.items() if at == low]

    @property
    def outcomes(self) -> Counter[str]:
        """What became of the records, over all partitions and since the injection began."""
        total: Counter[str] = Counter()
        for partition in self._all.values():
            total.update(partition.input.outcomes)
        return total

    def metrics(self, records: int, worked_off: int | None, epoch: int) -> Metrics:
        """Return what is measured, since the injection began; ``records`` since this instance did.

        Args:
            records: how many this instance has read.
            worked_off: up to when all that came to the input is committed; ``None``: not known.
            epoch: of this instance.
        """
        now, watermark = self._clock.wall(), lowest(self.watermarks.values())
        return Metrics(
            "injector",
            self._injection.source,
            records=records,
            **measured(self.outcomes),
            watermark_delay_seconds=delay(now, watermark),
            processing_time_delay_seconds=delay(now, worked_off),
            topic=self._injection.target_topic,
            watermark=watermark,
            state=state_of(watermark),
            epoch=epoch,
            before=measured(self._before),
        )


def measured(outcomes: Counter[str]) -> dict[str, int]:
    """Return the counters of `Metrics` that tell what became of the records."""
    return {
        "late_events": outcomes[Outcome.LATE_ADJUSTED] + outcomes[Outcome.LATE_DROPPED] + outcomes["late"],
        "early_events": outcomes[Outcome.EARLY_DROPPED],
        "out_of_order_events": outcomes[Outcome.OUT_OF_ORDER_ADJUSTED] + outcomes[Outcome.OUT_OF_ORDER_DROPPED],
        "unreadable": outcomes["unreadable"] + outcomes["reserved"],
        "missing_event_time": outcomes["timeless"],
        "dropped": outcomes[Outcome.EARLY_DROPPED]
        + outcomes[Outcome.LATE_DROPPED]
        + outcomes[Outcome.OUT_OF_ORDER_DROPPED],
    }
