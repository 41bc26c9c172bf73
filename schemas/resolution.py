"""Bodies of Avro records whose schema is known from elsewhere, and how a reader's schema takes them.  Pure."""

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, Final

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import to_parsing_canonical_form
from floodmark.schemas.codec import without_logical_types
from floodmark.schemas.errors import IncompatibleSchemaError, SchemaError, UnreadableValueError

_SHOWN: Final = 80


class AvroBody:
    """Decode what some schema has written: a record's bytes alone, whose schema is known from elsewhere.

    Args:
        schema: JSON text.
        referenced: the schemas whose types it names, each before those that name it.

    Raises:
        SchemaError: where it is no Avro schema of a record.
    """

    def __init__(self, schema: str, referenced: Sequence[str] = ()) -> None:
        named: dict[str, Any] = {}
        try:
            for each in referenced:
                fastavro.parse_schema(json.loads(each), named_schemas=named)
            parsed: Any = fastavro.parse_schema(json.loads(schema), named_schemas=named)
            self.schema: Final = parsed
            self.name: Final[str] = str(parsed["name"])
        except (ValueError, TypeError, LookupError, fastavro.schema.SchemaParseException) as error:
            raise SchemaError(schema=schema[:_SHOWN], reason=f"{type(error).__name__}: {error}") from error

    def decode(self, body: bytes, reader: Any = None) -> dict[str, Any]:  # noqa: ANN401  # as fastavro parses it
        """Return the value of some bytes, as a reader's schema has it.

        Raises:
            UnreadableValueError: where this schema did not write them.
            IncompatibleSchemaError: where the reader's schema cannot take what it wrote.
        """
        source = BytesIO(body)
        try:
            value = fastavro.schemaless_reader(source, self.schema, reader)
        except SchemaResolutionError as error:
            raise IncompatibleSchemaError(schema=f"reader {self.name}", reason=str(error)) from error
        except Exception as error:  # as in AvroCodec
            raise self._unreadable(body, f"{type(error).__name__}: {error}") from error
        if source.tell() != len(body):
            raise self._unreadable(body, f"{len(body) - source.tell()} bytes are left over")
        return value  # type: ignore[return-value]  # a record schema decodes to a dict

    def _unreadable(self, body: bytes, reason: str) -> UnreadableValueError:
        return UnreadableValueError(size=len(body), schema=self.name, reason=reason)


class AvroResolution:
    r"""Turn bodies of a writer's schema into bodies of a reader's, by Avro's rules of resolution.

    Args:
        writer: JSON text.
        reader: JSON text.
        referenced: as `AvroBody` takes them, of the writer.

    Raises:
        SchemaError: where one of them is no Avro schema of a record.
        IncompatibleSchemaError: where a time has another unit: Avro itself would take the one for the other.

    >>> old = '{"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}'
    >>> new = old.replace("int", "long").replace("]}", ', {"name": "y", "type": "int", "default": 1}]}')
    >>> AvroResolution(old, new).resolve(b"\x0e")
    b'\x0e\x02'
    """

    def __init__(self, writer: str, reader: str, referenced: Sequence[str] = ()) -> None:
        plain = [json.dumps(without_logical_types(each)) for each in (writer, reader, *referenced)]
        self._writer, self._reader = AvroBody(plain[0], plain[2:]), AvroBody(plain[1])
        names = [self._reader.name, *self._reader.schema.get("aliases", [])]
        self.is_of_reader: Final = self._writer.name.split(".")[-1] in {name.split(".")[-1] for name in names}
        """Whether the writer's records are those that the reader's schema speaks of, by their name."""
        self._same = not referenced and to_parsing_canonical_form(json.loads(writer)) == to_parsing_canonical_form(
            json.loads(reader)
        )
        written = _units(json.loads(writer))
        for path, unit in _units(json.loads(reader)).items() if self.is_of_reader else ():
            if written.get(path, unit) != unit:
                reason = f"field {path!r} was written as {written[path]}, and is read as {unit}"
                raise IncompatibleSchemaError(schema=f"reader {self._reader.name}", reason=reason)

    def resolve(self, body: bytes) -> bytes:
        """Return the body that the reader's schema would have written; one that is its own already stays as it is.

        Raises:
            UnreadableValueError, IncompatibleSchemaError: as `AvroBody.decode`.
        """
        if self._same:
            return body
        out = BytesIO()
        fastavro.schemaless_writer(out, self._reader.schema, self._writer.decode(body, self._reader.schema))
        return out.getvalue()


def _units(schema: Any, path: str = "") -> dict[str, str]:  # noqa: ANN401  # JSON
    """Return what the times in a schema count in, by the paths of their fields."""
    if isinstance(schema, list):
        return {name: unit for option in schema for name, unit in _units(option, path).items()}
    if not isinstance(schema, Mapping):
        return {}
    logical = str(schema.get("logicalType", ""))
    found = {path: logical} if "timestamp" in logical else {}
    for field in schema.get("fields", []):
        found |= _units(field["type"], f"{path}.{field['name']}".lstrip("."))
    return found | (_units(schema["type"], path) if isinstance(schema.get("type"), (Mapping, list)) else {})
