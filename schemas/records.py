"""The watermark record and its parts.  Pure values, valid by construction."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple

from floodmark.schemas.errors import InvalidRecordError, UsageError
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME

KEY_PREFIX: Final = b"__floodmark__/"
"""The prefix of the key of every watermark record, in all versions of the format."""

HEADER: Final = "floodmark"
"""The header that marks a watermark record for plain consumers and Connect's ``HasHeaderKey`` predicate."""

FORMAT_VERSION: Final = b"1"
"""The value of `HEADER`."""

TIME_HEADER: Final = "floodmark-time"
"""The header of a data record with its effective event time, decimal epoch milliseconds."""

SUBSTREAM_HEADER: Final = "floodmark-substream"
"""The header of a data record with the watermark of its key after this record, decimal epoch milliseconds."""

READ_HEADER: Final = "floodmark-read"
"""The header of a job's marks in partition 0: a JSON object that says what the job had read."""

HELD_HEADER: Final = "floodmark-held"
"""The header of marks of a source that alignment holds: a JSON object that names the topic and its watermark."""

FIRST_HEADER: Final = "floodmark-first"
"""The header of a mark whose writer has replaced all earlier records of the partition."""

MAX_PERCENTS: Final = 64  # this many percentiles always fit into a mark

_TIME: Final = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_MAX_SOURCE_BYTES: Final = 200
_MAX_TOPIC_BYTES: Final = 249
_MAX_INT: Final = 2**31 - 1
_MAX_LONG: Final = 2**63 - 1
_PERCENT: Final = range(1, 101)


class Status(Enum):
    """The state of a source.

    ACTIVE: readers wait for its watermark.  IDLE: they do not, until it is ACTIVE again.  ENDED: its epoch is over.
    """

    ACTIVE = "ACTIVE"
    IDLE = "IDLE"
    ENDED = "ENDED"


class Verdict(Enum):
    """What a tracker did with a watermark record."""

    ACCEPTED = "accepted"
    REPLAYED = "replayed"
    """Its sequence is not above the last one.  Normal after a crash or a rewind."""
    REGRESSED = "regressed"
    """Accepted, but with a lower watermark than the last mark, which is kept."""
    FENCED = "fenced"
    """Its epoch is below that of its source: the writer is a zombie."""
    RETIRED = "retired"
    """Its membership version is below that of the topic."""
    AFTER_END = "after_end"
    """Its source has ended in this epoch."""


@dataclass(frozen=True, slots=True)
class Membership:
    """How many sources write to the topic.  A higher version replaces all lower ones."""

    version: int = 1
    size: int = 1

    def __post_init__(self) -> None:
        if type(self.version) is not int or type(self.size) is not int:
            raise UsageError(reason=f"the membership is {self}, expected integers")


def membership_of(value: object, whose: str) -> Membership:
    """Return a membership; a plain number of sources is version 1, and any other value a `UsageError`.

    >>> membership_of(3, "source 'web'")
    Membership(version=1, size=3)
    """
    if isinstance(value, Membership):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return Membership(size=value)
    expected = f"a number of sources, or {Membership(size=3)}"
    raise UsageError(reason=f"{whose}: the membership is {value!r}, expected {expected}")


def check_versioned(value: object, last: Membership, whose: str) -> None:
    """Refuse a change to a plain number of sources: all sources must agree on its version.

    >>> check_versioned(4, Membership(size=3), "source 'web'")
    Traceback (most recent call last):
    floodmark.schemas.errors.UsageError: source 'web': the membership changes to 4, expected a higher version, \
as Membership(version=2, size=4)
    """
    if not isinstance(value, Membership):
        expected = Membership(last.version + 1, value if isinstance(value, int) else last.size + 1)
        reason = f"the membership changes to {value!r}, expected a higher version, as {expected}"
        raise UsageError(reason=f"{whose}: {reason}")


@dataclass(frozen=True, slots=True)
class Holder:
    """What holds back a watermark, so that a stuck chain can be traced.  ``None``: not known, or does not apply."""

    topic: str
    partition: int | None = None
    source: str | None = None
    stage: str | None = None


