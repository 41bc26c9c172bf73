"""Fold the marks of any number of topics into a board.  Pure.

Each topic follows the same rules as everywhere (`topic_state`), so its watermark here is that of a reader that starts
where the marks start.  Each source in each partition is judged by its last marks (`source_history`).  The chain is
found from the records alone: a job is a source whose marks name a holder, and the holder's topic is one of its inputs.
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
"""So many milliseconds may a log time be ahead of the reader's clock without a word."""


class Fold:
    """Keep what marks say, and draw a board of it at any time.

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
        """Return the topics that marks name as inputs, and that neither stand on the board nor could not be read."""
        inputs = {topic for marks in self._topics.values() for named in marks.inputs.values() for topic in named}
        return inputs - self._topics.keys() - self._unread.keys()

    def add(self, topic: str, *, whole: bool = False) -> None:
        """Put a topic on the board."""
        self._topics.setdefault(topic, TopicMarks()).whole = whole
        self._unread.pop(topic, None)

    def refuse(self, topic: str, reason: str) -> None:
        """Say that a topic of the chain could not be read."""
        self._topics.pop(topic, None)
        self._unread[topic] = reason

    def take(self, record: Classified, read_at: int | None = None) -> None:
        """Take a record; those of one partition in their order.

        Args:
            record: a mark, readable or not; data are passed over.
            read_at: the reader's clock, where the record was read as it came; ``None``: it stood there before.
        """
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
        """Say that all that stood in a topic at a time of the reader's clock was taken; later silence is no news."""
        self._topics[topic].read_until = time

    def lacking(self, topic: str, partitions: Collection[int], *, since: bool = False) -> set[int]:
        """Return of some partitions those where more of the past is needed to judge every source."""
        return {number for number in partitions if self._topics[topic].lacks(number, since=since)}

    def board(self, now: int, *, answered: bool = True) -> Board:
        """Draw the board.

        Args:
            now: the reader's clock, epoch milliseconds; where a log time is ahead of it, that counts for silence.
            answered: whether Kafka answers; else what was read last is all that is known.
        """
        said = [] if answered else ["no Kafka broker answers; the board shows the last records that it has read"]
        if self._newest is not None and _AHEAD < self._newest[0] - now < END_OF_TIME:
            seconds = (self._newest[0] - now) / 1000
            said.append(f"clocks disagree: the log time of {self._newest[1]} is {seconds:,.0f} s ahead of this machine")
        return replace(build(self._topics, now, self._unread, said), answered=answered)
