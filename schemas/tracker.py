"""How promises combine: sources to partition, partitions to topic, topics to stage.  Pure: no Kafka, Spark or clock.

Theory of operation
-------------------
The invariant: *the stage's watermark is never above what every source that may still write has promised*, as far as the
log was read.  From it follow all rules:

- A source speaks for itself.  Its highest epoch wins; a lower one is a zombie and fenced.  Within an epoch an equal or
  lower sequence is a replay.  ENDED is for good; only a higher epoch brings a source back.
- A partition is unknown until ``membership.size`` distinct sources of the topic's newest membership version have
  reported in it.  Then it is the minimum over its ACTIVE sources; with none, it is idle, or ended if all have ended.
- A topic is unknown while any of its partitions is; then the minimum over the partitions with an active source.  The
  partition count is the highest that any record has named, so a new partition holds the topic from its first sight.
- A stage is unknown while any of its topics is; then the minimum over the topics with an active source.  All idle: it
  holds.  All ended: the end of time.  No topic, partition or source: unknown, never the maximum.
- A source is inactive (IDLE, ENDED, its lease has run out) only when it is so in every partition that knows it.  While
  it is active in any, it counts in the others with its last watermark there: partitions are read at different paces,
  and one that is behind must not be left out of the minimum when the source is already back and moving on elsewhere.
- An inactive source is not waited for in partitions that it does not know, either: it cannot mark them.
- A mark that cannot be read may say anything, so its source is waited for until its next readable one.
- An ignored record changes nothing.
- What was handed on is never taken back: a lower minimum (a laggard returns, a member joins) holds, not regresses.
- A lease is decided by the log alone, and never by comparing the clocks of two writers: see `LeaseClock`.

The minimum over producers, and the need to know how many there are, is that of Samza's watermark states and of the
Beam runner for Kafka Streams; fencing and leases follow "Streaming Systems" (Akidau et al., ch. 3).
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from floodmark.schemas.classify import Classified, Data, Partition, Unreadable
from floodmark.schemas.holds import Hold, name_holders
from floodmark.schemas.partition_state import ENDED, IDLE, least, lowest
from floodmark.schemas.records import Verdict, WatermarkRecord
from floodmark.schemas.stored_format import require_format, restoring
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.schemas.topic_state import TopicState

__all__ = ["Hold", "Tracker", "Verdict"]

FORMAT: Final = 1
"""Of a snapshot."""


class Tracker:
    """Progress of one stage over its input topics.

    Give it every mark with `apply`, in the order of each partition; then call `advance`.  Records of
    different partitions may interleave in any way.

    Args:
        topics: the topics the stage reads.  All of them must speak before anything is known.

    >>> tracker = Tracker({"flights"})
    >>> def mark(source, sequence, watermark):
    ...     return WatermarkRecord(source=source, epoch=1, sequence=sequence, watermark=watermark, partitions=1,
    ...                            emitted_at=0, membership=Membership(version=1, size=2))
    >>> from floodmark.schemas.records import Membership
    >>> tracker.apply(mark("EWR", 0, 30), topic="flights", partition=0, log_time=1)
    <Verdict.ACCEPTED: 'accepted'>
    >>> tracker.advance()  # JFK has promised nothing yet
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
        """How many records met which `Verdict` (by its value), and ``sequence_gaps``, ``membership_conflicts``."""

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
        """Whether, as of the last `advance`, some sources were idle and none active: then the watermark holds."""
        return self._idle

    def apply(self, record: WatermarkRecord, *, topic: str, partition: int, log_time: int) -> Verdict:
        """Apply one mark.

        Args:
            record: the mark.
            topic: the topic it was read from, one of the stage's.
            partition: the partition it was read from.
            log_time: its Kafka timestamp, epoch milliseconds.

        Returns:
            What became of it.  The record counts only where this is ACCEPTED or REGRESSED.
        """
        verdict = self._topics[topic].apply(record, partition, log_time, self.counts)
        self.counts[verdict.value] += 1
        return verdict

    def apply_unreadable(self, source: str | None, *, topic: str, partition: int, offset: int, log_time: int) -> bool:
        """Apply a mark whose value could not be read.

        Its content is not known: it may have begun an epoch with a lower watermark.  So the partition is unknown, and
        the watermark stays, until the next record of this source there is accepted, or is ignored for its old version
        alone; also where the source was idle, had ended, or its lease had run out.

        Args:
            source: as its key names it, see `records.source_of`; ``None``: no source can have that id.
            topic: the topic it was read from, one of the stage's.
            partition: the partition it was read from.
            offset: its offset; one that is not above an offset applied before changes nothing.
            log_time: its Kafka timestamp, epoch milliseconds.

        Returns:
            Whether it holds the watermark.  The mark of a source without any readable mark in the topic does not.
        """
        return source is not None and self._topics[topic].apply_unreadable(source, partition, offset, log_time)

    def advance(self) -> int | None:
        """Combine all marks that were applied.

        Returns:
            The new watermark where it moved forward, else ``None``.
        """
        if not self._topics:
            return None
        combined = least(topic.combine() for topic in self._topics.values())
        self._idle = combined == IDLE
        watermark = END_OF_TIME if combined == ENDED else combined.watermark
        if watermark is None or (self._watermark is not None and watermark <= self._watermark):
            return None
        self._watermark = watermark
        return watermark

    @property
    def processing_time(self) -> int | None:
        """Up to when all input of the sources was worked off before the marks read so far, see `processing_time_of`.

        ``None``: not known; so it is after `restore`, until each source that counts has spoken in each partition.
        """
        return lowest([time for topic in self._topics.values() for time in topic.processing_times()])

    def partition_watermark(self, topic: str, partition: int) -> int | None:
        """Return the combined watermark of one partition; ``None``: unknown, idle or ended."""
        part = self._topics[topic].partitions.get(partition)
        return None if part is None else part.combine().watermark

    def version_and_epoch(self, source: str, *, topic: str, partition: int) -> tuple[int, int]:
        """Return the membership version of a topic, and the epoch of a source that counts in a partition.

        Both are -1 or 0 where no record was accepted.
        """
        return self._topics[topic].roster.version, self._topics[topic].epoch(source, partition)

    def holders(self) -> list[Hold]:
        """Name what holds the watermark where it is, the strongest reason first.

        Everything unknown is named; where all is known, the sources with the lowest watermark; where all sources are
        idle, that.  Empty only when all input has ended.
        """
        return name_holders(self._topics, self._watermark)

    def snapshot(self) -> dict[str, Any]:
        """Return all of the state as a value that JSON can carry; `restore` gives an equal tracker."""
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
        """Yield by partition a tracker that has read that partition alone."""
        whole = self.snapshot()
        for topic, state in whole["topics"].items():
            for number, part in state["partitions"].items():
                alone = {topic: {**state, "partitions": {number: part}}}
                yield (topic, int(number)), self.restore({**whole, "topics": alone})

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> "Tracker":
        """Build a tracker from what `snapshot` returned.

        Raises:
            CorruptSnapshotError: where it is of another format or damaged.
        """
        with restoring("of the tracker"):
            require_format(snapshot, FORMAT)
            _require_whole(snapshot)
            tracker = cls(())
            tracker._watermark = snapshot["watermark"]
            tracker.counts.update(snapshot["counts"])
            tracker._topics = {name: TopicState.of(stored) for name, stored in sorted(snapshot["topics"].items())}
            tracker._idle = (
                bool(tracker._topics) and least(topic.combine() for topic in tracker._topics.values()) == IDLE
            )
        return tracker


def _require_whole(value: object) -> None:
    """Refuse a snapshot with a number that is not whole: all of a tracker's are."""
    if isinstance(value, float | bool):
        raise TypeError(f"{value} is no whole number")
    if isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            _require_whole(part)


class MarkRouter:
    """Apply the marks of topics to trackers, each in the order of its partition, and count what comes.

    Args:
        trackers: what takes the marks of each topic.
        applied: offsets below which the trackers hold the marks of a partition already; those are read, not applied.
    """

    def __init__(self, trackers: Mapping[str, Tracker], applied: Mapping[Partition, int] | None = None) -> None:
        self.trackers: Final = trackers
        self.counts: dict[str, Counter[str]] = {topic: Counter() for topic in trackers}
        """Per topic: ``data``, ``marks``, ``unreadable``."""
        self.named: defaultdict[str, int] = defaultdict(int)
        """Per topic: the highest number of partitions that a mark has named."""
        self._applied = applied or {}

    def take(self, record: Classified) -> Classified:
        """Count a record and apply it, where it is a mark; returns it, a mark with its verdict."""
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
