"""Check that a topic follows the specification, from its records.  Pure.

It applies ``SPEC.md`` to one partition at a time, in the order of the log, and shares only the clock of leases with the
tracker.  A row is late if it is below any earlier watermark of its partition: readers never take one back.  A
membership holds in a partition from its first mark there, so the findings do not depend on which partition is read
first.  The idea of a validator that replays a feed is CockroachDB's ``cdctest``.
"""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from floodmark.schemas.classify import Mark, Unreadable
from floodmark.schemas.codec import encode_watermark
from floodmark.schemas.counts import Mismatch, RecordCounts
from floodmark.schemas.errors.base import iso
from floodmark.schemas.partition_state import LeaseClock, lowest
from floodmark.schemas.records import FORMAT_VERSION, HEADER, Status, WatermarkRecord
from floodmark.schemas.timestamps import is_late

_REPLAYS: Final = 64  # the number of marks to remember per source, to find different marks with the same number


class Fault(Enum):
    """What can be wrong with a topic."""

    LATE_ROW = "late row"
    """A data record earlier than the watermark of its partition."""
    REGRESSING_MARK = "regressing mark"
    """A watermark lower than an earlier one of the same source and epoch."""
    MISSING_MEMBER = "missing member"
    """Fewer sources have reported in a partition than the membership says."""
    SURPLUS_MEMBER = "surplus member"
    """More sources have reported in a partition than the membership says."""
    SEQUENCE_GAP = "sequence gap"
    """A mark is missing between two."""
    LOST_ROWS = "lost rows"
    """A mark counts more data records than there are before it."""
    SURPLUS_ROWS = "surplus rows"
    """More data records than the sources have counted: duplicates, or a writer without marks."""
    UNREADABLE_MARK = "unreadable mark"
    """A mark key without a readable watermark record."""
    UNREADABLE_ROW = "unreadable row"
    """A data record that cannot be decoded, or has no event time."""
    UNREADABLE_TOPIC = "unreadable topic"
    """No data record of the topic has an event time: the schema, field or unit is wrong."""
    CONFLICTING_REPLAY = "conflicting replay"
    """Two different marks with the same source, epoch and sequence."""
    ZOMBIE = "zombie"
    """A mark of an older epoch, after one of a newer epoch."""
    MEMBERSHIP_CONFLICT = "membership conflict"
    """Two sizes of one membership version."""
    AFTER_END = "after end"
    """A mark of a source that has ended, or data after all have."""
    UNMARKED_PARTITION = "unmarked partition"
    """A partition without a mark."""
    MISSING_HEADER = "missing header"
    """A watermark record without the header that plain consumers skip by."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, where it was found."""

    fault: Fault
    partition: int
    offset: int | None
    source: str | None
    message: str

    def __str__(self) -> str:
        place = f"partition {self.partition}" + ("" if self.offset is None else f" offset {self.offset}")
        return f"{self.fault.value:20} {place}: {self.message}"


@dataclass(slots=True)
class _Source:
    """The marks of one source in one partition."""

    last: WatermarkRecord
    watermark: int | None = None  # the highest of this epoch
    hashes: OrderedDict[tuple[int, int], int] = field(default_factory=OrderedDict)
    """Hashes of its last marks, by epoch and sequence."""


@dataclass(slots=True)
class _Partition:
    version: int = 0  # of the membership, by its own marks
    surplus: int = 0  # the last version with more sources than it says
    sources: dict[str, _Source] = field(default_factory=dict)
    last_offset: int | None = None
    reached: int | None = None  # the highest watermark that it ever had
    clocks: dict[int, LeaseClock] = field(default_factory=dict)  # by length of lease
    unread: set[str] = field(default_factory=set)  # known sources whose last mark is unreadable: they may be active

    def is_active(self, name: str) -> bool:
        """Tell whether the last mark of a source says so, and its lease has not run out."""
        last = self.sources[name].last
        return last.status is Status.ACTIVE and not (last.lease and self.clocks[last.lease].has_run_out(name))


