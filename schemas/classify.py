"""Tell the data of a topic from its watermark records, and apply these to trackers.  Pure: is fed what Kafka holds."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from floodmark.schemas.codec import decode_watermark
from floodmark.schemas.errors import UnreadableMarkError
from floodmark.schemas.records import TIME_HEADER, WatermarkRecord, is_mark_key, source_of
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME
from floodmark.schemas.tracker import Tracker, Verdict

Headers = Sequence[tuple[str, str | bytes | None]] | None
Place = tuple[str, int]
"""A topic and the number of one of its partitions."""

_TIME: Final = re.compile("-?[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class Data:
    """A data record as it stands in Kafka."""

    topic: str
    partition: int
    offset: int
    log_time: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A watermark record, and what became of it."""

    topic: str
    partition: int
    offset: int
    log_time: int
    record: WatermarkRecord
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A mark key whose value cannot be read: counted, no watermark moves, and its source is waited for."""

    topic: str
    partition: int
    offset: int
    reason: str


class Sorter:
    """Turn raw records into `Data`, `Mark` and `Unreadable`; each mark is applied to its topic's tracker.

    Args:
        trackers: what takes the marks of each topic.
        applied: offsets below which the trackers hold the marks of a partition already; those are read, not applied.
    """

    def __init__(self, trackers: Mapping[str, Tracker], applied: Mapping[Place, int] | None = None) -> None:
        """Begin with nothing read."""
        self.trackers: Final = trackers
        self.counts: dict[str, Counter[str]] = {topic: Counter() for topic in trackers}
        """Per topic: ``data``, ``marks``, ``unreadable``."""
        self.named: defaultdict[str, int] = defaultdict(int)
        """Per topic: the highest number of partitions that a mark has named."""
        self._applied = applied or {}

    def take(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        log_time: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None = None,
    ) -> Data | Mark | Unreadable:
        """Return what one record is, in the order of its partition."""
        counts = self.counts[topic]
        if key is None or not is_mark_key(key):
            counts["data"] += 1
            return Data(topic, partition, offset, log_time, key, value, headers)
        again = offset < self._applied.get((topic, partition), 0)
        try:
            record = decode_watermark(key, value)
        except UnreadableMarkError as error:
            counts["unreadable"] += 1
            if not again:
                self.trackers[topic].apply_unreadable(
                    source_of(key), topic=topic, partition=partition, offset=offset, log_time=log_time
                )
            return Unreadable(topic, partition, offset, str(error))
        counts["marks"] += 1
        self.named[topic] = max(self.named[topic], record.partitions)
        if again:
            return Mark(topic, partition, offset, log_time, record, Verdict.REPLAYED)
        verdict = self.trackers[topic].apply(record, topic=topic, partition=partition, log_time=log_time)
        return Mark(topic, partition, offset, log_time, record, verdict)


def adjusted_time(headers: Headers) -> int | None:
    """Return the event time that counts in place of the record's own, epoch milliseconds; ``None``: its own counts.

    That is the last readable `floodmark-time` header; one that is not readable is as if it were not there.

    >>> adjusted_time([("floodmark-time", b"12"), ("floodmark-time", b"noon"), ("trace", b"x")])
    12
    >>> adjusted_time([("trace", b"x")])
    """
    for name, value in reversed(headers or ()):
        if name == TIME_HEADER and value is not None:
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            if _TIME.fullmatch(text) and EARLIEST <= int(text) <= END_OF_TIME:
                return int(text)
    return None
