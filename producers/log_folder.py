"""The lines of a folder of log files that appear, grow, stop growing and are deleted, and their watermark."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Final
from zlib import crc32

from floodmark.producers.clients.clock import Clock
from floodmark.producers.strategies.growing_logs import GrowingLogs
from floodmark.schemas.errors import UsageError

_log = logging.getLogger(__name__)
_CHUNK: Final = 1 << 20  # bytes
_CHECKED: Final = 1 << 10  # bytes


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log: its file, its offset in bytes, its bytes without the end of line, and its event time."""

    log: str
    position: int
    value: bytes
    event_time: int


@dataclass(slots=True)
class _Part:
    """What was read of one log; nothing counts as read until all logs were read without an error."""

    lines: list[Line]
    skipped: int
    end: int
    before: bytes  # the last bytes before ``end``


class LogFolder:
    """Read the lines of all files in a folder, as files grow and appear.

    Produce the lines with a `WatermarkedProducer` and the strategy `explicit`; then ``advance`` it to `watermark`.

    A new ``log_folder = LogFolder(...)`` reads all files from their beginning.  To resume after a restart, store
    ``log_folder.logs.snapshot()``, a JSON value, after Kafka has acknowledged the lines, and before ``advance``.  Pass
    it to ``log_folder.logs.restore`` at the next start.  ``log_folder.logs.holders()`` names the files that hold the
    watermark.

    A file that is renamed, as by a rotation, stays the same file if ``pattern`` matches its new name (``"*.log*"``).

    Args:
        folder: with the files.
        event_time: returns the time of a line, epoch milliseconds; ``None``: the line is counted and skipped.
        pattern: of the names of the files.
        quiet: a file that was read to its end and has not grown for longer does not hold the watermark.  While all are
            quiet, the watermark stays.
        clock: for tests, a `ManualClock`.
    """

    def __init__(
        self,
        folder: Path | str,
        event_time: Callable[[bytes], int | None],
        *,
        pattern: str = "*.log",
        quiet: timedelta,
        clock: Clock = Clock(),
    ) -> None:
        self.logs = GrowingLogs(quiet)
        self.skipped = 0
        """Number of lines without a time."""
        self._folder = Path(folder)
        self._event_time = event_time
        self._pattern = pattern
        self._clock = clock
        self._looked: int | None = None  # when the last look ended, by the steady clock

    def poll(self) -> list[Line]:
        """Return the new whole lines of all files: of each file at most a mebibyte, or one longer line.

        After an error, no line counts as read, and the next call returns the same lines: `UsageError` or `OSError` if a
        file has shrunk, was replaced, or cannot be read; what ``event_time`` raised, with the line in a note.  A file
        that was replaced before a line with a time was read only causes a warning.
        """
        parts = {name: self._read(name) for name in self._look()}
        for name, part in parts.items():
            last = max((line.event_time for line in part.lines), default=None)
            self.logs.read(name, part.end, last, checked=len(part.before), checksum=crc32(part.before))
            self.skipped += part.skipped
        return [line for part in parts.values() for line in part.lines]

    def _look(self) -> list[str]:
        """Note the sizes of all files; return the names of files with unread bytes."""
        passed = 0 if self._looked is None else self._clock.steady() - self._looked
        self._folder.stat()  # without it, all files of a missing folder would count as deleted
        sizes, inodes = {}, {}
        for path in sorted(self._folder.glob(self._pattern)):
            name = path.relative_to(self._folder).as_posix()
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue  # deleted since it was listed
            sizes[name], inodes[name] = stat.st_size, stat.st_ino
        renamed = self.logs.renamed(inodes)
        self.logs.rename({old: new for old, new in renamed.items() if self._became(new, old)})
        for name, count in self.logs.look(sizes, passed, inodes).items():
            left = f"before its last {count} bytes were read" if count else "while it may have grown"
            _log.warning("log %r was deleted %s. If it was renamed, pattern= must match the new name", name, left)
        self._looked = self._clock.steady()
        return list(self.logs.backlog())

    def _became(self, name: str, log: str) -> bool:
        """Tell whether a file is a log that was renamed, and not the log of that name, of which more was read."""
        keeps = self.logs.position(name)[0] > self.logs.position(log)[0] and self._continues(name, name)
        return not keeps and self._continues(name, log)

    def _continues(self, name: str, log: str) -> bool:
        """Tell whether a file begins with what was read of a log."""
        with (self._folder / name).open("rb") as file:
            return self._before(file, log) is not None

    def _before(self, file: BinaryIO, log: str) -> bytes | None:
        """Go to the position of a log; return the bytes before it; ``None``: they are not those that were read."""
        position, checked, checksum = self.logs.position(log)
        file.seek(position - checked)
        before = file.read(checked)
        return before if crc32(before) == checksum else None

    def _read(self, name: str) -> _Part:
        position = self.logs.position(name)[0]
        with (self._folder / name).open("rb") as file:
            before = self._before(file, name)
            if before is None:
                reason = f"log {name!r} was replaced: the bytes before {position} are not those that were read"
                raise UsageError(reason=f"{reason}; give the new file another name")
            whole = _whole_lines(file, self.logs.backlog()[name])
        part = _Part([], 0, position, (before + whole[-_CHECKED:])[-_CHECKED:])
        for raw in whole.split(b"\n")[:-1]:
            value = raw.rstrip(b"\r")
            try:
                event_time = self._event_time(value)
            except Exception as error:
                error.add_note(f"the line at byte {part.end} of log {name!r}")
                raise
            if event_time is None:
                part.skipped += 1
            else:
                part.lines.append(Line(name, part.end, value, event_time))
            part.end += len(raw) + 1
        return part

    def watermark(self) -> int | None:
        """Look at all files; return the watermark of the lines that `poll` has not returned yet, epoch milliseconds."""
        self._look()
        return self.logs.watermark


def _whole_lines(file: BinaryIO, size: int) -> bytes:
    """Read at most ``size`` bytes, up to the last end of line in the first chunk that has one."""
    pieces: list[bytes] = []
    for start in range(0, size, _CHUNK):
        pieces.append(file.read(min(_CHUNK, size - start)))
        end = pieces[-1].rfind(b"\n")
        if end >= 0:
            pieces[-1] = pieces[-1][: end + 1]
            return b"".join(pieces)
    return b""
