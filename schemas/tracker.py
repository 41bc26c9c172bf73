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
- A source falls asleep (IDLE, ENDED) only when it has in every partition that knows it.  While it is ACTIVE in any, it
  counts in the others with its last watermark there: partitions are read at different paces, and one that is behind
  must not be left out of the minimum when the source is already back and moving on elsewhere.
- What was handed on is never taken back: a lower minimum (a laggard returns, a member joins) holds, not regresses.
- A lease is decided by the log alone: a source that named one counts as idle once another control record of its
  partition carries a log time more than the lease later than its own last one.

The minimum over producers, and the need to know how many there are, is that of Samza's watermark states and of the
Beam runner for Kafka Streams; fencing and leases follow "Streaming Systems" (Akidau et al., ch. 3).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from floodmark.schemas.errors import CorruptSnapshotError
from floodmark.schemas.records import Holder, Status, WatermarkRecord
from floodmark.schemas.timestamps import END_OF_TIME

SNAPSHOT_FORMAT: Final = 1


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
class Hold:
    """Why a stage's watermark is where it is: one place that holds it, and since when (log time, milliseconds)."""

    holder: Holder
    watermark: int | None
    reason: str
    since: int | None = None

    def __str__(self) -> str:
        """Say it to a person."""
        place = "/".join(
            str(p) for p in (self.holder.topic, self.holder.partition, self.holder.source) if p is not None
        )
        return f"{place}: {self.reason}"


class _Source:
    """The last statement of one source in one partition."""

    __slots__ = ("epoch", "lease", "log_time", "records", "sequence", "since", "status", "version", "watermark")

    def __init__(self, record: WatermarkRecord, log_time: int) -> None:
        self.epoch = record.epoch
        self.sequence = -1
        self.watermark: int | None = None
        self.status = record.status
        self.version = record.membership.version
        self.records = record.records
        self.lease = record.lease
        self.log_time = log_time
        self.since = log_time

    def state(self) -> list[object]:
        return [
            self.epoch,
            self.sequence,
            self.watermark,
            self.status.value,
            self.version,
            self.records,
            self.lease,
            self.log_time,
            self.since,
        ]

    @classmethod
    def of(cls, state: list[Any]) -> "_Source":
        source = cls.__new__(cls)
        (epoch, sequence, watermark, status, version, records, lease, log_time, since) = state
        source.epoch, source.sequence, source.watermark, source.status = epoch, sequence, watermark, Status(status)
        source.version, source.records, source.lease = version, records, lease
        source.log_time, source.since = log_time, since
        return source


class _Partition:
    """The sources of one partition, and the newest log time among their records."""

    __slots__ = ("combined", "log_time", "sources", "stale")

    def __init__(self) -> None:
        self.sources: dict[str, _Source] = {}
        self.log_time = 0
        self.combined: _Combined = _UNKNOWN
        self.stale = True

    def combine(self, topic: "_Topic") -> "_Combined":
        if self.stale:
            self.combined = self._combine(topic)
            self.stale = False
        return self.combined

    def _combine(self, topic: "_Topic") -> "_Combined":
        members = {name: source for name, source in self.sources.items() if source.version == topic.version}
        if len(members) < topic.size:
            return _UNKNOWN
        active = [source for name, source in members.items() if self.counts(name, source, topic)]
        if not active:
            return _ENDED if all(source.status is Status.ENDED for source in members.values()) else _IDLE
        lowest = END_OF_TIME
        for source in active:
            if source.watermark is None:
                return _UNKNOWN
            lowest = min(lowest, source.watermark)
        return _Combined(Status.ACTIVE, lowest)

    def counts(self, name: str, source: _Source, topic: "_Topic") -> bool:
        """Tell whether a source is in this partition's minimum."""
        if source.status is Status.ACTIVE:
            return not self.expired(source)
        return topic.awake[name] > 0

    def expired(self, source: _Source) -> bool:
        return source.lease is not None and self.log_time - source.log_time > source.lease


@dataclass(frozen=True, slots=True)
class _Combined:
    """A combined statement; ACTIVE without a watermark is unknown."""

    status: Status
    watermark: int | None = None

    @property
    def unknown(self) -> bool:
        return self.status is Status.ACTIVE and self.watermark is None


_UNKNOWN: Final = _Combined(Status.ACTIVE)
_IDLE: Final = _Combined(Status.IDLE)
_ENDED: Final = _Combined(Status.ENDED)


