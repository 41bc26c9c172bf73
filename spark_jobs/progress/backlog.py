"""The unread records of a job, and how long it takes to read them, from Spark's reports of its last batches.  Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from floodmark.producers.board.estimate import seconds_to_read

_LAST: Final = 10  # the number of batches that give the rates
_WIDTH: Final = 30
_Known = tuple[datetime, int, Mapping[str, Any]]  # when a batch was planned, the ends of the topics then, its report


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unread records of a job when its last batch was planned.

    >>> backlog = Backlog(unread=900_000, read=100_000, read_rate=50_000.0, arrival_rate=5_000.0)
    >>> backlog.seconds
    20.0
    >>> print(backlog)
    [###---------------------------]  10 %, 900,000 unread, 20 s to go (reads 50,000 a second, 5,000 arrive)
    """

    unread: int
    """Offsets in no batch yet: data, marks and the ends of transactions."""
    read: int
    """Records read since this start of the job."""
    read_rate: float
    """Records per second, in the last batches with records but the first one, which is slow; 0: only that one ran.

    A batch that left records unread lasts until the next one: a trigger may delay it.
    """
    arrival_rate: float
    """New offsets per second meanwhile."""

    @property
    def seconds(self) -> float | None:
        """The time to read all records at this pace; ``None``: unknown, or the topics grow faster than it."""
        return seconds_to_read(self.unread, self.read_rate, self.arrival_rate)

    def __str__(self) -> str:
        """Show a bar, with the time that is left."""
        share = self.read / (self.read + self.unread) if self.unread else 1.0
        done = int(share * _WIDTH)
        bar = "#" * done + "-" * (_WIDTH - done)
        shown = f"[{bar}] {share * 100:3.0f} %, {self.unread:,} unread"
        if self.unread and not self.read_rate:
            return f"{shown}, the second batch will show the pace"
        pace = f"reads {self.read_rate:,.0f} a second, {self.arrival_rate:,.0f} arrive"
        left = "it falls further behind" if self.seconds is None else f"{self.seconds:,.0f} s to go"
        return f"{shown}, {left} ({pace})"


def backlog_of(batches: Sequence[Mapping[str, Any]], read: int) -> Backlog | None:
    """Return the backlog after some batches and ``read`` records; ``None``: no batch has the ends of the topics."""
    ends = [(_sum(batch, "latestOffset"), batch) for batch in batches]
    known = [(datetime.fromisoformat(batch["timestamp"]), end, batch) for end, batch in ends if end is not None]
    if not known:
        return None
    _, latest, last = known[-1]
    recent = known[-_LAST:]
    followed: list[tuple[_Known, _Known | None]] = [*pairwise(recent), (recent[-1], None)]
    busy = [pair for pair in followed if pair[0][2]["numInputRows"] and pair[0][2] is not batches[0]]
    if any(_seconds(*pair) > _seconds(pair[0], None) for pair in busy):  # then the next one will have to wait, too
        busy = [pair for pair in busy if pair[1] is not None]
    spent = sum(_seconds(*pair) for pair in busy)
    elapsed = (recent[-1][0] - recent[0][0]).total_seconds()
    grown = sum(max(0, after[1] - before[1]) for before, after in pairwise(recent))
    return Backlog(
        unread=max(0, latest - (_sum(last, "endOffset") or 0)),
        read=read,
        read_rate=sum(one[2]["numInputRows"] for one, _ in busy) / spent if spent else 0.0,
        arrival_rate=grown / elapsed if elapsed else 0.0,
    )


def _seconds(one: _Known, after: _Known | None) -> float:
    """Return how long a batch took, until ``after`` if it left records unread."""
    began, latest, batch = one
    own: float = batch["durationMs"].get("triggerExecution", 0) / 1000
    waits = after is not None and latest > (_sum(batch, "endOffset") or 0)
    return max(own, (after[0] - began).total_seconds()) if after is not None and waits else own


def ends_of(batch: Mapping[str, Any], name: str) -> dict[tuple[int, str, str], int]:
    """Return offsets of a batch, ``endOffset`` or ``latestOffset``, by input, topic and partition.

    Batches are reports as ``StreamingQueryProgress.json`` has them: the class gives offsets as other text in each
    release of Spark.  A batch that was planned before a restart has no ``latestOffset``.
    """
    return {
        (number, topic, partition): offset
        for number, source in enumerate(batch["sources"])
        for topic, parts in (source.get(name) or {}).items()
        for partition, offset in parts.items()
    }


def _sum(batch: Mapping[str, Any], name: str) -> int | None:
    """Return the sum of the offsets of all partitions in a batch; ``None``: it has none."""
    offsets = ends_of(batch, name)
    return sum(offsets.values()) if offsets else None
