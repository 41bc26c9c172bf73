import json
from contextlib import suppress

import pytest
from floodmark.schemas import (
    AvroCodec,
    Holder,
    Membership,
    Status,
    WatermarkRecord,
    control_key,
    decode_watermark,
    encode_watermark,
    load_schema,
)
from floodmark.schemas.codec import MAX_CONTROL_BYTES, codec_of
from floodmark.schemas.errors import InvalidRecordError, SchemaError, UnreadableControlRecordError, UnreadableValueError
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME
from hypothesis import given
from hypothesis import strategies as st

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
    assert decode_watermark(control_key(record.source), encode_watermark(record)) == record


@given(st.binary(max_size=1200))
def test_no_bytes_do_more_than_be_refused(data):
    with pytest.raises(UnreadableControlRecordError):
        decode_watermark(b"__floodmark__/a", data)


@given(records, st.data())
def test_a_damaged_record_is_a_record_or_refused(record, data):
    good = bytearray(encode_watermark(record))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] ^= data.draw(st.integers(1, 255))
    # Whatever it is, nothing else may come out of the decoder.
    with suppress(UnreadableControlRecordError):
        assert decode_watermark(control_key(record.source), bytes(good)).source == record.source


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        pytest.param(b"__floodmark__/a", None, "no value", id="a tombstone promises nothing"),
        pytest.param(b"__floodmark__/a", b"x" * (MAX_CONTROL_BYTES + 1), "1025 bytes", id="too large to be looked at"),
        pytest.param(b"__floodmark__/a", b"\xc3\x01" + b"\0" * 8 + b"rest", "begins with", id="of another schema"),
    ],
)
def test_what_cannot_be_a_record_is_refused_with_the_reason(key, value, reason):
    with pytest.raises(UnreadableControlRecordError, match=reason):
        decode_watermark(key, value)


def test_a_record_under_another_sources_key_is_refused():
    record = WatermarkRecord(source="a", epoch=1, sequence=0, watermark=1, partitions=1, emitted_at=0)
    with pytest.raises(UnreadableControlRecordError, match="another source"):
        decode_watermark(control_key("b"), encode_watermark(record))


def test_bytes_left_over_are_refused():
    record = WatermarkRecord(source="a", epoch=1, sequence=0, watermark=1, partitions=1, emitted_at=0)
    with pytest.raises(UnreadableControlRecordError, match="left over"):
        decode_watermark(control_key("a"), encode_watermark(record) + b"x")


def test_a_record_too_large_is_never_written():
    holder = Holder(topic="t" * 1000)
    record = WatermarkRecord(source="a", epoch=1, sequence=0, watermark=1, partitions=1, emitted_at=0, holder=holder)
    with pytest.raises(InvalidRecordError, match="at most 1024 bytes"):
        encode_watermark(record)


@pytest.mark.parametrize(
    ("field", "value"),
    [("epoch", -1), ("sequence", -1), ("partitions", 0), ("watermark", END_OF_TIME + 1), ("records", -1), ("lease", 0)],
)
def test_an_invalid_record_cannot_exist(field, value):
    good = {"source": "a", "epoch": 1, "sequence": 0, "watermark": 1, "partitions": 1, "emitted_at": 0}
    with pytest.raises(InvalidRecordError, match=field):
        WatermarkRecord(**{**good, field: value})


def test_logical_types_do_not_change_the_fingerprint():
    assert AvroCodec(load_schema("flight")).prefix == codec_of("flight").prefix


def test_every_field_of_the_watermark_schema_is_explained():
    assert all(field["doc"] for field in load_schema("watermark")["fields"])


@pytest.mark.parametrize("schema", ['{"type": "rec', json.dumps({"name": "x", "type": "nonsense"}), "{}", '"null"'])
def test_a_wrong_schema_is_refused(schema):
    with pytest.raises(SchemaError):
        AvroCodec(schema)


def test_a_value_that_does_not_fit_is_refused_when_written():
    with pytest.raises(UnreadableValueError):
        codec_of("flight").encode({"aircraft": 7})
