"""How watermarks combine: sources to partition, partitions to topic, topics to stage.  Pure: no Kafka, Spark or clock.

The invariant: *the stage's watermark is never above the watermark of a source that may still write*, as far as the log
was read.  ``SPEC.md`` ("Readers") has the rules.  Two of them need a reason:

- A source is inactive (idle, ended, lease run out) only if it is inactive in every partition that knows it.  Readers
  read partitions at different paces: a source that is active again in one must count in the others, too.
- The partition count is the highest that any mark has named, so a new partition holds the topic from its first sight.

The minimum over a known number of producers is that of Samza's watermark states and of the Beam runner for Kafka
Streams; fencing and leases follow "Streaming Systems" (Akidau et al., ch. 3).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final, NamedTuple

from floodmark.schemas.classify import AnyMark, Classified, Data, Partition, Unreadable
from floodmark.schemas.errors.base import iso
from floodmark.schemas.partition_state import ENDED, IDLE, UNKNOWN, Combined, PartitionState, least, lowest
from floodmark.schemas.records import Holder, Status, Verdict, WatermarkRecord
from floodmark.schemas.stored_format import require_format, restoring
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME
from floodmark.schemas.topic_state import TopicState

FORMAT: Final = 1
START_OR_INJECT: Final = (
    "if jobs, injectors or a WatermarkedProducer write to this topic, start them (a job marks it after its first "
    "batch). If not, copy it with floodmark inject"
)
UNMARKED: Final = f"no watermark record (mark) was read yet: {START_OR_INJECT}"
"""The reason of a `Hold` by a topic without marks."""
_MOST: Final = 100  # the most partitions without a mark, and sources that have reported, to name


@dataclass(frozen=True, slots=True)
class Hold:
    """One place that holds back a watermark, why, and since when (log time, epoch milliseconds)."""

    holder: Holder
    watermark: int | None
    reason: str
    since: int | None = None

    def __str__(self) -> str:
        parts = (self.holder.topic, self.holder.partition, self.holder.source)
        return f"{'/'.join(str(part) for part in parts if part is not None)}: {self.reason}"

    def __repr__(self) -> str:
        return f"Hold({str(self)!r}, watermark={iso(self.watermark)}, since={iso(self.since)})"

    @property
    def sentence(self) -> str:
        """The hold as text for messages: who, why, the watermark, and since when."""
        at = "" if self.watermark is None else f" {iso(self.watermark)}"
        return f"{self}{at}" + ("" if self.since is None else f", since {iso(self.since)}")


def sentences(holds: Sequence[Hold], most: int = 3) -> str:
    """Return some holds as text for messages, and the number of the others.

    >>> sentences([Hold(Holder("clicks", number, "web"), None, "idle") for number in range(3)], most=1)
    'clicks/0/web: idle; and 2 more'
    """
    more = [f"and {len(holds) - most} more"] if len(holds) > most else []
    return "; ".join([*(hold.sentence for hold in holds[:most]), *more])


def _active(name: str, topic: TopicState) -> Iterator[Hold]:
    for number, part in sorted(topic.partitions.items()):
        for key, source in sorted(part.sources.items()):
            if source.version == topic.roster.version and source.member.active_partitions:
                yield Hold(Holder(name, number, key), source.watermark, "lowest watermark", source.since)


def _unknown(name: str, topic: TopicState) -> Iterator[Hold]:
    if topic.partition_count == 0:
        yield Hold(Holder(name), None, UNMARKED)
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
    reason = (
        f"{size - len(here)} of {size} sources of membership {version} have not reported; reported: {_listed(here)}"
    )
    reason += f"; not here: {_listed(joined - here)}" if joined - here else ""
    return reason + (f"; only in an older membership: {_listed(retired)}" if retired else "")


def _listed(names: Collection[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(sorted(names)[:_MOST]) + more or "none"


class Tracker:
    """The watermark of one stage over its input ``topics``: unknown until all of them have reported.

    Give it every mark with `apply`, in the order of each partition; then call `advance`.  Records of different
    partitions may interleave in any way.

    >>> tracker = Tracker({"flights"})
    >>> def mark(source, sequence, watermark):
    ...     return WatermarkRecord(source=source, epoch=1, sequence=sequence, watermark=watermark, partitions=1,
    ...                            emitted_at=0, membership=Membership(version=1, size=2))
    >>> from floodmark.schemas.records import Membership
    >>> tracker.apply(mark("EWR", 0, 30), topic="flights", partition=0, log_time=1)
    <Verdict.ACCEPTED: 'accepted'>
    >>> tracker.advance()  # JFK has not reported yet
    >>> _ = tracker.apply(mark("JFK", 0, 12), topic="flights", partition=0, log_time=2)
    >>> tracker.advance()
    12
    >>> print(tracker.holders()[0])
    flights/0/JFK: lowest watermark
    >>> Tracker.restore(tracker.snapshot()).watermark
    12
    """

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = {topic: TopicState() for topic in sorted(topics)}
        self._watermark: int | None = None
        self._idle = False
        self.counts: Counter[str] = Counter()
        """Marks by the value of their `Verdict`, and ``sequence_gaps``, ``membership_conflicts``."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics of the stage."""
        return frozenset(self._topics)

    @property
    def watermark(self) -> int | None:
        """The stage's watermark as of the last `advance`; ``None``: unknown; `END_OF_TIME`: all input has ended."""
        return self._watermark

    @property
    def ended(self) -> bool:
        """Whether all input has ended."""
        return self._watermark == END_OF_TIME

    @property
    def idle(self) -> bool:
        """Whether, as of the last `advance`, some sources were idle and none active: the watermark does not move."""
        return self._idle

    def apply(self, record: WatermarkRecord, *, topic: str, partition: int, log_time: int) -> Verdict:
        """Apply one mark of a partition; ``log_time``: its Kafka timestamp, epoch milliseconds.

        Any other verdict than ACCEPTED and REGRESSED means that the mark was ignored.
        """
        verdict = self._topics[topic].apply(record, partition, log_time, self.counts)
        self.counts[verdict.value] += 1
        return verdict

    def apply_unreadable(self, source: str | None, *, topic: str, partition: int, offset: int, log_time: int) -> bool:
        """Apply a mark whose value could not be read; return whether it holds the watermark.

        It may have begun an epoch with a lower watermark.  So the partition is unknown until the next mark of this
        source there is accepted, or ignored only for its old membership version.  Nothing changes if the offset is not
        above the last one applied, or the source has no readable mark in the topic (``None``: its key has no valid id).
        """
        return source is not None and self._topics[topic].apply_unreadable(source, partition, offset, log_time)

    def advance(self, to_end: Callable[[], bool] = lambda: True) -> int | None:
        """Combine all marks that were applied; return the new watermark if it moved, else ``None``.

        ``to_end``: if all sources have ended, it tells whether no record is left to read.  If one is, a source may have
        begun a new run, so the watermark does not move to the end of time.  It is not asked after that end.
        """
        combined = self._combined()
        self._idle = combined == IDLE
        has_ended = combined == ENDED and (self.ended or to_end())
        watermark = END_OF_TIME if has_ended else combined.watermark
        if watermark is None or (self._watermark is not None and watermark <= self._watermark):
            return None
        self._watermark = watermark
        return watermark

    def _combined(self) -> Combined:
        return least(topic.combine() for topic in self._topics.values()) if self._topics else UNKNOWN

    @property
    def processing_time(self) -> int | None:
        """The minimum of `processing_time_of` over all sources that count, epoch milliseconds.

        ``None``: not known, as after `restore` until each of these sources has marked each partition.
        """
        return lowest([time for topic in self._topics.values() for time in topic.processing_times()])

    def partition_watermark(self, topic: str, partition: int) -> int | None:
        """Return the combined watermark of one partition; ``None``: unknown, idle or ended."""
        part = self._topics[topic].partitions.get(partition)
        return None if part is None else part.combine().watermark

    def version_and_epoch(self, source: str, *, topic: str, partition: int) -> tuple[int, int]:
        """Return the membership version of a topic (0: no mark yet), and a source's epoch in a partition (-1: none)."""
        return self._topics[topic].roster.version, self._topics[topic].epoch(source, partition)

    def has_reports(self, topic: str, partition: int) -> bool:
        """Return whether a partition has a mark of the topic's membership."""
        part = self._topics[topic].partitions.get(partition)
        return part is not None and part.reported > 0

    def holders(self, below: int | None = None) -> list[Hold]:
        """Name what holds the watermark back: all that is unknown, or else the sources with the lowest watermark.

        The strongest reason comes first.  If all sources are idle, that is the reason.  Empty only after the end.
        ``below``: name all that is unknown, and all sources that have not reached this time.
        """
        topics = self._topics.items()
        unknown = [hold for name, topic in topics for hold in _unknown(name, topic)]
        if unknown and below is None:
            return unknown
        active = [(hold.watermark, hold) for name, topic in topics for hold in _active(name, topic)]
        known = sorted(((time, hold) for time, hold in active if time is not None), key=itemgetter(0))
        lowest = known[0][0] if known else END_OF_TIME
        limit, told = lowest + 1 if below is None else below, {hold.holder for hold in unknown}
        low = [(time, hold) for time, hold in known if time < limit and hold.holder not in told]
        more = [hold if time == lowest else replace(hold, reason="low watermark") for time, hold in low]
        if found := [*unknown, *more]:
            return found
        idle = [name for name, topic in topics if topic.combine().status is Status.IDLE]
        return [Hold(Holder(name), self._watermark, "all sources are idle") for name in idle]

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON values; `restore` gives an equal tracker."""
        return {
            "format": FORMAT,
            "watermark": self._watermark,
            "counts": dict(self.counts),
            "topics": {name: topic.state() for name, topic in self._topics.items()},
        }

    def copy(self) -> "Tracker":
        """Return an equal tracker that shares nothing with this one."""
        return self.restore(self.snapshot())  # takes half the time of copy.deepcopy

    def by_partition(self) -> Iterator[tuple[tuple[str, int], "Tracker"]]:
        """Yield, for each partition, a tracker that has read only that partition."""
        whole = self.snapshot()
        for topic, state in whole["topics"].items():
            for number, part in state["partitions"].items():
                alone = {topic: {**state, "partitions": {number: part}}}
                yield (topic, int(number)), self.restore({**whole, "topics": alone})

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> "Tracker":
        """Build a tracker from a `snapshot`; `CorruptSnapshotError` if it has another format, or is damaged."""
        with restoring("of the tracker"):
            require_format(snapshot, FORMAT)
            _require_whole(snapshot)
            tracker = cls(())
            tracker._watermark = snapshot["watermark"]
            tracker.counts.update(snapshot["counts"])
            tracker._topics = {name: TopicState.of(stored) for name, stored in sorted(snapshot["topics"].items())}
            tracker._idle = tracker._combined() == IDLE
        return tracker


def _require_whole(value: object) -> None:
    """Refuse a snapshot with a float or a bool: a tracker has only whole numbers."""
    if isinstance(value, float | bool):
        raise TypeError(f"{value} is no whole number")
    if isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            _require_whole(part)


class MarkRouter:
    """Apply the marks of each topic to its tracker, and count the records; those below ``applied`` are only counted."""

    def __init__(self, trackers: Mapping[str, Tracker], applied: Mapping[Partition, int] | None = None) -> None:
        self.trackers: Final = trackers
        self.counts: dict[str, Counter[str]] = {topic: Counter() for topic in trackers}
        """Per topic: ``data``, ``marks``, ``unreadable``."""
        self.named: defaultdict[str, int] = defaultdict(int)  # per topic: the highest partition count in a mark
        self._applied = applied or {}

    def take(self, record: Classified) -> Classified:
        """Count a record, and apply it if it is a mark.  Returns the record; a mark gets its verdict."""
        topic = record.topic
        counts = self.counts[topic]
        if isinstance(record, Data):
            counts["data"] += 1
            return record
        again = record.offset < self._applied.get((topic, record.partition), 0)
        tracker = self.trackers[topic]
        if isinstance(record, Unreadable):
            counts["unreadable"] += 1
            if not again:
                apply_mark(tracker, record)
            return record
        counts["marks"] += 1
        self.named[topic] = max(self.named[topic], record.record.partitions)
        return replace(record, verdict=Verdict.REPLAYED if again else apply_mark(tracker, record))


def shifted(record: WatermarkRecord, shift: int) -> WatermarkRecord:
    """Return a record for event times that a query has moved back by up to ``shift`` milliseconds.

    >>> record = WatermarkRecord(source="web", epoch=1, sequence=0, watermark=90, partitions=1, emitted_at=0)
    >>> shifted(record, 60).watermark, shifted(record, 0) is record
    (30, True)
    """
    if not shift:
        return record
    watermark = None if record.watermark is None else max(EARLIEST, record.watermark - shift)
    percentiles = {percent: max(EARLIEST, time - shift) for percent, time in (record.percentiles or {}).items()}
    return replace(record, watermark=watermark, percentiles=percentiles or None)


def driving(record: WatermarkRecord, percentile: int | None) -> WatermarkRecord:
    """Return a record whose watermark is that of the lowest percent that is ``percentile`` or higher, if it has one."""
    if percentile is None or record.percentiles is None:
        return record
    enough = {percent: time for percent, time in record.percentiles.items() if percent >= percentile}
    return replace(record, watermark=enough[min(enough)] if enough else record.watermark)


class MarkPolicy(NamedTuple):
    """How a reader counts the marks of a topic: see `driving` and `shifted`."""

    percentile: int | None = None
    shift: int = 0


AS_WRITTEN: Final = MarkPolicy()


def apply_mark(tracker: Tracker, mark: AnyMark, percentile: int | None = None, shift: int = 0) -> Verdict | None:
    """Apply a mark to a tracker, see `driving` and `shifted`; ``None``: the mark is unreadable."""
    place: Any = {"topic": mark.topic, "partition": mark.partition, "log_time": mark.log_time}
    if isinstance(mark, Unreadable):
        tracker.apply_unreadable(mark.source, offset=mark.offset, **place)
        return None
    return tracker.apply(driving(shifted(mark.record, shift), percentile), **place)
