"""The board as a value: stages, their topics, partitions and sources, and what is to be said of each.  Pure."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from floodmark.producers.board.causes import Cause
from floodmark.producers.board.source_history import Health, is_failure
from floodmark.schemas.records import Holder

FORMAT: Final = 1
"""Of the JSON that `Board.as_json` gives; a key that is there stays, new ones may come."""

STATUSES: Final = ("ok", "stuck", "unknown")
"""What JSON calls the exit statuses."""

SOURCES: Final = "sources"
"""The name of the stage of those who write and read no topic with marks."""

UNNAMED: Final = "(no name)"
"""What stands for the name of a member that has not reported."""


class State(StrEnum):
    """What a source is doing in a partition, or all of them together in a topic."""

    ACTIVE = "active"
    CATCHING_UP = "catching up"
    """Active, and nearer to the clock at every step."""
    SILENT = "silent"
    """Its last mark says active, and it sends no marks any more."""
    IDLE = "idle"
    """It asks not to be waited for, or its lease has run out."""
    ENDED = "ended"
    UNKNOWN = "unknown"
    """It has promised nothing yet, or its last mark cannot be read."""
    MISSING = "missing"
    """The membership counts on it, and no mark of it was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lags:
    """How far a watermark is behind, milliseconds; ``None``: not known, or there is nothing to compare with."""

    wall: int | None = None
    """The reader's clock less the watermark."""
    local: int | None = None
    """The watermark of the stage's inputs less this one; of a job only."""
    processing: int | None = None
    """The reader's clock less the processing-time watermark: how old the oldest work is that may not be done."""
    root: int | None = None
    """The watermark of the topics where the chain begins less this one; of a job only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """One source in one partition."""

    topic: str
    partition: int
    source: str | None
    """``None``: a member whose name nobody knows."""
    state: State
    verdict: Health | None
    """``None``: cannot tell."""
    watermark: int | None = None
    lags: Lags = Lags()
    since: int | None = None
    """Since when it says what it says, log time."""
    since_exact: bool = False
    """Whether that is known; else since then or longer."""
    last: int | None = None
    """When its last mark came."""
    holder: Holder | None = None
    """Of a job: who it waits for, as its last mark says."""
    inputs: tuple[str, ...] = ()
    """Of a job: the topics that its marks have named."""
    cause: Cause | None = None
    """Why it is not well; ``None``: it is."""
    reason: str = ""
    """The same, where the state or the verdict needs words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """One partition: the minimum over its sources."""

    partition: int
    state: State
    watermark: int | None
    sources: tuple[SourceView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic: the minimum over its partitions, so each lag is the largest there is, never an average."""

    topic: str
    state: State
    verdict: Health | None
    """The worst of its sources'; ``None``: cannot tell."""
    watermark: int | None
    lags: Lags
    since: int | None
    """Since when what holds it has been there."""
    since_exact: bool
    held_by: tuple[SourceView, ...]
    """What holds its watermark where it is, the worst first."""
    partitions: tuple[PartitionView, ...]
    whole: bool
    """Whether the topic was read from its beginning, so that what was not seen is not there."""

    def sources(self) -> Iterator[SourceView]:
        """Yield the sources of all partitions."""
        for partition in self.partitions:
            yield from partition.sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Who writes some topics: a job, several that share one, or all sources that are no jobs."""

    name: str
    inputs: tuple[str, ...]
    topics: tuple[TopicView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A chain of topics at one moment."""

    now: int
    stages: tuple[Stage, ...]
    """The roots first."""
    unread: tuple[tuple[str, str], ...] = ()
    """Topics that belong to the chain and could not be read, and why."""
    notes: tuple[str, ...] = ()
    answered: bool = True
    """Whether Kafka answered; else what was read last is all that is known."""

    def topics(self) -> Iterator[TopicView]:
        """Yield all topics, those of the roots first."""
        for stage in self.stages:
            yield from stage.topics

    def topic(self, name: str) -> TopicView | None:
        """Return a topic; ``None``: it is not on the board."""
        return next((topic for topic in self.topics() if topic.topic == name), None)

    @property
    def exit_status(self) -> int:
        """What a command ends with: 0 all is well, 1 something is stuck or fails, 2 cannot tell."""
        rows = [row for topic in self.topics() for row in topic.sources()]
        if any(is_failure(row.verdict) for row in rows):
            return 1
        unknown = any(topic.verdict is None for topic in self.topics())
        return 2 if self.unread or unknown or not rows or not self.answered else 0

    def as_json(self) -> dict[str, Any]:
        """Return it as a value that JSON can carry; times are epoch milliseconds."""
        status = STATUSES[self.exit_status]
        unread = [{"topic": topic, "reason": reason} for topic, reason in self.unread]
        body = {"now": self.now, "stages": [asdict(stage) for stage in self.stages]}
        return {"format": FORMAT, "status": status, **body, "unread": unread, "notes": list(self.notes)}
