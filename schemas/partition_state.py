"""What a reader knows of one partition: its sources, their leases, and how these combine.  Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from floodmark.schemas.combined import ENDED, IDLE, UNKNOWN, Combined, lowest
from floodmark.schemas.leases import Clock
from floodmark.schemas.records import Status
from floodmark.schemas.source_state import Member, Roster, SourceState


@dataclass(slots=True, eq=False)
class PartitionState:
    """The sources of one partition."""

    number: int
    """Which partition."""
    roster: Roster
    """Who is expected to write to its topic."""
    sources: dict[str, SourceState] = field(default_factory=dict)
    unreadable: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Sources that have left an unreadable mark behind their last statement: its offset and log time."""
    clocks: dict[int, Clock] = field(default_factory=dict)
    """By length of lease."""
    log_time: int = 0
    reported: int = 0
    """How many sources have spoken here under the current version."""
    combined: Combined = UNKNOWN
    stale: bool = True
    """Whether ``combined`` must be worked out anew."""

    def combine(self) -> Combined:
        """Return what the sources together say."""
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
        """Find out anew how many sources have spoken under the current version."""
        self.reported = sum(source.version == self.roster.version for source in self.sources.values())

    def set_lease(self, source: SourceState, lease: int | None) -> None:
        """Keep one clock for each length of lease that a source here has."""
        before, source.lease = source.lease, lease
        if lease is not None and lease not in self.clocks:
            self.clocks[lease] = Clock(lease)
        if before is not None and all(other.lease != before for other in self.sources.values()):
            del self.clocks[before]

    def tick(self, source: SourceState, name: str, log_time: int, *, anew: bool) -> list[Member]:
        """Move the clocks by a source's record; return the sources whose lease has run out by that.

        Args:
            source: whose record was accepted.
            name: its id.
            log_time: of the record.
            anew: whether it is the first of its epoch.
        """
        expired = []
        for clock in self.clocks.values():
            clock.take(name, log_time, anew=anew)
            if clock.now > clock.deadline:
                expired += self._expire(clock)
        if source.lease is not None and source.active:
            clock = self.clocks[source.lease]
            clock.deadline = min(clock.deadline, clock.expiry(name))
        return expired

    def _expire(self, clock: Clock) -> list[Member]:
        """Find the sources whose lease has run out, and when the next one can."""
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
        """Forget a source; return its epoch, 0 where it is not known here."""
        source = self.sources.pop(name, None)
        for clock in self.clocks.values():
            clock.forget(name)
        return 0 if source is None else source.epoch

    def drop_unused_clocks(self) -> None:
        """Keep the clocks of those leases that a source has."""
        leases = {source.lease for source in self.sources.values()}
        self.clocks = {lease: clock for lease, clock in self.clocks.items() if lease in leases}

    def state(self) -> dict[str, Any]:
        """Return it as a value that JSON can carry."""
        return {
            "log_time": self.log_time,
            **({"clocks": {str(lease): clock.state() for lease, clock in self.clocks.items()}} if self.clocks else {}),
            **({"unreadable": dict(self.unreadable)} if self.unreadable else {}),
            "sources": {name: source.state() for name, source in self.sources.items()},
        }

    @classmethod
    def of(cls, number: int, roster: Roster, stored: Mapping[str, Any]) -> "PartitionState":
        """Build it from what `state` returned, and enter its sources into the roster."""
        part = cls(number, roster)
        part.log_time = stored["log_time"]
        part.clocks = {int(lease): Clock.of(int(lease), state) for lease, state in stored.get("clocks", {}).items()}
        part.unreadable = {name: (offset, time) for name, (offset, time) in stored.get("unreadable", {}).items()}
        for name, state in stored["sources"].items():
            member = roster.members.setdefault(name, Member())
            source = part.sources[name] = SourceState.of(state, member)
            member.version = max(member.version, source.version)
            member.unended_partitions += source.status is not Status.ENDED
            if source.lease is not None:
                clock = part.clocks.setdefault(source.lease, Clock(source.lease))
                source.active = source.active and not clock.has_run_out(name)
            member.active_partitions += source.active
        return part