class _Topic:
    """The partitions of one topic, and who is expected to write to it."""

    __slots__ = ("awake", "partition_count", "partitions", "size", "version")

    def __init__(self) -> None:
        self.partitions: dict[int, _Partition] = {}
        self.awake: Counter[str] = Counter()
        """Of each source, in how many partitions its last statement is ACTIVE."""
        self.partition_count = 0
        self.version = 0
        self.size = 0

    def combine(self) -> _Combined:
        if self.partition_count == 0 or len(self.partitions) < self.partition_count:
            return _UNKNOWN
        return _least(part.combine(self) for part in self.partitions.values())

    def wake(self, source: str, change: int) -> None:
        """Note that a source is ACTIVE in one partition more, or less."""
        before = self.awake[source]
        self.awake[source] = before + change
        if (before > 0) != (before + change > 0):
            self.forget()

    def forget(self) -> None:
        """Combine every partition anew."""
        for part in self.partitions.values():
            part.stale = True


def _least(parts: Iterator[_Combined]) -> _Combined:
    """Combine the statements of partitions or of topics: the same rule for both."""
    lowest: int | None = None
    idle = False
    for part in parts:
        if part.unknown:
            return _UNKNOWN
        if part.watermark is not None:
            lowest = part.watermark if lowest is None else min(lowest, part.watermark)
        idle = idle or part.status is Status.IDLE
    if lowest is not None:
        return _Combined(Status.ACTIVE, lowest)
    return _IDLE if idle else _ENDED


