"""What holds back a stage's watermark: the sources, partitions and topics, by name.  Pure."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from floodmark.schemas.errors.base import iso
from floodmark.schemas.partition_state import PartitionState
from floodmark.schemas.records import Holder, Status
from floodmark.schemas.topic_state import TopicState

_MOST: Final = 100
"""The most partitions without a mark, and sources that have reported, to name."""


@dataclass(frozen=True, slots=True)
class Hold:
    """One place that holds back a watermark, why, and since when (log time, epoch milliseconds)."""

    holder: Holder
    watermark: int | None
    reason: str
    since: int | None = None

    def __str__(self) -> str:
        place = "/".join(
            str(p) for p in (self.holder.topic, self.holder.partition, self.holder.source) if p is not None
        )
        return f"{place}: {self.reason}"

    def __repr__(self) -> str:
        return f"Hold({str(self)!r}, watermark={iso(self.watermark)}, since={iso(self.since)})"

    @property
    def sentence(self) -> str:
        """The hold as text for messages: who, why, the watermark, and since when."""
        at = "" if self.watermark is None else f" {iso(self.watermark)}"
        return f"{self}{at}" + ("" if self.since is None else f", since {iso(self.since)}")


def name_holders(topics: Mapping[str, TopicState], watermark: int | None) -> list[Hold]:
    """Return what `Tracker.holders` returns."""
    holds = list(chain.from_iterable(_unknown(name, topic) for name, topic in topics.items()))
    if holds:
        return holds
    active = list(chain.from_iterable(_active(name, topic) for name, topic in topics.items()))
    if active:
        lowest = min(hold.watermark for hold in active if hold.watermark is not None)
        return [hold for hold in active if hold.watermark == lowest]
    return [
        Hold(Holder(name), watermark, "all sources are idle")
        for name, topic in topics.items()
        if topic.combine().status is Status.IDLE
    ]


def _active(name: str, topic: TopicState) -> Iterator[Hold]:
    for number, part in sorted(topic.partitions.items()):
        for key, source in sorted(part.sources.items()):
            if source.version == topic.roster.version and source.member.active_partitions:
                yield Hold(Holder(name, number, key), source.watermark, "lowest watermark", source.since)


def _unknown(name: str, topic: TopicState) -> Iterator[Hold]:
    if topic.partition_count == 0:
        yield Hold(Holder(name), None, "no watermark record was read yet")
    empty = [topic.empty(number) for number in topic.unmarked(_MOST)]
    for part in sorted([*topic.partitions.values(), *empty], key=lambda part: part.number):
        yield from _unknown_partition(name, topic, part)


def _unknown_partition(name: str, topic: TopicState, part: PartitionState) -> Iterator[Hold]:
    number = part.number
    for key, (offset, log_time) in sorted(part.unreadable.items()):
        reason = f"unreadable mark of {key} at {name}/{number}@{offset}"
        yield Hold(Holder(name, number, key), None, reason, log_time)
    current = {key: source for key, source in part.sources.items() if source.version == topic.roster.version}
    here = {*current, *part.absent()}
    if len(here) < topic.roster.size:
        yield Hold(Holder(name, number), None, missing(topic, part, here), part.log_time if part.sources else None)
        return
    for key, source in sorted(current.items()):
        if source.watermark is None and source.member.active_partitions and key not in part.unreadable:
            yield Hold(Holder(name, number, key), None, "has promised nothing yet", source.since)


def missing(topic: TopicState, part: PartitionState, here: set[str]) -> str:
    """Say which sources have reported in a partition, how many have not, and what is known of those."""
    version, size = topic.roster.version, topic.roster.size
    retired = sorted({key for key, source in part.sources.items() if source.version != version} - here)
    joined = {key for key, member in topic.roster.members.items() if member.version == version}
    reason = f"reported: {_listed(here)}; missing: {size - len(here)} of {size} in membership {version}"
    reason += f"; not here: {_listed(joined - here)}" if joined - here else ""
    return reason + (f"; only in an older membership: {_listed(retired)}" if retired else "")


def _listed(names: Collection[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(sorted(names)[:_MOST]) + more or "none"
