"""The state of one topic: its partitions and its sources.  Pure.  ``SPEC.md`` ("Readers") has the rules."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from floodmark.schemas.partition_state import UNKNOWN, Combined, PartitionState, least
from floodmark.schemas.records import Status, Verdict, WatermarkRecord
from floodmark.schemas.source_state import Member, Roster, SourceState

FENCES: Final = 1000  # the number of forgotten sources whose epochs are kept


@dataclass(slots=True, eq=False)
class TopicState:
    """The partitions of one topic, and its sources."""

    roster: Roster = field(default_factory=Roster)
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    partition_count: int = 0
    fences: dict[str, int] = field(default_factory=dict)  # the last epochs of forgotten sources
    unreadable_offsets: dict[int, int] = field(default_factory=dict)
    """Per partition, the offset of the last unreadable mark: a second read of it changes nothing."""
    full: int = 0  # in how many partitions all sources of the current version have reported
    retiring: bool = False  # whether sources of older versions may be left to forget

    def combine(self) -> Combined:
        """Combine the partitions."""
        if self.partition_count == 0:
            return UNKNOWN
        return least(part.combine() for part in self._all())

    def processing_times(self) -> list[int | None]:
        """Return `processing_time_of` the last mark of each source that counts, over all partitions."""
        if self.combine().unknown:
            return [None]
        return [source.processing_time for part in self.partitions.values() for source in part.waited_for()]

    def _all(self) -> Iterator[PartitionState]:
        # Most sources know the first partition without a mark, and fewest the last: no other can decide.
        if len(self.partitions) < self.partition_count:
            yield from (self.empty(number) for number in {*self.unmarked(1), *self.unmarked(1, last=True)})
        yield from self.partitions.values()

    def empty(self, number: int) -> PartitionState:
        """Return the state of a partition without any mark."""
        return PartitionState(number, self.roster)

    def unmarked(self, most: int, *, last: bool = False) -> Iterator[int]:
        """Yield the first or last ``most`` partitions without a mark: a mark may claim billions."""
        numbers = range(self.partition_count)
        missing = (n for n in (reversed(numbers) if last else numbers) if n not in self.partitions)
        return islice(missing, most)

    def apply(self, record: WatermarkRecord, number: int, log_time: int, counts: Counter[str]) -> Verdict:
        """Apply one mark of a partition; an ignored one changes nothing."""
        name, membership, roster = record.source, record.membership, self.roster
        version = membership.version
        part = self.partitions.get(number)
        source = None if part is None else part.sources.get(name)
        if source is not None:
            refused = source.refuse(record)
        else:
            refused = Verdict.FENCED if record.epoch < self.fences.get(name, 0) else None
        if version < roster.version:
            if refused is None and part is not None and name in part.unreadable:
                del part.unreadable[name]
                part.stale = self.retiring = True  # the wait for a readable mark ends; the source may be forgotten
            return Verdict.RETIRED
        if refused is not None:
            return refused
        if (
            source is not None
            and record.epoch == source.epoch
            and version == source.version  # between marks of two versions, there may be ignored ones
            and record.sequence != source.sequence + 1
        ):
            counts["sequence_gaps"] += 1
        if version != roster.version or membership.size != roster.size:
            self._change_membership(version, membership.size, counts)
        if part is None:
            part = self._part(number)
        if source is None or source.version != version or record.partitions > source.member.reach:
            member = self._member(record, number)
        if source is None:
            source = part.sources[name] = SourceState(member)
        return self._accept(part, source, record, log_time)

    def epoch(self, name: str, number: int) -> int:
        """Return the epoch of a source in a partition; -1: none."""
        part = self.partitions.get(number)
        source = None if part is None else part.sources.get(name)
        return self.fences.get(name, -1) if source is None else source.epoch

    def apply_unreadable(self, name: str, number: int, offset: int, log_time: int) -> bool:
        """Hold the partition until the source's next readable mark; tell whether source and mark are known and new."""
        last = self.unreadable_offsets.get(number, -1)
        self.unreadable_offsets[number] = max(offset, last)
        if offset <= last or name not in self.roster.members:
            return False
        part = self.partitions.get(number) or self._part(number)
        part.unreadable[name] = (offset, log_time)
        part.stale = True
        return True

    def _accept(self, part: PartitionState, source: SourceState, record: WatermarkRecord, log_time: int) -> Verdict:
        name, member, status, version = record.source, source.member, record.status, self.roster.version
        part.stale = True
        part.log_time = max(part.log_time, log_time)
        if source.version != version:
            source.version = version
            part.reported += 1
            self.full += part.reported == self.roster.size
        part.unreadable.pop(name, None)
        was_active, source.active = source.active, status is Status.ACTIVE
        if was_active != source.active:
            self._count(member, active=1 if source.active else -1)
        if (source.status is Status.ENDED) != (status is Status.ENDED):
            self._count(member, unended=-1 if status is Status.ENDED else 1)
        anew = record.epoch != source.epoch
        verdict = source.replace(record, log_time)
        if record.lease != source.lease:
            part.set_lease(source, record.lease)
        if part.clocks:
            for expired in part.tick(source, name, log_time, anew=anew):
                self._count(expired, active=-1)
        if self.retiring and self.full >= self.partition_count:
            self._retire()
        return verdict

    def _member(self, record: WatermarkRecord, number: int) -> Member:
        """Return a source's `Member`, updated by its mark."""
        roster = self.roster
        member = roster.members.setdefault(record.source, Member())
        if member.version != roster.version:
            member.version = roster.version
            roster.joined += 1
            self._combine_anew()
        reach = record.partitions
        if reach > member.reach or number >= member.reach:
            member.reach = max(reach, number + 1)
            self.partition_count = max(self.partition_count, member.reach)
            self._combine_anew()
        return member

    def _part(self, number: int) -> PartitionState:
        part = self.partitions[number] = self.empty(number)
        self.partition_count = max(self.partition_count, number + 1)
        return part

    def _count(self, member: Member, *, active: int = 0, unended: int = 0) -> None:
        """Change in how many partitions a source is active, or has not ended."""
        before = member.activity
        member.active_partitions += active
        member.unended_partitions += unended
        if member.activity != before:
            self._combine_anew()

    def _combine_anew(self) -> None:
        for part in self.partitions.values():
            part.stale = True

    def _change_membership(self, version: int, size: int, counts: Counter[str]) -> None:
        roster = self.roster
        if version == roster.version:
            # Of two sizes of one version, the larger is safe: readers wait longer.
            counts["membership_conflicts"] += 1
            size = max(size, roster.size)
        roster.version, roster.size = version, size
        self._recount()
        self._combine_anew()

    def _recount(self) -> None:
        """Count again which sources have reported under the current version, and where."""
        roster = self.roster
        for part in self.partitions.values():
            part.recount()
        self.full = sum(part.reported >= roster.size for part in self.partitions.values())
        roster.joined = sum(member.version == roster.version for member in roster.members.values())
        self.retiring = roster.joined < len(roster.members)

    def _retire(self) -> None:
        """Forget sources of older versions; their epochs still fence."""
        self.retiring = False
        members, parts = self.roster.members, self.partitions.values()
        unreadable = {name for part in parts for name in part.unreadable}
        retired = [n for n, m in members.items() if m.version != self.roster.version and n not in unreadable]
        for name in retired:
            del members[name]
            self.fences[name] = max([self.fences.pop(name, 0), *(part.remove(name) for part in parts)])
        for part in parts:
            part.drop_unused_clocks()
        for name in list(islice(self.fences, max(0, len(self.fences) - FENCES))):
            del self.fences[name]

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        roster, count = self.roster, self.partition_count
        return {
            "membership": {"version": roster.version, "size": roster.size},
            "partition_count": count,
            "sources_with_fewer_partitions": {
                name: member.reach for name, member in roster.members.items() if member.reach != count
            },
            "epochs_of_forgotten_sources": dict(self.fences),
            "unreadable_offsets": {str(number): offset for number, offset in self.unreadable_offsets.items()},
            "partitions": {str(number): part.state() for number, part in self.partitions.items()},
        }

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "TopicState":
        """Restore the `state`."""
        topic = cls()
        roster = topic.roster
        roster.version, roster.size = stored["membership"]["version"], stored["membership"]["size"]
        topic.partition_count = stored["partition_count"]
        topic.fences = dict(stored["epochs_of_forgotten_sources"])
        topic.unreadable_offsets = {int(number): offset for number, offset in stored["unreadable_offsets"].items()}
        for number, part in stored["partitions"].items():
            topic.partitions[int(number)] = PartitionState.of(int(number), roster, part)
        reach = stored["sources_with_fewer_partitions"]
        for name, member in roster.members.items():
            member.reach = reach.get(name, topic.partition_count)
        topic._recount()
        return topic
