"""Convert framed values to bodies that Spark's own functions read, and back, in the Python workers of Spark.

A worker asks the registry once for each schema id, so schemas may be registered while a job runs.  If the registry does
not answer, the batch fails, and the next start runs it again.
"""

from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from json import dumps
from typing import Any, Final, TypeVar

from floodmark.producers.clients.registry import FramedValues, Registry
from floodmark.schemas.errors import SchemaError, UnreadableValueError
from floodmark.schemas.registered_values import AvroResolution, Schema, unframed

_T = TypeVar("_T")
_kept: Final[dict[tuple[str, ...], Any]] = {}  # a cache, since a worker process serves many tasks


def of_process(make: Callable[..., _T], registry: Registry, *texts: str) -> _T:
    """Return ``make(registry, *texts)``, called once in this process."""
    place = (make.__name__, registry.key, *texts)
    found: _T | None = _kept.get(place)
    if found is None:
        found = _kept[place] = make(registry, *texts)
    return found


class AvroBodies:
    """Converts framed Avro of any schema in the registry to bodies of a reader's schema."""

    def __init__(self, registry: Registry, reader: str) -> None:
        self._registry, self._reader = registry, reader
        self._resolutions: dict[int, AvroResolution | None] = {}

    def read(self, value: bytes | None) -> bytes | None:
        """Return the body of a value in the reader's schema; ``None``: it cannot be read."""
        try:
            schema_id, body = unframed(value or b"")
            resolution = self._resolutions[schema_id] if schema_id in self._resolutions else self._learn(schema_id)
            return None if resolution is None else resolution.resolve(body)
        except UnreadableValueError:
            return None

    def _learn(self, schema_id: int) -> AvroResolution | None:
        schema = self._registry.schema(schema_id)
        if schema is None:
            return None  # not cached, since it may be registered later
        found = None
        if schema.kind == "AVRO":
            with suppress(SchemaError):  # it is no record, so not the reader's
                found = AvroResolution(schema.text, self._reader, schema.referenced)
        self._resolutions[schema_id] = found = found if found is not None and found.is_of_reader else None
        return found


class ObjectTexts:
    """Converts framed Protobuf of any schema in the registry to JSON."""

    def __init__(self, registry: Registry) -> None:
        self._values = FramedValues(registry, "PROTOBUF")

    def read(self, value: bytes | None) -> bytes | None:
        """Return a value as JSON; ``None``: it cannot be read."""
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
    """Return a function that converts JSON to messages of a type."""
    from floodmark.producers.clients.messages import Messages  # noqa: PLC0415  # only an extra brings its library
    from google.protobuf import json_format, message_factory  # noqa: PLC0415  # the same

    kind = message_factory.GetMessageClass(Messages(Schema("PROTOBUF", text)).type_of(path))
    return lambda json: bytes(json_format.Parse(json, kind()).SerializeToString())
