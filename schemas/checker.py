"""Does a topic keep its promises?  A validator of the log as it stands.  Pure: is fed records, says what is wrong.

It judges by `schemas/SPEC.md` alone, one partition at a time in the order of the log, and shares nothing with the
tracker but the records themselves.  The idea of a validator that replays a feed is CockroachDB's ``cdctest``.
"""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from floodmark.schemas.classify import Headers, Mark, Unreadable
from floodmark.schemas.codec import encode_watermark
from floodmark.schemas.counts import Mismatch, RecordCounts
from floodmark.schemas.errors.base import iso
from floodmark.schemas.records import FORMAT_VERSION, HEADER, Status, WatermarkRecord
from floodmark.schemas.timestamps import is_late

_REPLAYS: Final = 64
"""So many marks of a source are remembered, to tell a replay from another mark under the same number."""


class Fault(Enum):
    """What can be wrong with a topic."""

    LATE_ROW = "late row"
    """A data record behind what every source had promised in its partition."""
    REGRESSING_MARK = "regressing mark"
    """A source took back a promise within an epoch."""
    MISSING_MEMBER = "missing member"
    """Fewer sources have reported in a partition than the membership says."""
    SURPLUS_MEMBER = "surplus member"
    """More sources have reported in a partition than the membership says."""
    SEQUENCE_GAP = "sequence gap"
    """A mark is missing between two."""
    LOST_ROWS = "lost rows"
    """A mark counts more data records than stand before it."""
    SURPLUS_ROWS = "surplus rows"
    """More data records stand in a partition than its sources have counted: duplicates, or a writer without marks."""
    UNREADABLE_MARK = "unreadable mark"
    """A mark key without a readable watermark record."""
    UNREADABLE_ROW = "unreadable row"
    """A data record that does not decode, or has no event time."""
    UNREADABLE_TOPIC = "unreadable topic"
    """Not one data record of the topic has an event time: the wrong schema, field or unit."""
    CONFLICTING_REPLAY = "conflicting replay"
    """Two different marks with the same source, epoch and sequence."""
    ZOMBIE = "zombie"
    """A mark of an older epoch, behind one of a newer."""
    MEMBERSHIP_CONFLICT = "membership conflict"
    """Two sizes under one version."""
    AFTER_END = "after end"
    """A mark of a source that had ended, or data when all had."""
    UNMARKED_PARTITION = "unmarked partition"
    """A partition that the sources name, or that the topic has, without any mark."""
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
    watermark: int | None = None
    """The highest of this epoch."""
    promised: int | None = None
    """The highest of all epochs: readers never take a watermark back."""
    is_unread: bool = False
    """Whether a later mark could not be read: it may be active again."""
    hashes: OrderedDict[tuple[int, int], int] = field(default_factory=OrderedDict)
    """A hash of each of the last marks, by epoch and sequence."""

    def promise(self, watermark: int | None) -> None:
        if watermark is not None:
            self.watermark = watermark
            self.promised = watermark if self.promised is None else max(self.promised, watermark)

    @property
    def is_waited_for(self) -> bool:
        return self.is_unread or self.last.status is Status.ACTIVE


@dataclass(slots=True)
class _Partition:
    sources: dict[str, _Source] = field(default_factory=dict)
    last_offset: int | None = None


