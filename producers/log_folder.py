"""The lines of a folder of files that grow, appear and fall silent, and how complete they are."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from floodmark.producers.strategies.growing_logs import GrowingLogs

_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log: where it stands, its bytes without the end of line, and its time."""

    log: str
    position: int
    value: bytes
    event_time: int


class LogFolder:
    """Read the lines of all files in a folder, as they grow and appear.

    Produce the lines with a `WatermarkedProducer` and the strategy `explicit`; then ``advance`` it to `watermark`.
    To go on after a restart, keep ``logs.snapshot()`` once they are acknowledged, and pass it to ``logs.restore``.

    Args:
        folder: where the files are.
        event_time: from a line to its time, epoch milliseconds; ``None``: it has none, so it is counted and skipped.
        pattern: of the names of the files.
        quiet: after how long without growth a file that is read to its end is not waited for.

    Raises:
        UsageError: where ``quiet`` is not more than 0.
    """

    def __init__(
        self, folder: Path, event_time: Callable[[bytes], int | None], *, pattern: str = "*.log", quiet: timedelta
    ) -> None:
        self.logs = GrowingLogs(quiet)
        self.skipped = 0
        """How many lines had no time."""
        self._folder = folder
        self._event_time = event_time
        self._pattern = pattern

    def poll(self, now: int) -> list[Line]:
        """Return the new whole lines of all files, at most a mebibyte of each.

        Args:
            now: wall clock, epoch milliseconds.

        Raises:
            UsageError: where a file has shrunk.
        """
        paths = sorted(self._folder.glob(self._pattern))
        for path in paths:  # first all sizes: what is not read yet must hold the watermark
            self.logs.seen(path.name, path.stat().st_size, now)
        return [line for path in paths for line in self._read(path)]

    def _read(self, path: Path) -> list[Line]:
        position, last, lines = self.logs.position(path.name), None, []
        with path.open("rb") as file:
            file.seek(position)
            chunk = file.read(_CHUNK)
        for raw in chunk[: chunk.rfind(b"\n") + 1].splitlines(keepends=True):
            value = raw.rstrip(b"\r\n")
            event_time = self._event_time(value)
            if event_time is None:
                self.skipped += 1
            else:
                last = event_time
                lines.append(Line(path.name, position, value, event_time))
            position += len(raw)
        self.logs.read(path.name, position, last)
        return lines

    def watermark(self, now: int) -> int | None:
        """Return what can be promised of the lines that `poll` has yet to return, epoch milliseconds.

        Args:
            now: wall clock, epoch milliseconds.
        """
        return self.logs.watermark(now)
