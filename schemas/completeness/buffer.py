"""Hand rows on only when they are complete: a buffer that a watermark releases, row by row or window by window.  Pure.

The invariant: *what is handed out below a watermark is all there will ever be below it*, as far as the sources keep
their promises; a row that comes behind it is late, counted, and handed out apart.

`Buffer.release` and `Buffer.windows` do all their work when they are called, and return lists.
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
        self.late = 0
        """How many rows came behind what was handed out."""
        self._watermark = watermark
        self._number = 0
        self._waiting: list[tuple[int, Any, Row]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def watermark(self) -> int | None:
        """What rows have been handed out below."""
        return self._watermark

    def add(self, event_time: int, row: Row, order: object = None) -> bool:
        """Take a row; tells whether it can wait, that is whether it is not late.

        Args:
            event_time: epoch milliseconds.
            row: what to hand out later.
            order: comes between rows of the same time, no two alike; default: the order of `add`.  All or none.
        """
        if is_late(event_time, self._watermark):
            self.late += 1
            return False
        self._number += 1
        heapq.heappush(self._waiting, (event_time, self._number if order is None else order, row))
        return True

    def release(self, watermark: int | None) -> list[tuple[int, Row]]:
        """Return the rows below a watermark, in the order of their event times; the end of time releases all."""
        if watermark is None or (self._watermark is not None and watermark < self._watermark):
            return []
        self._watermark = watermark
        released = []
        while self._waiting and (is_late(self._waiting[0][0], watermark) or watermark == END_OF_TIME):
            event_time, _, row = heapq.heappop(self._waiting)
            released.append((event_time, row))
        return released

    def windows(self, width: int, watermark: int | None) -> list[Span[Row]]:
        """Return the tumbling windows that end at or below a watermark and have rows, the earliest first.

        Args:
            width: milliseconds, more than 0; windows begin at its multiples.
            watermark: epoch milliseconds; the end of time completes all.

        Raises:
            UsageError: if the width is not more than 0.
        """
        if width <= 0:
            raise UsageError(reason=f"the width of windows is {width} ms, expected more than 0")
        if watermark is None:
            return []
        rows: dict[int, list[Row]] = {}
        for event_time, row in self.release(watermark if watermark == END_OF_TIME else watermark // width * width):
            rows.setdefault(event_time // width * width, []).append(row)
        return [Span(start, start + width, tuple(members)) for start, members in rows.items()]
