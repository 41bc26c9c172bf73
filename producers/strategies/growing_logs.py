"""The watermark of logs that appear, grow, stop growing and are deleted, each ordered by time.  Pure.

It is a heuristic, the minimum over the logs with unread bytes or recent growth ("Streaming Systems", ch. 3).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from floodmark.schemas.errors import UsageError
from floodmark.schemas.partition_state import lowest
from floodmark.schemas.stored_format import require_format, restoring
from floodmark.schemas.timestamps import duration_of

FORMAT: Final = 1


@dataclass(slots=True)
class _Log:
    """One file: sizes are bytes."""

    size: int = 0
    read: int = 0
    silent: int = 0  # how long its size has not changed, milliseconds
    event_time: int | None = None
    checked: int = 0  # number of bytes before ``read`` in the checksum
    checksum: int = 0
    inode: int = 0  # 0: not known


class GrowingLogs:
    """The watermark of a set of logs.  Event times are epoch milliseconds, sizes are bytes.

    A log that was read to its end does not hold the watermark once it was seen without growth for more than ``quiet``.
    """

    def __init__(self, quiet: timedelta) -> None:
        self._quiet = duration_of(quiet, "the time after which a log is quiet", 1)
        self._logs: dict[str, _Log] = {}
        self._watermark: int | None = None

    def look(self, sizes: Mapping[str, int], passed: int, inodes: Mapping[str, int] | None = None) -> dict[str, int]:
        """Set all sizes, ``passed`` milliseconds after the last look.

        Returns the unread bytes of deleted logs: of those that had any, or were not quiet, so that more may be lost;
        and of logs without an event time whose name another file has, since nothing else tells the two apart.
        """
        inodes = inodes or {}
        for name, size in sizes.items():
            if name in self._logs and size < self._logs[name].read:
                shrunk = f"has shrunk to {size} bytes, and {self._logs[name].read} were read"
                raise UsageError(reason=f"log {name!r} {shrunk}; give the new file another name")
        gone = {name: log for name, log in self._awaited().items() if name not in sizes}
        gone |= {
            name: log
            for name, log in self._logs.items()
            if log.event_time is None and log.size > 0 and 0 != log.inode != inodes.get(name, log.inode)
        }
        left = {name: log.size - log.read for name, log in gone.items()}
        self._logs = {name: self._logs.get(name) or _Log(size=-1) for name in sizes}
        for name, size in sizes.items():
            log = self._logs[name]
            log.silent = log.silent + passed if size == log.size else 0  # -1: new, so it has grown
            log.size, log.inode = size, inodes.get(name, 0)
        return left

    def renamed(self, inodes: Mapping[str, int]) -> dict[str, str]:
        """Return the new names of logs whose inode now has another name."""
        names = {inode: name for name, inode in inodes.items()}
        moved = {name: names[log.inode] for name, log in self._logs.items() if log.inode in names}
        return {old: new for old, new in moved.items() if inodes.get(old) != inodes[new]}

    def rename(self, names: Mapping[str, str]) -> None:
        """Give logs new names; a log whose name another log takes is deleted, which the next `look` tells."""
        moved = {new: self._logs.pop(old) for old, new in names.items()}
        self._logs |= {f"{new} (replaced)": self._logs[new] for new in moved if new in self._logs}
        self._logs |= moved

    def read(self, name: str, to: int, event_time: int | None, *, checked: int = 0, checksum: int = 0) -> None:
        """Note the position up to which a log was read, its last event time, and a checksum of the bytes before."""
        log = self._logs[name]
        log.read, log.checked, log.checksum = to, checked, checksum
        if event_time is not None and (log.event_time is None or event_time > log.event_time):
            log.event_time = event_time

    def position(self, name: str) -> tuple[int, int, int]:
        """Return the position up to which a log was read, and ``checked`` and ``checksum`` of `read`; 0 if unknown."""
        log = self._logs.get(name) or _Log()
        return log.read, log.checked, log.checksum

    def backlog(self) -> dict[str, int]:
        """Return the number of unread bytes of each log that has any."""
        return {name: log.size - log.read for name, log in self._logs.items() if log.size > log.read}

    def _awaited(self) -> dict[str, _Log]:
        return {name: log for name, log in self._logs.items() if log.size > log.read or log.silent <= self._quiet}

    def holders(self) -> dict[str, str]:
        """Return the logs that hold the watermark, and why: those without an event yet, or else the lowest."""
        awaited = self._awaited()
        low = lowest([log.event_time for log in awaited.values()])
        return {
            name: f"{log.size - log.read} bytes are not read"
            if log.size > log.read
            else f"changed less than {timedelta(milliseconds=self._quiet)} ago"
            for name, log in awaited.items()
            if log.event_time == low
        }

    @property
    def watermark(self) -> int | None:
        """Epoch milliseconds; it never decreases, and stays if no log holds it."""
        reached = lowest([log.event_time for log in self._awaited().values()])
        if reached is not None:
            self._watermark = reached if self._watermark is None else max(self._watermark, reached)
        return self._watermark

    def snapshot(self) -> dict[str, Any]:
        """Return the state as a value that JSON can hold."""
        logs = {name: asdict(log) for name, log in self._logs.items()}
        return {"format": FORMAT, "watermark": self._watermark, "logs": logs}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the state to a `snapshot`, or raise `CorruptSnapshotError`."""
        with restoring("of logs"):
            require_format(state, FORMAT)
            watermark, logs = state["watermark"], {name: _Log(**fields) for name, fields in state["logs"].items()}
        self._watermark, self._logs = watermark, logs
