"""What a pool knows of its sources: how many its membership counts, and which have marks due.  Pure."""

import heapq
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Generic, Protocol, TypeVar

from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import Membership, check_versioned

_SPARE = 64


class PoolMembership:
    """The membership of a pool's sources; ``pool`` names it in errors.

    An ended source leaves the membership: after retention has deleted its last marks, new readers would wait for them.

    Args:
        given: counts the sources here and elsewhere; ``None``: the pool counts its own.
        last: the highest version in the topic so far.

    >>> counted = PoolMembership("pool", None, last=7)
    >>> counted.grown(now=0, more=3), counted.current
    (Membership(version=8, size=3), Membership(version=7, size=0))
    >>> counted.current = counted.grown(now=0, more=3)
    >>> counted.shrunk(now=3), counted.shrunk(now=2), counted.shrunk(now=0)
    (None, Membership(version=9, size=2), None)
    >>> PoolMembership("pool", Membership(version=1, size=2)).grown(now=2, more=1)
    Traceback (most recent call last):
      ...
    floodmark.schemas.errors.UsageError: pool: 3 sources would be in it, and Membership(version=1, size=2) counts \
fewer; call change_membership() with a higher version before
    """

    def __init__(self, pool: str, given: Membership | None, last: int = 0) -> None:
        self._pool = pool
        self.counts = given is None
        """Whether the pool counts its own sources."""
        self.current = Membership(last, 0) if given is None else given

    def grown(self, now: int, more: int) -> Membership:
        """Return the membership after ``more`` sources join; a `UsageError` if a given one counts fewer."""
        size = now + more
        if self.counts:
            return Membership(self.current.version + 1, size)
        if size > self.current.size:
            reason = f"{size} sources would be in it, and {self.current} counts fewer"
            raise UsageError(reason=f"{self._pool}: {reason}; call change_membership() with a higher version before")
        return self.current

    def shrunk(self, now: int) -> Membership | None:
        """Return the membership of the ``now`` sources that have not ended; ``None``: no change."""
        smaller = self.counts and 0 < now < self.current.size
        return Membership(self.current.version + 1, now) if smaller else None

    def change(self, membership: Membership, now: int) -> None:
        """Replace a given membership by a newer one; `UsageError` if it is not, counts too few, or none was given."""
        check_versioned(membership, self.current, self._pool)
        if self.counts:
            raise UsageError(reason=f"{self._pool} counts its sources itself; give it membership= to count them for it")
        if membership.version <= self.current.version:
            reason = f"membership {membership} after {self.current}, expected a higher version"
            raise UsageError(reason=f"{self._pool}: {reason}")
        if membership.size < now:
            raise UsageError(reason=f"{self._pool}: it has {now} sources, and {membership} counts fewer")
        self.current = membership


def check_joining(pool: str, sources: Sequence[str], there: AbstractSet[str]) -> None:
    """Check the ids of new sources: at least one, none twice, none that has already joined.

    >>> check_joining("pool", ["JFK", "EWR"], {"EWR"})
    Traceback (most recent call last):
      ...
    floodmark.schemas.errors.UsageError: pool: ['EWR'] have joined already; end() them before they join again
    """
    if not sources or len(set(sources)) < len(sources):
        raise UsageError(reason=f"{pool}: sources {list(sources)} are to join, expected one or more different ids")
    joined = sorted(set(sources) & there)
    if joined:
        raise UsageError(reason=f"{pool}: {joined} have joined already; end() them before they join again")


class HasDueTime(Protocol):
    """A source, seen by `Agenda`."""

    @property
    def due_at(self) -> int:
        """When its next marks are due, by a steady clock, milliseconds."""
        ...


S = TypeVar("S", bound=HasDueTime)


class Agenda(Generic[S]):
    """A heap of sources by due time, so that a pool need not ask every source all the time.

    A source may postpone its due time, because calls send marks, too; `due` then corrects it.  After due times may have
    become earlier, call `refresh`.

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
