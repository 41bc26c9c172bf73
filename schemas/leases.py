"""How long a source has been silent, by the clocks of the others.  Pure: log times alone decide.

Log times of different writers cannot be compared: their clocks differ.  The differences of one writer's own log times
can.  So a partition has a clock that each of its writers moves by how much its own log time has advanced, and nobody's
clock is ever held against another's.  A step longer than the lease is not counted: a clock was set, one log time is
wrong, or the writer itself was silent.  So no single log time moves the clock by more than one lease, and none of the
steps that are counted after a source's record began more than one lease before it.  A lease has run out when the clock
has moved by more than two leases: one of them at least passed, by the others' clocks, while the source was silent.
"""

from typing import Any


class Clock:
    """The time that has passed in one partition, for all sources there with one length of lease.

    Args:
        lease: its length, milliseconds of log time.

    >>> clock = Clock(lease=100)
    >>> clock.take("A", 1_000, anew=True)
    >>> for log_time in (70_000, 70_090, 70_180, 70_270):  # the clock of B is a minute fast
    ...     clock.take("B", log_time, anew=False)
    >>> clock.has_run_out("A")
    True
    """

    __slots__ = ("_hands", "deadline", "lease", "now")

    def __init__(self, lease: int) -> None:
        self.lease = lease
        self.now = 0
        self.deadline = 0
        """No lease has run out before the clock is past this."""
        self._hands: dict[str, list[int]] = {}
        """Per source: the clock at one of its records and that record's log time, and the clock at its last record."""

    def take(self, source: str, log_time: int, *, anew: bool) -> None:
        """Note a source's record; ``anew``: the first one of its epoch, which may come from another machine."""
        hand = self._hands.get(source)
        if hand is None or anew:
            self._hands[source] = [self.now, log_time, self.now]
            return
        step = log_time - hand[1]
        if 0 < step <= self.lease:
            self.now = max(self.now, hand[0] + step)
        if step > 0 or step < -self.lease:  # else a small step back: the source counts on where it was further
            hand[0], hand[1] = self.now, log_time
        hand[2] = self.now

    def has_run_out(self, source: str) -> bool:
        """Tell whether a source has been silent for longer than its lease allows."""
        return self.now > self.expiry(source)

    def expiry(self, source: str) -> int:
        """Return the last time of the clock at which a source still counts."""
        hand = self._hands.get(source)
        return (0 if hand is None else hand[2]) + 2 * self.lease

    def forget(self, source: str) -> None:
        """Drop what is known of a source."""
        self._hands.pop(source, None)

    def state(self) -> list[Any]:
        """Return it as a value that JSON can carry."""
        return [self.now, self._hands]

    @classmethod
    def of(cls, lease: int, state: list[Any]) -> "Clock":
        """Build it from what `state` returned."""
        clock = cls(lease)
        clock.now, hands = state
        clock.deadline = clock.now
        for name, (level, time, heard) in hands.items():
            clock._hands[name] = [level, time, heard]
        return clock
