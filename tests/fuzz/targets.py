"""What is fuzzed: each target takes any bytes and raises `AssertionError` where the product breaks its word.

A target cuts its input into parts by itself (`Parts`), so that both engines, `mutate` and atheris, drive all of them.
The laws: no error but a documented one; accepted means allowed by `spec_reader`; a watermark never falls, never moves
on something unreadable, and always fits into a watermark record.
"""

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from floodmark.producers.event_times.changefeeds import CockroachDb, TiCdcCanal, TiCdcOpen
from floodmark.producers.event_times.formats import AvroField, InputFormat, JsonField, LogTime
from floodmark.producers.event_times.input_partition import InputPartition, Routing
from floodmark.producers.event_times.time_policy import TimePolicy
from floodmark.schemas import (
    AvroCodec,
    Holder,
    Membership,
    Status,
    Tracker,
    WatermarkRecord,
    decode_watermark,
    encode_watermark,
    is_mark_key,
    mark_key,
)
from floodmark.schemas.classify import classify
from floodmark.schemas.codec import without_logical_types
from floodmark.schemas.completeness.complete_rows import Reader
from floodmark.schemas.completeness.position import Position
from floodmark.schemas.errors import (
    CorruptSnapshotError,
    InvalidRecordError,
    UnreadableMarkError,
    UnreadableTopicError,
    UnreadableValueError,
)
from floodmark.schemas.tracker import MarkRouter
from fuzz import spec_reader

