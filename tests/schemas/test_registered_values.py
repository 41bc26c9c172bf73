"""Bodies of one schema as another one reads them, whatever the schemas are; hostile bytes are only ever an error."""

import json
from io import BytesIO

import fastavro
import pytest
from floodmark.schemas.errors import IncompatibleSchemaError, SchemaError, UnreadableValueError
from floodmark.schemas.registered_values import AvroBody, AvroResolution, frame, message_path, path_bytes, unframed
from hypothesis import given
from hypothesis import strategies as st

VALUES = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=5),
    "boolean": st.booleans(),
}
WIDER = {
    "int": ["int", "long", "double"],
    "long": ["long"],
    "double": ["double"],
    "string": ["string"],
    "boolean": ["boolean"],
}
DEFAULTS = {"int": 1, "long": 2, "double": 0.5, "string": "-", "boolean": True}
NAMES = st.lists(st.sampled_from("abcdef"), unique=True, max_size=6)


@st.composite
def evolved(draw):
    """A writer's schema, a reader's that may take it (fields moved, dropped, added, wider), and a value."""
    kinds = {name: draw(st.sampled_from(sorted(VALUES))) for name in draw(NAMES)}
    optional = {name for name in kinds if draw(st.booleans())}
    written = [{"name": name, "type": ["null", kind] if name in optional else kind} for name, kind in kinds.items()]
    value = {
        name: None if name in optional and draw(st.booleans()) else draw(VALUES[kind]) for name, kind in kinds.items()
    }
    read = []
    for name in draw(NAMES):
        kind = draw(st.sampled_from(WIDER[kinds[name]])) if name in kinds else draw(st.sampled_from(sorted(VALUES)))
        if name in optional:
            read.append({"name": name, "type": ["null", kind], "default": None})
        else:
            read.append({"name": name, "type": kind, "default": DEFAULTS[kind]})
    return tuple(json.dumps({"type": "record", "name": "R", "fields": fields}) for fields in (written, read)), value


@given(evolved())
def test_a_resolved_body_is_what_the_reader_sees(case):
    (writer, reader), value = case
    parsed = fastavro.parse_schema(json.loads(writer)), fastavro.parse_schema(json.loads(reader))
    body = BytesIO()
    fastavro.schemaless_writer(body, parsed[0], value)
    body.seek(0)
    expected = fastavro.schemaless_reader(body, *parsed)
    resolved = AvroResolution(writer, reader).resolve(body.getvalue())
    assert fastavro.schemaless_reader(BytesIO(resolved), parsed[1], None) == expected
    assert AvroBody(writer).decode(body.getvalue()) == value


@given(evolved(), st.binary(max_size=30))
def test_hostile_bodies_are_unreadable_or_a_value(case, body):
    (writer, reader), _ = case
    try:
        AvroBody(writer).decode(body)
    except UnreadableValueError:
        return
    AvroResolution(writer, reader).resolve(body)


@given(st.integers(0, 2**32 - 1), st.binary(max_size=9), st.lists(st.integers(0, 2**31), min_size=1, max_size=4))
def test_frames(schema_id, body, path):
    assert unframed(frame(schema_id) + body) == (schema_id, body)
    assert message_path(path_bytes(tuple(path)) + body) == (tuple(path), body)


@given(st.binary(max_size=12))
def test_hostile_paths_are_unreadable_or_a_path(body):
    try:
        path, rest = message_path(body)
    except UnreadableValueError:
        return
    assert path
    assert body.endswith(rest)


def test_a_type_of_another_subject():
    point = '{"type": "record", "name": "shop.Point", "fields": [{"name": "x", "type": "int"}]}'
    line = '{"type": "record", "name": "Line", "fields": [{"name": "from", "type": "shop.Point"}]}'
    assert AvroBody(line, [point]).decode(b"\x0e") == {"from": {"x": 7}}
    with pytest.raises(SchemaError):
        AvroBody(line)
    assert not AvroResolution(line, point, [point]).is_of_reader


@pytest.mark.parametrize("unit", ["timestamp-micros", "local-timestamp-millis"])
def test_a_time_of_another_unit_is_not_taken_for_the_old_one(unit):
    """Deep within records and unions; Avro's own resolution ignores what a number counts."""

    def schema(logical):
        at = {"name": "at", "type": ["null", {"type": "long", "logicalType": logical}]}
        payload = {"type": "record", "name": "P", "fields": [at]}
        return json.dumps({"type": "record", "name": "R", "fields": [{"name": "payload", "type": ["null", payload]}]})

    millis = schema("timestamp-millis")
    assert AvroResolution(millis, millis).resolve(b"\x02\x02\x0e") == b"\x02\x02\x0e"
    with pytest.raises(IncompatibleSchemaError, match=rf"'payload\.at' was written as {unit}"):
        AvroResolution(schema(unit), millis)
