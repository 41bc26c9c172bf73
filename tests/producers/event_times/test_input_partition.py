"""Any record is decided, counted or named; no watermark leaves the calendar or passes a promise."""

import json
import pickle
import struct
from datetime import timedelta

import pytest
from floodmark.producers.event_times.changefeeds import CockroachDb, TiCdcCanal, TiCdcOpen
from floodmark.producers.event_times.formats import (
    AvroField,
    InputFormat,
    JsonField,
    LogTime,
    Resolved,
    substream_json,
    substream_key,
)
from floodmark.producers.event_times.injection import InjectorState
from floodmark.producers.event_times.input_partition import InputPartition, Routing
from floodmark.producers.event_times.time_policy import TimePolicy
from floodmark.schemas import AvroCodec
from floodmark.schemas.codec import without_logical_types
from floodmark.schemas.errors import CorruptSnapshotError, InvalidEventTimeError, UnreadableValueError
from floodmark.schemas.records import SUBSTREAM_HEADER, TIME_HEADER, WatermarkRecord
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME
from hypothesis import given
from hypothesis import strategies as st
from support.harness import EVENT

NOW = 1_763_712_000_000
CODEC = AvroCodec(without_logical_types(EVENT))
FORMATS = [
    JsonField("at"),
    JsonField("at", "s"),
    JsonField("payload.at", "ns"),
    AvroField(CODEC.schema_json, "at"),
    LogTime(),
    CockroachDb(),
    TiCdcCanal(),
    TiCdcOpen(),
]

numbers = st.sampled_from(
    ["NaN", "1e999", "-1e999", "1e308", "9" * 5_000, "-1", "0", "1763712000000", "1763712000000000", "253402300799999"]
) | st.integers(-(10**20), 10**20).map(str)
texts = numbers.map('"{}.0000000000"'.format) | st.sampled_from(
    ["null", "true", '"x"', "[]", '{"at": 1}', '"\\ud800"', "[" * 100_000, "[" * 400 + "]" * 400, '"1_0"', '" 7"']
)
names = st.sampled_from(["at", "resolved", "updated", "after", "type", "_tidb", "payload", "commitTs", "watermarkTs"])
fields = st.lists(st.tuples(names, numbers | texts), max_size=4).map(
    lambda pairs: "{" + ", ".join(f'"{name}": {value}' for name, value in pairs) + "}"
)
objects = fields | st.tuples(names, fields).map(lambda pair: '{"%s": %s, "type": "TIDB_WATERMARK"}' % pair)  # noqa: UP031
packed = st.lists(st.binary(max_size=9) | objects.map(str.encode), max_size=3).map(
    lambda events: struct.pack(">Q", 1) + b"".join(struct.pack(">Q", len(event)) + event for event in events)
)
avro = st.binary(max_size=12).map(lambda body: CODEC.prefix + body)
values = st.none() | st.binary(max_size=40) | objects.map(str.encode) | avro
keys = st.none() | st.binary(max_size=40) | packed | st.just(b"__floodmark__/web")
log_times = st.sampled_from([-(2**63), EARLIEST - 1, EARLIEST, -1, 0, NOW, NOW * 1_000, END_OF_TIME, 2**63 - 1]) | (
    st.integers(NOW - 10_000, NOW + 10_000)
)
tolerances = st.sampled_from([timedelta(0), timedelta(seconds=5), timedelta(days=1_000_000)])
policies = st.builds(
    TimePolicy,
    early=st.none() | tolerances,
    late=tolerances,
    out_of_order=st.none() | tolerances,
    on_late=st.sampled_from(["adjust", "drop"]),
    on_out_of_order=st.sampled_from(["adjust", "drop"]),
    max_keys=st.integers(1, 3),
)


def hostile(_key, value):
    return {b"": b"x"}[value]


substreams = st.sampled_from([None, substream_key, substream_json("at"), substream_json("payload.at"), hostile])


