"""Values whose schema is in a registry: their frame, their Avro bodies, and resolution to a reader's schema.  Pure.

The frame is Confluent's wire format: a byte 0, the id of the schema in four bytes (big-endian), then the body.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import to_parsing_canonical_form
from floodmark.schemas.codec import decoded, without_logical_types
from floodmark.schemas.errors import IncompatibleSchemaError, SchemaError, UnreadableValueError

FRAME_SIZE: Final = 5
_SHOWN: Final = 80
_MAX_PATH: Final = 100
_KINDS: Final[Mapping[type, tuple[str, ...]]] = {
    bool: ("boolean",),
    int: ("long", "int"),
    float: ("double", "float"),
    str: ("string",),
    bytes: ("bytes",),
    dict: ("map",),
    list: ("array",),
}
"""The types without a name that a value of a union may have; others come with their names."""
_MORE: Final = 0x80  # the bit that says that more bytes of the number follow


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema of a registry."""

    kind: str  # ``AVRO``, ``PROTOBUF`` or ``JSON``
    text: str  # in Protobuf: the serialized file descriptor, in base64
    references: tuple[tuple[str, "Schema"], ...] = ()  # schemas of other subjects, by the name in ``text``

    @property
    def referenced(self) -> list[str]:
        """The texts of all referenced schemas, dependencies first."""
        found: dict[str, None] = {}
        for _, schema in self.references:
            found |= dict.fromkeys([*schema.referenced, schema.text])
        return list(found)


def frame(schema_id: int) -> bytes:
    """Return the five bytes before each body of a schema.

    >>> frame(258).hex()
    '0000000102'
    """
    return b"\x00" + schema_id.to_bytes(4, "big")


def unframed(value: bytes) -> tuple[int, bytes]:
    """Return the id of a value's schema, and its body; `UnreadableValueError` if it has no frame."""
    if len(value) < FRAME_SIZE or value[0] != 0:
        reason = f"it begins with {value[:FRAME_SIZE].hex() or 'nothing'}, expected 00 and four bytes of a schema id"
        raise UnreadableValueError(size=len(value), schema="a framed value", reason=reason)
    return int.from_bytes(value[1:FRAME_SIZE], "big"), value[FRAME_SIZE:]


def message_path(body: bytes) -> tuple[tuple[int, ...], bytes]:
    """Split the body of a Protobuf value: the path of the message's type in its file, and the message.

    The path is a count and then as many numbers, all zigzag varints; the single byte 0 stands for the first type.
    `UnreadableValueError` if there is no such path.
    """
    count, at = _varint(body, 0)
    if not 0 <= count <= _MAX_PATH:
        raise _no_path(body)
    path = []
    for _ in range(count):
        number, at = _varint(body, at)
        path.append(number)
    return tuple(path) or (0,), body[at:]


def path_bytes(path: tuple[int, ...]) -> bytes:
    """Return the bytes that `message_path` reads."""
    return b"\x00" if path == (0,) else b"".join(map(_zigzag, (len(path), *path)))


def _zigzag(number: int) -> bytes:
    left, out = number << 1, bytearray()
    while left >= _MORE:
        out.append(left & 0x7F | _MORE)
        left >>= 7
    return bytes([*out, left])


def _varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    for place in range(at, min(at + 5, len(body))):
        number |= (body[place] & 0x7F) << shift
        shift += 7
        if body[place] < _MORE:
            return (number >> 1) ^ -(number & 1), place + 1
    raise _no_path(body)


def _no_path(body: bytes) -> UnreadableValueError:
    return UnreadableValueError(size=len(body), schema="framed Protobuf", reason="it names no type of message")


class AvroBody:
    """Decode Avro bodies of a known schema, which have no prefix; `SchemaError` if it is not a schema of a record."""

    def __init__(self, schema: str, referenced: Sequence[str] = ()) -> None:
        named: dict[str, Any] = {}
        try:
            for each in referenced:
                fastavro.parse_schema(json.loads(each), named_schemas=named)
            parsed: Any = fastavro.parse_schema(json.loads(schema), named_schemas=named)
            self.schema: Final = parsed
            self.named: Final = named
            self.name: Final[str] = str(parsed["name"])
        except (ValueError, TypeError, LookupError, fastavro.schema.SchemaParseException) as error:
            raise SchemaError(schema=schema[:_SHOWN], reason=f"{type(error).__name__}: {error}") from error

    def decode(self, body: bytes, reader: Any = None, *, branches: bool = False) -> dict[str, Any]:  # noqa: ANN401  # as fastavro parses it
        """Return a body's value; `UnreadableValueError` or `IncompatibleSchemaError` if the schemas do not fit.

        ``branches``: as for `decoded`.
        """
        try:
            return decoded(body, self.schema, self.name, reader=reader, branches=branches)
        except SchemaResolutionError as error:
            raise IncompatibleSchemaError(schema=f"reader {self.name}", reason=str(error)) from error


