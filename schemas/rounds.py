"""The marks that a source sends at one time, one for each partition: they differ in their numbers alone.  Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, overload

from floodmark.schemas.records import WatermarkRecord


class Number(NamedTuple):
    """What is said of one partition alone."""

    partition: int
    sequence: int
    records: int | None


class Round:
    """A partition and its mark, for each; the records are made as they are asked for.

    Args:
        shared: what all of them say.
        numbers: of each partition.

    >>> mark = WatermarkRecord(source="JFK", epoch=1, sequence=0, watermark=12, partitions=2, emitted_at=15)
    >>> round_ = Round(mark, [Number(0, sequence=4, records=7), Number(1, sequence=9, records=None)])
    >>> [(partition, one.sequence, one.records, one.watermark) for partition, one in round_]
    [(0, 4, 7, 12), (1, 9, None, 12)]
    """

    def __init__(self, shared: WatermarkRecord, numbers: Sequence[Number]) -> None:
        self.shared = shared
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[tuple[int, WatermarkRecord]]:
        return (self[position] for position in range(len(self.numbers)))

    @overload
    def __getitem__(self, index: int) -> tuple[int, WatermarkRecord]: ...

    @overload
    def __getitem__(self, index: slice) -> "Round": ...

    def __getitem__(self, index: int | slice) -> "tuple[int, WatermarkRecord] | Round":
        if isinstance(index, slice):
            return Round(self.shared, self.numbers[index])
        partition, sequence, records = self.numbers[index]
        return partition, replace(self.shared, sequence=sequence, records=records)