@given(
    fmt=st.sampled_from(FORMATS),
    policy=policies,
    substream_by=substreams,
    drop_late=st.booleans(),
    records=st.lists(st.tuples(keys, values, log_times), max_size=12),
    elapsed=st.integers(0, 10**15),
)
def test_any_record_into_any_input_partition(fmt, policy, substream_by, drop_late, records, elapsed):
    """No error, a watermark that a mark can carry, that never falls, and that what was passed on keeps."""
    partition = InputPartition(fmt, policy, substream_by, drop_late=drop_late)
    last, promised = None, 0
    for key, value, log_time in records:
        before = partition.watermark
        way, headers = partition.take(key, value, log_time)
        assert len(dict(headers)) == len(headers), "each header once"
        assert all(EARLIEST <= int(text) <= END_OF_TIME for _, text in headers)
        try:
            time = fmt.read(key, value, log_time)
        except (UnreadableValueError, InvalidEventTimeError):
            time = None
            assert partition.trouble, "what cannot be read is named"
            assert way is not Routing.SKIP
            assert partition.watermark == before
        if isinstance(time, Resolved):
            promised = max(promised, time.watermark)
        if fmt.promises:
            assert (partition.watermark or 0) <= promised
        elif way is Routing.FORWARD and isinstance(time, int):
            counts = int(dict(headers).get(TIME_HEADER, b"%d" % time))
            assert before is None or counts >= before, "nothing that is passed on is behind what was promised"
            assert int(dict(headers).get(SUBSTREAM_HEADER, EARLIEST)) >= EARLIEST
        if records.index((key, value, log_time)) % 3 == 0:
            partition.estimate(elapsed)
        mark = WatermarkRecord(
            source="i", epoch=0, sequence=0, watermark=partition.watermark, partitions=1, emitted_at=0
        ).watermark
        assert last is None or mark >= last
        last = mark
        packed_state = InjectorState(1, 1, "at", partition.snapshot(), dict(partition.counts), 1).pack("i", 0)
        partition.restore(InjectorState.unpack(packed_state).partition)
        assert partition.watermark == mark


@pytest.mark.parametrize(
    ("partition", "value", "log_time", "counted"),
    [
        (InputPartition(JsonField("at"), TimePolicy()), b'{"at": 1e999}', NOW, "unreadable"),
        (InputPartition(JsonField("at"), TimePolicy()), b'{"at": NaN}', NOW, "unreadable"),
        (InputPartition(JsonField("at", "s"), TimePolicy()), b'{"at": 1e308}', NOW, "unreadable"),
        (InputPartition(JsonField("at"), TimePolicy()), b"[" * 100_000, NOW, "unreadable"),
        (InputPartition(LogTime(), TimePolicy()), b"x", NOW * 1_000, "unreadable"),
        (InputPartition(JsonField("at"), TimePolicy()), b'{"at": 5}', NOW * 1_000, "unreadable_arrival"),
        (InputPartition(LogTime(), TimePolicy()), b"x", 0, "unreadable"),
        (InputPartition(LogTime(), TimePolicy()), b"x", -1, "unreadable"),
        (InputPartition(JsonField("at"), TimePolicy()), b'{"at": %d}' % NOW, 0, "unreadable_arrival"),
        (InputPartition(JsonField("at"), TimePolicy()), b'{"at": %d}' % NOW, -1, "unreadable_arrival"),
        (InputPartition(JsonField("at"), TimePolicy(), hostile), b'{"at": 5}', NOW, "unreadable_key"),
        (InputPartition(TiCdcCanal()), b'{"type": "INSERT", "_tidb": {"commitTs": 1e999}}', NOW, "unreadable"),
        (InputPartition(TiCdcCanal()), b'{"type": "TIDB_WATERMARK", "_tidb": {"watermarkTs":1.5e17}}', 0, "unreadable"),
        (InputPartition(CockroachDb()), b'{"resolved": "99999999999999999999999.0"}', 0, "unreadable"),
    ],
    ids=[
        "infinite",
        "not a number",
        "seconds too large",
        "deep",
        "log time",
        "arrival",
        "log time 0",
        "no log time",
        "arrival 0",
        "no arrival",
        "key",
        "TiCDC infinite",
        "TiCDC fraction",
        "CockroachDB",
    ],
)
def test_a_poison_record_is_passed_on_counted_and_named(partition, value, log_time, counted):
    assert partition.take(None, value, log_time)[0] is Routing.FORWARD
    assert partition.counts[counted] == 1
    assert partition.trouble
    assert len(partition.trouble) < 400
    assert partition.watermark is None or partition.watermark <= NOW


def test_a_dropped_record_is_named():
    partition = InputPartition(JsonField("at"), TimePolicy(early=timedelta(0)))
    assert partition.take(None, b'{"at": 5000}', 1_000) == (Routing.DROP, ())
    assert partition.pop_trouble() == "its time 1970-01-01T00:00:05.000+00:00 is early, so it is dropped"


