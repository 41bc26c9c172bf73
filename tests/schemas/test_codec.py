import json
from contextlib import suppress
from importlib.resources import files

import pytest
from floodmark.schemas import (
    AvroCodec,
    Holder,
    Membership,
    Status,
    WatermarkRecord,
    decode_watermark,
    encode_watermark,
    mark_key,
    watermark_schema,
)
from floodmark.schemas.codec import MAX_MARK_BYTES, encode_round, without_logical_types
from floodmark.schemas.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidValueError,
    SchemaError,
    UnreadableMarkError,
)
from floodmark.schemas.records import MAX_PERCENTS, TIME_HEADER, Number, Round, header_time
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME
from hypothesis import given
from hypothesis import strategies as st

CODEC = AvroCodec(without_logical_types(watermark_schema()))

times = st.integers(EARLIEST, END_OF_TIME)
counts = st.integers(0, 2**62)
names = st.text(min_size=1, max_size=40).filter(lambda name: name.encode(errors="ignore").decode() == name)
holders = st.builds(Holder, names, st.none() | st.integers(0, 99), st.none() | names, st.none() | names)
records = st.builds(
    WatermarkRecord,
    source=names,
    epoch=counts,
    sequence=counts,
    watermark=st.none() | times,
    partitions=st.integers(1, 1000),
    emitted_at=times,
    status=st.sampled_from(Status),
    membership=st.builds(Membership, st.integers(1, 99), st.integers(1, 99)),
    records=st.none() | counts,
    processing_time_watermark=st.none() | times,
    lease=st.none() | st.integers(1, 2**40),
    percentiles=st.none() | st.dictionaries(st.integers(1, 100), times, max_size=5),
    holder=st.none() | holders,
)


@given(records)
def test_every_record_comes_back_as_it_was(record):
    assert decode_watermark(mark_key(record.source), encode_watermark(record)) == record


@given(records, st.lists(st.builds(Number, st.integers(0, 99), counts, st.none() | counts), max_size=5))
def test_a_round_is_written_as_each_of_its_marks_is(shared, numbers):
    marks = Round(shared, numbers)
    assert encode_round(marks) == [encode_watermark(record) for _, record in marks]
    assert [partition for partition, _ in marks] == [number.partition for number in numbers]


@pytest.mark.parametrize("number", [Number(0, -1, 5), Number(0, 1, -5)])
def test_a_round_writes_no_number_that_no_reader_could_use(number):
    shared = WatermarkRecord(source="a", epoch=1, sequence=0, watermark=12, partitions=2, emitted_at=0)
    with pytest.raises(InvalidRecordError, match=r"expected .*0 to"):
        encode_round(Round(shared, [Number(1, 0, 0), number]))


@given(st.binary(max_size=1200))
def test_no_bytes_do_more_than_be_refused(data):
    with pytest.raises(UnreadableMarkError):
        decode_watermark(b"__floodmark__/a", data)


