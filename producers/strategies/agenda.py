"""Which sources of a pool have marks due.  Pure: the time is an argument."""

import heapq
from typing import Generic, Protocol, TypeVar

_SPARE = 64


class Marked(Protocol):
    """What has marks due, again and again."""

    @property
    def due_at(self) -> int:
        """When the next ones are due, by a clock that is never set, milliseconds."""
        ...


S = TypeVar("S", bound=Marked)


class Agenda(Generic[S]):
    """Sources by the time at which their marks are due, so that nobody has to look at each of them all the time.

    A source sends marks when it is used, too, which puts them off beside this.  So a time here is the earliest that is
    possible; it is put right when it has come.  Where one comes nearer, `hurry`.

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
        self._here: set[S] = set()
        self._times: list[tuple[int, int, S]] = []
        self._number = 0

    def add(self, source: S) -> None:
        """Attend to a source from now on."""
        self._number += 1
        self._here.add(source)
        heapq.heappush(self._times, (source.due_at, self._number, source))

    def remove(self, source: S) -> None:
        """Forget a source, if it is here."""
        self._here.discard(source)
        if len(self._times) > 2 * len(self._here) + _SPARE:  # those that were removed must not pile up
            self.hurry()

    def due(self, now: int) -> list[S]:
        """Return the sources whose marks are due, each once; they are asked again in a millisecond at the earliest."""
        found = []
        while self._times and self._times[0][0] <= now:
            _, number, source = self._times[0]
            if source not in self._here:
                heapq.heappop(self._times)
                continue
            due_at = source.due_at
            if due_at <= now:
                found.append(source)
            heapq.heapreplace(self._times, (max(due_at, now + 1), number, source))
        return found

    def hurry(self) -> None:
        """Ask all sources for their times: some may be due earlier than they said."""
        self._times = [(source.due_at, number, source) for _, number, source in self._times if source in self._here]
        heapq.heapify(self._times)
