"""The state of one partition: its sources, the clocks of their leases, and the minimum over them.  Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from floodmark.schemas.records import Status
from floodmark.schemas.source_state import Member, Roster, SourceState


class LeaseClock:
    """The time that has passed in one partition, for all its sources with one length of lease (milliseconds).

    Only log times decide how long a source was silent, and those of different writers are never compared: their clocks
    differ.  Each writer moves the clock by the step of its own log time.  A step longer than the lease does not count:
    a clock was set, a log time is wrong, or the writer was silent.  A lease has run out when the clock has moved by
    more than two leases: the source was silent for at least one of them, because a step may have begun up to one lease
    before its last record.

    >>> clock = LeaseClock(lease=100)
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
        self.deadline = 0  # the clock must pass this before another lease can run out
        self._hands: dict[str, list[int]] = {}
        """Per source: its hand (clock, log time; see ``SPEC.md``, "Lease"), and the clock at its last record."""

    def take(self, source: str, log_time: int, *, anew: bool) -> None:
        """Apply a source's record; ``anew``: the first one of its epoch, which may come from another machine."""
        hand = self._hands.get(source)
        if hand is None or anew:
            self._hands[source] = [self.now, log_time, self.now]
            return
        step = log_time - hand[1]
        if 0 < step <= self.lease:
            self.now = max(self.now, hand[0] + step)
        if step > 0 or step < -self.lease:  # after a small step back, steps count from the highest log time
            hand[0], hand[1] = self.now, log_time
        hand[2] = self.now

    def has_run_out(self, source: str) -> bool:
        """Tell whether the lease of a source has run out."""
        return self.now > self.expiry(source)

    def expiry(self, source: str) -> int:
        """Return the last time of this clock at which the lease of a source has not run out."""
        hand = self._hands.get(source)
        return (0 if hand is None else hand[2]) + 2 * self.lease

    def forget(self, source: str) -> None:
        """Forget a source."""
        self._hands.pop(source, None)

    def state(self) -> list[Any]:
        """Return the state as JSON values, which later marks do not change."""
        return [self.now, {name: list(hand) for name, hand in self._hands.items()}]

    @classmethod
    def of(cls, lease: int, state: list[Any]) -> "LeaseClock":
        """Restore the `state`."""
        clock = cls(lease)
        clock.now, hands = state
        clock.deadline = clock.now
        for name, (level, time, heard) in hands.items():
            clock._hands[name] = [level, time, heard]
        return clock


@dataclass(frozen=True, slots=True)
class Combined:
    """A combined status and watermark; ACTIVE without a watermark is unknown."""

    status: Status
    watermark: int | None = None

    @property
    def unknown(self) -> bool:
        """Whether the watermark is unknown."""
        return self.status is Status.ACTIVE and self.watermark is None


UNKNOWN: Final = Combined(Status.ACTIVE)
IDLE: Final = Combined(Status.IDLE)
ENDED: Final = Combined(Status.ENDED)


def lowest(watermarks: Collection[int | None]) -> int | None:
    """Return the lowest watermark; ``None``: one of them is unknown, or there is none.

    >>> lowest([30, 12]), lowest([30, None]), lowest([])
    (12, None, None)
    """
    return None if None in watermarks else min(watermarks, default=None)  # type: ignore[type-var]  # none is None


def least(parts: Iterable[Combined]) -> Combined:
    """Combine partitions to a topic, or topics to a stage: the rule is the same.

    >>> least([Combined(Status.ACTIVE, 30), IDLE, Combined(Status.ACTIVE, 12)]).watermark
    12
    >>> least([ENDED, IDLE]) is IDLE, least([ENDED, ENDED]) is ENDED, least([ENDED, UNKNOWN]) is UNKNOWN
    (True, True, True)
    """
    lowest: int | None = None
    idle = False
    for part in parts:
        if part.unknown:
            return UNKNOWN
        if part.watermark is not None:
            lowest = part.watermark if lowest is None else min(lowest, part.watermark)
        idle = idle or part.status is Status.IDLE
    if lowest is not None:
        return Combined(Status.ACTIVE, lowest)
    return IDLE if idle else ENDED


