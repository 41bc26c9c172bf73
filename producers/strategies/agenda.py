"""Which sources of a pool have marks due.  Pure: the time is an argument."""

import heapq
from typing import Generic, Protocol, TypeVar

_SPARE = 64


class HasDueTime(Protocol):
    """A source, seen by `Agenda`."""

    @property
    def due_at(self) -> int:
        """When its next marks are due, by a steady clock, milliseconds."""
        ...


S = TypeVar("S", bound=HasDueTime)


class Agenda(Generic[S]):
    """A heap of sources by due time, so that a pool need not ask every source all the time.

    A source may postpone its due time, because calls send marks, too; `due` then corrects the time.  After a source's
    due time may have become earlier, call `refresh`.

    >>> class Daily:
    ...     due_at = 24
    >>> agenda, source = Agenda(), Daily()
    >>> agenda.add(source)
    >>> agenda.due(23), agenda.due(24) == [source]
    ([], True)
    >>> source.due_at = 48
    >>> agenda.due(25), agenda.due(48) == [source]
    ([], True)
    """

    def __init__(self) -> None:
        self._members: set[S] = set()
        self._times: list[tuple[int, int, S]] = []
        self._number = 0

    def add(self, source: S) -> None:
        """Add a source."""
        self._number += 1
        self._members.add(source)
        heapq.heappush(self._times, (source.due_at, self._number, source))

    def remove(self, source: S) -> None:
        """Remove a source, if it is a member."""
        self._members.discard(source)
        if len(self._times) > 2 * len(self._members) + _SPARE:  # bounds the memory of removed sources
            self.refresh()

    def due(self, now: int) -> list[S]:
        """Return the sources with due marks, each once; a source returns in the next millisecond at the earliest."""
        found = []
        while self._times and self._times[0][0] <= now:
            _, number, source = self._times[0]
            if source not in self._members:
                heapq.heappop(self._times)
                continue
            due_at = source.due_at
            if due_at <= now:
                found.append(source)
            heapq.heapreplace(self._times, (max(due_at, now + 1), number, source))
        return found

    def refresh(self) -> None:
        """Ask all sources for their due times again."""
        self._times = [(source.due_at, number, source) for _, number, source in self._times if source in self._members]
        heapq.heapify(self._times)
