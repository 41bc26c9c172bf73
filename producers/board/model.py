"""The board as a value: stages with their topics, partitions and sources.  Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from floodmark.producers.board.causes import Cause, reason_of
from floodmark.producers.board.source_history import Health, is_failure
from floodmark.schemas.classify import Offsets
from floodmark.schemas.records import Holder

FORMAT: Final = 1  # version of the JSON of `Board.as_json`: later versions keep its keys, and may add others

STATUSES: Final = ("ok", "stuck", "unknown")  # names of the exit statuses 0, 1 and 2 in JSON

SOURCES: Final = "sources"  # the stage of all sources that are no jobs

UNNAMED: Final = "(missing source)"  # shown for a member that has not reported


class State(StrEnum):
    """The state of a source in a partition, of a partition or of a topic."""

    ACTIVE = "active"
    CATCHING_UP = "catching up"  # active, and each mark is closer to the clock
    SILENT = "silent"  # active by its last mark, but it no longer sends marks
    IDLE = "idle"  # idle by its last mark, or its lease has expired
    ENDED = "ended"
    UNKNOWN = "unknown"  # it has no watermark yet, or its last mark cannot be read
    MISSING = "missing"  # the membership includes it, and it has not reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Lags:
    """How far a watermark is behind, milliseconds; ``None``: unknown, or nothing to compare with."""

    wall: int | None = None  # clock minus watermark
    local: int | None = None  # watermark of the job's inputs minus its own
    processing: int | None = None  # clock minus processing-time watermark: the age of the oldest unfinished work
    root: int | None = None  # watermark of the first topics of the chain minus that of the job


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """One source in one partition."""

    topic: str
    partition: int
    source: str | None  # ``None``: a member that has not reported
    state: State
    verdict: Health | None  # ``None``: unknown
    watermark: int | None = None
    lags: Lags = Lags()
    since: int | None = None  # since when it has this watermark and status: log time, epoch milliseconds
    since_exact: bool = False  # whether ``since`` is exact; else it may be longer
    last: int | None = None  # time of its last mark, epoch milliseconds
    holder: Holder | None = None  # the source that a job waits for, by its last mark
    inputs: tuple[str, ...] = ()  # the input topics of a job, by its marks
    waits_for: str | None = None  # the topic that alignment makes it wait for, by its last mark
    injects: bool = False  # whether it is an injector
    cause: Cause | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """One partition: the minimum over its sources."""

    partition: int
    state: State
    watermark: int | None
    sources: tuple[SourceView, ...]
    begin: int | None = None  # the offset of its first record when it was read; ``None``: unknown
    counted: int | None = None  # that of the last mark that counts records, or may stand for some


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic: the minimum over its partitions.  Each lag is the largest, not an average."""

    topic: str
    state: State
    verdict: Health | None  # the worst of its sources; ``None``: unknown
    watermark: int | None
    lags: Lags
    since: int | None  # the same of the source that holds its watermark longest
    since_exact: bool
    held_by: tuple[SourceView, ...]  # the sources that hold its watermark, the worst first
    partitions: tuple[PartitionView, ...]
    whole: bool  # whether the topic was read from its first record
    input_watermark: int | None = None  # the lowest of the input topics of its jobs; ``None``: no job, or unknown
    batch_watermark: int | None = None  # the lowest that its jobs ran with in their last batch; ``None``: as above
    topic_id: str | None = None  # Kafka's id of it when it was read; ``None``: unknown

    def sources(self) -> Iterator[SourceView]:
        """Yield the sources of all partitions."""
        for partition in self.partitions:
            yield from partition.sources


def deleted(views: Iterable[TopicView], read: Offsets) -> dict[str, int]:
    """Return how many offsets of each topic Kafka has deleted before a job, which had ``read`` up to there, read them.

    >>> part = PartitionView(partition=0, state=State.IDLE, watermark=None, sources=(), begin=9)
    >>> view = TopicView(topic="clicks", state=State.IDLE, verdict=None, watermark=None, lags=Lags(), since=None,
    ...                  since_exact=False, held_by=(), partitions=(part,), whole=False)
    >>> deleted([view], {("clicks", 0): 7}), deleted([view], {("clicks", 0): 9}), deleted([view], {})
    ({'clicks': 2}, {}, {})
    """
    found = Counter[str]()
    for view in views:
        for part in view.partitions:
            at = read.get((view.topic, part.partition))
            if at is not None and part.begin is not None and part.begin > at:
                found[view.topic] += part.begin - at
    return dict(found)


def goes_on(views: Collection[TopicView], read: Offsets) -> bool:
    """Tell whether the input of a job that has ended goes on, or did so after the offsets that the job has ``read``."""
    if any(view.state in {State.ACTIVE, State.CATCHING_UP, State.SILENT} for view in views):
        return True
    ends = ((read.get((view.topic, part.partition)), part.counted) for view in views for part in view.partitions)
    return any(end is not None and last is not None and last >= end for end, last in ends)


def lost_input(views: Collection[TopicView], read: Offsets, ids: Mapping[str, str]) -> tuple[Cause, str] | None:
    """Return why a job cannot continue with its input, and the reason; ``None``: the board shows none.

    ``read``, ``ids``: up to where it had read its topics, and the ids that they had.
    """
    if again := [view.topic for view in views if view.topic_id not in {None, ids.get(view.topic, view.topic_id)}]:
        return Cause.RECREATED, reason_of(Cause.RECREATED, ", ".join(again))
    if gone := deleted(views, read):
        return Cause.DELETED, reason_of(Cause.DELETED, f"{sum(gone.values()):,}", ", ".join(gone))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The topics that a job writes, several jobs together, or all sources that are no jobs."""

    name: str
    inputs: tuple[str, ...]
    topics: tuple[TopicView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A chain of topics at one moment."""

    now: int
    stages: tuple[Stage, ...]  # the first stages of the chain first
    unread: tuple[tuple[str, str], ...] = ()  # topics of the chain that could not be read, and why
    notes: tuple[str, ...] = ()
    answered: bool = True  # whether Kafka answered; else the board shows what was read last

    def topics(self) -> Iterator[TopicView]:
        """Yield the topics of all stages."""
        for stage in self.stages:
            yield from stage.topics

    def topic(self, name: str) -> TopicView | None:
        """Return a topic, ``None`` if it is not on the board."""
        return next((topic for topic in self.topics() if topic.topic == name), None)

    @property
    def exit_status(self) -> int:
        """0 all is well, 1 a source is stuck or fails, 2 unknown."""
        rows = [row for topic in self.topics() for row in topic.sources()]
        if any(is_failure(row.verdict) for row in rows):
            return 1
        unknown = any(topic.verdict is None for topic in self.topics())
        return 2 if self.unread or unknown or not rows or not self.answered else 0

    def as_json(self) -> dict[str, Any]:
        """Return a value for JSON; times are epoch milliseconds."""
        status = STATUSES[self.exit_status]
        unread = [{"topic": topic, "reason": reason} for topic, reason in self.unread]
        body = {"now": self.now, "answered": self.answered, "stages": [asdict(stage) for stage in self.stages]}
        return {"format": FORMAT, "status": status, **body, "unread": unread, "notes": list(self.notes)}
