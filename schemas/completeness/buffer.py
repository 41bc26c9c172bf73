"""A buffer that returns rows when a watermark has passed them, row by row or window by window.  Pure.

The invariant: *rows returned below a watermark are all rows below it*, as far as the marks are right.  A later one is
late and counted.
"""

import heapq
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from floodmark.schemas.errors import UsageError
from floodmark.schemas.timestamps import END_OF_TIME, is_late

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Span(Generic[Row]):
    """All rows with ``start <= event_time < end``, in the order of their event times; times in epoch milliseconds."""

    start: int
    end: int
    rows: tuple[Row, ...]


class Buffer(Generic[Row]):
    """Rows that wait for the watermark.

    >>> buffer = Buffer()
    >>> for event_time, row in ((15, "c"), (12, "b"), (3, "a")):
    ...     _ = buffer.add(event_time, row)
    >>> [row for _, row in buffer.release(12)]  # more rows at 12 may follow
    ['a']
    >>> buffer.add(5, "too late"), buffer.late
    (False, 1)
    """

    def __init__(self, watermark: int | None = None) -> None:
        self.late = 0
        self.watermark = watermark
        """All rows below it were returned."""
        self._number = 0
        self._waiting: list[tuple[int, Any, Row]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, event_time: int, row: Row, order: object = None) -> bool:
        """Add a row, unless it is late; return whether it was added.

        ``order`` sorts rows with the same time, and is unique; default: the order of `add`.  Give it for all rows or
        none.
        """
        if is_late(event_time, self.watermark):
            self.late += 1
            return False
        self._number += 1
        heapq.heappush(self._waiting, (event_time, self._number if order is None else order, row))
        return True

    def release(self, watermark: int | None) -> list[tuple[int, Row]]:
        """Remove and return the rows below a watermark, by event time; `END_OF_TIME` releases all."""
        if watermark is None or (self.watermark is not None and watermark < self.watermark):
            return []
        self.watermark = watermark
        released = []
        while self._waiting and (is_late(self._waiting[0][0], watermark) or watermark == END_OF_TIME):
            event_time, _, row = heapq.heappop(self._waiting)
            released.append((event_time, row))
        return released

    def windows(self, width: int, watermark: int | None) -> list[Span[Row]]:
        """Remove and return the tumbling windows with rows that end at or below a watermark, the earliest first.

        Windows begin at multiples of ``width``, milliseconds, more than 0.  The end of time completes all windows.
        """
        if width <= 0:
            raise UsageError(reason=f"the width of windows is {width} ms, expected more than 0")
        if watermark is None:
            return []
        rows: dict[int, list[Row]] = {}
        for event_time, row in self.release(watermark if watermark == END_OF_TIME else watermark // width * width):
            rows.setdefault(event_time // width * width, []).append(row)
        return [Span(start, start + width, tuple(members)) for start, members in rows.items()]