class Checker:
    """Check one topic.  What is kept in memory goes by sources and partitions, not by records.

    Args:
        partial: partitions whose first records are not there any more, so that their counts begin in the middle.
        compacted: whether records are left out on purpose, so that nothing counts.

    >>> from floodmark.schemas.classify import classify, mark_record
    >>> mark = WatermarkRecord(source="a", epoch=1, sequence=0, watermark=30, partitions=1, emitted_at=0, records=0)
    >>> checker = Checker()
    >>> checker.mark(classify("clicks", 0, 0, 0, *mark_record(mark)))
    []
    >>> [finding.fault.value for finding in checker.data(0, 1, event_time=12)]
    ['late row']
    """

    def __init__(self, partial: Collection[int] = (), *, compacted: bool = False) -> None:
        self.records: Counter[str] = Counter()
        """How many ``data`` and ``marks`` were seen."""
        self._partitions: dict[int, _Partition] = defaultdict(_Partition)
        self._record_counts = None if compacted else RecordCounts({("", number) for number in partial})
        self._sizes: dict[int, int] = {}
        self._standings: dict[int, tuple[int | None, bool]] = {}
        self._version = 0
        self._named = 0
        self._timed = 0
        self._untimed = 0
        self._first_untimed: tuple[int, int, str] | None = None

    def data(
        self, partition: int, offset: int, event_time: int | None, *, readable: bool = True, reason: str = ""
    ) -> list[Finding]:
        """Take a data record, and return what is wrong with it.

        Args:
            partition: where.
            offset: where.
            event_time: the time that counts, epoch milliseconds; ``None``: not known, so lateness is not judged.
            readable: whether it decoded to something with an event time.
            reason: why not.
        """
        self.records["data"] += 1
        found: list[tuple[Fault, str]] = []
        state = self._partitions[partition]
        if self._record_counts is not None:
            self._record_counts.on_rows("", partition, 1)
        state.last_offset = offset
        if not readable:
            message = "the value has no readable event time" + (reason and f": {reason}")
            self._untimed += 1
            self._first_untimed = self._first_untimed or (partition, offset, message)
            found.append((Fault.UNREADABLE_ROW, message))
        self._timed += event_time is not None
        watermark, ended = self._standing(partition)
        if event_time is not None and is_late(event_time, watermark):
            times = f"({iso(event_time)} < {iso(watermark)})"
            found.append((Fault.LATE_ROW, f"event time {event_time} is behind the watermark {watermark} {times}"))
        if ended:
            found.append((Fault.AFTER_END, "a data record, and all sources have ended"))
        return [Finding(fault, partition, offset, None, message) for fault, message in found]

    def mark(self, mark: Mark | Unreadable) -> list[Finding]:
        """Take a mark, and return what is wrong with it."""
        partition, offset = mark.partition, mark.offset
        state = self._partitions[partition]
        state.last_offset = offset
        self._standings.pop(partition, None)
        if isinstance(mark, Unreadable):
            source = state.sources.get(mark.source or "")
            if source is not None:
                source.is_unread = True
            return [Finding(Fault.UNREADABLE_MARK, partition, offset, None, mark.reason)]
        record = mark.record
        self.records["marks"] += 1
        findings = [
            *self._header(record, mark.headers),
            *self._membership(record),
            *self._statement(state, record, hash(encode_watermark(record))),
            *self._counts(partition, offset, record),
        ]
        source_id = record.source
        return [Finding(fault, partition, offset, source_id, f"{source_id}: {message}") for fault, message in findings]

    @staticmethod
    def _header(record: WatermarkRecord, headers: Headers | None) -> Iterator[tuple[Fault, str]]:
        found = dict(headers or []).get(HEADER)
        if found not in {FORMAT_VERSION, FORMAT_VERSION.decode()}:
            yield Fault.MISSING_HEADER, f"mark {record.sequence} has header {found!r}, expected {FORMAT_VERSION!r}"

    def _membership(self, record: WatermarkRecord) -> Iterator[tuple[Fault, str]]:
        version, size = record.membership.version, record.membership.size
        if version > self._version or size > self._sizes.get(version, 0):
            self._standings.clear()  # it holds for all partitions
        known = self._sizes.setdefault(version, size)
        if known != size:
            yield Fault.MEMBERSHIP_CONFLICT, f"membership {version} has size {size} here and {known} elsewhere"
        self._sizes[version] = max(known, size)
        self._version = max(self._version, version)
        self._named = max(self._named, record.partitions)

    def _statement(self, state: _Partition, record: WatermarkRecord, digest: int) -> Iterator[tuple[Fault, str]]:
        source = state.sources.get(record.source)
        if source is None:
            source = state.sources[record.source] = _Source(record)
            source.hashes[record.epoch, record.sequence] = digest
            source.promise(record.watermark)
            return
        if source.hashes.setdefault((record.epoch, record.sequence), digest) != digest:
            yield (
                Fault.CONFLICTING_REPLAY,
                f"mark {record.sequence} of epoch {record.epoch} differs from an earlier one",
            )
        if len(source.hashes) > _REPLAYS:
            source.hashes.popitem(last=False)
        last = source.last
        if record.epoch < last.epoch:
            yield Fault.ZOMBIE, f"a mark of epoch {record.epoch}, and epoch {last.epoch} has begun"
            return
        if record.epoch > last.epoch:
            source.watermark = None  # a new epoch begins anew
        elif record.sequence <= last.sequence:
            return
        elif last.status is Status.ENDED:
            yield Fault.AFTER_END, f"mark {record.sequence}, and the source had ended with {last.sequence}"
        if source.watermark is not None and (record.watermark is None or record.watermark < source.watermark):
            yield Fault.REGRESSING_MARK, f"watermark {iso(record.watermark)} follows {iso(source.watermark)}"
        else:
            source.promise(record.watermark)
        source.last, source.is_unread = record, False

    def _counts(self, partition: int, offset: int, record: WatermarkRecord) -> Iterator[tuple[Fault, str]]:
        counts = self._record_counts
        for found in () if counts is None else counts.on_mark(record, topic="", partition=partition, offset=offset):
            since = "the beginning" if found.after is None else f"offset {found.after}"
            unit = "mark(s) missing" if found.kind is Mismatch.GAP else "row(s)"
            yield Fault(found.kind.value), f"{found.records} {unit} since {since}"  # the two are called alike

    def _members(self, state: _Partition) -> dict[str, _Source]:
        return {n: s for n, s in state.sources.items() if s.last.membership.version == self._version}

    def _standing(self, partition: int) -> tuple[int | None, bool]:
        """Return what all sources of the partition have promised, and whether all have ended.

        ``None``: not all have promised, or none is active.  It is kept until the next mark: there may be many sources.
        """
        found = self._standings.get(partition)
        if found is None:
            found = self._standings[partition] = self._work_out(self._members(self._partitions[partition]))
        return found

    def _work_out(self, members: dict[str, _Source]) -> tuple[int | None, bool]:
        if len(members) < self._sizes.get(self._version, 1):
            return None, False
        active = [source.promised for source in members.values() if source.is_waited_for]
        known = [watermark for watermark in active if watermark is not None]
        ended = all(source.last.status is Status.ENDED and not source.is_unread for source in members.values())
        return min(known) if known and len(known) == len(active) else None, ended

    def _only_named(self, partitions: int) -> set[int]:
        """Return the lowest and the highest partition that marks alone name: a mark may claim billions."""
        numbers = range(partitions, self._named)
        found = (next((n for n in way if n not in self._partitions), None) for way in (numbers, reversed(numbers)))
        return {number for number in found if number is not None}

    def finish(self, partitions: int) -> list[Finding]:
        """Return what only the end of the log shows to be wrong."""
        found = []
        if self._first_untimed is not None and not self._timed:
            number, offset, cause = self._first_untimed
            total = f"none of {self._untimed} data records has an event time"
            message = f"{total}; of the first, {cause}; check schema, field and unit"
            found.append(Finding(Fault.UNREADABLE_TOPIC, number, offset, None, message))
        size = self._sizes.get(self._version, 1)
        for number in sorted({*range(partitions), *self._partitions, *self._only_named(partitions)}):
            state = self._partitions[number]
            if not state.sources:
                found.append(Finding(Fault.UNMARKED_PARTITION, number, None, None, "no source has ever marked it"))
                continue
            names = sorted(self._members(state))
            if len(names) != size:
                fault = Fault.MISSING_MEMBER if len(names) < size else Fault.SURPLUS_MEMBER
                listed = ", ".join(names)
                message = f"{len(names)} of {size} sources of membership {self._version} have reported ({listed})"
                found.append(Finding(fault, number, state.last_offset, None, message))
        return found
