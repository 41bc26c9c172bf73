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


CREATED = {"type": "record", "name": "Created", "fields": [{"name": "id", "type": "long"}]}
DELETED = {"type": "record", "name": "Deleted", "fields": [{"name": "id", "type": "long"}]}
COLOUR = {"type": "enum", "name": "Colour", "symbols": ["red", "blue"]}
TAGS = {"type": "map", "values": "string"}
BY = {"name": "by", "type": ["null", "string"], "default": None}
OPTIONS = ["null", CREATED, DELETED, COLOUR, "string", TAGS, "long"]
CHOICES = st.one_of(
    st.none(),
    st.tuples(st.sampled_from(["Created", "Deleted"]), st.fixed_dictionaries({"id": VALUES["long"]})),
    st.tuples(st.just("Colour"), st.sampled_from(["red", "blue"])),
    st.sampled_from(["red", "other"]),
    st.dictionaries(st.sampled_from(["id", "x"]), st.text(max_size=3), max_size=2),
    VALUES["long"],
)


@given(st.lists(CHOICES, min_size=1, max_size=4), st.permutations(range(len(OPTIONS))))
def test_the_branch_of_a_union_stays_whatever_its_value_looks_like(values, order):
    """Two records with one field, an enum beside text, a map beside records."""

    def schema(options, optional=()):
        fields = [{"name": "all", "type": {"type": "array", "items": options}}, *optional]
        return json.dumps({"type": "record", "name": "R", "fields": fields})

    wider = [{**CREATED, "fields": [*CREATED["fields"], BY]} if one is CREATED else one for one in OPTIONS]
    writer, reader = schema(OPTIONS), schema([wider[n] for n in order], [BY])
    body = BytesIO()
    named = [("long", one) if type(one) is int else ("map", one) if type(one) is dict else one for one in values]
    named = [("string", one) if type(one) is str else one for one in named]
    fastavro.schemaless_writer(body, fastavro.parse_schema(json.loads(writer)), {"all": named})
    resolved = BytesIO(AvroResolution(writer, reader).resolve(body.getvalue()))
    parsed = fastavro.parse_schema(json.loads(reader))
    found = fastavro.schemaless_reader(resolved, parsed, None, return_named_type=True)["all"]
    expected = [
        ("Created", {**one[1], "by": None}) if type(one) is tuple and one[0] == "Created" else one for one in values
    ]
    assert [(type(one), one) for one in found] == [(type(one), one) for one in expected]


def test_one_of_the_types_of_a_union_is_read_alone():
    writer = json.dumps({"type": "record", "name": "R", "fields": [{"name": "p", "type": [CREATED, DELETED]}]})
    fields = [{"name": "p", "type": DELETED}, {"name": "q", "type": ["null", "long", "string"], "default": None}]
    reader = json.dumps({"type": "record", "name": "R", "fields": fields})
    resolved = AvroResolution(writer, reader).resolve(b"\x02\x0e")
    assert fastavro.schemaless_reader(BytesIO(resolved), fastavro.parse_schema(json.loads(reader)), None) == {
        "p": {"id": 7},
        "q": None,
    }


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        {"type": "fixed", "name": "F", "size": 1},
        ["bytes", "null"],
    ],
)
def test_a_new_field_of_bytes_has_its_default(kind):
    def schema(*more):
        return json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, *more]})

    reader = schema({"name": "b", "type": kind, "default": "\u00ff"})
    assert AvroResolution(schema(), reader).resolve(b"\x0e").endswith(b"\xff")


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


MILLIS, MICROS = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))


def fields_of(kind, **more):
    """Return fields in which a type stands alone, in an array, a map, a named type, and a second use of that."""
    inner = {"type": "record", "name": "I", "fields": [{"name": "at", "type": kind}]}
    return {
        "alias": [{"name": "at", "type": kind, **more}],
        "array": [{"name": "all", "type": {"type": "array", "items": kind}}],
        "map": [{"name": "all", "type": {"type": "map", "values": kind}}],
        "named": [{"name": "a", "type": inner}, {"name": "b", "type": "I"}],
    }


@pytest.mark.parametrize("place", ["alias", "array", "map", "named"])
@pytest.mark.parametrize(
    ("written", "read"),
    [
        (MILLIS, MICROS),
        ({"type": "int", "logicalType": "time-millis"}, {"type": "long", "logicalType": "time-micros"}),
        *[
            tuple({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": scale} for scale in scales)
            for scales in ((2, 4),)
        ],
    ],
    ids=["timestamp", "time", "decimal"],
)
def test_what_a_number_counts_is_compared_wherever_it_stands(place, written, read):
    def schema(kind, **more):
        return json.dumps({"type": "record", "name": "R", "fields": fields_of(kind, **more)[place]})

    new = {"aliases": ["at"]} if place == "alias" else {}
    renamed = schema(read, **new).replace('"name": "at"', '"name": "renamed"') if place == "alias" else schema(read)
    AvroResolution(schema(written), schema(written))
    with pytest.raises(IncompatibleSchemaError, match="was written as"):
        AvroResolution(schema(written), renamed)


def test_what_a_number_of_a_referenced_type_counts_is_compared_and_types_may_recur():
    def meta(kind):
        return {"type": "record", "name": "shop.Meta", "fields": [{"name": "at", "type": kind}]}

    writer = {"type": "record", "name": "R", "fields": [{"name": "meta", "type": "shop.Meta"}]}
    reader = {"type": "record", "name": "R", "fields": [{"name": "meta", "type": meta(MICROS)}]}
    with pytest.raises(IncompatibleSchemaError, match=r"'meta\.at' was written as timestamp-millis"):
        AvroResolution(json.dumps(writer), json.dumps(reader), [json.dumps(meta(MILLIS))])
    tree = {
        "type": "record",
        "name": "T",
        "fields": [{"name": "next", "type": ["null", "T"]}, {"name": "at", "type": MILLIS}],
    }
    AvroResolution(json.dumps(tree), json.dumps({**tree, "fields": [*tree["fields"], BY]}))
