"""The position of a consumer, as a value to store with the results.  Pure.

It has the time below which all rows were handed out, the last row that was handed out at exactly that time, the offsets
to read each partition from again, and the tracker.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Final, NamedTuple

from floodmark.schemas.classify import Partition, Place
from floodmark.schemas.counts import RecordCounts
from floodmark.schemas.errors import CorruptSnapshotError, RecreatedTopicError, UsageError
from floodmark.schemas.stored_format import require_format, restoring
from floodmark.schemas.tracker import Tracker


class TopicUser(NamedTuple):
    """Who has used a topic, and what to do if it is created again; for `RecreatedTopicError`."""

    name: str
    advice: str
    output: str | None = None  # a topic to which ``output_advice`` applies
    output_advice: str = ""

    @classmethod
    def injector(cls, source: str, target: str) -> "TopicUser":
        """Return an injector that writes to ``target``."""
        advice = "use a new output topic (--to) or, without --group, --reset"
        again = f"Start the injector again: it copies its input from the beginning. If this error comes back, {advice}"
        return cls(f"injector {source!r}", advice.capitalize(), target, again)

    @classmethod
    def job(cls, name: str) -> "TopicUser":
        """Return a job."""
        advice = "Start the job with a new checkpoint_location and an empty output (topic, table or store)"
        return cls(f"job {name!r}", advice)


class TopicIds(dict[str, str]):
    """The id of each topic when it was first read.  Stored offsets are only valid with it.

    Brokers before Kafka 2.8 give no ids; such a topic is missing here.

    >>> ids = TopicIds({"clicks": "Xq3"})
    >>> ids.compare({"clicks": "Xq3", "views": "b7A"}, TopicUser("the consumer", "Start it without a position"))
    >>> ids
    {'clicks': 'Xq3', 'views': 'b7A'}
    """

    def compare(self, found: Mapping[str, str], user: TopicUser) -> None:
        """Add new ids, or raise RecreatedTopicError if a topic has another id than before."""
        for topic, now in found.items():
            known = self.setdefault(topic, now)
            if known != now:
                advice = user.output_advice if topic == user.output else user.advice
                raise RecreatedTopicError(reader=user.name, topic=topic, known=known, found=now, advice=advice)


FORMAT: Final = 1
_WHERE: Final = "of the consumer"
_ADVICE: Final = "begin without a position, or with one of these topics"


class Position:
    """A value to store with the results, and to resume from: ``Position(text)``; equal if the texts are.

    The text is built when it is first read, so an unused position costs little.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str | Callable[[], str]) -> None:
        UsageError.unless_type("the text of a Position", text, (str, Callable), "the stored text")
        self._text = text

    @property
    def text(self) -> str:
        """The position as JSON text."""
        if not isinstance(self._text, str):
            self._text = self._text()
        return self._text

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
    """The common part of the positions of one call."""

    tracker: Mapping[str, Any]
    places: Mapping[Partition, tuple[int, int, int | None]]
    """Per partition: the offset to resume from, the end of what was read, and the time of a row that waits at the
    first.
    """
    judged: Mapping[str, list[Any] | None]
    """Per topic: count, place and error of records without event time; ``None``: a record had one."""
    ids: TopicIds
    polled: bool = False
    """Whether the caller reads records as they arrive: rows and windows from here on would lack those before."""
    record_counts: Mapping[str, Any] | None = None  # a snapshot of `RecordCounts`; ``None``: records are not counted

    def at(self, done: int | None, last: Place | None = None, waiting: int | None = None) -> Position:
        """Return the position after all rows below ``done``, and those at ``done`` up to ``last``, are handed out.

        ``waiting``: how many other rows were read; ``None``: unknown.
        """

        def text() -> str:
            state = {
                "format": FORMAT,
                "handed_out_below": done,
                "last_handed_out": last,
                "waiting": waiting,
                "tracker": self.tracker,
                "partitions": [[*place, *offsets] for place, offsets in sorted(self.places.items())],
                "untimed": self.judged,
                "polled": self.polled,
                "topic_ids": self.ids,
                "record_counts": self.record_counts,
            }
            return json.dumps(state)

        return Position(text)


@dataclass(frozen=True, slots=True)
class Resumed:
    """The parts of a position."""

    tracker: Tracker
    begin: dict[Partition, int] = field(default_factory=dict)
    read: dict[Partition, int] = field(default_factory=dict)
    """The end of what was read before: the tracker has the marks below, and the records are counted."""
    times: dict[Partition, int] = field(default_factory=dict)
    """The event time of the row at `begin`, if it waits there."""
    done: int | None = None  # all rows below this time were handed out
    last: Place | None = None  # the last row at exactly ``done`` that was handed out
    waiting: int | None = None  # how many rows were read and not handed out; ``None``: unknown
    judged: dict[str, list[Any] | None] = field(default_factory=dict)
    polled: bool = False
    ids: TopicIds = field(default_factory=TopicIds)
    record_counts: RecordCounts = field(default_factory=RecordCounts)


def topic_names(topics: Collection[str]) -> Collection[str]:
    """Return the names of topics; `UsageError` for a text, whose letters would be the names, no name, or one twice.

    >>> topic_names("orders")
    Traceback (most recent call last):
    floodmark.schemas.errors.UsageError: topics is 'orders', expected a list of names, each once
    """
    if isinstance(topics, str) or not topics or len(set(topics)) < len(topics):
        raise UsageError(reason=f"topics is {topics!r}, expected a list of names, each once")
    return topics


def resume(position: Position | None, topics: Collection[str]) -> Resumed:
    """Return the parts of a position (``None``: from the beginning), or raise CorruptSnapshotError."""
    topic_names(topics)
    UsageError.unless_type("position", position, (Position, NoneType), "Position(text)")
    if position is None:
        return Resumed(Tracker(topics))
    with restoring(_WHERE, _ADVICE):
        state = json.loads(position.text)
        require_format(state, FORMAT)
        last, counted = state["last_handed_out"], state.get("record_counts")
        read = {(topic, partition): end for topic, partition, _, end, _ in state["partitions"]}
        resumed = Resumed(
            Tracker.restore(state["tracker"]),
            begin={(topic, partition): begin for topic, partition, begin, _, _ in state["partitions"]},
            read=read,
            times={(topic, partition): at for topic, partition, _, _, at in state["partitions"] if at is not None},
            done=state["handed_out_below"],
            last=None if last is None else Place(*last),
            waiting=state.get("waiting"),
            judged=state["untimed"],
            polled=state["polled"],
            ids=TopicIds(state["topic_ids"]),
            record_counts=RecordCounts(read) if counted is None else RecordCounts.restore(counted),
        )
    if resumed.tracker.topics != frozenset(topics):
        found, expected = (", ".join(sorted(names)) for names in (resumed.tracker.topics, topics))
        reason = f"it is of topics {found}, expected {expected}"
        raise CorruptSnapshotError(where=_WHERE, reason=reason, advice=_ADVICE)
    return resumed
