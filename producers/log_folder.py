"""Dynamic sets of time-ordered logs: a folder of files that grow, appear and fall silent.

Each file is ordered by time on its own; which files there are, and which still grow, is known only by looking.  So
the watermark is a heuristic ("Streaming Systems", ch. 3): the least of what the files with unprocessed bytes, or with
recent growth, have come to.  `GrowingLogs` decides and is pure; `LogFolder` looks and reads.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from floodmark.schemas.errors import UsageError
from floodmark.schemas.timestamps import milliseconds

_CHUNK: Final = 1 << 20


@dataclass(slots=True)
class _Log:
    """One file: how large it is, how far it was read, and to what time."""

    size: int = 0
    read: int = 0
    grown: int = 0
    """When it was last seen to have grown, wall clock."""
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
        """Begin with no log known."""
        if quiet <= timedelta(0):
            raise UsageError(reason=f"the time after which a log is quiet is {quiet}, expected more than 0")
        self._quiet = milliseconds(quiet)
        self._logs: dict[str, _Log] = {}
        self._watermark: int | None = None

    def seen(self, name: str, size: int, now: int) -> None:
        """Learn how large a log is.

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
        """Learn that a log was read up to a position, whose last event had this time."""
        log = self._logs[name]
        log.read = to
        if event_time is not None and (log.event_time is None or event_time > log.event_time):
            log.event_time = event_time

    def position(self, name: str) -> int:
        """Return up to where a log was read."""
        log = self._logs.get(name)
        return 0 if log is None else log.read

    def backlog(self) -> dict[str, int]:
        """Return the bytes of each log that are not yet processed, where there are any."""
        return {name: log.size - log.read for name, log in self._logs.items() if log.size > log.read}

    def watermark(self, now: int) -> int | None:
        """Return what can be promised; it never goes back, and stays where nothing is waited for."""
        awaited = [log for log in self._logs.values() if log.size > log.read or now - log.grown <= self._quiet]
        # A log of which nothing was read yet may begin anywhere at or above what was promised.
        known = [log.event_time for log in awaited if log.event_time is not None]
        if awaited and len(known) == len(awaited):
            lowest = min(known)
            self._watermark = lowest if self._watermark is None else max(self._watermark, lowest)
        return self._watermark

    def snapshot(self) -> dict[str, Any]:
        """Return the state as a value that JSON can carry."""
        logs = {name: [log.size, log.read, log.grown, log.event_time] for name, log in self._logs.items()}
        return {"watermark": self._watermark, "logs": logs}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the state that `snapshot` returned."""
        self._watermark = state["watermark"]
        self._logs = {name: _Log(*fields) for name, fields in state["logs"].items()}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log: where it stands, its bytes without the end of line, and its time."""

    log: str
    position: int
    value: bytes
    event_time: int


class LogFolder:
    """Read the lines of all files in a folder, as they grow and appear.

    Args:
        folder: where the files are.
        event_time: from a line to its time, epoch milliseconds; ``None``: a line that tells none, counted and skipped.
        pattern: which files.
        quiet: see `GrowingLogs`.

    Hand the lines to a `WatermarkedProducer` with the strategy `explicit`, and ``advance`` it by ``watermark``.
    """

    def __init__(
        self, folder: Path, event_time: Callable[[bytes], int | None], *, pattern: str = "*.log", quiet: timedelta
    ) -> None:
        """Begin at the beginning of every file; restore ``logs`` to go on."""
        self.logs = GrowingLogs(quiet)
        self.skipped = 0
        self._folder = folder
        self._event_time = event_time
        self._pattern = pattern

    def poll(self, now: int) -> Iterator[Line]:
        """Look at all files, and give their new whole lines, at most a chunk of each."""
        paths = sorted(self._folder.glob(self._pattern))
        for path in paths:  # first all sizes: what is not read yet must hold the watermark
            self.logs.seen(path.name, path.stat().st_size, now)
        for path in paths:
            position, time = self.logs.position(path.name), None
            with path.open("rb") as file:
                file.seek(position)
                chunk = file.read(_CHUNK)
            for line in chunk[: chunk.rfind(b"\n") + 1].splitlines(keepends=True):
                found = self._event_time(line.rstrip(b"\r\n"))
                if found is None:
                    self.skipped += 1
                else:
                    time = found
                    yield Line(path.name, position, line.rstrip(b"\r\n"), found)
                position += len(line)
            self.logs.read(path.name, position, time)

    def watermark(self, now: int) -> int | None:
        """Return what can be promised of the lines that `poll` has yet to give."""
        return self.logs.watermark(now)