class AvroResolution:
    """Turn bodies of a writer's schema into bodies of a reader's schema, by Avro's rules of resolution.

    Raises:
        SchemaError: if one of them is not an Avro schema of a record.
        IncompatibleSchemaError: if a time has another unit, or a decimal another scale; Avro itself would not notice.
    """

    def __init__(self, writer: str, reader: str, referenced: Sequence[str] = ()) -> None:
        plain = [json.dumps(without_logical_types(each)) for each in (writer, reader, *referenced)]
        self._writer, self._reader = AvroBody(plain[0], plain[2:]), AvroBody(plain[1])
        names = [self._reader.name, *self._reader.schema.get("aliases", [])]
        self.is_of_reader: Final = self._writer.name.split(".")[-1] in {name.split(".")[-1] for name in names}
        """Whether both schemas, or an alias of the reader's, have the same name."""
        old, new = json.loads(writer), json.loads(reader)
        self._same = not referenced and to_parsing_canonical_form(old) == to_parsing_canonical_form(new)
        self._has_choices = _encode_defaults(self._reader.schema, self._reader.named)
        named: dict[str, Any] = {}
        for each in referenced:
            _units(json.loads(each), named)
        written = _units(old, named)
        for path, unit in _units(new, {}).items() if self.is_of_reader else ():
            if written.get(path, unit) != unit:
                reason = f"field {path!r} was written as {written[path]}, and is read as {unit}"
                raise IncompatibleSchemaError(schema=f"reader {self._reader.name}", reason=reason)

    def resolve(self, body: bytes) -> bytes:
        """Return a body in the reader's schema; errors are those of `AvroBody.decode`."""
        if self._same:
            return body
        reader, out = self._reader, BytesIO()
        value: Any = self._writer.decode(body, reader.schema, branches=self._has_choices)
        if self._has_choices:
            value = _with_branches(value, reader.schema, reader.named)
        try:
            fastavro.schemaless_writer(out, reader.schema, value)
        except (ValueError, TypeError, LookupError) as error:
            reason = f"a value of {self._writer.name} cannot be written by it: {error}"
            raise IncompatibleSchemaError(schema=f"reader {reader.name}", reason=reason) from error
        return out.getvalue()


def _encode_defaults(schema: Any, named: Mapping[str, Any]) -> bool:  # noqa: ANN401  # as fastavro parses it
    """Encode defaults of bytes, which JSON has as text; return whether a union has several types besides null."""
    if isinstance(schema, list):
        found = [_encode_defaults(one, named) for one in schema]
        return any(found) or len(found) - ("null" in schema) > 1
    if not isinstance(schema, dict):
        return False
    found = [_encode_defaults(schema[part], named) for part in ("items", "values") if part in schema]
    for field in schema.get("fields", []):
        found.append(_encode_defaults(field["type"], named))
        first = field["type"][0] if isinstance(field["type"], list) else field["type"]
        kind = named.get(first, first) if isinstance(first, str) else first
        kind = kind["type"] if isinstance(kind, dict) else kind
        if kind in {"bytes", "fixed"} and isinstance(field.get("default"), str):
            field["default"] = field["default"].encode("iso-8859-1")
    return any(found)


def _with_branches(value: Any, schema: Any, named: Mapping[str, Any]) -> Any:  # noqa: ANN401  # as above
    """Name the branch of each union in a value that was decoded with ``branches``: a writer would guess it."""
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(schema, list):
        return _branch(value, schema, named)
    if isinstance(value, tuple):  # the writer's schema has a union here, and the reader's one of its types
        value = value[1]
    if not isinstance(schema, dict):
        return value
    if isinstance(value, dict) and "fields" in schema:
        return {one["name"]: _with_branches(value[one["name"]], one["type"], named) for one in schema["fields"]}
    if isinstance(value, dict) and "values" in schema:
        return {key: _with_branches(one, schema["values"], named) for key, one in value.items()}
    if isinstance(value, list) and "items" in schema:
        return [_with_branches(one, schema["items"], named) for one in value]
    return value


def _branch(value: Any, union: list[Any], named: Mapping[str, Any]) -> Any:  # noqa: ANN401  # as above
    """Return a value of a union with the name of its branch; without, if its Python type tells none."""
    whole = {
        (one["name"] if "name" in one else one["type"]) if isinstance(one, dict) else one: one
        for one in (named.get(one, one) if isinstance(one, str) else one for one in union)
    }
    name, inner = value if isinstance(value, tuple) else (None, value)
    if name is None:
        kinds = _KINDS.get(type(value), ())
        name = next((kind for kind in kinds if kind in whole), None)
    if name not in whole:
        return inner
    return name, _with_branches(inner, whole[name], named)


def _units(schema: Any, named: dict[str, Any], path: str = "", within: frozenset[str] = frozenset()) -> dict[str, str]:  # noqa: ANN401  # JSON
    """Return what the numbers of a schema count, times and decimals, by the paths of their fields, also by aliases.

    ``named``: the types that are defined before, to which it adds.  ``within``: those around, since they may recur.
    """
    if isinstance(schema, list):
        return {name: unit for one in schema for name, unit in _units(one, named, path, within).items()}
    if isinstance(schema, str):
        schema = named.get(schema.split(".")[-1])
    if not isinstance(schema, Mapping) or (name := str(schema.get("name", "")).split(".")[-1]) in within:
        return {}
    if name:
        named[name], within = schema, within | {name}
    logical = str(schema.get("logicalType", ""))
    found = {path: logical} if "timestamp" in logical or logical.startswith("time-") else {}
    if logical == "decimal":
        found[path] = f"decimal with scale {schema.get('scale', 0)}"
    for field in schema.get("fields", []):
        for called in (field["name"], *field.get("aliases", [])):
            found |= _units(field["type"], named, f"{path}.{called}".lstrip("."), within)
    for part in ("items", "values"):
        if part in schema:
            found |= _units(schema[part], named, f"{path}[]", within)
    return found | (
        _units(schema["type"], named, path, within) if isinstance(schema.get("type"), (Mapping, list)) else {}
    )
