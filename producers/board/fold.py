"""Fold the marks of any number of topics into a board.  Pure.

A topic's watermark here is that of a reader that starts where the marks start (`topic_state`).  The last marks of each
source in each partition give its verdict (`source_history`).  A job is a source whose marks name a holder; the holder's
topic is one of its inputs.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from floodmark.producers.board.build import build
from floodmark.producers.board.model import Board
from floodmark.producers.board.source_history import TopicMarks
from floodmark.producers.board.timeline import Timeline
from floodmark.schemas.classify import Classified, Data, Mark
from floodmark.schemas.timestamps import END_OF_TIME

_AHEAD: Final = 1_000
"""Milliseconds that a log time may be ahead of the reader's clock without a note."""


class Fold:
    """Takes marks, and gives the board of them at any time.

    >>> from floodmark.schemas.records import WatermarkRecord
    >>> fold = Fold(["clicks"])
    >>> for number in range(2):
    ...     mark = WatermarkRecord(source="web", epoch=1, sequence=number, watermark=number, partitions=1, emitted_at=0)
    ...     fold.take(Mark("clicks", 0, number, number * 1_000, mark))
    >>> clicks = fold.board(now=1_500).topic("clicks")
    >>> clicks.watermark, str(clicks.state), str(clicks.verdict), clicks.lags.wall
    (1, 'active', 'OK', 1499)
    """

    def __init__(self, topics: Iterable[str] = ()) -> None:
        self._topics = {topic: TopicMarks() for topic in topics}
        self._unread: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._newest: tuple[int, str] | None = None
        self.timeline: Final = Timeline()

    @property
    def topics(self) -> frozenset[str]:
        """The topics on the board."""
        return frozenset(self._topics)

    def named(self) -> set[str]:
        """Return the topics that marks name as inputs, and that nobody has tried to read yet."""
        inputs = {topic for marks in self._topics.values() for named in marks.inputs.values() for topic in named}
        return inputs - self._topics.keys() - self._unread.keys()

    def add(self, topic: str, *, whole: bool = False) -> None:
        """Put a topic on the board."""
        self._topics.setdefault(topic, TopicMarks()).whole = whole
        self._unread.pop(topic, None)

    def refuse(self, topic: str, reason: str) -> None:
        """Note that a topic of the chain could not be read."""
        self._topics.pop(topic, None)
        self._unread[topic] = reason

    def take(self, record: Classified, read_at: int | None = None) -> None:
        """Take the next record of a partition; ``read_at``: the clock when it arrived, ``None`` for past records."""
        if isinstance(record, Data):
            return
        marks = self._topics.setdefault(record.topic, TopicMarks())
        if not isinstance(record, Mark):
            if record.source is not None:
                marks.state.apply_unreadable(record.source, record.partition, record.offset, record.log_time)
            return
        marks.take(record, self._counts, read_at)
        self.timeline.note(record.topic, record.log_time, marks.state)
        if self._newest is None or record.log_time > self._newest[0]:
            self._newest = (record.log_time, str(record.place))

    def read_until(self, topic: str, time: int) -> None:
        """Note when the reader was last at the end of a topic, epoch milliseconds: later silence says nothing."""
        self._topics[topic].read_until = time

    def lacking(self, topic: str, partitions: Collection[int], *, since: bool = False) -> set[int]:
        """Return the partitions of which earlier records are needed for the verdicts."""
        return {number for number in partitions if self._topics[topic].lacks(number, since=since)}

    def board(self, now: int, *, answered: bool = True) -> Board:
        """Return the board at ``now``, epoch milliseconds; ``answered``: whether Kafka answers."""
        said = [] if answered else ["no Kafka broker answers; the board shows the last records that it has read"]
        if self._newest is not None and _AHEAD < self._newest[0] - now < END_OF_TIME:
            seconds = (self._newest[0] - now) / 1000
            said.append(f"clocks disagree: the log time of {self._newest[1]} is {seconds:,.0f} s ahead of this machine")
        return replace(build(self._topics, now, self._unread, said), answered=answered)
