"""What a reader knows of one topic: its partitions, their sources, and how these combine.  Pure.

The rules, and why they are so, stand in `tracker` and in ``SPEC.md``.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any, Final

from floodmark.schemas.leases import Clock
from floodmark.schemas.records import Status, WatermarkRecord
from floodmark.schemas.timestamps import END_OF_TIME

LAST: Final = END_OF_TIME - 1
"""The highest watermark that an ACTIVE source can have: the end of time is reached by the end alone."""

FENCES: Final = 1000
"""Of so many forgotten sources the epoch is kept."""


class Verdict(Enum):
    """What became of one watermark record."""

    ACCEPTED = "accepted"
    REPLAYED = "replayed"
    """Seen before: an equal or lower sequence.  Normal after a crash or a rewind."""
    REGRESSED = "regressed"
    """A new sequence with a lower watermark: the watermark stays, the rest of the statement counts."""
    FENCED = "fenced"
    """From a lower epoch of its source: a zombie."""
    RETIRED = "retired"
    """From a lower version of the membership."""
    AFTER_END = "after_end"
    """From a source that had ended in this epoch."""


@dataclass(frozen=True, slots=True)
class Combined:
    """A combined statement; ACTIVE without a watermark is unknown."""

    status: Status
    watermark: int | None = None

    @property
    def unknown(self) -> bool:
        """Whether nothing is promised."""
        return self.status is Status.ACTIVE and self.watermark is None


UNKNOWN: Final = Combined(Status.ACTIVE)
IDLE: Final = Combined(Status.IDLE)
ENDED: Final = Combined(Status.ENDED)


def least(parts: Iterable[Combined]) -> Combined:
    """Combine the statements of partitions or of topics: the same rule for both."""
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


class Member:
    """What the partitions of a topic together say of one source."""

    __slots__ = ("awake", "going_on", "reach", "version")

    def __init__(self) -> None:
        """Begin with nothing heard."""
        self.version = 0
        """The newest version of the membership that it spoke under."""
        self.reach = 0
        """How many partitions it knows: it writes to no others."""
        self.awake = 0
        """In how many partitions it is ACTIVE with its lease not run out."""
        self.going_on = 0
        """In how many partitions it has not ENDED."""


class SourceState:
    """The last statement of one source in one partition."""

    __slots__ = (
        *("awake", "epoch", "lease", "log_time", "member", "records", "sequence", "since", "status", "version"),
        "watermark",
    )

    def __init__(self, member: Member) -> None:
        """Begin before the first statement."""
        self.member = member
        self.epoch = self.sequence = -1
        self.watermark: int | None = None
        self.status = Status.ENDED
        self.version = 0
        self.records: int | None = None
        self.lease: int | None = None
        self.log_time = self.since = 0
        self.awake = False
        """Whether it is ACTIVE here and its lease has not run out."""

    def state(self) -> list[object]:
        """Return it as a value that JSON can carry."""
        return [
            *(self.epoch, self.sequence, self.watermark, self.status.value, self.version, self.records, self.lease),
            *(self.log_time, self.since),
        ]

    @classmethod
    def of(cls, state: list[Any], member: Member) -> "SourceState":
        """Build it from what `state` returned."""
        source = cls(member)
        (source.epoch, source.sequence, watermark, status, source.version, source.records, source.lease) = state[:7]
        source.watermark, source.status = None if watermark is None else min(watermark, LAST), Status(status)
        source.log_time, source.since = state[7:]
        source.awake = source.status is Status.ACTIVE
        return source


class PartitionState:
    """The sources of one partition."""

    __slots__ = ("clocks", "combined", "log_time", "number", "reported", "sources", "stale", "unreadable")

    def __init__(self, number: int) -> None:
        """Begin with no source."""
        self.number = number
        self.sources: dict[str, SourceState] = {}
        self.unreadable: dict[str, tuple[int, int]] = {}
        """Sources that have left an unreadable mark behind their last statement: its offset and log time."""
        self.clocks: dict[int, Clock] = {}
        """By length of lease."""
        self.log_time = 0
        self.reported = 0
        """How many sources have spoken here under the current version."""
        self.combined = UNKNOWN
        self.stale = True

    def combine(self, topic: "TopicState") -> Combined:
        """Return what the sources together say."""
        if self.stale:
            self.combined = self._combine(topic)
            self.stale = False
        return self.combined

    def _combine(self, topic: "TopicState") -> Combined:
        absent = self.absent(topic)
        if self.unreadable or self.reported + len(absent) < topic.size:
            return UNKNOWN
        version = topic.version
        waited_for = [
            source.watermark for source in self.sources.values() if source.member.awake and source.version == version
        ]
        if waited_for:
            return UNKNOWN if None in waited_for else Combined(Status.ACTIVE, min(waited_for))  # type: ignore[type-var]
        ended = all(member.going_on == 0 for member in absent.values())
        ended = ended and all(s.status is Status.ENDED for s in self.sources.values() if s.version == version)
        return ENDED if ended else IDLE

    def absent(self, topic: "TopicState") -> dict[str, Member]:
        """Return the sources that do not know of this partition and are asleep in all that they know."""
        if topic.joined == self.reported:
            return {}
        return {
            name: member
            for name, member in topic.members.items()
            if member.version == topic.version and member.awake == 0 and member.reach <= self.number
        }

    def state(self) -> dict[str, Any]:
        """Return it as a value that JSON can carry."""
        return {
            "log_time": self.log_time,
            **({"clocks": {str(lease): clock.state() for lease, clock in self.clocks.items()}} if self.clocks else {}),
            **({"unreadable": dict(self.unreadable)} if self.unreadable else {}),
            "sources": {name: source.state() for name, source in self.sources.items()},
        }

    def set_lease(self, source: SourceState, lease: int | None) -> None:
        """Keep one clock for each length of lease that a source here has."""
        before, source.lease = source.lease, lease
        if lease is not None and lease not in self.clocks:
            self.clocks[lease] = Clock(lease)
        if before is not None and all(other.lease != before for other in self.sources.values()):
            del self.clocks[before]


class TopicState:
    """The partitions of one topic, and who is expected to write to it."""

    __slots__ = (
        *("fences", "full", "joined", "members", "partition_count", "partitions", "read", "retiring", "size"),
        "version",
    )

    def __init__(self) -> None:
        """Begin with nothing read."""
        self.partitions: dict[int, PartitionState] = {}
        self.members: dict[str, Member] = {}
        self.fences: dict[str, int] = {}
        """The last epoch of sources that were forgotten."""
        self.read: dict[int, int] = {}
        """Per partition the offset of the last unreadable mark: one that is read again changes nothing."""
        self.partition_count = 0
        self.version = 0
        self.size = 0
        self.joined = 0
        """How many sources have spoken under the current version."""
        self.full = 0
        """In how many partitions all sources of the current version have reported."""
        self.retiring = False
        """Whether there may be sources of older versions that can be forgotten once all have reported."""

    def combine(self) -> Combined:
        """Return what the partitions together say."""
        if self.partition_count == 0:
            return UNKNOWN
        return least(part.combine(self) for part in self._all())

    def _all(self) -> Iterator[PartitionState]:
        # Without any mark, the first is the one that most sources know of, and the last the one that fewest do.
        if len(self.partitions) < self.partition_count:
            yield from (PartitionState(number) for number in {*self.unmarked(1), *self.unmarked(1, last=True)})
        yield from self.partitions.values()

    def unmarked(self, most: int, *, last: bool = False) -> Iterator[int]:
        """Yield the first, or the last, partitions without any mark; a count of millions may be claimed."""
        numbers = range(self.partition_count)
        missing = (n for n in (reversed(numbers) if last else numbers) if n not in self.partitions)
        return islice(missing, most)

    def apply(self, record: WatermarkRecord, number: int, log_time: int, counts: Counter[str]) -> Verdict:
        """Take one record of a partition in; one that is ignored changes nothing."""
        name, membership = record.source, record.membership
        version = membership.version
        if version < self.version:
            self._release(record, number)
            return Verdict.RETIRED
        part = self.partitions.get(number)
        source = None if part is None else part.sources.get(name)
        if source is not None and record.epoch <= source.epoch:
            refused = _refuse(source, record)
            if refused is not None:
                return refused
            if record.sequence != source.sequence + 1:
                counts["sequence_gaps"] += 1
        elif source is None and record.epoch < self.fences.get(name, 0):
            return Verdict.FENCED
        if version != self.version or membership.size != self.size:
            self._rejoin(version, membership.size, counts)
        if part is None:
            part = self._part(number)
        if source is None or source.version != self.version or record.partitions > source.member.reach:
            member = self._member(record, number)
        if source is None:
            source = part.sources[name] = SourceState(member)
        return self._accept(part, source, record, log_time)

    def _release(self, record: WatermarkRecord, number: int) -> None:
        """End the wait for a source that an unreadable mark began: it can be read again, and is retired."""
        part = self.partitions.get(number)
        if part is None or record.source not in part.unreadable:
            return
        source = part.sources.get(record.source)
        if source is not None and record.epoch <= source.epoch and _refuse(source, record) is not None:
            return  # a zombie, or a replay: not its next statement
        del part.unreadable[record.source]
        part.stale = True

    def _accept(self, part: PartitionState, source: SourceState, record: WatermarkRecord, log_time: int) -> Verdict:
        name, member, status = record.source, source.member, record.status
        part.stale = True
        part.log_time = max(part.log_time, log_time)
        if source.version != self.version:
            source.version = self.version
            part.reported += 1
            self.full += part.reported == self.size
        was_awake = source.awake
        part.unreadable.pop(name, None)
        source.awake = status is Status.ACTIVE
        if was_awake != source.awake:
            self._wake(member, 1 if source.awake else -1)
        if (source.status is Status.ENDED) != (status is Status.ENDED):
            self._go_on(member, -1 if status is Status.ENDED else 1)
        anew = record.epoch != source.epoch
        verdict = _state(source, record, log_time)
        if record.lease != source.lease:
            part.set_lease(source, record.lease)
        if part.clocks:
            self._tick(part, source, name, log_time, anew=anew)
        if self.retiring and self.full >= self.partition_count:
            self._retire()
        return verdict

    def _member(self, record: WatermarkRecord, number: int) -> Member:
        member = self.members.get(record.source)
        if member is None:
            member = self.members[record.source] = Member()
        if member.version != self.version:
            member.version = self.version
            self.joined += 1
            self.forget()
        reach = record.partitions
        if reach > member.reach or number >= member.reach:
            member.reach = max(reach, number + 1)
            self.partition_count = max(self.partition_count, member.reach)
            self.forget()
        return member

    def _part(self, number: int) -> PartitionState:
        part = self.partitions[number] = PartitionState(number)
        self.partition_count = max(self.partition_count, number + 1)
        return part

    def hold(self, name: str, number: int, offset: int, log_time: int) -> bool:
        """Wait for a source until its next readable record in a partition; tells whether it is known, and new."""
        seen = offset <= self.read.get(number, -1)
        self.read[number] = max(offset, self.read.get(number, -1))
        if seen or name not in self.members:
            return False
        part = self.partitions.get(number) or self._part(number)
        part.unreadable[name] = (offset, log_time)
        part.stale = True
        return True

    def _tick(self, part: PartitionState, source: SourceState, name: str, log_time: int, *, anew: bool) -> None:
        for clock in part.clocks.values():
            clock.take(name, log_time, anew=anew)
            if clock.now > clock.deadline:
                self._expire(part, clock)
        if source.lease is not None and source.awake:
            clock = part.clocks[source.lease]
            clock.deadline = min(clock.deadline, clock.expiry(name))

    def _expire(self, part: PartitionState, clock: Clock) -> None:
        """Find the sources whose lease has run out, and when the next one can."""
        clock.deadline = clock.now + 2 * clock.lease
        for name, source in part.sources.items():
            if source.lease == clock.lease and source.awake:
                if clock.has_run_out(name):
                    source.awake = False
                    self._wake(source.member, -1)
                else:
                    clock.deadline = min(clock.deadline, clock.expiry(name))

    def _wake(self, member: Member, change: int) -> None:
        """Note that a source is waited for in one partition more, or less."""
        before = member.awake
        member.awake = before + change
        if before == 0 or member.awake == 0:
            self.forget()

    def _go_on(self, member: Member, change: int) -> None:
        """Note that a source has ended in one partition less, or more."""
        before = member.going_on
        member.going_on = before + change
        if before == 0 or member.going_on == 0:
            self.forget()

    def forget(self) -> None:
        """Combine every partition anew."""
        for part in self.partitions.values():
            part.stale = True

    def _rejoin(self, version: int, size: int, counts: Counter[str]) -> None:
        if version == self.version:
            # Two sizes under one version: the larger holds longer, so it is the safe one.
            counts["membership_conflicts"] += 1
            size = max(size, self.size)
        self.version, self.size = version, size
        self.recount()
        self.forget()

    def recount(self) -> None:
        """Find out anew who has spoken under the current version, and where."""
        for part in self.partitions.values():
            part.reported = sum(source.version == self.version for source in part.sources.values())
        self.full = sum(part.reported >= self.size for part in self.partitions.values())
        self.joined = sum(member.version == self.version for member in self.members.values())
        self.retiring = self.joined < len(self.members)

    def _retire(self) -> None:
        """Forget sources of older versions: all members of this one have reported.  Their epochs still fence."""
        self.retiring = False
        held = {name for part in self.partitions.values() for name in part.unreadable}
        for name in [n for n, m in self.members.items() if m.version != self.version and n not in held]:
            del self.members[name]
            gone = [part.sources.pop(name) for part in self.partitions.values() if name in part.sources]
            self.fences[name] = max([self.fences.pop(name, 0), *(source.epoch for source in gone)])
            for part in self.partitions.values():
                for clock in part.clocks.values():
                    clock.forget(name)
        for part in self.partitions.values():
            leases = {source.lease for source in part.sources.values()}
            part.clocks = {lease: clock for lease, clock in part.clocks.items() if lease in leases}
        for name in list(islice(self.fences, max(0, len(self.fences) - FENCES))):
            del self.fences[name]

    def state(self) -> dict[str, Any]:
        """Return it as a value that JSON can carry."""
        reach = {name: member.reach for name, member in self.members.items() if member.reach != self.partition_count}
        return {
            "version": self.version,
            "size": self.size,
            "partition_count": self.partition_count,
            **({"reach": reach} if reach else {}),
            **({"fences": self.fences} if self.fences else {}),
            **({"read": {str(number): offset for number, offset in self.read.items()}} if self.read else {}),
            "partitions": {str(number): part.state() for number, part in self.partitions.items()},
        }

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "TopicState":
        """Build it from what `state` returned, now or in format 1, which did not know who knows which partitions."""
        topic = cls()
        topic.version, topic.size = stored["version"], stored["size"]
        topic.partition_count = stored["partition_count"]
        topic.fences = dict(stored.get("fences", {}))
        topic.read = {int(number): offset for number, offset in stored.get("read", {}).items()}
        reach = stored.get("reach", {})
        for number, part in stored["partitions"].items():
            topic.partitions[int(number)] = topic._part_of(int(number), part)
        for name, member in topic.members.items():
            member.reach = reach.get(name, topic.partition_count)
        topic.recount()
        return topic

    def _part_of(self, number: int, stored: Mapping[str, Any]) -> PartitionState:
        part = PartitionState(number)
        part.log_time = stored["log_time"]
        part.clocks = {int(lease): Clock.of(int(lease), state) for lease, state in stored.get("clocks", {}).items()}
        part.unreadable = {name: (offset, time) for name, (offset, time) in stored.get("unreadable", {}).items()}
        for name, state in stored["sources"].items():
            member = self.members.setdefault(name, Member())
            source = part.sources[name] = SourceState.of(state, member)
            member.version = max(member.version, source.version)
            member.going_on += source.status is not Status.ENDED
            if source.lease is not None:
                clock = part.clocks.setdefault(source.lease, Clock(source.lease))
                source.awake = source.awake and not clock.has_run_out(name)
            member.awake += source.awake
        return part


def _refuse(source: SourceState, record: WatermarkRecord) -> Verdict | None:
    if record.epoch < source.epoch:
        return Verdict.FENCED
    if record.sequence <= source.sequence:
        return Verdict.REPLAYED
    return Verdict.AFTER_END if source.status is Status.ENDED else None


def _state(source: SourceState, record: WatermarkRecord, log_time: int) -> Verdict:
    """Replace a source's statement by its next one."""
    if record.epoch != source.epoch:
        source.epoch, source.watermark = record.epoch, None
        source.log_time = source.since = log_time
    elif log_time > source.log_time:
        source.log_time = log_time
    source.sequence = record.sequence
    source.status = record.status
    source.records = record.records
    watermark = record.watermark
    if watermark is not None and watermark > LAST:
        watermark = LAST
    if watermark is not None and (source.watermark is None or watermark > source.watermark):
        source.watermark = watermark
        source.since = log_time
    elif watermark != source.watermark:
        return Verdict.REGRESSED
    return Verdict.ACCEPTED