class Held(NamedTuple):
    """What alignment makes a source wait for.

    >>> held = Held(90, "topic 'daily'", "daily")
    >>> held.headers()
    [('floodmark-held', b'{"topic": "daily", "watermark": 90}')]
    >>> Held.of(held.headers()[0][1]) == held, Held.of(b"?"), Held.of(None)
    (True, None, None)
    """

    watermark: int
    what: str
    topic: str | None = None  # ``None``: another source of its own topic

    def headers(self) -> list[tuple[str, bytes | None]]:
        """Return the headers of its marks."""
        if self.topic is None:
            return []
        return [(HELD_HEADER, json.dumps({"topic": self.topic, "watermark": self.watermark}).encode())]

    @classmethod
    def of(cls, header: bytes | None) -> "Held | None":
        """Return the value of a `HELD_HEADER`; ``None``: there is none, or it cannot be read."""
        try:
            found = json.loads(header or b"")
            topic, watermark = found["topic"], found["watermark"]
        except (ValueError, TypeError, LookupError, RecursionError):
            return None
        valid = isinstance(topic, str) and _fits(topic, _MAX_TOPIC_BYTES) and type(watermark) is int
        return cls(watermark, f"topic {topic!r}", topic) if valid and _is_time(watermark) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkRecord:
    """A mark: no later record of ``source`` in this partition has an event time below ``watermark``.

    Times are epoch milliseconds, ``lease`` is in milliseconds.  ``watermark.avsc`` and ``SPEC.md`` explain the fields.
    `InvalidRecordError` if a field is out of its range.

    >>> WatermarkRecord(source="JFK", epoch=1, sequence=0, watermark=12, partitions=4, emitted_at=15).status
    <Status.ACTIVE: 'ACTIVE'>
    """

    source: str
    epoch: int
    sequence: int
    watermark: int | None
    partitions: int
    emitted_at: int
    status: Status = Status.ACTIVE
    membership: Membership = Membership()
    records: int | None = None
    processing_time_watermark: int | None = None
    lease: int | None = None
    percentiles: Mapping[int, int] | None = None
    holder: Holder | None = None

    def __post_init__(self) -> None:
        self._expect("source", self.source, "1 to 200 bytes of UTF-8", holds=_fits(self.source, _MAX_SOURCE_BYTES))
        for field, value in (("epoch", self.epoch), ("sequence", self.sequence)):
            holds = type(value) is int and 0 <= value <= _MAX_LONG  # Avro would cut a float
            self._expect(field, value, "an integer from 0 to 2^63 - 1", holds=holds)
        for field in ("watermark", "emitted_at", "processing_time_watermark"):
            value = getattr(self, field)
            self._expect(field, value, "a time in the years 1 to 9999", holds=_is_time(value))
        self._expect("partitions", self.partitions, "1 to 2^31 - 1", holds=1 <= self.partitions <= _MAX_INT)
        for field, value in (("version", self.membership.version), ("size", self.membership.size)):
            self._expect(f"membership.{field}", value, "1 to 2^31 - 1", holds=1 <= value <= _MAX_INT)
        counted, lease = self.records, self.lease
        self._expect("records", counted, "0 to 2^63 - 1, or null", holds=counted is None or 0 <= counted <= _MAX_LONG)
        self._expect("lease", lease, f"1 to {END_OF_TIME}, or null", holds=lease is None or 1 <= lease <= END_OF_TIME)
        for percent, watermark in (self.percentiles or {}).items():
            self._expect("percentiles", percent, "percents from 1 to 100", holds=percent in _PERCENT)
            self._expect("percentiles", watermark, "times in the years 1 to 9999", holds=_is_time(watermark))
        holder = self.holder
        if holder is None:
            return
        topic, number = holder.topic, holder.partition
        self._expect("holder.topic", topic, "1 to 249 bytes of UTF-8", holds=_fits(topic, _MAX_TOPIC_BYTES))
        for field, text in (("source", holder.source), ("stage", holder.stage)):
            holds = text is None or _fits(text, _MAX_SOURCE_BYTES)
            self._expect(f"holder.{field}", text, "1 to 200 bytes of UTF-8, or null", holds=holds)
        holds = number is None or 0 <= number <= _MAX_INT
        self._expect("holder.partition", number, "0 to 2^31 - 1, or null", holds=holds)

    def _expect(self, field: str, value: object, expected: str, *, holds: bool) -> None:
        if not holds:
            raise InvalidRecordError(source=self.source, field=field, value=value, expected=expected)


