"""The sequence numbers and record counts of the marks of producers, the injector and Spark jobs.  Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypedDict

from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import Holder, Membership, Number, Round, Status, WatermarkRecord
from typing_extensions import Unpack


class Promise(TypedDict, total=False):
    """The fields of a `WatermarkRecord` that differ between marks; default: active, watermark unknown."""

    watermark: int | None
    status: Status
    processing_time_watermark: int | None
    percentiles: Mapping[int, int] | None
    holder: Holder | None


@dataclass(frozen=True, slots=True)
class Identity:
    """The fields that all marks of a source have in common; `InvalidRecordError` if one is out of its range."""

    source: str
    epoch: int
    membership: Membership = Membership()  # noqa: RUF009  # frozen
    lease: int | None = None  # milliseconds

    def __post_init__(self) -> None:
        """Check the fields now, not at the first mark."""
        self.mark(partitions=1, now=0)

    def mark(
        self, *, partitions: int, now: int, sequence: int = 0, records: int | None = None, **promise: Unpack[Promise]
    ) -> WatermarkRecord:
        """Return a mark; ``now``: wall clock, epoch milliseconds."""
        fields: Promise = {"watermark": None, **promise}
        return WatermarkRecord(
            source=self.source,
            epoch=self.epoch,
            sequence=sequence,
            partitions=partitions,
            emitted_at=now,
            membership=self.membership,
            records=records,
            lease=self.lease,
            **fields,
        )

    def with_membership(self, membership: Membership) -> Self:
        """Return the writer with a newer membership; `UsageError` for a lower version, or another size of the same."""
        last = self.membership
        if membership.version < last.version or (membership.version == last.version and membership != last):
            reason = f"membership {membership} after {last}, expected a version of at least {last.version + 1}"
            raise UsageError(reason=f"source {self.source!r}: {reason}")
        return replace(self, membership=membership)


class MarkWriter:
    """Builds the marks of one epoch, and counts its records and marks in each partition.

    >>> writer = MarkWriter(Identity("JFK", epoch=1), partitions=2)
    >>> writer.count(1, records=5)
    >>> [(partition, one.sequence, one.records) for partition, one in writer.marks(now=0)]
    [(0, 0, 0), (1, 0, 5)]
    >>> writer.unmark(1)  # whether there is one left
    False
    >>> [(partition, one.sequence, one.records) for partition, one in writer.marks(now=0)]
    [(0, 1, 0), (1, 0, 5)]
    >>> writer.mark(1, now=0, watermark=12).sequence
    1

    A record that failed is not counted, unless a mark that counts it is in the topic:

    >>> writer.discount(1)
    >>> writer.delivered(1, failed=True)
    >>> writer.delivered(1, failed=True)
    >>> writer.counts[1]
    4
    """

    def __init__(self, identity: Identity, partitions: int) -> None:
        self.identity = identity
        self.partitions = partitions
        self.counts: defaultdict[int, int] = defaultdict(int)  # the records of each partition
        self._sequences: defaultdict[int, int] = defaultdict(int)
        self._delivered: defaultdict[int, int] = defaultdict(int)  # marks that Kafka has acknowledged or rejected
        self._doubtful: defaultdict[int, int] = defaultdict(int)  # failed records that marks in flight count
        self._ended: set[int] = set()

    def count(self, partition: int, records: int) -> None:
        """Add a number of records; a negative one undoes it."""
        self.counts[partition] += records

    def discount(self, partition: int) -> None:
        """Undo the count of a record that failed; if marks behind it are in flight, only when Kafka rejects them."""
        self._doubtful[partition] += 1
        self._settle(partition)

    def delivered(self, partition: int, *, failed: bool) -> None:
        """Take the delivery report of a mark: from a mark that failed, no reader knows a count."""
        self._delivered[partition] += 1
        if not failed:
            self._doubtful.pop(partition, None)
        self._settle(partition)

    def _settle(self, partition: int) -> None:
        if self._sequences[partition] <= self._delivered[partition]:
            self.counts[partition] -= self._doubtful.pop(partition, 0)

    @property
    def doubtful(self) -> bool:
        """Whether readers may know the count of a record that failed; then wait with marks, which must agree."""
        return bool(self._doubtful)

    @property
    def ended(self) -> bool:
        """Whether each partition has the mark of the end."""
        return len(self._ended) == self.partitions

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next mark of partition 0; no mark of this writer has a higher one."""
        return self._sequences[0]

    def grow(self, partitions: int) -> bool:
        """Set the topic's partition count, if it is higher; return whether it was."""
        grew = partitions > self.partitions
        self.partitions = max(self.partitions, partitions)
        return grew

    def mark(self, partition: int, now: int, **promise: Unpack[Promise]) -> WatermarkRecord:
        """Return the next mark of one partition; ``now``: wall clock, epoch milliseconds."""
        _, sequence, records = self._number(partition)
        return self.identity.mark(partitions=self.partitions, now=now, sequence=sequence, records=records, **promise)

    def marks(
        self, now: int, *, counted: bool = True, apart: Sequence[Promise] | None = None, **promise: Unpack[Promise]
    ) -> Round:
        """Return the next mark of every partition, except those with the mark of the end; ``apart``: by partition."""
        mark = self.identity.mark(partitions=self.partitions, now=now, **promise)
        open_ = [partition for partition in range(self.partitions) if partition not in self._ended]
        if mark.status is Status.ENDED:
            self._ended.update(open_)
        return Round(mark, [self._number(partition, counted=counted) for partition in open_], apart)

    def _number(self, partition: int, *, counted: bool = True) -> Number:
        number = Number(partition, self._sequences[partition], self.counts[partition] if counted else None)
        self._sequences[partition] += 1
        return number

    def unmark(self, partition: int) -> bool:
        """Undo the last mark of a partition; return whether it still has one."""
        self._sequences[partition] -= 1
        self._ended.discard(partition)
        self._settle(partition)
        return self._sequences[partition] > 0