@given(records, st.data())
def test_a_damaged_record_is_a_record_in_its_one_form_or_refused(record, data):
    bad = bytearray(encode_watermark(record))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(10, len(bad) - 1))
        bad[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    with suppress(UnreadableMarkError):
        assert encode_watermark(decode_watermark(mark_key(record.source), bytes(bad))) == bad


def body(*, status=b"\x00", watermark=b"\x02\x18", percentiles=b"\x00"):
    """Give a value of JFK by hand: branches, symbols and lengths are varints, zigzag."""
    fields = (b"\x06JFK", b"\x02", b"\x02", watermark, status, b"\x02\x02", b"\x02", b"\x00", b"\x00", b"\x00", b"\x00")
    return CODEC.prefix + b"".join(fields) + percentiles + b"\x00"


def test_a_body_made_by_hand_is_read():
    record = decode_watermark(b"__floodmark__/JFK", body(percentiles=b"\x02\x04\x0433\x1a\x06100\x18\x00"))
    assert (record.watermark, record.percentiles) == (12, {33: 13, 100: 12})


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(body(status=b"\x01"), id="symbol -1, which some would read as the last"),
        pytest.param(body(status=b"\x05"), id="symbol -3"),
        pytest.param(body(status=b"\x06"), id="symbol 3"),
        pytest.param(body(watermark=b"\x01\x18"), id="branch -1"),
        pytest.param(body(watermark=b"\x03"), id="branch -2"),
        pytest.param(body(watermark=b"\x04\x18"), id="branch 2"),
        pytest.param(body(watermark=b"\x02\x98\x00"), id="a varint of one byte in two"),
        pytest.param(body(watermark=b"\x02" + b"\x80" * 10 + b"\x02"), id="a varint of 77 bits"),
        pytest.param(body(watermark=b"\x02\x98" + b"\x80" * 900 + b"\x00"), id="a varint of 902 bytes"),
        pytest.param(body(percentiles=b"\x02\x01\x0a\x0433\x1a\x00"), id="a map block with its size"),
        pytest.param(body(percentiles=b"\x02\x02\x0433\x1a\x02\x0466\x1a\x00"), id="two map blocks"),
        pytest.param(body(percentiles=b"\x02\x04\x0433\x1a\x0433\x1a\x00"), id="a percent twice"),
        *(
            pytest.param(body(percentiles=b"\x02\x02" + bytes([2 * len(p)]) + p + b"\x1a\x00"), id=f"percent {p}")
            for p in (b"+5", b"5 ", b"1_0", "\u0665".encode(), b"05", b"0", b"101", b"", b"5\n")
        ),
    ],
)
def test_a_value_in_another_form_is_refused(value):
    with pytest.raises(UnreadableMarkError):
        decode_watermark(b"__floodmark__/JFK", value)


VECTORS = json.loads(files("floodmark.schemas").joinpath("vectors.json").read_text(encoding="utf-8"))


def test_the_fingerprint_of_the_vectors_is_the_schemas():
    assert CODEC.prefix.hex() == "c301" + VECTORS["fingerprint"]


@pytest.mark.parametrize("vector", VECTORS["accepted"], ids=lambda vector: vector["name"])
def test_an_accepted_vector_decodes_to_its_record_and_back(vector):
    value = bytes.fromhex(vector["value"])
    assert CODEC.decode(value) == vector["record"]
    record = decode_watermark(bytes.fromhex(vector["key"]), value)
    assert encode_watermark(record) == value
    assert (record.source, record.watermark, record.status.value) == tuple(
        vector["record"][field] for field in ("source", "watermark", "status")
    )


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: vector["name"])
def test_a_refused_vector_is_refused(vector):
    value = None if vector["value"] is None else bytes.fromhex(vector["value"])
    with pytest.raises(UnreadableMarkError):
        decode_watermark(bytes.fromhex(vector["key"]), value)


@pytest.mark.parametrize(
    ("values", "time"),
    [
        ([], None),
        ([b"12"], 12),
        ([b"12", b"13"], 13),
        ([b"12", b"13 ", None, b"\xd9\xa1", b"1e3", b"+5"], 12),
        ([b"253402300800000"], None),
        (["-62135596800000"], -62135596800000),
    ],
)
def test_the_last_readable_time_in_the_headers_counts(values, time):
    headers = [("other", b"1"), *((TIME_HEADER, value) for value in values), ("floodmark-substream", b"7")]
    assert header_time(headers, TIME_HEADER) == time


