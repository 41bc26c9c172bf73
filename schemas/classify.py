"""The one edge between Kafka's records and Floodmark's: what a record is, and how a mark is written.  Pure.

`classify` is the only reader of mark keys, `mark_record` and `round_records` are the only writers of them; all that
reads or writes a topic goes through these, so the wire contract stands in one place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from floodmark.schemas.codec import decode_watermark, encode_round, encode_watermark
from floodmark.schemas.errors import UnreadableMarkError
from floodmark.schemas.records import (
    FORMAT_VERSION,
    HEADER,
    Round,
    Verdict,
    WatermarkRecord,
    is_mark_key,
    mark_key,
    source_of,
)

Headers = Sequence[tuple[str, bytes | None]]

Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""

Offsets = Mapping[Partition, int]
"""An offset in each of some partitions."""


class Place(NamedTuple):
    """Where a record stands.

    >>> str(Place("clicks", 0, 12))
    'clicks/0@12'
    """

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True)
class _Record:
    topic: str
    partition: int
    offset: int
    log_time: int
    """Kafka's timestamp, epoch milliseconds; 0 where there is none."""

    @property
    def place(self) -> Place:
        """Where it stands."""
        return Place(self.topic, self.partition, self.offset)


@dataclass(frozen=True, slots=True)
class Data(_Record):
    """A data record as it stands in Kafka."""

    key: bytes | None
    value: bytes | None
    headers: Headers | None = None


@dataclass(frozen=True, slots=True)
class Mark(_Record):
    """A watermark record."""

    record: WatermarkRecord
    headers: Headers | None = None
    verdict: Verdict | None = None
    """What a tracker made of it; ``None``: it was not applied to one."""

    @property
    def source(self) -> str:
        """The source that wrote it."""
        return self.record.source


@dataclass(frozen=True, slots=True)
class Unreadable(_Record):
    """A mark key whose value cannot be read: counted, no watermark moves, and its source is waited for."""

    reason: str
    source: str | None
    """The source that the key names; ``None``: no source can have that id."""
    headers: Headers | None = None


AnyMark = Mark | Unreadable
"""A record under a mark key."""

Classified = Data | AnyMark


def classify(
    topic: str,
    partition: int,
    offset: int,
    log_time: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None = None,
) -> Classified:
    """Return what a Kafka record is; the key alone decides between data and marks.

    Args:
        topic: where it stands.
        partition: where it stands.
        offset: where it stands.
        log_time: Kafka's timestamp, epoch milliseconds.
        key: as it is in Kafka.
        value: as it is in Kafka.
        headers: as they are in Kafka.

    >>> classify("clicks", 0, 7, 0, b"user-1", b"{}").key
    b'user-1'
    >>> str(classify("clicks", 0, 8, 0, b"__floodmark__/web", b"").place)
    'clicks/0@8'
    """
    if key is None or not is_mark_key(key):
        return Data(topic, partition, offset, log_time, key, value, headers)
    try:
        record = decode_watermark(key, value)
    except UnreadableMarkError as error:
        return Unreadable(topic, partition, offset, log_time, str(error), source_of(key), headers)
    return Mark(topic, partition, offset, log_time, record, headers)


def mark_header(record: Classified, source: str, name: str) -> bytes | None:
    """Return a header that a source has added to a mark of its own; ``None``: it is no such record.

    The last one of that name counts.  It may stand on a mark that another version of Floodmark has written.
    """
    if isinstance(record, Data) or record.source != source:
        return None
    return dict(record.headers or ()).get(name)


class MarkRecord(NamedTuple):
    """A mark as Kafka takes it."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes | None]]


def mark_record(record: WatermarkRecord, headers: Headers = ()) -> MarkRecord:
    """Return a mark as the Kafka record that it is.

    Raises:
        InvalidRecordError: if it cannot be written.

    >>> mark = WatermarkRecord(source="web", epoch=1, sequence=0, watermark=12, partitions=1, emitted_at=0)
    >>> key, value, headers = mark_record(mark)
    >>> classify("clicks", 0, 0, 0, key, value, headers).record == mark
    True
    """
    return MarkRecord(mark_key(record.source), encode_watermark(record), [(HEADER, FORMAT_VERSION), *headers])


def round_records(marks: Round) -> list[MarkRecord]:
    """Return the marks of a round as Kafka records, in its order; what they have in common is encoded once.

    Raises:
        InvalidRecordError: if one cannot be written.
    """
    key = mark_key(marks.shared.source)
    return [MarkRecord(key, value, [(HEADER, FORMAT_VERSION)]) for value in encode_round(marks)]
