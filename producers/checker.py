"""Does a topic keep its promises?  A validator of the log as it stands.  Pure: is fed records, says what is wrong.

It judges by `schemas/SPEC.md` alone, one partition at a time in the order of the log, and shares nothing with the
tracker but the records themselves.  The idea of a validator that replays a feed is CockroachDB's ``cdctest``.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from floodmark.schemas.codec import decode_watermark
from floodmark.schemas.errors import UnreadableControlRecordError
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
    """The last mark of one source, and what it counted in earlier epochs."""

    last: WatermarkRecord
    watermark: int | None
    earlier_records: int | None = 0

    def records(self) -> int | None:
        """Return how many data records the source says it wrote, over all epochs; ``None``: it does not count."""
        if self.earlier_records is None or self.last.records is None:
            return None
        return self.earlier_records + self.last.records


@dataclass(slots=True)
class _Partition:
    sources: dict[str, _Source] = field(default_factory=dict)
    statements: dict[tuple[str, int, int], WatermarkRecord] = field(default_factory=dict)
    rows: int = 0
    lost: int = 0
    surplus: int = 0
    last_offset: int | None = None
    restarted: bool = False


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
        state.rows += 1
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
            *self._counts(state),
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
            # Rows that the old epoch wrote after its last mark were never counted: from here on only losses show.
            state.restarted = True
            state.sources[record.source] = _Source(record, source.watermark, source.records())
            return
        if record.sequence <= last.sequence:
            return
        if last.status is Status.ENDED:
            yield Fault.AFTER_END, f"mark {record.sequence}, and the source had ended with {last.sequence}"
        if record.sequence > last.sequence + 1:
            yield Fault.SEQUENCE_GAP, f"mark {record.sequence} follows {last.sequence}"
        if source.watermark is not None and (record.watermark is None or record.watermark < source.watermark):
            yield Fault.REGRESSING_MARK, f"watermark {record.watermark} follows {source.watermark}"
        else:
            source.watermark = record.watermark
        source.last = record

    @staticmethod
    def _counts(state: _Partition) -> Iterator[tuple[Fault, str]]:
        """Hold what the sources have counted against the rows that stand in the partition; each loss is told once."""
        counted = [source.records() for source in state.sources.values()]
        said = [records for records in counted if records is not None]
        missing = sum(said) - state.rows
        if missing > state.lost:
            yield Fault.LOST_ROWS, f"{sum(said)} data records are counted, {state.rows} stand before the mark"
            state.lost = missing
        # One source alone has counted every row before its mark; several do only when the last of them speaks.
        exact = len(counted) == len(said) == 1 and not state.restarted
        if exact and -missing > state.surplus:
            yield Fault.SURPLUS_ROWS, f"{state.rows} data records stand before the mark, {sum(said)} are counted"
            state.surplus = -missing

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
            yield from self._final_count(number, state)

    @staticmethod
    def _final_count(number: int, state: _Partition) -> Iterator[Finding]:
        """When all sources have ended, their counts are final: more rows than that are nobody's."""
        sources = state.sources.values()
        if state.restarted or len(sources) == 1 or any(source.last.status is not Status.ENDED for source in sources):
            return
        counted = [source.records() for source in sources]
        said = sum(records for records in counted if records is not None)
        if None not in counted and state.rows > said:
            message = f"{state.rows} data records stand in it, its sources have counted {said}"
            yield Finding(Fault.SURPLUS_ROWS, number, state.last_offset, None, message)