class Tracker:
    """Progress of one stage over its input topics.

    Feed it every watermark record with `apply`, in the order of each partition; then ask `advance`.  Records of
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
    >>> print(tracker.holds()[0])
    flights/0/JFK: lowest watermark
    """

    def __init__(self, topics: Collection[str]) -> None:
        """Begin with nothing known."""
        self._topics = {topic: _Topic() for topic in sorted(topics)}
        self._watermark: int | None = None
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

    def apply(self, record: WatermarkRecord, *, topic: str, partition: int, log_time: int) -> Verdict:
        """Take one watermark record in.

        Args:
            record: what was read.
            topic: where; must be one of the stage's topics.
            partition: where.
            log_time: the Kafka timestamp of the record, epoch milliseconds.

        Returns:
            What became of it.  The record counts only where this is ACCEPTED or REGRESSED.
        """
        verdict = self._apply(self._topics[topic], record, partition, log_time)
        self.counts[verdict.value] += 1
        return verdict

    def _apply(self, state: _Topic, record: WatermarkRecord, partition: int, log_time: int) -> Verdict:
        membership = record.membership
        if membership.version != state.version or membership.size != state.size:
            if membership.version < state.version:
                return Verdict.RETIRED
            self._rejoin(state, membership.version, membership.size)
        state.partition_count = max(state.partition_count, record.partitions)
        part = state.partitions.get(partition)
        if part is None:
            part = state.partitions[partition] = _Partition()
            state.partition_count = max(state.partition_count, partition + 1)
        source = part.sources.get(record.source)
        was_active = source is not None and source.status is Status.ACTIVE
        if source is None or record.epoch > source.epoch:
            source = part.sources[record.source] = _Source(record, log_time)
        else:
            refused = self._refuse(source, record)
            if refused is not None:
                return refused
        part.stale = True
        part.log_time = max(part.log_time, log_time)
        if was_active != (record.status is Status.ACTIVE):
            state.wake(record.source, -1 if was_active else 1)
        return self._state(source, record, log_time)

    def _refuse(self, source: _Source, record: WatermarkRecord) -> Verdict | None:
        if record.epoch < source.epoch:
            return Verdict.FENCED
        if record.sequence <= source.sequence:
            return Verdict.REPLAYED
        if source.status is Status.ENDED:
            return Verdict.AFTER_END
        if record.sequence != source.sequence + 1:
            self.counts["sequence_gaps"] += 1
        return None

    def _state(self, source: _Source, record: WatermarkRecord, log_time: int) -> Verdict:
        source.sequence = record.sequence
        source.status = record.status
        source.version = record.membership.version
        source.records = record.records
        source.lease = record.lease
        source.log_time = max(source.log_time, log_time)
        watermark = record.watermark
        if watermark is not None and (source.watermark is None or watermark > source.watermark):
            source.watermark = watermark
            source.since = log_time
        elif watermark != source.watermark:
            return Verdict.REGRESSED
        return Verdict.ACCEPTED

    def _rejoin(self, state: _Topic, version: int, size: int) -> None:
        if version == state.version:
            # Two sizes under one version: the larger holds longer, so it is the safe one.
            self.counts["membership_conflicts"] += 1
            size = max(size, state.size)
        state.version, state.size = version, size
        state.forget()

    def advance(self) -> int | None:
        """Combine all that was applied.

        Returns:
            The new watermark where it moved forward, else ``None``.
        """
        if not self._topics:
            return None
        combined = _least(topic.combine() for topic in self._topics.values())
        if combined.status is Status.ENDED:
            watermark: int | None = END_OF_TIME
        else:
            watermark = combined.watermark
        if watermark is None or (self._watermark is not None and watermark <= self._watermark):
            return None
        self._watermark = watermark
        return watermark

    def partition_watermark(self, topic: str, partition: int) -> int | None:
        """Return the combined watermark of one partition; ``None``: unknown, idle or ended."""
        state = self._topics[topic]
        part = state.partitions.get(partition)
        return None if part is None else part.combine(state).watermark

    def source_watermark(self, topic: str, partition: int, source: str) -> int | None:
        """Return what one source has promised in one partition; ``None``: nothing."""
        part = self._topics[topic].partitions.get(partition)
        state = None if part is None else part.sources.get(source)
        return None if state is None else state.watermark

    def holds(self) -> list[Hold]:
        """Name what holds the watermark where it is, the strongest reason first.

        Everything unknown is named; where all is known, the sources with the lowest watermark; where all sources are
        idle, that.  Empty only when all input has ended.
        """
        holds = [hold for name, topic in self._topics.items() for hold in self._unknown(name, topic)]
        if holds:
            return holds
        active = [
            Hold(Holder(name, number, source_name), source.watermark, "lowest watermark", source.since)
            for name, topic in self._topics.items()
            for number, part in sorted(topic.partitions.items())
            for source_name, source in sorted(part.sources.items())
            if source.version == topic.version and part.counts(source_name, source, topic)
        ]
        if active:
            lowest = min(hold.watermark for hold in active if hold.watermark is not None)
            return [hold for hold in active if hold.watermark == lowest]
        combined = [(name, topic.combine()) for name, topic in self._topics.items()]
        return [
            Hold(Holder(name), self._watermark, "all sources are idle")
            for name, topic in combined
            if topic.status is Status.IDLE
        ]

    def _unknown(self, name: str, topic: _Topic) -> Iterator[Hold]:
        if topic.partition_count == 0:
            yield Hold(Holder(name), None, "no watermark record was read yet")
        for number in range(topic.partition_count):
            part = topic.partitions.get(number)
            members = {} if part is None else part.sources
            current = {key: source for key, source in members.items() if source.version == topic.version}
            if len(current) < topic.size:
                retired = sorted(set(members) - set(current))
                reason = f"{len(current)} of {topic.size} sources of membership {topic.version} have reported"
                reason += f" ({', '.join(sorted(current))})" if current else ""
                reason += f"; only in an older membership: {', '.join(retired)}" if retired else ""
                yield Hold(Holder(name, number), None, reason, None if part is None else part.log_time)
            elif part is not None:
                for key, source in sorted(current.items()):
                    if source.watermark is None and part.counts(key, source, topic):
                        yield Hold(Holder(name, number, key), None, "has promised nothing yet", source.since)

    def snapshot(self) -> dict[str, Any]:
        """Return all of the state as a value that JSON can carry; `restore` gives an equal tracker."""
        return {
            "format": SNAPSHOT_FORMAT,
            "watermark": self._watermark,
            "counts": dict(self.counts),
            "topics": {
                name: {
                    "version": topic.version,
                    "size": topic.size,
                    "partition_count": topic.partition_count,
                    "partitions": {
                        str(number): {
                            "log_time": part.log_time,
                            "sources": {key: source.state() for key, source in part.sources.items()},
                        }
                        for number, part in topic.partitions.items()
                    },
                }
                for name, topic in self._topics.items()
            },
        }

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> "Tracker":
        """Build a tracker from what `snapshot` returned.

        Raises:
            CorruptSnapshotError: where it is of another format or damaged.
        """
        try:
            if snapshot["format"] != SNAPSHOT_FORMAT:
                raise CorruptSnapshotError(
                    where="of the tracker",
                    reason=f"its format is {snapshot['format']}, expected {SNAPSHOT_FORMAT}",
                    advice="use the Floodmark version that wrote it",
                )
            tracker = cls(snapshot["topics"])
            tracker._watermark = snapshot["watermark"]
            tracker.counts.update(snapshot["counts"])
            for name, stored in snapshot["topics"].items():
                topic = tracker._topics[name]
                topic.version, topic.size = stored["version"], stored["size"]
                topic.partition_count = stored["partition_count"]
                for number, stored_part in stored["partitions"].items():
                    part = topic.partitions[int(number)] = _Partition()
                    part.log_time = stored_part["log_time"]
                    part.sources = {key: _Source.of(state) for key, state in stored_part["sources"].items()}
                    for key, source in part.sources.items():
                        topic.awake[key] += source.status is Status.ACTIVE
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptSnapshotError(
                where="of the tracker", reason=f"{type(error).__name__}: {error}", advice="restore an intact copy"
            ) from error
        return tracker
