"""The watermarks of the last minutes, rebuilt from the log times of the marks.  Pure."""

from collections import deque
from datetime import timedelta
from typing import Final, NamedTuple

from floodmark.schemas.timestamps import milliseconds
from floodmark.schemas.topic_state import TopicState

KEPT: Final = timedelta(minutes=15)
"""How much of the past a timeline holds."""
_KEPT: Final = milliseconds(KEPT)
_POINTS: Final = 900
"""A screen has room for about as many."""
_STEP: Final = _KEPT // _POINTS
"""Milliseconds between two points."""


class Point(NamedTuple):
    """The watermark of a topic at a time."""

    number: int
    """Rises with each point that is added, over all topics."""
    at: int
    """Log time of the mark, epoch milliseconds."""
    watermark: int
    """Epoch milliseconds."""


class Timeline:
    """Keep the watermark of each topic over the last 15 minutes, one point a second.

    >>> from collections import Counter
    >>> from floodmark.schemas.records import WatermarkRecord
    >>> state, timeline = TopicState(), Timeline()
    >>> for second in range(2):
    ...     mark = WatermarkRecord(source="web", epoch=1, sequence=second, watermark=7, partitions=1, emitted_at=0)
    ...     _ = state.apply(mark, 0, second * 1_000, Counter())
    ...     timeline.note("clicks", second * 1_000, state)
    >>> [(point.at, point.watermark) for point in timeline.points(now=1_000)["clicks"]]
    [(0, 7), (1000, 7)]
    """

    def __init__(self) -> None:
        self._points: dict[str, deque[Point]] = {}
        self._added = 0

    def note(self, topic: str, log_time: int, state: TopicState) -> None:
        """Add the topic's watermark, at most once a second; ``log_time``: of the last mark, epoch milliseconds."""
        points = self._points.setdefault(topic, deque(maxlen=_POINTS))
        if points and abs(log_time - points[-1].at) < _STEP:
            return
        watermark = state.combine().watermark
        if watermark is None:
            return
        while points and points[-1].at > log_time:
            points.pop()  # its log time was ahead of the clock
        self._added += 1
        points.append(Point(self._added, log_time, watermark))

    def points(self, now: int) -> dict[str, list[Point]]:
        """Return the points of each topic in the 15 minutes before ``now``, epoch milliseconds."""
        return {
            topic: [point for point in points if now - _KEPT <= point.at <= now]
            for topic, points in self._points.items()
        }
