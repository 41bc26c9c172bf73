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
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from floodmark.schemas.classify import Classified, Data, Partition, Unreadable
from floodmark.schemas.holds import Hold, name_holders
from floodmark.schemas.partition_state import ENDED, IDLE, UNKNOWN, Combined, least, lowest
from floodmark.schemas.records import Verdict, WatermarkRecord
from floodmark.schemas.stored_format import require_format, restoring
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.schemas.topic_state import TopicState

__all__ = ["Hold", "Tracker", "Verdict"]

FORMAT: Final = 1


class Tracker:
    """The watermark of one stage over its input topics.

    Give it every mark with `apply`, in the order of each partition; then call `advance`.  Records of
    different partitions may interleave in any way.

    Args:
        topics: the topics the stage reads.  The watermark is unknown until all of them have reported.

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
        """Apply one mark.

        Args:
            record: the mark.
            topic: one of the stage's topics.
            partition: the partition it was read from.
            log_time: its Kafka timestamp, epoch milliseconds.

        Returns:
            The verdict.  Any other than ACCEPTED and REGRESSED means that the mark was ignored.
        """
        verdict = self._topics[topic].apply(record, partition, log_time, self.counts)
        self.counts[verdict.value] += 1
        return verdict

    def apply_unreadable(self, source: str | None, *, topic: str, partition: int, offset: int, log_time: int) -> bool:
        """Apply a mark whose value could not be read.

        It may have begun an epoch with a lower watermark.  So the partition is unknown until the next mark of this
        source there is accepted, or ignored only for its old membership version.

        Args:
            source: the id in its key, see `records.source_of`; ``None``: no source can have that id.
            topic: one of the stage's topics.
            partition: the partition it was read from.
            offset: its offset; if it is not above the last one applied, nothing changes.
            log_time: its Kafka timestamp, epoch milliseconds.

        Returns:
            Whether it holds the watermark: only if the source has a readable mark in the topic.
        """
        return source is not None and self._topics[topic].apply_unreadable(source, partition, offset, log_time)

    def advance(self) -> int | None:
        """Combine all marks that were applied.

        Returns:
            The new watermark if it moved, else ``None``.
        """
        combined = self._combined()
        self._idle = combined == IDLE
        watermark = END_OF_TIME if combined == ENDED else combined.watermark
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

    def holders(self) -> list[Hold]:
        """Name what holds the watermark back: all that is unknown, or else the sources with the lowest watermark.

        The strongest reason comes first.  If all sources are idle, that is the reason.  Empty only after the end.
        """
        return name_holders(self._topics, self._watermark)

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
        """Build a tracker from what `snapshot` returned.

        Raises:
            CorruptSnapshotError: if it has another format, or is damaged.
        """
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
    """Apply the marks of each topic to its tracker, and count the records.

    Args:
        trackers: by topic.
        applied: by partition, the offset below which the tracker holds the marks already: they are only counted.
    """

    def __init__(self, trackers: Mapping[str, Tracker], applied: Mapping[Partition, int] | None = None) -> None:
        self.trackers: Final = trackers
        self.counts: dict[str, Counter[str]] = {topic: Counter() for topic in trackers}
        """Per topic: ``data``, ``marks``, ``unreadable``."""
        self.named: defaultdict[str, int] = defaultdict(int)
        """Per topic: the highest partition count in a mark."""
        self._applied = applied or {}

    def take(self, record: Classified) -> Classified:
        """Count a record, and apply it if it is a mark.  Returns the record; a mark gets its verdict."""
        topic, partition = record.topic, record.partition
        counts = self.counts[topic]
        if isinstance(record, Data):
            counts["data"] += 1
            return record
        again = record.offset < self._applied.get((topic, partition), 0)
        tracker = self.trackers[topic]
        if isinstance(record, Unreadable):
            counts["unreadable"] += 1
            if not again:
                tracker.apply_unreadable(
                    record.source, topic=topic, partition=partition, offset=record.offset, log_time=record.log_time
                )
            return record
        counts["marks"] += 1
        self.named[topic] = max(self.named[topic], record.record.partitions)
        if again:
            return replace(record, verdict=Verdict.REPLAYED)
        verdict = tracker.apply(record.record, topic=topic, partition=partition, log_time=record.log_time)
        return replace(record, verdict=verdict)
