"""What the records of existing topics say of time; hostile bytes are only ever an error."""

import json
import struct
import tomllib
from fractions import Fraction
from math import floor
from pathlib import Path

import pytest
from floodmark.producers.event_times.changefeeds import CockroachDb, TiCdcCanal, TiCdcOpen
from floodmark.producers.event_times.formats import AvroField, JsonField, LogTime, Resolved
from floodmark.producers.event_times.input_partition import InputPartition, Routing
from floodmark.producers.event_times.time_policy import TimePolicy
from floodmark.producers.injector.partitions import measured
from floodmark.schemas import AvroCodec
from floodmark.schemas.codec import without_logical_types
from floodmark.schemas.errors import InvalidEventTimeError, SchemaError, UnreadableValueError, UsageError
from hypothesis import given
from hypothesis import strategies as st
from support.harness import EVENT, record_schema

NOW = 1_763_712_000_000
FORMATS = {"cockroachdb": CockroachDb(), "ticdc-canal": TiCdcCanal(), "ticdc-open": TiCdcOpen()}
TABLE = tomllib.loads(Path(__file__).with_name("changefeeds.toml").read_text(encoding="utf-8"))
MESSAGES = [(name, message) for name, messages in TABLE.items() for message in messages]


def packed(events):
    """Write a key of the open protocol: version 1, then each event with its length before it."""
    return struct.pack(">Q", 1) + b"".join(struct.pack(">Q", len(event)) + event.encode() for event in events)


@pytest.mark.parametrize(("name", "message"), MESSAGES)
def test_changefeed_messages(name, message):
    key = packed(message["events"]) if "events" in message else None
    value = message["value"].encode() if "value" in message else struct.pack(">Q", 0)
    if "unreadable" in message:
        with pytest.raises(UnreadableValueError):
            FORMATS[name].read(key, value, 0)
    elif "resolved" in message:
        assert FORMATS[name].read(key, value, 0) == Resolved(message["resolved"])
    else:
        assert FORMATS[name].read(key, value, 0) == message.get("row")


@pytest.mark.parametrize("fmt", [*FORMATS.values(), JsonField("at")], ids=lambda fmt: type(fmt).__name__)
@given(st.none() | st.binary(), st.none() | st.binary())
def test_hostile_bytes_are_an_error_or_nothing(fmt, key, value):
    try:
        found = fmt.read(key, value, 0)
    except (UnreadableValueError, InvalidEventTimeError):
        return
    assert found is None or isinstance(found, (int, Resolved))


@pytest.mark.parametrize(("unit", "time"), [("s", 12_000), ("ms", 12), ("us", 0), ("ns", 0)])
def test_units(unit, time):
    assert JsonField("at", unit).read(None, b'{"at": 12}', 0) == time


@pytest.mark.parametrize("value", [b"{}", b'{"at": null}', b'{"at": "x1"}', b'{"at": true}', b'{"at": 1e300}'])
def test_a_field_that_holds_no_time(value):
    with pytest.raises(InvalidEventTimeError):
        JsonField("at").read(None, value, 0)


def test_avro_and_log_time():
    codec = AvroCodec(without_logical_types(EVENT))
    fmt = AvroField(codec.schema_json, "at")
    assert fmt.read(None, codec.encode({"user": "u", "at": 7}), 0) == 7
    with pytest.raises(InvalidEventTimeError):
        fmt.read(None, codec.encode({"user": "u", "at": None}), 0)
    with pytest.raises(UnreadableValueError):
        fmt.read(None, b"garbage", 0)
    with pytest.raises(SchemaError, match="no field"):
        AvroField(codec.schema_json, "when")
    with pytest.raises(UsageError, match="unit"):
        JsonField("at", "h")
    assert LogTime().read(None, b"x", 99) == 99


