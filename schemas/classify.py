"""From Kafka records to Floodmark's and back: what a record is, and how a mark is written.  Pure."""

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

Partition = tuple[str, int]  # a topic and the number of one of its partitions

Offsets = Mapping[Partition, int]


class Place(NamedTuple):
    """The topic, partition and offset of a record.

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
    log_time: int  # Kafka's timestamp, epoch milliseconds; 0 if there is none

    @property
    def place(self) -> Place:
        """The topic, partition and offset."""
        return Place(self.topic, self.partition, self.offset)


@dataclass(frozen=True, slots=True)
class Data(_Record):
    """A data record as it is in Kafka."""

    key: bytes | None
    value: bytes | None
    headers: Headers | None = None


@dataclass(frozen=True, slots=True)
class Mark(_Record):
    """A watermark record."""

    record: WatermarkRecord
    headers: Headers | None = None
    verdict: Verdict | None = None
    """``None``: it was not applied to a tracker."""

    @property
    def source(self) -> str:
        """The source that wrote it."""
        return self.record.source


@dataclass(frozen=True, slots=True)
class Unreadable(_Record):
    """A record under a mark key whose value cannot be read: it is counted, and readers wait for its source."""

    reason: str
    source: str | None
    """The source in the key; ``None``: it is not a valid id."""
    headers: Headers | None = None


AnyMark = Mark | Unreadable  # a record under a mark key

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
    """Return what a Kafka record is; only the key decides whether it is a mark.

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
    """Return the last header of this name on a source's own mark, also of another version; ``None``: not found."""
    if isinstance(record, Data) or record.source != source:
        return None
    return dict(record.headers or ()).get(name)


class MarkRecord(NamedTuple):
    """Key, value and headers of a mark, for Kafka."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes | None]]


def mark_record(record: WatermarkRecord, headers: Headers = ()) -> MarkRecord:
    """Return a mark as a Kafka record; `InvalidRecordError` if it would be too large.

    >>> mark = WatermarkRecord(source="web", epoch=1, sequence=0, watermark=12, partitions=1, emitted_at=0)
    >>> key, value, headers = mark_record(mark)
    >>> classify("clicks", 0, 0, 0, key, value, headers).record == mark
    True
    """
    return MarkRecord(mark_key(record.source), encode_watermark(record), [(HEADER, FORMAT_VERSION), *headers])


def round_records(marks: Round, headers: Headers = ()) -> list[MarkRecord]:
    """Return the marks of a round as Kafka records, in its order; errors are those of `encode_round`."""
    key = mark_key(marks.shared.source)
    return [MarkRecord(key, value, [(HEADER, FORMAT_VERSION), *headers]) for value in encode_round(marks)]
