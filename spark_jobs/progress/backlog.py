"""How much a job has still to read, and how long that takes: from what Spark says of its last batches.  Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from floodmark.producers.board.estimate import seconds_to_read

_LAST: Final = 10
"""So many batches tell how quick a job is: fewer hang on chance, and of more the first are long ago."""
_WIDTH: Final = 30
_NOTHING: Final = (None, "None", "null", "")
"""What Spark and PySpark give where a batch has no such offset: it was planned before a restart."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a job has not read yet, when its last batch was planned.

    >>> backlog = Backlog(unread=900_000, read=100_000, read_rate=50_000.0, arrival_rate=5_000.0)
    >>> backlog.seconds
    20.0
    >>> print(backlog)
    [###---------------------------]  10 %, 900,000 unread, 20 s to go (50,000 a second read, 5,000 come)
    """

    unread: int
    """Kafka offsets in the topics that are in no batch yet: data, marks and the ends of transactions."""
    read: int
    """Records read so far by this start of the job, as far as Spark remembers its batches."""
    read_rate: float
    """Records a second, over the last batches that read any."""
    arrival_rate: float
    """Offsets a second by which the topics grew meanwhile."""

    @property
    def seconds(self) -> float | None:
        """How long it takes at this pace to have read all; ``None``: the topics grow faster than the job reads."""
        return seconds_to_read(self.unread, self.read_rate, self.arrival_rate)

    def __str__(self) -> str:
        """Show it as a bar, with the time that it takes."""
        share = self.read / (self.read + self.unread) if self.unread else 1.0
        done = int(share * _WIDTH)
        bar = "#" * done + "-" * (_WIDTH - done)
        pace = f"{self.read_rate:,.0f} a second read, {self.arrival_rate:,.0f} come"
        left = "it falls further behind" if self.seconds is None else f"{self.seconds:,.0f} s to go"
        return f"[{bar}] {share * 100:3.0f} %, {self.unread:,} unread, {left} ({pace})"


def backlog_of(batches: Sequence[Mapping[str, Any]]) -> Backlog | None:
    """Return the backlog after some batches.

    Returns:
        The backlog; ``None`` where no batch tells how far the topics reach.
    """
    ends = [(_time(batch), _sum(batch, "latestOffset"), batch) for batch in batches]
    known = [(at, latest, batch) for at, latest, batch in ends if latest is not None]
    if not known:
        return None
    _, latest, last = known[-1]
    recent = known[-_LAST:]
    busy = [batch for _, _, batch in recent if batch["numInputRows"]]
    spent = sum(batch["durationMs"].get("triggerExecution", 0) for batch in busy) / 1000
    elapsed = (recent[-1][0] - recent[0][0]).total_seconds()
    grown = sum(max(0, after[1] - before[1]) for before, after in pairwise(recent))
    return Backlog(
        unread=max(0, latest - (_sum(last, "endOffset") or 0)),
        read=sum(batch["numInputRows"] for batch in batches),
        read_rate=sum(batch["numInputRows"] for batch in busy) / spent if spent else 0.0,
        arrival_rate=grown / elapsed if elapsed else 0.0,
    )


def _time(batch: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(batch["timestamp"])


def _sum(batch: Mapping[str, Any], name: str) -> int | None:
    """Return the sum of the offsets of all partitions that a batch names; ``None``: it names none."""
    found = [source[name] for source in batch["sources"] if source.get(name) not in _NOTHING]
    offsets: list[dict[str, dict[str, int]]] = [json.loads(one) if isinstance(one, str) else one for one in found]
    if not offsets:
        return None
    return sum(offset for topics in offsets for parts in topics.values() for offset in parts.values())