def test_a_time_within_a_record_of_avro():
    """Its unit is that of its own logical type, also in a union."""
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    order = record_schema("Order", id="int", payload=["null", record_schema("Payload", at=["null", micros])])
    codec = AvroCodec(without_logical_types(order))
    fmt = AvroField(json.dumps(order), "payload.at")
    assert fmt.read(None, codec.encode({"id": 1, "payload": {"at": 7_000}}), 0) == 7
    for empty in ({"id": 1, "payload": None}, {"id": 1, "payload": {"at": None}}):
        with pytest.raises(InvalidEventTimeError):
            fmt.read(None, codec.encode(empty), 0)
    with pytest.raises(SchemaError, match=r"no field 'payload\.when'"):
        AvroField(json.dumps(order), "payload.when")


@pytest.mark.parametrize(
    ("unit", "number", "fitting"),
    [
        ("ms", NOW * 1_000, "us"),
        ("ms", NOW * 10**6, "ns"),
        ("s", NOW, "ms"),
        ("s", NOW + 0.5, "ms"),
        ("us", NOW * 10**6, "ns"),
    ],
)
def test_a_time_in_a_finer_unit_is_refused_with_the_unit_that_fits(unit, number, fitting):
    with pytest.raises(InvalidEventTimeError, match=f"in {fitting} it fits: use unit {fitting}"):
        JsonField("at", unit).read(None, json.dumps({"at": number}).encode(), 0)
    assert JsonField("at", fitting).read(None, json.dumps({"at": number}).encode(), 0)


@given(st.floats(min_value=0, max_value=4e9), st.sampled_from(["s", "ms", "us"]))
def test_a_fraction_counts_as_it_is_written(number, unit):
    """Spark reads the digits of a number, so these must, too: one millisecond less would be another event time."""
    per_ms = {"s": Fraction(1, 1_000), "ms": Fraction(1), "us": Fraction(1_000)}[unit]
    expected = floor(Fraction(repr(number)) / per_ms)
    assert JsonField("at", unit).read(None, json.dumps({"at": number}).encode(), 0) == expected


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("1970-01-01T00:00:01.5Z", 1_500),
        ("1970-01-01T00:00:01.5", 1_500),
        ("1970-01-01 01:00:00+01:00", 0),
        ("1970-01-02", 86_400_000),
    ],
)
def test_iso_text_is_a_time(text, time):
    assert JsonField("payload.at", "us").read(None, json.dumps({"payload": {"at": text}}).encode(), 0) == time


@pytest.mark.parametrize(
    "text", ["1970-13-01", "1970-01-01T25:00", "1970-01", "yesterday", "0000-01-01", "1970-01-01x"]
)
def test_other_text_is_none(text):
    with pytest.raises(InvalidEventTimeError):
        JsonField("at").read(None, json.dumps({"at": text}).encode(), 0)


def test_a_promise_that_falls_back_or_is_the_beginning_of_time_is_a_replay():
    partition = InputPartition(CockroachDb(), drop_late=True)
    resolved = lambda seconds: b'{"resolved": "%d000000000.0000000000"}' % seconds  # noqa: E731
    row = lambda seconds: b'{"after": {}, "updated": "%d000000000.0000000000"}' % seconds  # noqa: E731
    partition.take(None, resolved(0), 0)
    assert partition.watermark is None
    for seconds, watermark in ((5, 5_000), (3, 5_000), (6, 6_000)):
        assert partition.take(None, resolved(seconds), 0)[0] is Routing.SKIP
        assert partition.watermark == watermark
    assert partition.take(None, row(6), 0)[0] is Routing.FORWARD, "equal is not late"
    assert partition.take(None, row(5), 0)[0] is Routing.DROP
    assert (partition.counts["late_dropped"], partition.counts["resolved"]) == (1, 4)
    counters = measured(partition.outcomes)
    assert (counters["late_events"], counters["dropped"]) == (1, 1)


def test_a_lane_passes_on_what_it_cannot_read_and_keeps_marks_out():
    partition = InputPartition(JsonField("at"), TimePolicy())
    assert partition.take(None, b"garbage", 5) == (Routing.FORWARD, ())
    assert partition.take(b"__floodmark__/x", b"", 5)[0] is Routing.DROP
    assert partition.watermark is None
    assert (partition.counts["unreadable"], partition.counts["reserved"]) == (1, 1)