class Checker:
    """Check one topic.  Memory grows with sources and partitions, not with records.

    Record counts begin later in ``partial`` partitions, whose first records Kafka has deleted, and are not checked in a
    ``compacted`` topic.
    """

    def __init__(self, partial: Collection[int] = (), *, compacted: bool = False) -> None:
        self.records: Counter[str] = Counter()  # how many ``data`` and ``marks`` were seen
        self._partitions: dict[int, _Partition] = defaultdict(_Partition)
        self._record_counts = None if compacted else RecordCounts({("", number) for number in partial})
        self._sizes: dict[int, int] = {}
        self._reach: dict[str, int] = {}  # by source: the partition count that it knows
        self._combined: dict[int, tuple[int | None, bool]] = {}
        """By partition: its watermark, and whether all sources have ended; kept until the next mark."""
        self._version = 0
        self._with_event_time = self._without_event_time = 0
        self._first_without: tuple[int, int, str] | None = None
        """Partition, offset and message of the first record without event time."""

    @property
    def compacted(self) -> bool:
        """Whether Kafka may have deleted any record of the topic."""
        return self._record_counts is None

    def data(
        self, partition: int, offset: int, event_time: int | None, *, readable: bool = True, reason: str = ""
    ) -> list[Finding]:
        """Take a data record, and return what is wrong with it.

        Lateness is not checked without an ``event_time`` (epoch milliseconds).  A record that is not ``readable``
        should have one, and has none for this ``reason``.
        """
        self.records["data"] += 1
        found: list[tuple[Fault, str]] = []
        state = self._partitions[partition]
        if self._record_counts is not None:
            self._record_counts.on_rows("", partition, 1)
        state.last_offset = offset
        if not readable:
            message = "the value has no readable event time" + (reason and f": {reason}")
            self._without_event_time += 1
            self._first_without = self._first_without or (partition, offset, message)
            found.append((Fault.UNREADABLE_ROW, message))
        self._with_event_time += event_time is not None
        _, ended = self._combine(partition)
        if event_time is not None and is_late(event_time, state.reached):
            times = f"({iso(event_time)} < {iso(state.reached)})"
            found.append((Fault.LATE_ROW, f"event time {event_time} is behind the watermark {state.reached} {times}"))
        if ended:
            found.append((Fault.AFTER_END, "a data record, and all sources have ended"))
        return [Finding(fault, partition, offset, None, message) for fault, message in found]

    def mark(self, mark: Mark | Unreadable) -> list[Finding]:
        """Take a mark, and return what is wrong with it."""
        partition, offset = mark.partition, mark.offset
        state = self._partitions[partition]
        state.last_offset = offset
        self._combined.clear()  # the membership and the absent sources are the same in all partitions
        if isinstance(mark, Unreadable):
            if mark.source is not None and any(mark.source in part.sources for part in self._partitions.values()):
                state.unread.add(mark.source)
            return [Finding(Fault.UNREADABLE_MARK, partition, offset, None, mark.reason)]
        self.records["marks"] += 1
        found = [
            Finding(fault, partition, offset, mark.source, f"{mark.source}: {message}")
            for fault, message in self._faults(mark, state)
        ]
        self._combine(partition)  # the next mark may lower what this one has raised, before any row comes
        return found

    def _faults(self, mark: Mark, state: _Partition) -> Iterator[tuple[Fault, str]]:
        record, header = mark.record, dict(mark.headers or []).get(HEADER)
        if header not in {FORMAT_VERSION, FORMAT_VERSION.decode()}:
            yield Fault.MISSING_HEADER, f"mark {record.sequence} has header {header!r}, expected {FORMAT_VERSION!r}"
        source = state.sources.get(record.source)
        last = None if source is None else source.last
        is_next = last is None or (record.epoch, record.sequence) > (last.epoch, last.sequence)
        if is_next and (last is None or record.epoch > last.epoch or last.status is not Status.ENDED):
            yield from self._membership(record, state)
            if record.membership.version == self._version:
                known = self._reach.get(record.source, 0)
                self._reach[record.source] = max(known, record.partitions, mark.partition + 1)
        yield from self._statement(state, mark, hash(encode_watermark(record)))
        joins = is_next and (last is None or last.membership.version < state.version)
        members = _members(state) if joins and state.surplus < state.version else ()
        if len(members) > self._sizes.get(state.version, 1):
            state.surplus = state.version
            yield Fault.SURPLUS_MEMBER, self._reported(members, state.version)
        if self._record_counts is not None:
            for found in self._record_counts.on_mark(record, topic="", partition=mark.partition, offset=mark.offset):
                since = "the beginning" if found.after is None else f"offset {found.after}"
                said = f"{found.records} row(s) since {since}"
                if found.kind is Mismatch.GAP:
                    said = f"{found.records} mark(s) missing since {since} (no row, unless lost rows are reported)"
                yield Fault(found.kind.value), said  # both enums have these values

    def _membership(self, record: WatermarkRecord, state: _Partition) -> Iterator[tuple[Fault, str]]:
        version, size = record.membership.version, record.membership.size
        known = self._sizes.setdefault(version, size)
        if known != size:
            yield Fault.MEMBERSHIP_CONFLICT, f"membership {version} has size {size} here and {known} elsewhere"
        self._sizes[version] = max(known, size)
        self._version, state.version = max(self._version, version), max(state.version, version)
        size = self._sizes[state.version]
        if version < state.version and record.status is not Status.ENDED and len(_members(state)) >= size:
            newer = f"all {size} of membership {state.version} have reported"
            yield Fault.SURPLUS_MEMBER, f"a mark of membership {version}, and {newer}: no watermark covers its rows"

    def _statement(self, state: _Partition, mark: Mark, digest: int) -> Iterator[tuple[Fault, str]]:
        record = mark.record
        source = state.sources.get(record.source)
        if source is None:
            source = state.sources[record.source] = _Source(record, record.watermark)
            self._tick(state, mark, anew=True)
        if source.hashes.setdefault((record.epoch, record.sequence), digest) != digest:
            message = f"mark {record.sequence} of epoch {record.epoch} differs from an earlier one"
            yield Fault.CONFLICTING_REPLAY, message
        if len(source.hashes) > _REPLAYS:
            source.hashes.popitem(last=False)
        last = source.last
        if record.epoch < last.epoch:
            yield Fault.ZOMBIE, f"a mark of epoch {record.epoch}, and epoch {last.epoch} has begun"
            return
        if record.epoch > last.epoch:
            source.watermark = None
        elif record.sequence <= last.sequence:
            return
        elif last.status is Status.ENDED:
            yield Fault.AFTER_END, f"mark {record.sequence}, and the source had ended with {last.sequence}"
            return
        if source.watermark is not None and (record.watermark is None or record.watermark < source.watermark):
            yield Fault.REGRESSING_MARK, f"watermark {iso(record.watermark)} follows {iso(source.watermark)}"
        elif record.watermark is not None:
            source.watermark = record.watermark
        source.last = record
        state.unread.discard(record.source)
        self._tick(state, mark, anew=record.epoch > last.epoch)

    def _tick(self, state: _Partition, mark: Mark, *, anew: bool) -> None:
        """Move the clocks of leases by a mark, unless readers ignore it; ``anew``: the first one of its epoch."""
        if mark.record.membership.version == state.version:
            leases = {source.last.lease for source in state.sources.values()}
            state.clocks = {n: state.clocks.get(n) or LeaseClock(n) for n in leases if n is not None}
            for clock in state.clocks.values():
                clock.take(mark.source, mark.log_time, anew=anew)

    def _absent(self, partition: int, version: int) -> dict[str, bool]:
        """Return the sources that need not mark a partition ("Absent" in ``SPEC.md``), and whether each has ended."""
        absent = {}
        for name in (name for name, reach in self._reach.items() if reach <= partition):
            lasts = [state.sources[name].last for state in self._partitions.values() if name in state.sources]
            is_member = any(last.membership.version == version for last in lasts)
            if is_member and all(last.status is not Status.ACTIVE for last in lasts):
                absent[name] = all(last.status is Status.ENDED for last in lasts)
        return absent

    def _combine(self, partition: int) -> tuple[int | None, bool]:
        """Return a partition's watermark (``None``: unknown, or none is active), and whether all sources have ended."""
        if partition not in self._combined:
            state = self._partitions[partition]
            members = _members(state)
            absent = self._absent(partition, state.version)
            if len(members) + len(absent) < self._sizes.get(state.version, 1):
                watermark, ended = None, False
            else:
                unread = not state.unread.isdisjoint({*members, *absent})
                active = [source.watermark for name, source in members.items() if state.is_active(name)]
                watermark = None if unread else lowest(active)
                ended = all(source.last.status is Status.ENDED for source in members.values())
                ended = ended and all(absent.values()) and not unread
                if watermark is not None and (state.reached is None or watermark > state.reached):
                    state.reached = watermark
            self._combined[partition] = watermark, ended
        return self._combined[partition]

    def _only_named(self, partitions: int) -> set[int]:
        """Return the lowest and the highest unmarked partition that only marks name: a mark may claim billions."""
        numbers = range(partitions, max(self._reach.values(), default=0))
        found = (next((n for n in way if n not in self._partitions), None) for way in (numbers, reversed(numbers)))
        return {number for number in found if number is not None}

    def finish(self, partitions: int) -> list[Finding]:
        """Return the faults that only show at the end of the log."""
        found = []
        if self._first_without is not None and not self._with_event_time:
            number, offset, cause = self._first_without
            total = f"none of {self._without_event_time} data records has an event time"
            message = f"{total}; of the first, {cause}; check schema, field and unit"
            found.append(Finding(Fault.UNREADABLE_TOPIC, number, offset, None, message))
        size = self._sizes.get(self._version, 1)
        for number in sorted({*range(partitions), *self._partitions, *self._only_named(partitions)}):
            state = self._partitions[number]
            members = _members(state) if state.version == self._version else ()
            names = sorted({*members, *self._absent(number, self._version)})
            if not state.sources and (len(names) < size or state.last_offset is not None):
                found.append(Finding(Fault.UNMARKED_PARTITION, number, None, None, "no source has ever marked it"))
            elif len(names) != size:
                fault = Fault.MISSING_MEMBER if len(names) < size else Fault.SURPLUS_MEMBER
                if fault is Fault.MISSING_MEMBER or state.surplus < self._version:
                    message = self._reported(names, self._version)
                    found.append(Finding(fault, number, state.last_offset, None, message))
        return found

    def _reported(self, names: Collection[str], version: int) -> str:
        size = self._sizes.get(version, 1)
        return f"{len(names)} of {size} sources of membership {version} have reported ({', '.join(sorted(names))})"


def _members(state: _Partition) -> dict[str, _Source]:
    return {n: s for n, s in state.sources.items() if s.last.membership.version == state.version}
