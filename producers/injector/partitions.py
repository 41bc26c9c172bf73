"""The partitions of an injection: the progress of each, their watermarks, and which are too far ahead."""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from floodmark.producers.clients.clock import Clock
from floodmark.producers.clients.consumers import Record
from floodmark.producers.event_times.injection import Injection, InjectorState
from floodmark.producers.event_times.input_partition import MISSING_EVENT_TIME, InputPartition, Routed
from floodmark.producers.event_times.time_policy import Outcome
from floodmark.producers.readers.alignment import AlignmentReader
from floodmark.schemas.completeness.position import TopicIds, TopicUser
from floodmark.schemas.errors import InjectorError
from floodmark.schemas.partition_state import lowest
from floodmark.schemas.records import Held, Holder
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME, milliseconds
from floodmark.schemas.tracker import Hold

Decisions = Mapping[int, list[tuple[int, int]]]  # by partition: an offset and the watermark before it

OVERTAKEN: Final = (
    "records are lost to retention. Inject into a new topic, and keep the input longer. (--reset would also delete the "
    "target's copies of records that the input no longer has)"
)
"""The advice if Kafka has deleted records before they were read."""


_NO_RECORDS: Final = {"keys_evicted", "reserved", "resolved", "unreadable_arrival", "unreadable_key"}
"""The outcomes that count no records, other records' too, or marks."""


@dataclass(slots=True)
class InjectedPartition:
    """The progress of one partition of an injection."""

    input: InputPartition  # its time policy and watermark
    next: int  # the offset of the next record
    seen: int  # when the last record was read, steady clock, milliseconds; after a restart, less the time of other runs
    used: bool = True  # whether the input has this partition; if not, it follows the slowest of the others
    decisions: deque[tuple[int, int]] | None = None  # the remaining `Decisions` of an earlier run, if it is repeated
    end: int | None = None  # the offset of its end, if it is read to its end
    paused: bool = False  # whether reading is paused, because the partition is too far ahead
    limit: float | None = None  # the watermark above which it waits for the slowest partition; ``None``: it need not
    held: Held | None = None  # the topic that it waits for
    waiting: deque[Record] = field(default_factory=deque)  # records that were read before it was paused
    processing_time: int | None = None  # all records before this time are read, epoch milliseconds; ``None``: not known
    _marked: tuple[int | None, int | None] = (None, None)  # the watermark and the processing time of its last mark
    _changed: bool = True  # whether it has new records, or no mark in this epoch

    def restore(self, state: InjectorState) -> None:
        """Resume after the last committed transaction."""
        self.next = state.next_offset
        self.input.restore(state.partition)
        self.input.counts.update(state.counts)
        self.seen -= self.input.elapsed

    def take(
        self, key: bytes | None, value: bytes | None, offset: int, log_time: int, *, taken: int, seen: int
    ) -> Routed:
        """Route a record, which was read at ``taken`` (wall clock) and ``seen`` (steady clock), milliseconds."""
        while self.decisions and self.decisions[0][0] <= offset:
            _, watermark = self.decisions.popleft()
            if not self.input.fmt.promises:  # only the records move the watermark of others
                self.input.policy_state.advance(watermark)
        routed = self.input.take(key, value, log_time)
        self.next, self.seen, self.end, self._changed = offset + 1, seen, None, True
        time = min(log_time, taken)
        if EARLIEST < time <= END_OF_TIME:
            self.advance_processing_time(time)
        return routed

    @property
    def at_end(self) -> bool:
        """Whether it was read to its end; Kafka may have more records since."""
        return self.end is not None

    def reach_end(self, end: int) -> None:
        """Note that the partition is read to its end, an offset."""
        if not self.paused:
            self.end = end

    def confirm_end(self, end: int, now: int, seen: int) -> None:
        """Note the ``end`` that Kafka answered to a question of ``now`` (wall clock) and ``seen`` (steady clock).

        If the partition was read to there, all other records arrive after the question.  A repeated run uses decisions,
        not the clock.
        """
        if end != self.end:
            return
        if self.decisions is None:
            if self.input.open(now):
                self.seen = seen  # ``now`` is its first arrival
            self.input.estimate(seen - self.seen)
        self.advance_processing_time(now)

    def has_passed(self, end: int) -> bool:
        """Tell whether it is read to its end, or, if it grows, past an earlier one."""
        return self.next > end or (self.end is not None and self.end >= end)

    @property
    def is_ahead(self) -> bool:
        """Whether it is too far ahead of the slowest partition or of another topic."""
        watermark, limit = self.input.watermark, self.limit
        return self.held is not None or (watermark is not None and limit is not None and watermark > limit)

    def must_wait(self, alignment: AlignmentReader | None, number: int, now: int) -> bool:
        """Ask the other topic anew, and return `is_ahead`; ``now``: steady clock, milliseconds."""
        self.held = None if alignment is None else alignment.held(self.input.watermark, now, number)
        return self.is_ahead

    def hold(self, *, paused: bool) -> None:
        """Note whether reading is paused: records may arrive unread, so its watermark must not follow the clock."""
        self.paused, self.end = paused, None

    def advance_processing_time(self, time: int) -> None:
        """Note that all records before a time are read."""
        self.processing_time = time if self.processing_time is None else max(time, self.processing_time)

    @property
    def time_of_mark(self) -> int:
        """The processing time for its mark; with ``None``, readers would take the time of the mark."""
        return EARLIEST if self.processing_time is None else self.processing_time

    @property
    def due(self) -> bool:
        """Whether its next mark would differ from the last one."""
        return self._changed or (self.input.watermark, self.processing_time) != self._marked or self.held is not None

    def note_marked(self) -> None:
        """Note that a mark was written."""
        self._marked, self._changed = (self.input.watermark, self.processing_time), self.held is not None