EVENT: Final = json.dumps(
    {
        "type": "record",
        "name": "Event",
        "fields": [
            {"name": "user", "type": "string"},
            {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        ],
    }
)
_events: Final = AvroCodec(without_logical_types(EVENT))


class Parts:
    """An input, cut from the left; past its end everything is zero or empty."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def __bool__(self) -> bool:
        """Tell whether anything is left."""
        return self.at < len(self.data)

    def some(self, count: int) -> bytes:
        """Take some bytes, fewer at the end."""
        self.at += count
        return self.data[self.at - count : self.at]

    def below(self, bound: int) -> int:
        """Take a number from 0 to ``bound`` - 1."""
        return (self.some(1) or b"\0")[0] % bound

    def text(self) -> bytes:
        """Take bytes behind their length."""
        return self.some(int.from_bytes(self.some(2), "big"))

    def long(self) -> int:
        """Take a signed number of 64 bits."""
        return int.from_bytes(self.some(8).ljust(8, b"\0"), "big", signed=True)

    def rest(self) -> bytes:
        """Take all that is left."""
        return self.some(len(self.data))


def text(data: bytes) -> bytes:
    """Write bytes as `Parts.text` takes them."""
    return struct.pack(">H", len(data)) + data


def _fields(record: WatermarkRecord) -> dict[str, Any]:
    holder = record.holder
    return {
        "source": record.source,
        "epoch": record.epoch,
        "sequence": record.sequence,
        "watermark": record.watermark,
        "status": record.status.value,
        "version": record.membership.version,
        "size": record.membership.size,
        "partitions": record.partitions,
        "records": record.records,
        "emitted_at": record.emitted_at,
        "processing_time_watermark": record.processing_time_watermark,
        "lease": record.lease,
        "percentiles": None if record.percentiles is None else dict(record.percentiles),
        "holder": None
        if holder is None
        else {"topic": holder.topic, "partition": holder.partition, "source": holder.source, "stage": holder.stage},
    }


def codec(data: bytes) -> None:
    """Check that the codec accepts what SPEC allows, with the same values, and refuses all else with its one error."""
    parts = Parts(data)
    key, value = parts.text(), parts.rest()
    try:
        expected = spec_reader.read(key, value)
    except spec_reader.RefusedError as error:
        try:
            record = decode_watermark(key, value)
        except UnreadableMarkError:
            return
        raise AssertionError(f"accepted, but {error}: {record}") from error
    record = decode_watermark(key, value)
    assert _fields(record) == expected
    assert encode_watermark(record) == value
    assert is_mark_key(key)


def avro(data: bytes) -> None:
    """Check that a value is decoded or refused with the documented error."""
    with suppress(UnreadableValueError):
        value = _events.decode(data)
        assert set(value) == {"user", "at"}


def _record(parts: Parts) -> WatermarkRecord | None:
    """Take a watermark record of a small world: two sources, few numbers."""
    time = None if parts.below(5) == 0 else parts.long() if parts.below(16) == 0 else parts.below(64)
    try:
        return WatermarkRecord(
            source="ab"[parts.below(2)],
            epoch=parts.below(4),
            sequence=parts.below(32),
            watermark=time,
            status=list(Status)[parts.below(3)],
            membership=Membership(1 + parts.below(2), 1 + parts.below(2)),
            partitions=1 + parts.below(3),
            records=parts.below(8) or None,
            lease=parts.below(3) * 20 or None,
            emitted_at=0,
            holder=None if parts.below(2) else Holder("t", 1),
        )
    except InvalidRecordError:
        return None


def tracker(data: bytes) -> None:
    """Check that a tracker never goes back, is its own snapshot, and stays put on marks that cannot be read."""
    parts = Parts(data)
    followed = Tracker({"t"})
    output = None
    while parts:
        place: Any = {"topic": "t", "partition": parts.below(3), "log_time": parts.below(200)}
        record = _record(parts)
        step = parts.below(8)
        if step == 0:
            state = json.loads(json.dumps(followed.snapshot()))
            followed = Tracker.restore(state)
            assert json.loads(json.dumps(followed.snapshot())) == state
            assert followed.watermark == output
        elif step == 1:
            followed.apply_unreadable("abc"[parts.below(3)], offset=parts.below(50), **place)
            followed.advance()
            assert followed.watermark == output, "an unreadable mark moved the watermark"
        elif record is not None:
            followed.apply(record, **place)
            followed.advance()
            assert output is None or (followed.watermark is not None and followed.watermark >= output)
            output = followed.watermark
        followed.holders()


FORMATS: Final[tuple[InputFormat, ...]] = (
    JsonField("at"),
    JsonField("at", "s"),
    JsonField("at", "ns"),
    AvroField(EVENT, "at"),
    LogTime(),
    CockroachDb(),
    TiCdcCanal(),
    TiCdcOpen(),
)
_FAR: Final = timedelta(days=1_000_000)
POLICIES: Final = (
    TimePolicy(),
    TimePolicy(early=None, late=timedelta(days=9_999), out_of_order=timedelta(seconds=1)),
    TimePolicy(early=_FAR, late=_FAR, out_of_order=_FAR),
    TimePolicy(on_late="drop", on_out_of_order="drop"),
)


def _check_partition(partition: InputPartition, before: int | None) -> None:
    watermark = partition.watermark
    WatermarkRecord(source="a", epoch=1, sequence=0, watermark=watermark, partitions=1, emitted_at=0)
    assert before is None or (watermark is not None and watermark >= before), f"from {before} back to {watermark}"


def formats(data: bytes) -> None:
    """Check that no record ends an injection, and that promises are times that exist and never go back."""
    parts = Parts(data)
    fmt = FORMATS[parts.below(len(FORMATS))]
    policy = POLICIES[parts.below(len(POLICIES))]
    partition = InputPartition(fmt, policy)
    while parts:
        log_time = 1_763_712_000_000 + parts.below(256) if parts.below(2) else parts.long()
        key, value = parts.text() or None, parts.text() or None
        before, unreadable = partition.watermark, partition.counts["unreadable"]
        routing, _ = partition.take(key, value, log_time)
        _check_partition(partition, before)
        if partition.counts["unreadable"] > unreadable:
            assert routing is Routing.FORWARD
            assert partition.watermark == before, "an unreadable record moved the watermark"
        if parts.below(8) == 0:
            before = partition.watermark
            partition.estimate(parts.below(256) * 1000)
            _check_partition(partition, before)
            state = json.loads(json.dumps(partition.snapshot()))
            partition.restore(state)
            assert partition.snapshot() == state


def reader(data: bytes) -> None:
    """Check that a consumer survives any keys, values and headers, and accounts for every data record."""
    parts = Parts(data)
    followed = Reader(["t"], lambda record: int(record.value or b""))
    followed.use_for("rows")
    router = MarkRouter({"t": followed.tracker})
    offset, handed_out, watermark = 0, 0, None
    while parts:
        headers = [("floodmark-time", parts.text()) for _ in range(parts.below(3))]
        key, value = parts.text() or None, parts.text() or None
        if parts.below(2):
            key, value = mark_key("ab"[parts.below(2)]), encode_watermark(_record(parts) or _marks()[0])
        partition, log_time = parts.below(2), parts.long()
        followed.take(router.take(classify("t", partition, offset, log_time, key, value, headers or None)))
        offset += 1
        assert watermark is None or followed.tracker.watermark >= watermark
        watermark = followed.tracker.watermark
        if parts.below(4) == 0:
            with suppress(UnreadableTopicError):
                handed_out += len(list(followed.rows()))
            position = Position(followed.position().text)
            assert json.loads(Reader(["t"], int, position).position().text) == json.loads(position.text)
    with suppress(UnreadableTopicError):
        handed_out += len(list(followed.rows()))
    counts = followed.counts
    waiting = len(followed._buffer)  # noqa: SLF001  # what a caller cannot see yet
    assert counts["data"] == handed_out + waiting + counts["missed"] + counts["timeless"]


def snapshots(data: bytes) -> None:
    """Check that a damaged snapshot of a tracker is restored or refused with the documented error."""
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        return
    with suppress(CorruptSnapshotError):
        restored = Tracker.restore(state)
        restored.advance()
        restored.holders()


def _marks() -> list[WatermarkRecord]:
    made: dict[str, Any] = {
        "source": "JFK",
        "epoch": 1_763_712_000_000,
        "partitions": 4,
        "emitted_at": 1_763_712_000_000,
    }
    return [
        WatermarkRecord(**made, sequence=0, watermark=None),
        WatermarkRecord(**made, sequence=1, watermark=-5, status=Status.IDLE, lease=60_000),
        WatermarkRecord(**made, sequence=70, watermark=1_763_712_000_001, status=Status.ENDED, records=12),
        WatermarkRecord(
            **{**made, "source": "\u00e9" * 90},
            sequence=3,
            watermark=spec_reader.END_OF_TIME,
            percentiles={1: 5, 33: 7, 100: -9},
            membership=Membership(2**31 - 1, 2**31 - 1),
            processing_time_watermark=1,
            holder=Holder("flights", 3, "EWR", "stage"),
        ),
    ]


def _seen(**sizes: int) -> bytes:
    followed = Tracker({"t"})
    for number, record in enumerate(_marks()):
        followed.apply(record, topic="t", partition=number % 4, log_time=number)
    followed.advance()
    return json.dumps(followed.snapshot()).encode() * max(1, sizes.get("times", 1))


def _format_seeds() -> list[bytes]:
    values: list[list[tuple[bytes, bytes]]] = [
        [(b"", b'{"at": 1763712000000}'), (b"k", b'{"at": "x"}')],
        [(b"", b'{"at": 1763712000.5}')],
        [(b"", b'{"at": 1763712000000000000}')],
        [(b"", _events.encode({"user": "u", "at": 1_763_712_000_000}))],
        [(b"k", b"v")],
        [
            (b"", b'{"after": {"a": 1}, "updated": "1763712000000000000.0000000001"}'),
            (b"", b'{"resolved": "1763712000000000000.0000000000"}'),
        ],
        [
            (b"", b'{"type": "INSERT", "_tidb": {"commitTs": 462345043968000000}}'),
            (b"", b'{"type": "TIDB_WATERMARK", "_tidb": {"watermarkTs": 462345043968000000}}'),
        ],
        [
            (struct.pack(">Q", 1) + struct.pack(">Q", 34) + b'{"ts":462345043968000000,"t":1   }', b"v"),
            (struct.pack(">Q", 1) + struct.pack(">Q", 34) + b'{"ts":462345043968000000,"t":3   }', b""),
        ],
    ]
    return [
        bytes([number, policy]) + b"".join(b"\x01\x05" + text(key) + text(value) + b"\0\x01" for key, value in records)
        for number, records in enumerate(values)
        for policy in range(len(POLICIES))
    ]


def _reader_seed() -> bytes:
    row = b"\x01" + text(b"1763712000000") + text(b"") + text(b"12") + b"\0\0" + bytes(8) + b"\x01"
    late = b"\0" + text(b"k") + text(b"7") + b"\0\x01" + bytes(8) + b"\0"
    mark = b"\0" + text(b"") + text(b"") + b"\x01\0\x01\x01\x14\0\x01\x05\0\0\0\0\0\0\0\0" + bytes(8) + b"\0"
    return (row + late + mark) * 3


@dataclass(frozen=True, slots=True)
class Target:
    """A law, the inputs that mutation begins with, its share of all inputs, and the longest that makes sense."""

    law: Callable[[bytes], None]
    seeds: list[bytes]
    share: float
    longest: int = 4096


TARGETS: Final[dict[str, Target]] = {
    "codec": Target(codec, [text(mark_key(mark.source)) + encode_watermark(mark) for mark in _marks()], 0.45),
    "avro": Target(avro, [_events.encode({"user": "u", "at": 12}), _events.encode({"user": "", "at": None})], 0.1),
    "tracker": Target(
        tracker, [bytes(range(0, 256, 2)), bytes(range(0, 256, 3)), b"\x05\x09\x01\x02\x07" * 20], 0.06, 256
    ),
    "formats": Target(formats, _format_seeds(), 0.33),
    "reader": Target(reader, [_reader_seed(), bytes(range(256)) * 2], 0.03, 1024),
    "snapshots": Target(snapshots, [_seen()], 0.03),
}
