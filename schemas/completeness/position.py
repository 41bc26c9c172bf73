"""Where a consumer stands, as a value to store beside the results.  Pure.

A position says which rows were handed out (all below a time, and of those at that very time the first few), where each
partition is to be read from to find the others again, and what the marks have promised so far.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from floodmark.schemas.classify import Partition, Place
from floodmark.schemas.errors import CorruptSnapshotError, RecreatedTopicError
from floodmark.schemas.stored_format import require_format, restoring
from floodmark.schemas.tracker import Tracker


class TopicIds(dict[str, str]):
    """By topic the id that it had when it was first read; stored beside the offsets, which mean nothing without it.

    A topic whose id is not known is not here: brokers before Kafka 2.8 give none.

    >>> ids = TopicIds({"clicks": "Xq3"})
    >>> ids.compare({"clicks": "Xq3", "views": "b7A"}, "the consumer")
    >>> ids
    {'clicks': 'Xq3', 'views': 'b7A'}
    """

    def compare(self, found: Mapping[str, str], reader: str) -> None:
        """Compare topics with those that were read, and keep the ids that were not known.

        Raises:
            RecreatedTopicError: if a topic has another id.
        """
        for topic, now in found.items():
            known = self.setdefault(topic, now)
            if known != now:
                raise RecreatedTopicError(reader=reader, topic=topic, known=known, found=now)


FORMAT: Final = 1
_WHERE: Final = "of the consumer"
_ADVICE: Final = "begin without a position, or with one of these topics"


class Position:
    """A value that can be stored with the results, and begun from again: ``Position(text)``.

    Equal where the text is equal.  The text is written when it is first asked for, so a position costs next to nothing
    until then.
    """

    __slots__ = ("_text", "_write")

    def __init__(self, text: str | Callable[[], str]) -> None:
        self._text = text if isinstance(text, str) else None
        self._write = text if callable(text) else None

    @property
    def text(self) -> str:
        """JSON."""
        if self._text is None and self._write is not None:
            self._text, self._write = self._write(), None
        return self._text or ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Position) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Position({self.text!r})"

    def __reduce__(self) -> tuple[type["Position"], tuple[str]]:
        return Position, (self.text,)


@dataclass(frozen=True, slots=True)
class ReaderState:
    """What the positions of one call share."""

    tracker: Mapping[str, Any]
    """A snapshot of the tracker."""
    places: Mapping[Partition, tuple[int, int]]
    """Of each partition: the offset to begin at, and the one below which it has been read."""
    judged: Mapping[str, list[Any] | None]
    """Of each topic without a row that has a time: what is known of those without; ``None``: there was one."""
    ids: TopicIds

    def at(self, done: int | None, last: Place | None = None) -> Position:
        """Return the position where all rows below ``done`` are handed out, and those at it up to ``last``."""
        return Position(lambda: self._text(done, last))

    def _text(self, done: int | None, last: Place | None) -> str:
        state = {
            "format": FORMAT,
            "handed_out_below": done,
            "last_handed_out": last,
            "tracker": self.tracker,
            "partitions": [[*place, *offsets] for place, offsets in sorted(self.places.items())],
            "untimed": self.judged,
            "topic_ids": self.ids,
        }
        return json.dumps(state)


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a position says, ready to go on from."""

    tracker: Tracker
    begin: dict[Partition, int] = field(default_factory=dict)
    """Where to read from."""
    read: dict[Partition, int] = field(default_factory=dict)
    """Below it, a partition has been read before: its marks are in the tracker, its records counted."""
    done: int | None = None
    """All rows below it were handed out."""
    last: Place | None = None
    """Of the rows at exactly ``done``, those up to here were handed out."""
    judged: dict[str, list[Any] | None] = field(default_factory=dict)
    ids: TopicIds = field(default_factory=TopicIds)
    """Which topics the offsets are of."""


def resume(position: Position | None, topics: Collection[str]) -> Resumed:
    """Return where to go on.

    Raises:
        CorruptSnapshotError: if the text is no position, or one of other topics.
    """
    if position is None:
        return Resumed(Tracker(topics))
    with restoring(_WHERE, _ADVICE):
        resumed = _parse(json.loads(position.text))
    if resumed.tracker.topics != frozenset(topics):
        found, expected = (", ".join(sorted(names)) for names in (resumed.tracker.topics, topics))
        reason = f"it is of topics {found}, expected {expected}"
        raise CorruptSnapshotError(where=_WHERE, reason=reason, advice=_ADVICE)
    return resumed


def _parse(state: Mapping[str, Any]) -> Resumed:
    require_format(state, FORMAT)
    last = state["last_handed_out"]
    return Resumed(
        Tracker.restore(state["tracker"]),
        begin={(topic, partition): begin for topic, partition, begin, _ in state["partitions"]},
        read={(topic, partition): read for topic, partition, _, read in state["partitions"]},
        done=state["handed_out_below"],
        last=None if last is None else Place(*last),
        judged=state["untimed"],
        ids=TopicIds(state["topic_ids"]),
    )
