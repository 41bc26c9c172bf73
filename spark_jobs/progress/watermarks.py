"""The watermarks of a job: Spark's, and that of its output, which follows from how early results may be.  Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Literal

from floodmark.schemas.timestamps import END_OF_TIME, milliseconds
from floodmark.spark_jobs.queries.plan import Windows

WindowsClose = Literal["after", "at"]
"""When the watermark T closes a window that ends at E: ``after``: T > E; ``at``: T >= E."""

_MICROS: Final = 1000
UNLIMITED: Final = 1 << 62  # how much earlier than its end the start of a session may be, microseconds


def spark_watermark(watermark: int, windows_close: WindowsClose) -> int:
    """Convert a watermark T (no later event below T) to Spark's, by which rows are late if ``event_time <= watermark``.

    ``after`` gives T - 1 ms, so no operator drops a row at exactly T.  ``at`` gives T, which closes a window one mark
    earlier, but operators on raw event times (joins, dropDuplicates, timers, ``groupBy`` of a time) drop a row at
    exactly T.

    >>> spark_watermark(12, "after"), spark_watermark(12, "at"), spark_watermark(END_OF_TIME, "after") == END_OF_TIME
    (11, 12, True)
    """
    return watermark - 1 if windows_close == "after" and watermark != END_OF_TIME else watermark


def from_spark_watermark(watermark: int, windows_close: WindowsClose) -> int | None:
    """Convert Spark's watermark back; Spark writes 0 for none.

    >>> from_spark_watermark(11, "after"), from_spark_watermark(12, "at"), from_spark_watermark(0, "at")
    (12, 12, None)
    """
    if watermark == 0:
        return None
    return watermark + 1 if windows_close == "after" and watermark != END_OF_TIME else watermark


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound of a time: it is at most ``before`` microseconds earlier than the time of its anchor."""

    anchor: tuple[int, ...] = ()
    """The column of the anchor: an event time, or the windows of an aggregate, whose time is their end."""
    before: int = 0
    is_end: bool = False  # whether a later anchor is after Spark's watermark; if not, it is not before Floodmark's
    windows: Windows | None = None  # if the anchor is the end of a fixed window: these windows

    def earlier(self, more: int) -> "Bound":
        """Return the bound of a time that is ``more`` microseconds earlier."""
        return replace(self, before=self.before + more)

    def lowest(self, complete: int, windows_close: WindowsClose) -> int:
        """Return the lowest time in later results; ``complete`` and the result are epoch milliseconds."""
        anchor = complete * _MICROS
        if self.is_end:
            closed = spark_watermark(complete, windows_close) * _MICROS
            anchor = closed + 1 if self.windows is None else self.windows.next_end(closed)
        return (anchor - self.before) // _MICROS


@dataclass(frozen=True, slots=True)
class Stamp:
    """The event time of results, with a bound for each way in which the query computes it; none: unknown.

    >>> windows = Windows(slide=10_000_000, start=0, width=10_000_000)
    >>> start = Stamp([Bound((), windows.width, is_end=True, windows=windows)])
    >>> start.output(13_000, "after"), start.output(20_000, "after"), start.output(20_001, "after")
    (10000, 10000, 20000)
    >>> Stamp().output(13_000, "after"), Stamp.held(timedelta(seconds=10)).output(13_000, "after")
    (13000, 3000)
    """

    bounds: Sequence[Bound] = ()

    @classmethod
    def held(cls, hold: timedelta) -> "Stamp":
        """Return the stamp that may be this much earlier than the completion of its result."""
        return cls([Bound(before=milliseconds(hold) * _MICROS)])

    @property
    def is_unlimited(self) -> bool:
        """Whether it may be any time before the completion of its result."""
        return any(bound.before >= UNLIMITED for bound in self.bounds)

    def output(self, complete: int | None, windows_close: WindowsClose) -> int | None:
        """Return the output watermark by the watermark up to which results are complete, epoch milliseconds."""
        if complete is None or complete == END_OF_TIME:
            return complete
        return min([complete, *(bound.lowest(complete, windows_close) for bound in self.bounds)])