def test_a_record_whose_arrival_cannot_be_read_is_still_not_behind_the_watermark():
    partition = InputPartition(JsonField("at"), TimePolicy(late=timedelta(seconds=1)))
    partition.take(None, b'{"at": %d}' % NOW, NOW)
    assert partition.take(None, b'{"at": 5}', NOW * 1_000) == (Routing.FORWARD, [(TIME_HEADER, b"%d" % (NOW - 1_000))])
    assert partition.take(None, b'{"at": %d}' % (NOW * 2), -(2**62)) == (Routing.FORWARD, ())
    assert partition.watermark == NOW - 1_000


def test_the_name_of_a_poison_record_tells_which_fields_there_are():
    partition = InputPartition(JsonField("att"), TimePolicy())
    partition.take(None, b'{"at": 1, "payload": {"ts": 2}}', NOW)
    assert "field 'att' is missing or null; the fields are 'at', 'payload.ts'" in partition.trouble


def test_other_events_beside_a_promise_are_not_lost_with_it():
    events = [b'{"t": 3, "ts": %d}' % (5 << 18), b'{"t": 1, "ts": %d}' % (900 << 18)]
    key = struct.pack(">Q", 1) + b"".join(struct.pack(">Q", len(event)) + event for event in events)
    partition = InputPartition(TiCdcOpen())
    assert partition.take(key, None, NOW)[0] is Routing.FORWARD
    assert partition.watermark is None


def test_long_keys_do_not_fill_the_state():
    """One key of a megabyte once made the state larger than Kafka takes, at each start again."""
    partition = InputPartition(LogTime(), TimePolicy(late=timedelta(hours=1)), substream_key)
    partition.take(b"x" * 1_000_000, b"", NOW)
    assert len(InjectorState(1, 1, "at", partition.snapshot(), {}, 1).pack("i", 0)) < 1_000
    assert partition.take(b"x" * 1_000_000, b"", NOW - 5)[1][0] == (TIME_HEADER, b"%d" % NOW), (
        "it is the same substream"
    )


def test_what_a_lane_keeps_does_not_grow():
    """Poison, ever new and ever longer keys, silence: the same size after 10,000 records as after 1,000."""
    policy = TimePolicy(late=timedelta(hours=1), max_keys=100)
    partition, sizes = InputPartition(JsonField("at"), policy, substream_key), []
    for number in range(10_000):
        value = b'{"at": %d}' % (NOW + number) if number % 3 else b'{"at": "%d"}' % number
        partition.take(b"%d" % number * (1 + number // 10), value, NOW + number)
        partition.estimate(number)
        if number % 1_000 == 999:
            sizes.append(
                len(pickle.dumps((partition.policy_state, partition.counts, partition.trouble, partition.snapshot())))
            )
    assert max(sizes) < 1.1 * sizes[0]


class Own(InputFormat):
    """A format with a mistake, and one that tells nonsense."""

    about = "ours"

    def tell(self, key, value, log_time):  # noqa: ARG002  # the shape of `InputFormat.tell`
        return {b"never": 10**20, b"promise": Resolved(-(10**20))}[value]


@pytest.mark.parametrize("value", [b"never", b"promise", b"else", None])
def test_a_format_of_the_users_own_cannot_break_the_lane(value):
    partition = InputPartition(Own(), TimePolicy())
    assert partition.take(None, value, NOW)[0] is Routing.FORWARD
    assert partition.counts["unreadable"] == 1


@pytest.mark.parametrize("wrong", [{}, {"watermark": "x"}, {"watermark": 10**18}, None])
def test_a_promise_that_is_none_is_not_restored(wrong):
    with pytest.raises(CorruptSnapshotError, match="changefeed"):
        InputPartition(CockroachDb()).restore(wrong)


def test_the_unit_of_avro_is_what_its_schema_says():
    kinds = {"timestamp-millis": 12_000, "timestamp-micros": 12, "timestamp-nanos": 0}
    for kind, expected in kinds.items():
        for wrapped in ({"type": "long", "logicalType": kind}, ["null", {"type": "long", "logicalType": kind}]):
            schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "at", "type": wrapped}]})
            value = AvroCodec(without_logical_types(schema)).encode({"at": 12_000})
            assert AvroField(schema, "at").read(None, value, 0) == expected
            assert AvroField(schema, "at", "ms").read(None, value, 0) == 12_000
