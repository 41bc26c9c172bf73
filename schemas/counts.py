"""Compare the counts in the marks with the data records before them.  Pure.

The invariant: *before a mark there are at least as many data records as all sources have counted by then*.  With fewer,
rows are lost.  More rows are duplicates, or have a writer without marks, unless a source may still count them.  So a
surplus is reported only at marks of a partition's only source; others must have ended.  If only bounds of the number of
rows are known, only what the bounds prove is reported.

A crashed epoch leaves rows after its last mark that it never counts.  With one source, they are the rows between that
mark and the first of the new epoch.  With several sources, surplus rows are no longer reported, unless the membership
has size 1 and all other sources have ended.  Nor are they if reading began after the first record.

Counts in the stream as a proof of completeness are an idea of the change-data protocol CDCv2.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from enum import StrEnum
from typing import Any, Final

from floodmark.schemas.classify import Classified, Data, Mark
from floodmark.schemas.records import Status, WatermarkRecord
from floodmark.schemas.stored_format import require_format, restoring

FORMAT: Final = 1


class Mismatch(StrEnum):
    """How the marks of a partition can disagree with its records."""

    LOST = "lost rows"
    """The marks count more data records than there are before them."""
    SURPLUS = "surplus rows"
    """There are more data records before a mark than its source has counted."""
    GAP = "sequence gap"
    """A mark is missing between two."""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """One disagreement: how many records, between the offsets ``after`` and ``before``, by the marks of a source."""

    kind: Mismatch
    topic: str
    partition: int
    after: int | None
    before: int
    source: str
    records: int

    def __str__(self) -> str:
        begin = "the beginning" if self.after is None else f"offset {self.after}"
        where = f"{self.topic}/{self.partition} between {begin} and offset {self.before}"
        what = "marks" if self.kind is Mismatch.GAP else "rows"
        return f"{self.kind.value}: {where}: {self.records} {what}, by the marks of source {self.source}"


@dataclass(slots=True)
class _Source:
    """The last mark of one source in one partition."""

    epoch: int
    sequence: int
    records: int | None
    earlier: int | None
    """Rows of its earlier epochs; negative if reading began after its first rows; ``None``: it counts no rows."""
    ended: bool
    offset: int

    @property
    def total(self) -> int | None:
        return None if self.earlier is None or self.records is None else self.earlier + self.records


@dataclass(slots=True)
class _Partition:
    """The record counts of one partition."""

    rows: int = 0
    reported: int = 0  # counted rows minus rows read, as far as the difference was reported
    whole: bool = True  # whether reading began at its first record
    inexact: bool = False  # whether a crash left rows uncounted, which cannot be told from surplus rows
    sources: dict[str, _Source] = field(default_factory=dict)

    def on_mark(
        self, record: WatermarkRecord, offset: int, least: int, most: int
    ) -> Iterator[tuple[Mismatch, int | None, int]]:
        """Apply a mark with ``least`` to ``most`` rows before it; yield each mismatch, since which offset, its size."""
        source = self.sources.get(record.source)
        if source is not None and (record.epoch, record.sequence) <= (source.epoch, source.sequence):
            return
        since = None if source is None else source.offset
        earlier = self._earlier(source, record, least, most)
        if source is not None:
            expected = source.sequence + 1 if record.epoch == source.epoch else 0
            if record.sequence > expected:
                yield Mismatch.GAP, since, record.sequence - expected
        ended = record.status is Status.ENDED
        self.sources[record.source] = _Source(record.epoch, record.sequence, record.records, earlier, ended, offset)
        yield from ((kind, since, count) for kind, count in self._compare(record, least, most))

    def _earlier(self, source: _Source | None, record: WatermarkRecord, least: int, most: int) -> int | None:
        """Return the number of rows of a source's earlier epochs."""
        if record.records is None:
            return None
        if source is not None and record.epoch == source.epoch:
            return source.earlier
        if source is not None and record.sequence > 0 and not self.whole:
            source = None  # its epoch began before the first record, so the marks read before are a zombie's
        if source is None and self.whole:
            return 0
        if source is not None and (source.ended or source.total is None):
            return source.total
        others = [other.total for name, other in self.sources.items() if name != record.source]
        # Other members may have written rows before their first mark here.
        alone = record.membership.size == 1 and self._have_others_ended(record.source)
        if not alone or None in others:
            self.inexact = True
            return -record.records if source is None else source.total
        # Only this source can have left rows uncounted, so the difference is theirs.
        self.inexact = self.inexact or least < most
        uncounted = least + self.reported - record.records - sum(total for total in others if total is not None)
        return uncounted if source is None or source.total is None else max(source.total, uncounted)

    def _have_others_ended(self, name: str) -> bool:
        return all(source.ended for other, source in self.sources.items() if other != name)

    def _compare(self, record: WatermarkRecord, least: int, most: int) -> Iterator[tuple[Mismatch, int]]:
        totals = [source.total for source in self.sources.values()]
        known = [total for total in totals if total is not None]
        counted = sum(known)
        all_count = record.membership.size <= len(totals) == len(known)
        exact = self.whole and all_count and not self.inexact and self._have_others_ended(record.source)
        if counted - most > self.reported:
            yield Mismatch.LOST, counted - most - self.reported
            self.reported = counted - most
        elif exact and counted - least < self.reported:
            yield Mismatch.SURPLUS, self.reported - counted + least
            self.reported = counted - least

    def state(self) -> list[Any]:
        sources = {name: list(astuple(source)) for name, source in self.sources.items()}
        return [self.rows, self.reported, self.whole, self.inexact, sources]

    @classmethod
    def of(cls, state: list[Any]) -> "_Partition":
        rows, reported, whole, inexact, sources = state
        return cls(rows, reported, whole, inexact, {name: _Source(*fields) for name, fields in sources.items()})