def test_the_largest_marks_fit():
    most = {"source": "\u00e4" * 100, "epoch": 2**63 - 1, "sequence": 2**63 - 1, "records": 2**63 - 1}
    most |= {"watermark": END_OF_TIME, "emitted_at": END_OF_TIME, "processing_time_watermark": END_OF_TIME}
    most |= {"membership": Membership(2**31 - 1, 2**31 - 1), "partitions": 2**31 - 1, "lease": END_OF_TIME}
    percents = dict.fromkeys(range(101 - MAX_PERCENTS, 101), END_OF_TIME)
    holder = Holder("t" * 249, 2**31 - 1, "s" * 200, "j" * 200)
    for more in ({"percentiles": percents}, {"holder": holder}):
        record = WatermarkRecord(**most, **more)
        assert decode_watermark(mark_key(record.source), encode_watermark(record)) == record


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        pytest.param(b"__floodmark__/a", None, "no value", id="a tombstone has no value"),
        pytest.param(b"__floodmark__/a", b"x" * (MAX_MARK_BYTES + 1), "1025 bytes", id="too large to be looked at"),
        pytest.param(b"__floodmark__/a", b"\xc3\x01" + b"\0" * 8 + b"rest", "begins with", id="of another schema"),
    ],
)
def test_what_cannot_be_a_record_is_refused_with_the_reason(key, value, reason):
    with pytest.raises(UnreadableMarkError, match=reason):
        decode_watermark(key, value)


def test_a_record_under_another_sources_key_is_refused():
    record = WatermarkRecord(source="a", epoch=1, sequence=0, watermark=1, partitions=1, emitted_at=0)
    with pytest.raises(UnreadableMarkError, match="another source"):
        decode_watermark(mark_key("b"), encode_watermark(record))


def test_bytes_left_over_are_refused():
    record = WatermarkRecord(source="a", epoch=1, sequence=0, watermark=1, partitions=1, emitted_at=0)
    with pytest.raises(UnreadableMarkError, match="left over"):
        decode_watermark(mark_key("a"), encode_watermark(record) + b"x")


def test_a_record_too_large_is_never_written():
    percents = dict.fromkeys(range(1, 101), END_OF_TIME)
    record = WatermarkRecord(
        source="a" * 200, epoch=1, sequence=0, watermark=1, partitions=1, emitted_at=0, percentiles=percents
    )
    with pytest.raises(InvalidRecordError, match="at most 1024 bytes"):
        encode_watermark(record)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("source", ""), ("source", "a" * 201), ("source", "\ud800")),
        *(("epoch", 1.5), ("epoch", True), ("epoch", "1"), ("sequence", 1.0)),
        *(("epoch", -1), ("epoch", 2**63), ("sequence", -1), ("sequence", 2**63), ("records", -1), ("records", 2**63)),
        *(("partitions", 0), ("partitions", 2**31), ("lease", 0), ("lease", END_OF_TIME + 1)),
        *(("watermark", END_OF_TIME + 1), ("emitted_at", EARLIEST - 1), ("processing_time_watermark", END_OF_TIME + 1)),
        *(("membership", Membership(0, 1)), ("membership", Membership(1, 2**31))),
        *(("percentiles", {0: 1}), ("percentiles", {101: 1}), ("percentiles", {5: END_OF_TIME + 1})),
        *(("holder", Holder("")), ("holder", Holder("t" * 250)), ("holder", Holder("t", -1))),
        *(("holder", Holder("t", source="")), ("holder", Holder("t", stage="s" * 201))),
    ],
)
def test_an_invalid_record_cannot_exist(field, value):
    good = {"source": "a", "epoch": 1, "sequence": 0, "watermark": 1, "partitions": 1, "emitted_at": 0}
    with pytest.raises(InvalidRecordError, match=field):
        WatermarkRecord(**{**good, field: value})


def test_logical_types_do_not_change_the_fingerprint():
    assert AvroCodec(watermark_schema()).prefix == CODEC.prefix


def test_every_field_of_the_watermark_schema_is_explained():
    assert all(field["doc"] for field in watermark_schema()["fields"])


@pytest.mark.parametrize("schema", ['{"type": "rec', json.dumps({"name": "x", "type": "nonsense"}), "{}", '"null"'])
def test_a_wrong_schema_is_refused(schema):
    with pytest.raises(SchemaError):
        AvroCodec(schema)


def test_a_value_that_does_not_fit_is_refused_when_written():
    """The value is the caller's: no topic is blamed for it."""
    with pytest.raises(InvalidValueError, match=r"^value \{'source': 7\} does not fit") as raised:
        CODEC.encode({"source": 7})
    assert not isinstance(raised.value, CorruptRecordError)