class InjectedPartitions:
    """The partitions of one injection; InjectorError if Kafka has deleted records after the last transaction."""

    def __init__(
        self,
        injection: Injection,
        given: int,
        begins: Mapping[int, int],
        states: Mapping[int, InjectorState],
        clock: Clock,
        decisions: Decisions | None = None,
    ) -> None:
        self.epoch = max((state.epoch for state in states.values()), default=0)  # of earlier instances
        self.began_with = min((state.began_with for state in states.values()), default=given)
        """How many partitions the input had when the injection began; it reads all records of later ones."""
        self.read_format: str | None = None  # the format with which an earlier instance has read an event time
        self.fit = injection.policy_fit()
        self.ids = TopicIds()
        for state in states.values():  # also of partitions of other members of a group
            self.ids.compare(state.ids(injection), TopicUser.injector(injection.source, injection.target_topic))
        self._injection, self._clock, self._decisions = injection, clock, decisions
        self._all: dict[int, InjectedPartition] = {}
        for number, begin in begins.items():
            partition = self._add(number, begin if number < self.began_with else 0, used=number < given)
            if number in states:
                self._restore(partition, states[number])
            if partition.next < begin:
                reason = f"partition {number} was read up to {partition.next}, and Kafka has it from {begin} on"
                raise InjectorError(source=injection.source, reason=reason, advice=OVERTAKEN)
        self.before = measured(self.outcomes)  # the counters of `Metrics` of earlier instances

    def __getitem__(self, number: int) -> InjectedPartition:
        return self._all[number]

    def items(self) -> Iterable[tuple[int, InjectedPartition]]:
        """Return all partitions, also those that only the target has."""
        return self._all.items()

    def _restore(self, partition: InjectedPartition, state: InjectorState) -> None:
        partition.restore(state)
        if partition.input.has_event_time and not self.format_confirmed:
            self.read_format = state.input_format

    @property
    def format_confirmed(self) -> bool:
        """Whether an earlier instance has read an event time with this format."""
        return self.read_format == self._injection.fmt.about

    @property
    def input_format(self) -> str:
        """The format to store: a new one only once it has read an event time, so that the next start checks it, too."""
        about = self._injection.fmt.about
        return about if self.read_format is None or self.fit.first is not None else self.read_format

    def _add(self, number: int, begin: int, *, used: bool) -> InjectedPartition:
        decisions = None if self._decisions is None else deque(self._decisions.get(number, ()))
        empty, now = self._injection.input_partition(self.fit), self._clock.steady()
        self._all[number] = InjectedPartition(empty, begin, now, used, decisions)
        return self._all[number]

    def grow(self, given: int, count: int) -> Iterator[tuple[int, int]]:
        """Add new partitions (``given`` in the input, ``count`` in the target); yield each to read, and its offset."""
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
        """Give the partitions that only the target has the watermark of the slowest of the others."""
        slowest = lowest([partition.input.watermark for partition in self.used.values()])
        if slowest is not None:
            for partition in self._all.values():
                if not partition.used:
                    partition.input.policy_state.advance(slowest)

    def estimate(self, ends: Callable[[Collection[int]], Mapping[int, int]]) -> None:
        """Advance the watermarks of partitions read to their end, by the time since their last record.

        The invariant: this time is not longer than the one between the arrivals of that record and the next, so no
        record is later than its policy allows.  It therefore ends when Kafka was asked for its ``ends``, and had no
        more: this process may stand still, and its client may lag or not reach a broker.  It is the time in which an
        injector ran, by its steady clock: a wall clock may be set, also between two runs, so the time between them does
        not count.
        """
        now, seen = self._clock.wall(), self._clock.steady()
        for number, end in ends([number for number, one in self.used.items() if one.at_end]).items():
            self._all[number].confirm_end(end, now, seen)

    def follow_time(self) -> int | None:
        """Return the time before which all input is read."""
        slowest = lowest([partition.processing_time for partition in self.used.values()])
        for partition in self._all.values():
            if not partition.used and slowest is not None:
                partition.advance_processing_time(slowest)
        return slowest

    def release(self, alignment: AlignmentReader | None) -> Iterator[Record]:
        """Yield the waiting records of each partition until it is too far ahead, see `InjectedPartition.is_ahead`."""
        used, tolerance, moved = self.used, self._injection.align, True
        while moved:
            moved, limit = False, None
            behind = [partition.input.watermark for partition in used.values() if not partition.at_end]
            if tolerance is not None and behind:
                # A partition with a backlog and no watermark may be the slowest, so it is never paused.
                slowest = lowest(behind)
                limit = -inf if slowest is None else slowest + milliseconds(tolerance)
            for number, partition in used.items():
                partition.limit = limit
                while not partition.must_wait(alignment, number, self._clock.steady()) and partition.waiting:
                    yield partition.waiting.popleft()
                    moved = True

    def pause(self) -> Iterator[tuple[int, bool]]:
        """Yield the partitions to pause (``True``), which are too far ahead, and those to resume."""
        for number, partition in self.used.items():
            if partition.is_ahead != partition.paused:
                partition.hold(paused=partition.is_ahead)
                yield number, partition.paused

    def require_time(self, first_trouble: str | None) -> None:
        """Raise InjectorError if there are records, and none has a readable event time, or each was dropped."""
        dropped = _all_dropped(self.outcomes)
        if dropped is not None:
            advice = "correct the field, unit or tolerances, and start over with --reset, or pass --allow-unreadable"
            raise InjectorError(source=self._injection.source, reason=dropped, advice=advice)
        missing = self.outcomes["unreadable"] + self.outcomes[MISSING_EVENT_TIME]
        if missing and not any(partition.input.has_event_time for partition in self._all.values()):
            about = self._injection.fmt.about
            reason = f"none of {missing:,} records has a readable time, read as {about}; all were copied"
            reason += f"; {first_trouble}" if first_trouble else ""
            advice = (
                "correct the field, unit, schema or format, and start over with --reset, or pass --allow-unreadable"
            )
            raise InjectorError(source=self._injection.source, reason=reason, advice=advice)

    @property
    def watermarks(self) -> dict[int, int | None]:
        """The watermark of each partition."""
        return {number: partition.input.watermark for number, partition in self._all.items()}

    def holders(self) -> list[Hold]:
        """Return the input partitions that hold the watermark back: all without a watermark, else the lowest."""
        watermarks = {number: partition.input.watermark for number, partition in self.used.items()}
        low = lowest(watermarks.values())
        reason = "has told no event time yet" if low is None else "lowest watermark"
        topic = self._injection.source_topic
        lowest_ones = [(number, self._all[number].held) for number, at in watermarks.items() if at == low]
        return [
            Hold(Holder(topic, number), low, reason if held is None else f"alignment: it waits for {held.what}")
            for number, held in lowest_ones
        ]

    @property
    def outcomes(self) -> Counter[str]:
        """The counts of all partitions, since the injection began."""
        total: Counter[str] = Counter()
        for partition in self._all.values():
            total.update(partition.input.outcomes)
        return total


