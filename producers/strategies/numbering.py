"""What marks of one source have in common, and what numbers them in each partition.  Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import Holder, Membership, Number, Round, Status, WatermarkRecord


@dataclass(frozen=True, slots=True)
class Identity:
    """Who writes: the fields that all marks of a source have in common.

    Raises:
        InvalidRecordError: where no mark can hold them.
    """

    source: str
    epoch: int
    membership: Membership = Membership()  # noqa: RUF009  # frozen
    lease: int | None = None

    def __post_init__(self) -> None:
        """Refuse at once what the first mark would be refused for."""
        self.mark(partitions=1, now=0)

    def mark(
        self,
        *,
        partitions: int,
        now: int,
        watermark: int | None = None,
        status: Status = Status.ACTIVE,
        processing_time_watermark: int | None = None,
        percentiles: Mapping[int, int] | None = None,
        holder: Holder | None = None,
    ) -> WatermarkRecord:
        """Return a mark without its number; by default it has no watermark."""
        return WatermarkRecord(
            source=self.source,
            epoch=self.epoch,
            sequence=0,
            watermark=watermark,
            partitions=partitions,
            emitted_at=now,
            status=status,
            membership=self.membership,
            processing_time_watermark=processing_time_watermark,
            lease=self.lease,
            percentiles=percentiles,
            holder=holder,
        )

    def with_membership(self, membership: Membership) -> Self:
        """Return the same writer in a newer membership.

        Raises:
            UsageError: where the version is lower, or the same with another size.
        """
        last = self.membership
        if membership.version < last.version or (membership.version == last.version and membership != last):
            reason = f"membership {membership} after {last}, expected a version of at least {last.version + 1}"
            raise UsageError(reason=f"source {self.source!r}: {reason}")
        return replace(self, membership=membership)


class Numbering:
    """The records and marks of one epoch, counted in each partition.

    >>> numbering = Numbering()
    >>> numbering.count(1, records=5)
    >>> mark = Identity("JFK", epoch=1).mark(partitions=2, now=0)
    >>> [(partition, one.sequence, one.records) for partition, one in numbering.number(mark)]
    [(0, 0, 0), (1, 0, 5)]
    >>> numbering.unmark(1)  # whether there is one left
    False
    >>> [(partition, one.sequence, one.records) for partition, one in numbering.number(mark)]
    [(0, 1, 0), (1, 0, 5)]
    """

    def __init__(self) -> None:
        self._records: Counter[int] = Counter()
        self._sequences: Counter[int] = Counter()
        self._ended: set[int] = set()

    def count(self, partition: int, records: int) -> None:
        """Add so many records; fewer than 0 takes them back."""
        self._records[partition] += records

    @property
    def records(self) -> int:
        """How many records there are in all partitions."""
        return self._records.total()

    def number(self, mark: WatermarkRecord, *, counted: bool = True) -> Round:
        """Return the mark for every partition, with its sequence there; none where one with the end stands already.

        Args:
            mark: what stands in all of them.
            counted: whether every record was counted; else the marks do not state how many.
        """
        numbers = []
        for partition in range(mark.partitions):
            if partition not in self._ended:
                records = self._records[partition] if counted else None
                numbers.append(Number(partition, self._sequences[partition], records))
                self._sequences[partition] += 1
        if mark.status is Status.ENDED:
            self._ended.update(range(mark.partitions))
        return Round(mark, numbers)

    def unmark(self, partition: int) -> bool:
        """Take back the last mark of a partition; returns whether there is one left."""
        self._sequences[partition] -= 1
        self._ended.discard(partition)
        return self._sequences[partition] > 0
