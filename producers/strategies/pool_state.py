"""How many sources the membership of a pool counts, and which may join.  Pure."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import Membership, check_versioned


class PoolMembership:
    """The membership of a pool's sources: ``given``, or counted by the pool after the topic's ``last`` version.

    An ended source leaves the membership: after retention has deleted its last marks, new readers would wait for them.

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
