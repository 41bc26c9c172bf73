"""Are the records all there?  Holds what the marks have counted against the rows that really stand before them.  Pure.

Theory of operation
-------------------
Every mark says how many data records its source wrote to its partition in this epoch, before the mark.  The reader
counts the rows it sees.  The invariant: *the rows before a mark are never fewer than what all sources have counted by
then*; fewer means that rows are lost.  More rows mean duplicates or a writer without marks, but only where they cannot
be rows that a source has yet to count: with one source in the partition, at each of its marks.  Where the reader knows
only bounds of the rows before a mark, nothing is told that the bounds do not prove.

The rows that a crashed epoch wrote behind its last mark were never counted.  A source marks every partition before its
first record of a new epoch, so with one source they are what stands between the two marks; with several, surplus rows
can no longer be told from them.  A source that has ended has counted all of its rows, so it does not blur the others.
Where reading begins behind the first record, rows of a source that was not seen yet may stand between any two marks of
the others, so surplus rows are not told.

Counts in the stream as a proof of completeness are an idea of the change-data protocol CDCv2.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from floodmark.schemas.errors import CorruptSnapshotError
from floodmark.schemas.records import Status, WatermarkRecord

FORMAT: Final = 1


class Discord(StrEnum):
    """How a partition and its marks can disagree."""

    LOST = "lost rows"
    """The marks count more data records than stand before them."""
    SURPLUS = "surplus rows"
    """More data records stand before a mark than its source has counted: duplicates, or a writer without marks."""
    GAP = "sequence gap"
    """A mark is missing between two."""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """One disagreement: what, where (after one offset, before another), by whose mark, and how many records."""

    discord: Discord
    topic: str
    partition: int
    after: int | None
    before: int
    source: str
    records: int

    def __str__(self) -> str:
        """Say it in a line."""
        begin = "the beginning" if self.after is None else f"offset {self.after}"
        where = f"{self.topic}/{self.partition} between {begin} and offset {self.before}"
        what = "marks" if self.discord is Discord.GAP else "rows"
        return f"{self.discord.value}: {where}: {self.records} {what}, by the marks of source {self.source}"


@dataclass(slots=True)
class _Source:
    """The last mark of one source in one partition."""

    epoch: int
    sequence: int
    records: int | None
    earlier: int | None
    """Rows of its earlier epochs; negative where reading began after its first rows; ``None``: it does not count."""
    ended: bool
    offset: int

    @property
    def total(self) -> int | None:
        return None if self.earlier is None or self.records is None else self.earlier + self.records


class _Account:
    """One partition: the data rows read so far, its sources, and the difference that has been told already."""

    __slots__ = ("blurred", "rows", "sources", "told", "whole")

    def __init__(self, *, whole: bool) -> None:
        self.rows = 0
        self.told = 0
        """Rows counted less rows there, as far as it has been told."""
        self.whole = whole
        self.blurred = False
        """Whether rows were left uncounted by a crash that cannot be told from surplus ones."""
        self.sources: dict[str, _Source] = {}

    def take(
        self, record: WatermarkRecord, offset: int, least: int, most: int
    ) -> Iterator[tuple[Discord, int | None, int]]:
        """Note a mark with between ``least`` and ``most`` rows before it; yield what is wrong, since when, how much."""
        source = self.sources.get(record.source)
        if source is not None and (record.epoch, record.sequence) <= (source.epoch, source.sequence):
            return
        since = None if source is None else source.offset
        earlier = self._earlier(source, record, least, most)
        if source is not None:
            expected = source.sequence + 1 if record.epoch == source.epoch else 0
            if record.sequence > expected:
                yield Discord.GAP, since, record.sequence - expected
        ended = record.status is Status.ENDED
        self.sources[record.source] = _Source(record.epoch, record.sequence, record.records, earlier, ended, offset)
        yield from ((discord, since, count) for discord, count in self._balance(record, least, most))

    def _earlier(self, source: _Source | None, record: WatermarkRecord, least: int, most: int) -> int | None:
        """Return how many rows to add to what this epoch of a source has counted."""
        if record.records is None:
            return None
        if source is not None and record.epoch == source.epoch:
            return source.earlier
        if source is None and self.whole:
            return 0
        if source is not None and (source.ended or source.total is None):
            return source.total
        others = [other.total for name, other in self.sources.items() if name != record.source]
        if None in others or not self._are_others_ended(record.source):
            self.blurred = True
            return -record.records if source is None else source.total
        # Only this source can have left rows uncounted: so many that the books are even now.
        self.blurred = self.blurred or least < most
        uncounted = least + self.told - record.records - sum(total for total in others if total is not None)
        return uncounted if source is None or source.total is None else max(source.total, uncounted)

    def _are_others_ended(self, name: str) -> bool:
        return all(source.ended for other, source in self.sources.items() if other != name)

    def _balance(self, record: WatermarkRecord, least: int, most: int) -> Iterator[tuple[Discord, int]]:
        totals = [source.total for source in self.sources.values()]
        known = [total for total in totals if total is not None]
        counted = sum(known)
        all_count = record.membership.size <= len(totals) == len(known)
        exact = self.whole and all_count and not self.blurred and self._are_others_ended(record.source)
        if counted - most > self.told:
            yield Discord.LOST, counted - most - self.told
            self.told = counted - most
        elif exact and counted - least < self.told:
            yield Discord.SURPLUS, self.told - counted + least
            self.told = counted - least

    def state(self) -> list[Any]:
        sources = {
            name: [source.epoch, source.sequence, source.records, source.earlier, source.ended, source.offset]
            for name, source in self.sources.items()
        }
        return [self.rows, self.told, self.whole, self.blurred, sources]

    @classmethod
    def of(cls, state: list[Any]) -> "_Account":
        rows, told, whole, blurred, sources = state
        account = cls(whole=whole)
        account.rows, account.told, account.blurred = rows, told, blurred
        account.sources = {name: _Source(*fields) for name, fields in sources.items()}
        return account


class Ledger:
    """The accounts of all partitions that a stage reads.

    Args:
        partial: the partitions (topic and number) whose first records are not read.

    >>> ledger = Ledger()
    >>> mark = WatermarkRecord(source="JFK", epoch=1, sequence=0, watermark=12, partitions=1, emitted_at=0, records=3)
    >>> for found in ledger.take(mark, topic="flights", partition=0, offset=2, rows=2):
    ...     print(found)
    lost rows: flights/0 between the beginning and offset 2: 1 rows, by the marks of source JFK
    """

    def __init__(self, partial: Collection[tuple[str, int]] = ()) -> None:
        """Begin with nothing read."""
        self._partial = frozenset(partial)
        self._accounts: dict[tuple[str, int], _Account] = {}

    def take(
        self, record: WatermarkRecord, *, topic: str, partition: int, offset: int, rows: int, most: int | None = None
    ) -> Iterator[Discrepancy]:
        """Note a mark.

        Args:
            record: the mark.
            topic: where it stands.
            partition: where it stands.
            offset: where it stands.
            rows: data records between the last `read` of this partition and the mark; the least there can be.
            most: the most there can be; default: ``rows`` is exact.
        """
        account = self._account(topic, partition)
        for discord, after, count in account.take(
            record, offset, account.rows + rows, account.rows + max(rows, most or 0)
        ):
            yield Discrepancy(discord, topic, partition, after, offset, record.source, count)

    def read(self, topic: str, partition: int, rows: int) -> None:
        """Note that so many more data records of a partition have been read."""
        self._account(topic, partition).rows += rows

    def _account(self, topic: str, partition: int) -> _Account:
        place = (topic, partition)
        account = self._accounts.get(place)
        if account is None:
            account = self._accounts[place] = _Account(whole=place not in self._partial)
        return account

    def snapshot(self) -> dict[str, Any]:
        """Return all of it as a value that JSON can carry; `restore` gives an equal ledger."""
        accounts = [[topic, partition, account.state()] for (topic, partition), account in self._accounts.items()]
        return {"format": FORMAT, "partial": sorted(self._partial), "accounts": accounts}

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> "Ledger":
        """Build a ledger from what `snapshot` returned.

        Raises:
            CorruptSnapshotError: where it is of another format or damaged.
        """
        try:
            if snapshot["format"] != FORMAT:
                reason = f"its format is {snapshot['format']}, expected {FORMAT}"
                advice = "use the Floodmark version that wrote it"
                raise CorruptSnapshotError(where="of the ledger", reason=reason, advice=advice)
            ledger = cls({(topic, partition) for topic, partition in snapshot["partial"]})
            for topic, partition, state in snapshot["accounts"]:
                ledger._accounts[topic, partition] = _Account.of(state)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptSnapshotError(
                where="of the ledger", reason=f"{type(error).__name__}: {error}", advice="restore an intact copy"
            ) from error
        return ledger