def _all_dropped(outcomes: Counter[str]) -> str | None:
    """Tell how many records were dropped; ``None``: there are none, or others, too."""
    counted = {name: count for name, count in outcomes.items() if count and name not in _NO_RECORDS}
    if not counted or not all(name.endswith("_dropped") for name in counted):
        return None
    told = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in sorted(counted.items()))
    return f"each of its {sum(counted.values()):,} records was dropped ({told})"


def measured(outcomes: Counter[str]) -> dict[str, int]:
    """Return the outcomes as counters of `Metrics`."""
    return {
        "late_events": outcomes[Outcome.LATE_ADJUSTED] + outcomes[Outcome.LATE_DROPPED] + outcomes["late"],
        "early_events": outcomes[Outcome.EARLY_DROPPED],
        "out_of_order_events": outcomes[Outcome.OUT_OF_ORDER_ADJUSTED] + outcomes[Outcome.OUT_OF_ORDER_DROPPED],
        "unreadable": outcomes["unreadable"] + outcomes["reserved"],
        "missing_event_time": outcomes[MISSING_EVENT_TIME],
        "dropped": outcomes[Outcome.EARLY_DROPPED]
        + outcomes[Outcome.LATE_DROPPED]
        + outcomes[Outcome.OUT_OF_ORDER_DROPPED],
    }
