"""Conversion between Floodmark's watermarks and Spark's.  Pure."""

from typing import Literal

from floodmark.schemas.timestamps import END_OF_TIME

WindowsClose = Literal["after", "at"]
"""When the watermark T closes a window that ends at E: ``after``: T > E; ``at``: T >= E."""


def spark_watermark(watermark: int, windows_close: WindowsClose) -> int:
    """Convert a watermark T (no later event below T) to Spark's, by which rows are late if ``event_time <= watermark``.

    ``after`` gives T - 1 ms, so no operator drops a row at exactly T.  ``at`` gives T, which closes a window one mark
    earlier, but operators on raw event times (session windows, joins, dropDuplicates, timers) drop a row at exactly T.

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