class RecordCounts:
    """The record counts of all partitions of a stage; the first records of ``partial`` partitions are not read."""

    def __init__(self, partial: Collection[tuple[str, int]] = ()) -> None:
        self._partial = frozenset(partial)
        self._partitions: dict[tuple[str, int], _Partition] = {}

    def on_mark(
        self,
        record: WatermarkRecord,
        *,
        topic: str,
        partition: int,
        offset: int,
        rows: int = 0,
        most: int | None = None,
    ) -> list[Discrepancy]:
        """Compare the count of a mark with the rows before it; return each disagreement once.

        Between the last `on_rows` of this partition and the mark there are ``rows`` data records, or up to ``most``.
        """
        state = self._partition(topic, partition)
        found = state.on_mark(record, offset, state.rows + rows, state.rows + max(rows, most or 0))
        return [
            Discrepancy(kind, topic, partition, after, offset, record.source, count) for kind, after, count in found
        ]

    def take(self, record: Classified) -> list[Discrepancy]:
        """Take the next record of a partition; return the rows that a mark counts and the partition lacks."""
        if isinstance(record, Data):
            self.on_rows(record.topic, record.partition, 1)
        if not isinstance(record, Mark):
            return []
        found = self.on_mark(record.record, topic=record.topic, partition=record.partition, offset=record.offset)
        return [one for one in found if one.kind is Mismatch.LOST]

    def on_rows(self, topic: str, partition: int, rows: int) -> None:
        """Count ``rows`` more data records of a partition."""
        self._partition(topic, partition).rows += rows

    def _partition(self, topic: str, partition: int) -> _Partition:
        place = (topic, partition)
        state = self._partitions.get(place)
        if state is None:
            state = self._partitions[place] = _Partition(whole=place not in self._partial)
        return state

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        partitions = [[topic, number, state.state()] for (topic, number), state in self._partitions.items()]
        return {"format": FORMAT, "partial": sorted(self._partial), "partitions": partitions}

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> "RecordCounts":
        """Restore a `snapshot`, or raise CorruptSnapshotError."""
        with restoring("of the record counts"):
            require_format(snapshot, FORMAT)
            counts = cls({(topic, partition) for topic, partition in snapshot["partial"]})
            for topic, number, state in snapshot["partitions"]:
                counts._partitions[topic, number] = _Partition.of(state)
        return counts
