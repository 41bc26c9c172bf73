"""Does a topic keep its promises?  A validator of the log as it stands.  Pure: is fed records, says what is wrong.

It judges by `schemas/SPEC.md` alone, one partition at a time in the order of the log, and shares nothing with the
tracker but the records themselves.  The idea of a validator that replays a feed is CockroachDB's ``cdctest``.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from floodmark.schemas.codec import decode_watermark
from floodmark.schemas.errors import UnreadableControlRecordError
from floodmark.schemas.ledger import Discord, Ledger
from floodmark.schemas.records import FORMAT_VERSION, HEADER, Status, WatermarkRecord
from floodmark.schemas.timestamps import is_late

Headers = Sequence[tuple[str, str | bytes | None]] | None


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
    """A control key without a readable watermark record."""
    UNREADABLE_ROW = "unreadable row"
    """A data record that does not decode, or has no event time."""
    CONFLICTING_REPLAY = "conflicting replay"
    """The same source, epoch and sequence said two different things."""
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
        """Say it in a line."""
        place = f"partition {self.partition}" + ("" if self.offset is None else f" offset {self.offset}")
        return f"{self.fault.value:20} {place}: {self.message}"


@dataclass(slots=True)
class _Source:
    """The last mark of one source."""

    last: WatermarkRecord
    watermark: int | None


@dataclass(slots=True)
class _Partition:
    sources: dict[str, _Source] = field(default_factory=dict)
    statements: dict[tuple[str, int, int], WatermarkRecord] = field(default_factory=dict)
    last_offset: int | None = None


class Checker:
    """Check one topic.

    >>> from floodmark.schemas.codec import encode_watermark
    >>> mark = WatermarkRecord(source="a", epoch=1, sequence=0, watermark=30, partitions=1, emitted_at=0, records=0)
    >>> checker = Checker()
    >>> for finding in checker.control(0, 0, b"__floodmark__/a", encode_watermark(mark), [("floodmark", b"1")]):
    ...     print(finding)
    >>> for finding in checker.data(0, 1, event_time=12):
    ...     print(finding)
    late row             partition 0 offset 1: event time 12 is behind the watermark 30
    """

    def __init__(self) -> None:
        """Begin with an empty log."""
        self.records: Counter[str] = Counter()
        """How many ``data`` and ``marks`` were seen."""
        self._partitions: dict[int, _Partition] = defaultdict(_Partition)
        self._ledger = Ledger()
        self._sizes: dict[int, int] = {}
        self._version = 0
        self._named = 0

    def data(self, partition: int, offset: int, event_time: int | None, *, readable: bool = True) -> Iterator[Finding]:
        """Take a data record.

        Args:
            partition: where.
            offset: where.
            event_time: epoch milliseconds; ``None``: not known, so lateness is not judged.
            readable: whether it decoded to something with an event time.
        """
        self.records["data"] += 1
        state = self._partitions[partition]
        self._ledger.read("", partition, 1)
        state.last_offset = offset
        if not readable:
            message = "the value does not decode to one with an event time"
            yield Finding(Fault.UNREADABLE_ROW, partition, offset, None, message)
        watermark = self._promised(state)
        if event_time is not None and is_late(event_time, watermark):
            message = f"event time {event_time} is behind the watermark {watermark}"
            yield Finding(Fault.LATE_ROW, partition, offset, None, message)
        members = self._members(state)
        if len(members) >= self._sizes.get(self._version, 1) and all(m.last.status is Status.ENDED for m in members):
            yield Finding(Fault.AFTER_END, partition, offset, None, "a data record, and all sources have ended")

    def control(
        self, partition: int, offset: int, key: bytes, value: bytes | None, headers: Headers
    ) -> Iterator[Finding]:
        """Take a record under a control key."""
        state = self._partitions[partition]
        state.last_offset = offset
        try:
            record = decode_watermark(key, value)
        except UnreadableControlRecordError as error:
            yield Finding(Fault.UNREADABLE_MARK, partition, offset, None, str(error))
            return
        self.records["marks"] += 1
        findings = [
            *self._header(record, headers),
            *self._membership(record),
            *self._statement(state, record),
            *self._counts(partition, offset, record),
        ]
        for fault, message in findings:
            yield Finding(fault, partition, offset, record.source, f"{record.source}: {message}")

    @staticmethod
    def _header(record: WatermarkRecord, headers: Headers) -> Iterator[tuple[Fault, str]]:
        found = dict(headers or []).get(HEADER)
        if found not in {FORMAT_VERSION, FORMAT_VERSION.decode()}:
            yield Fault.MISSING_HEADER, f"mark {record.sequence} has header {found!r}, expected {FORMAT_VERSION!r}"

    def _membership(self, record: WatermarkRecord) -> Iterator[tuple[Fault, str]]:
        version, size = record.membership.version, record.membership.size
        known = self._sizes.setdefault(version, size)
        if known != size:
            yield Fault.MEMBERSHIP_CONFLICT, f"membership {version} has size {size} here and {known} elsewhere"
        self._sizes[version] = max(known, size)
        self._version = max(self._version, version)
        self._named = max(self._named, record.partitions)

    def _statement(self, state: _Partition, record: WatermarkRecord) -> Iterator[tuple[Fault, str]]:
        source = state.sources.get(record.source)
        identity = (record.source, record.epoch, record.sequence)
        before = state.statements.setdefault(identity, record)
        if before != record:
            yield Fault.CONFLICTING_REPLAY, f"mark {record.sequence} of epoch {record.epoch} said something else before"
        if source is None:
            state.sources[record.source] = _Source(record, record.watermark)
            return
        last = source.last
        if record.epoch < last.epoch:
            yield Fault.ZOMBIE, f"a mark of epoch {record.epoch}, and epoch {last.epoch} has begun"
            return
        if record.epoch > last.epoch:
            state.sources[record.source] = _Source(record, source.watermark)
            return
        if record.sequence <= last.sequence:
            return
        if last.status is Status.ENDED:
            yield Fault.AFTER_END, f"mark {record.sequence}, and the source had ended with {last.sequence}"
        if source.watermark is not None and (record.watermark is None or record.watermark < source.watermark):
            yield Fault.REGRESSING_MARK, f"watermark {record.watermark} follows {source.watermark}"
        else:
            source.watermark = record.watermark
        source.last = record

    def _counts(self, partition: int, offset: int, record: WatermarkRecord) -> Iterator[tuple[Fault, str]]:
        for found in self._ledger.take(record, topic="", partition=partition, offset=offset, rows=0):
            since = "the beginning" if found.after is None else f"offset {found.after}"
            unit = "mark(s) missing" if found.discord is Discord.GAP else "row(s)"
            yield _FAULTS[found.discord], f"{found.records} {unit} since {since}"

    def _members(self, state: _Partition) -> list[_Source]:
        return [s for s in state.sources.values() if s.last.membership.version == self._version]

    def _promised(self, state: _Partition) -> int | None:
        """Return what all sources of the partition have promised; ``None``: not all have, or none is active."""
        members = self._members(state)
        if len(members) < self._sizes.get(self._version, 1):
            return None
        active = [source.watermark for source in members if source.last.status is Status.ACTIVE]
        known = [watermark for watermark in active if watermark is not None]
        return min(known) if known and len(known) == len(active) else None

    def finish(self, partitions: int) -> Iterator[Finding]:
        """Judge what only the end of the log shows.

        Args:
            partitions: how many partitions the topic has.
        """
        size = self._sizes.get(self._version, 1)
        for number in range(max(partitions, self._named)):
            state = self._partitions[number]
            if not state.sources:
                yield Finding(Fault.UNMARKED_PARTITION, number, None, None, "no source has ever marked it")
                continue
            names = sorted(n for n, s in state.sources.items() if s.last.membership.version == self._version)
            said = f"{len(names)} of {size} sources of membership {self._version} have reported ({', '.join(names)})"
            if len(names) != size:
                fault = Fault.MISSING_MEMBER if len(names) < size else Fault.SURPLUS_MEMBER
                yield Finding(fault, number, state.last_offset, None, said)


_FAULTS: Final = {
    Discord.LOST: Fault.LOST_ROWS,
    Discord.SURPLUS: Fault.SURPLUS_ROWS,
    Discord.GAP: Fault.SEQUENCE_GAP,
}
