"""What a reader knows of one topic: its partitions, and who is expected to write to it.  Pure.

The rules, and why they are so, stand in `tracker` and in ``SPEC.md``.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from floodmark.schemas.partition_state import UNKNOWN, Combined, PartitionState, least
from floodmark.schemas.records import Status, Verdict, WatermarkRecord
from floodmark.schemas.source_state import Member, Roster, SourceState

FENCES: Final = 1000
"""Of so many forgotten sources the epoch is kept."""


@dataclass(slots=True, eq=False)
class TopicState:
    """The partitions of one topic, and who is expected to write to it."""

    roster: Roster = field(default_factory=Roster)
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    partition_count: int = 0
    fences: dict[str, int] = field(default_factory=dict)
    """The last epoch of sources that were forgotten."""
    unreadable_offsets: dict[int, int] = field(default_factory=dict)
    """Per partition the offset of the last unreadable mark: one that is read again changes nothing."""
    full: int = 0
    """In how many partitions all sources of the current version have reported."""
    retiring: bool = False
    """Whether there may be sources of older versions that can be forgotten once all have reported."""

    def combine(self) -> Combined:
        """Return what the partitions together say."""
        if self.partition_count == 0:
            return UNKNOWN
        return least(part.combine() for part in self._all())

    def processing_times(self) -> list[int | None]:
        """Return up to when each source that counts has worked off what came, by partition; ``None``: not known."""
        if self.combine().unknown:
            return [None]
        return [source.processing_time for part in self.partitions.values() for source in part.waited_for()]

    def _all(self) -> Iterator[PartitionState]:
        # Without any mark, the first is the one that most sources know of, and the last the one that fewest do.
        if len(self.partitions) < self.partition_count:
            yield from (self.empty(number) for number in {*self.unmarked(1), *self.unmarked(1, last=True)})
        yield from self.partitions.values()

    def empty(self, number: int) -> PartitionState:
        """Return the state of a partition without any mark."""
        return PartitionState(number, self.roster)

    def unmarked(self, most: int, *, last: bool = False) -> Iterator[int]:
        """Yield the first, or the last, partitions without any mark; a count of millions may be claimed."""
        numbers = range(self.partition_count)
        missing = (n for n in (reversed(numbers) if last else numbers) if n not in self.partitions)
        return islice(missing, most)

    def apply(self, record: WatermarkRecord, number: int, log_time: int, counts: Counter[str]) -> Verdict:
        """Apply one mark of a partition; one that is ignored changes nothing."""
        name, membership, roster = record.source, record.membership, self.roster
        version = membership.version
        if version < roster.version:
            self._end_unreadable(record, number)
            return Verdict.RETIRED
        part = self.partitions.get(number)
        source = None if part is None else part.sources.get(name)
        if source is not None and record.epoch <= source.epoch:
            refused = source.refuse(record)
            if refused is not None:
                return refused
            if record.sequence != source.sequence + 1:
                counts["sequence_gaps"] += 1
        elif source is None and record.epoch < self.fences.get(name, 0):
            return Verdict.FENCED
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
        """Return the epoch of a source that counts in a partition; -1: there is none."""
        part = self.partitions.get(number)
        source = None if part is None else part.sources.get(name)
        return self.fences.get(name, -1) if source is None else source.epoch

    def apply_unreadable(self, name: str, number: int, offset: int, log_time: int) -> bool:
        """Wait for a source until its next readable record in a partition; tells whether it is known, and new."""
        last = self.unreadable_offsets.get(number, -1)
        self.unreadable_offsets[number] = max(offset, last)
        if offset <= last or name not in self.roster.members:
            return False
        part = self.partitions.get(number) or self._part(number)
        part.unreadable[name] = (offset, log_time)
        part.stale = True
        return True

    def _end_unreadable(self, record: WatermarkRecord, number: int) -> None:
        """End the wait for a source that an unreadable mark began: it can be read again, and is retired."""
        part = self.partitions.get(number)
        if part is None or record.source not in part.unreadable:
            return
        source = part.sources.get(record.source)
        if source is None:
            refused = record.epoch < self.fences.get(record.source, 0)
        else:
            refused = source.refuse(record) is not None
        if refused:
            return  # a zombie, or a replay: not its next statement
        del part.unreadable[record.source]
        part.stale = True
        self.retiring = True  # that mark may have been all that kept it from being forgotten

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
        """Return a source as the topic knows it, entered under the current version and with the partitions it knows."""
        roster = self.roster
        member = roster.members.get(record.source)
        if member is None:
            member = roster.members[record.source] = Member()
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
        """Note that a source is active, or has not ended, in so many partitions more."""
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
            # Two sizes under one version: the larger holds longer, so it is the safe one.
            counts["membership_conflicts"] += 1
            size = max(size, roster.size)
        roster.version, roster.size = version, size
        self._recount()
        self._combine_anew()

    def _recount(self) -> None:
        """Find out anew who has spoken under the current version, and where."""
        roster = self.roster
        for part in self.partitions.values():
            part.recount()
        self.full = sum(part.reported >= roster.size for part in self.partitions.values())
        roster.joined = sum(member.version == roster.version for member in roster.members.values())
        self.retiring = roster.joined < len(roster.members)

    def _retire(self) -> None:
        """Forget sources of older versions: all members of this one have reported.  Their epochs still fence."""
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
        """Return it as a value that JSON can carry."""
        roster, count = self.roster, self.partition_count
        return {
            "membership": {"version": roster.version, "size": roster.size},
            "partition_count": count,
            "sources_with_fewer_partitions": {
                name: member.reach for name, member in roster.members.items() if member.reach != count
            },
            "epochs_of_forgotten_sources": self.fences,
            "unreadable_offsets": {str(number): offset for number, offset in self.unreadable_offsets.items()},
            "partitions": {str(number): part.state() for number, part in self.partitions.items()},
        }

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "TopicState":
        """Build it from what `state` returned."""
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
