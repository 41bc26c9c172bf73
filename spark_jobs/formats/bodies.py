"""From framed values to bodies that Spark's own functions read, and back; runs in the Python workers of Spark.

A worker asks the registry once for each schema id that it meets, so schemas may be registered while a job runs.  A
registry that does not answer fails the batch, which the next start runs again; nothing is skipped.
"""

from base64 import b64encode
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from json import dumps
from typing import Any, Final, TypeVar

from floodmark.producers.clients.framed import FramedValues
from floodmark.producers.clients.registry import Registry, Schema
from floodmark.schemas.errors import SchemaError, UnreadableValueError
from floodmark.schemas.registered_values import AvroResolution, unframed

_T = TypeVar("_T")
_kept: Final[dict[tuple[str, ...], Any]] = {}
"""What this process has made for a registry and a schema: workers serve many tasks."""


def of_process(make: Callable[..., _T], registry: Registry, *texts: str) -> _T:
    """Return what ``make`` makes of a registry and texts, made once in this process."""
    place = (make.__name__, registry.key, *texts)
    found: _T | None = _kept.get(place)
    if found is None:
        found = _kept[place] = make(registry, *texts)
    return found


class AvroBodies:
    """Turn framed Avro of any schema of the registry into bodies of a reader's schema."""

    def __init__(self, registry: Registry, reader: str) -> None:
        self._registry, self._reader = registry, reader
        self._resolutions: dict[int, AvroResolution | None] = {}

    def read(self, value: bytes | None) -> bytes | None:
        """Return a value's body, as the reader's schema has it; ``None``: it cannot be read.

        Raises:
            RegistryError: where the registry does not say.
            IncompatibleSchemaError: where the reader's schema cannot take what was written.
        """
        try:
            schema_id, body = unframed(value or b"")
            resolution = self._resolutions[schema_id] if schema_id in self._resolutions else self._learn(schema_id)
            return None if resolution is None else resolution.resolve(body)
        except UnreadableValueError:
            return None

    def _learn(self, schema_id: int) -> AvroResolution | None:
        schema = self._registry.schema(schema_id)
        if schema is None:
            return None  # it may be registered later, so this is not kept
        self._resolutions[schema_id] = found = self._resolution(schema)
        return found

    def _resolution(self, schema: Schema) -> AvroResolution | None:
        if schema.kind != "AVRO":
            return None
        try:
            found = AvroResolution(schema.text, self._reader, schema.referenced)
        except SchemaError:  # no record, so it is none of the reader's
            return None
        return found if found.is_of_reader else None


class ObjectTexts:
    """Turn framed Protobuf of any schema of the registry into JSON."""

    def __init__(self, registry: Registry) -> None:
        self._values = FramedValues(registry)

    def read(self, value: bytes | None) -> bytes | None:
        """Return a value as JSON; ``None``: it cannot be read.

        Raises:
            RegistryError: where the registry does not say.
        """
        try:
            return dumps(self._values.decode(value or b""), default=_json).encode()
        except UnreadableValueError:
            return None


def _json(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no JSON")


@lru_cache(maxsize=100)
def message_writer(text: str, path: tuple[int, ...]) -> Callable[[str], bytes]:
    """Return what turns JSON into messages of a type."""
    from floodmark.producers.clients.messages import Messages  # noqa: PLC0415  # only an extra brings its library
    from google.protobuf import json_format, message_factory  # noqa: PLC0415  # the same

    kind = message_factory.GetMessageClass(Messages(Schema("PROTOBUF", text)).type_of(path))
    return lambda json: bytes(json_format.Parse(json, kind()).SerializeToString())