def _fits(text: str, most: int) -> bool:
    """Tell whether a text is 1 to ``most`` bytes of UTF-8; lone surrogates are not UTF-8."""
    try:
        return 0 < len(text.encode()) <= most
    except UnicodeEncodeError:
        return False


def _is_time(value: int | None) -> bool:
    return value is None or EARLIEST <= value <= END_OF_TIME


def is_own_header(name: str) -> bool:
    """Tell whether a header is Floodmark's: that of marks, or one that readers use in place of a record's times.

    >>> is_own_header("floodmark"), is_own_header("floodmark-time"), is_own_header("floodmarks")
    (True, True, False)
    """
    return name == HEADER or name.startswith(f"{HEADER}-")


def is_mark_key(key: bytes | None) -> bool:
    """Tell a watermark record from a data record: only the Kafka key decides.

    >>> is_mark_key(b"__floodmark__/JFK"), is_mark_key(b"N14228"), is_mark_key(None)
    (True, False, False)
    """
    return key is not None and key.startswith(KEY_PREFIX)


def header_time(headers: Sequence[tuple[str, str | bytes | None]] | None, name: str) -> int | None:
    """Return the time in the last readable header of this name; ``None``: no such header."""
    for key, value in reversed(headers or ()):
        text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
        if key == name and text is not None and _TIME.fullmatch(text) and _is_time(int(text)):
            return int(text)
    return None


def source_of(key: bytes) -> str | None:
    """Return the source in a mark key; ``None``: it is not a valid id.

    >>> source_of(b"__floodmark__/JFK"), source_of(b"__floodmark__/"), source_of(b"N14228")
    ('JFK', None, None)
    """
    name = key.removeprefix(KEY_PREFIX)
    if not is_mark_key(key) or not 0 < len(name) <= _MAX_SOURCE_BYTES:
        return None
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None


def mark_key(source: str) -> bytes:
    """Return the Kafka key of a source's watermark records.

    >>> mark_key("JFK")
    b'__floodmark__/JFK'
    """
    return KEY_PREFIX + source.encode()


def processing_time_of(record: WatermarkRecord) -> int | None:
    """Return the time before which the writer of a mark has processed all of its input; ``None``: not known.

    It tells a stuck system from late data, which waits only for its event time.  ``SPEC.md`` ("Processing time") has
    the rules.  The times come from the clocks of the writers; no result depends on them.

    >>> mark = WatermarkRecord(source="web", epoch=1, sequence=0, watermark=90, partitions=1, emitted_at=500)
    >>> waits = replace(mark, processing_time_watermark=420)
    >>> processing_time_of(mark), processing_time_of(waits), processing_time_of(replace(mark, holder=Holder("clicks")))
    (500, 420, None)
    """
    said = record.processing_time_watermark
    if said is not None:
        return None if said == EARLIEST else said
    return record.emitted_at if record.holder is None else None


class Number(NamedTuple):
    """The numbers of one partition in a `Round`."""

    partition: int
    sequence: int
    records: int | None


@dataclass(frozen=True, slots=True)
class Round:
    """The marks of several partitions; each record is built when it is read."""

    shared: WatermarkRecord  # the fields of all marks
    numbers: Sequence[Number]  # one for each mark
    apart: Sequence[Mapping[str, Any]] | None = None
    """Further fields, by partition; ``None``: the marks differ only in their numbers."""

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[tuple[int, WatermarkRecord]]:
        return (self[position] for position in range(len(self.numbers)))

    def __getitem__(self, index: int) -> tuple[int, WatermarkRecord]:
        partition, sequence, records = self.numbers[index]
        differing = {} if self.apart is None else self.apart[partition]
        return partition, replace(self.shared, sequence=sequence, records=records, **differing)
