"""The watermarks of the last minutes, to draw.  Pure."""

from collections import deque
from datetime import timedelta
from typing import Final

from floodmark.producers.board.view import Board
from floodmark.schemas.timestamps import milliseconds

KEPT: Final = timedelta(minutes=15)
"""How far back a timeline reaches."""
_STEPS: Final = 900
"""So many points are kept of a topic at most: more than a screen has places for."""

Point = tuple[int, int]
"""When it was looked at, and the watermark then; epoch milliseconds both."""


class Timeline:
    """Keep the watermark of each topic at each look, of the last minutes.

    >>> from floodmark.producers.board.fold import Fold
    >>> from floodmark.schemas.classify import Mark
    >>> from floodmark.schemas.records import WatermarkRecord
    >>> fold, timeline = Fold(["clicks"]), Timeline()
    >>> mark = WatermarkRecord(source="web", epoch=1, sequence=0, watermark=7, partitions=1, emitted_at=0)
    >>> fold.take(Mark("clicks", 0, 0, 0, mark))
    >>> timeline.add(fold.board(now=1_000))
    >>> timeline.add(fold.board(now=2_000))
    >>> timeline.after(1_000)
    {'clicks': [(2000, 7)]}
    """

    def __init__(self) -> None:
        self._points: dict[str, deque[Point]] = {}
        self._apart = milliseconds(KEPT) // _STEPS

    def add(self, board: Board) -> None:
        """Keep what a board says; a topic without a watermark has no point to draw."""
        oldest = board.now - milliseconds(KEPT)
        for topic in board.topics():
            points = self._points.setdefault(topic.topic, deque())
            while points and points[0][0] < oldest:
                points.popleft()
            if topic.watermark is not None and (not points or board.now - points[-1][0] >= self._apart):
                points.append((board.now, topic.watermark))

    def after(self, moment: int) -> dict[str, list[Point]]:
        """Return the points of each topic that were added for later looks than that of a moment."""
        return {topic: [point for point in points if point[0] > moment] for topic, points in self._points.items()}
