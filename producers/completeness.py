"""Hand rows on only when they are complete: a buffer that a watermark releases, row by row or window by window.  Pure.

The invariant: *what is handed out below a watermark is all there will ever be below it*, as far as the sources keep
their promises; a row that comes behind it is late, counted, and handed out apart.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from floodmark.schemas.errors import UsageError
from floodmark.schemas.timestamps import END_OF_TIME, is_late

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Window(Generic[Row]):
    """All rows with ``start <= event_time < end``, in the order of their event times; times in epoch milliseconds."""

    start: int
    end: int
    rows: tuple[Row, ...]


class Buffer(Generic[Row]):
    """Rows that wait for their watermark.

    >>> buffer = Buffer()
    >>> for event_time, row in ((15, "c"), (12, "b"), (3, "a")):
    ...     _ = buffer.add(event_time, row)
    >>> [row for _, row in buffer.release(12)]  # 12 itself may still come again
    ['a']
    >>> buffer.add(5, "too late"), buffer.late
    (False, 1)
    """

    def __init__(self, watermark: int | None = None) -> None:
        """Begin empty, with all below ``watermark`` handed out already."""
        self.late = 0
        """How many rows came behind what was handed out."""
        self._watermark = watermark
        self._number = 0
        self._waiting: list[tuple[int, int, Row]] = []

    def __len__(self) -> int:
        """Return how many rows wait."""
        return len(self._waiting)

    @property
    def watermark(self) -> int | None:
        """What rows have been handed out below."""
        return self._watermark

    def add(self, event_time: int, row: Row) -> bool:
        """Take a row; tells whether it can wait, that is whether it is not late."""
        if is_late(event_time, self._watermark):
            self.late += 1
            return False
        self._number += 1
        heapq.heappush(self._waiting, (event_time, self._number, row))
        return True

    def waiting(self) -> Iterator[Row]:
        """Give all rows that wait, in no order."""
        return (row for _, _, row in self._waiting)

    def release(self, watermark: int | None) -> Iterator[tuple[int, Row]]:
        """Give the rows below a watermark in the order of their event times; one of the same time in that of `add`."""
        if watermark is None or (self._watermark is not None and watermark <= self._watermark):
            return
        self._watermark = watermark
        while self._waiting and self._waiting[0][0] < watermark:
            event_time, _, row = heapq.heappop(self._waiting)
            yield event_time, row

    def windows(self, width: int, watermark: int | None) -> Iterator[Window[Row]]:
        """Give the tumbling windows that end at or below a watermark and have rows, the earliest first.

        Args:
            width: milliseconds, more than 0; windows begin at its multiples.
            watermark: epoch milliseconds; the end of time completes all.
        """
        if width <= 0:
            raise UsageError(reason=f"the width of windows is {width} ms, expected more than 0")
        if watermark is None:
            return
        complete = watermark if watermark == END_OF_TIME else watermark // width * width
        start, rows = 0, list[Row]()
        for event_time, row in self.release(complete):
            begin = event_time // width * width
            if rows and begin != start:
                yield Window(start, start + width, tuple(rows))
                rows = []
            start = begin
            rows.append(row)
        if rows:
            yield Window(start, start + width, tuple(rows))
