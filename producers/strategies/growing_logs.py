"""The watermark of a dynamic set of time-ordered logs, which grow, appear and fall silent.  Pure.

Each log is ordered by time on its own; which logs there are, and which still grow, is known only by looking.  So the
watermark is a heuristic ("Streaming Systems", ch. 3): the least time that the logs with unprocessed bytes, or with
recent growth, have reached.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from floodmark.schemas.combined import lowest
from floodmark.schemas.errors import UsageError
from floodmark.schemas.timestamps import duration_of


@dataclass(slots=True)
class _Log:
    """One file: how large it is, how far it was read, and to what time."""

    size: int = 0
    read: int = 0
    grown: int = 0
    """When it had last grown, wall clock."""
    event_time: int | None = None


class GrowingLogs:
    """The watermark of a set of logs.  All times are epoch milliseconds, sizes are bytes.

    Args:
        quiet: a log that is read to its end and has not grown for so long is not waited for.

    Raises:
        UsageError: where quiet is not more than 0.

    >>> logs = GrowingLogs(timedelta(seconds=1))
    >>> logs.seen("a.log", size=10, now=0); logs.seen("b.log", size=5, now=0)
    >>> logs.read("a.log", to=10, event_time=700); logs.read("b.log", to=5, event_time=300)
    >>> logs.watermark(now=500)
    300
    >>> logs.seen("a.log", size=20, now=1500)  # b.log is quiet by now
    >>> logs.watermark(now=1500)
    700
    """

    def __init__(self, quiet: timedelta) -> None:
        self._quiet = duration_of(quiet, "the time after which a log is quiet", 1)
        self._logs: dict[str, _Log] = {}
        self._watermark: int | None = None

    def seen(self, name: str, size: int, now: int) -> None:
        """Note the size of a log, and whether it has grown.

        Args:
            name: of the log; a new one begins to be waited for.
            size: bytes.
            now: wall clock, epoch milliseconds.

        Raises:
            UsageError: where it has shrunk: it was truncated, and its position means nothing any more.
        """
        log = self._logs.get(name)
        if log is None:
            log = self._logs[name] = _Log(grown=now)
        if size < log.size:
            raise UsageError(reason=f"log {name!r} has shrunk from {log.size} to {size} bytes; give it a new name")
        if size > log.size:
            log.size, log.grown = size, now

    def read(self, name: str, to: int, event_time: int | None) -> None:
        """Note that a log was read up to a position, bytes; ``event_time``: of the last event before it, if any."""
        log = self._logs[name]
        log.read = to
        if event_time is not None and (log.event_time is None or event_time > log.event_time):
            log.event_time = event_time

    def position(self, name: str) -> int:
        """Return up to where a log was read, bytes."""
        log = self._logs.get(name)
        return 0 if log is None else log.read

    def backlog(self) -> dict[str, int]:
        """Return the number of unprocessed bytes of each log that has any."""
        return {name: log.size - log.read for name, log in self._logs.items() if log.size > log.read}

    def watermark(self, now: int) -> int | None:
        """Return what can be promised, epoch milliseconds; it never goes back, and stays where no log is awaited."""
        awaited = [log for log in self._logs.values() if log.size > log.read or now - log.grown <= self._quiet]
        # A log of which nothing was read yet may begin anywhere at or above what was promised.
        reached = lowest([log.event_time for log in awaited])
        if reached is not None:
            self._watermark = reached if self._watermark is None else max(self._watermark, reached)
        return self._watermark

    def snapshot(self) -> dict[str, Any]:
        """Return the state as a value that JSON can carry."""
        logs = {name: [log.size, log.read, log.grown, log.event_time] for name, log in self._logs.items()}
        return {"watermark": self._watermark, "logs": logs}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the state that `snapshot` returned."""
        self._watermark = state["watermark"]
        self._logs = {name: _Log(*fields) for name, fields in state["logs"].items()}