@dataclass(slots=True, eq=False)
class PartitionState:
    """The sources of one partition."""

    number: int
    roster: Roster
    sources: dict[str, SourceState] = field(default_factory=dict)
    unreadable: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By source whose last mark is unreadable: the offset and log time of that mark."""
    clocks: dict[int, LeaseClock] = field(default_factory=dict)  # by length of lease
    log_time: int = 0
    reported: int = 0  # how many sources have marks of the current version here
    combined: Combined = UNKNOWN
    stale: bool = True  # whether ``combined`` is out of date

    def combine(self) -> Combined:
        """Combine the sources."""
        if self.stale:
            self.combined = self._combine()
            self.stale = False
        return self.combined

    def _combine(self) -> Combined:
        absent = self.absent()
        if self.unreadable or self.reported + len(absent) < self.roster.size:
            return UNKNOWN
        version = self.roster.version
        watermarks = [source.watermark for source in self.waited_for()]
        if watermarks:
            return Combined(Status.ACTIVE, lowest(watermarks))
        ended = all(member.unended_partitions == 0 for member in absent.values())
        ended = ended and all(s.status is Status.ENDED for s in self.sources.values() if s.version == version)
        return ENDED if ended else IDLE

    def waited_for(self) -> Iterator[SourceState]:
        """Yield the sources that count."""
        version = self.roster.version
        return (s for s in self.sources.values() if s.member.active_partitions and s.version == version)

    def absent(self) -> dict[str, Member]:
        """Return the sources that need not report here, see `Roster.absent`."""
        return self.roster.absent(self.number, self.reported)

    def recount(self) -> None:
        """Count the sources that have reported under the current version."""
        self.reported = sum(source.version == self.roster.version for source in self.sources.values())

    def set_lease(self, source: SourceState, lease: int | None) -> None:
        """Keep one clock for each length of lease of a source here."""
        source.lease = lease
        if lease is not None and lease not in self.clocks:
            self.clocks[lease] = LeaseClock(lease)
        self.drop_unused_clocks()

    def tick(self, source: SourceState, name: str, log_time: int, *, anew: bool) -> list[Member]:
        """Move the clocks by a source's record; return the sources whose lease has run out now."""
        expired = []
        for clock in self.clocks.values():
            clock.take(name, log_time, anew=anew)
            if clock.now > clock.deadline:
                expired += self._expire(clock)
        if source.lease is not None and source.active:
            clock = self.clocks[source.lease]
            clock.deadline = min(clock.deadline, clock.expiry(name))
        return expired

    def _expire(self, clock: LeaseClock) -> list[Member]:
        """Return the sources whose lease has run out, and set the deadline for the next one."""
        clock.deadline = clock.now + 2 * clock.lease
        expired = []
        for name, source in self.sources.items():
            if source.lease == clock.lease and source.active:
                if clock.has_run_out(name):
                    source.active = False
                    expired.append(source.member)
                else:
                    clock.deadline = min(clock.deadline, clock.expiry(name))
        return expired

    def remove(self, name: str) -> int:
        """Forget a source; return its epoch (0: not known here)."""
        source = self.sources.pop(name, None)
        for clock in self.clocks.values():
            clock.forget(name)
        return 0 if source is None else source.epoch

    def drop_unused_clocks(self) -> None:
        """Drop the clocks of leases that no source has."""
        leases = {source.lease for source in self.sources.values()}
        self.clocks = {lease: clock for lease, clock in self.clocks.items() if lease in leases}

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "log_time": self.log_time,
            "clocks": {str(lease): clock.state() for lease, clock in self.clocks.items()},
            "unreadable": dict(self.unreadable),
            "sources": {name: source.state() for name, source in self.sources.items()},
        }

    @classmethod
    def of(cls, number: int, roster: Roster, stored: Mapping[str, Any]) -> "PartitionState":
        """Restore the `state`, and add its sources to the roster."""
        part = cls(number, roster)
        part.log_time = stored["log_time"]
        part.clocks = {int(lease): LeaseClock.of(int(lease), state) for lease, state in stored["clocks"].items()}
        part.unreadable = {name: (offset, time) for name, (offset, time) in stored["unreadable"].items()}
        for name, state in stored["sources"].items():
            member = roster.members.setdefault(name, Member())
            source = part.sources[name] = SourceState.of(state, member)
            member.version = max(member.version, source.version)
            member.unended_partitions += source.status is not Status.ENDED
            if source.lease is not None:
                source.active = source.active and not part.clocks[source.lease].has_run_out(name)
            member.active_partitions += source.active
        return part
