"""How to read event times from a record: from a field or Kafka's timestamp; see also `changefeeds`.  Pure."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite
from reprlib import repr as short
from typing import Any, Final

from floodmark.producers.event_times.option_values import Unit
from floodmark.schemas.codec import AvroCodec, without_logical_types
from floodmark.schemas.errors import (
    InfrastructureError,
    InvalidEventTimeError,
    SchemaError,
    UnreadableValueError,
    UsageError,
)
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME, event_time_of, fitting_unit
from typing_extensions import override

_PER_MS: Final[Mapping[str, tuple[int, int]]] = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}
_LOGICAL: Final[Mapping[object, Unit]] = {"timestamp-micros": "us", "timestamp-nanos": "ns"}
NO_LOG_TIME: Final = (-1, 0)
"""Kafka's timestamps of records without one: -1 is stored for it, and clients take 0 for it."""
_SHOWN_FIELDS: Final = 10
_ISO: Final = re.compile(r"\s*\d{4}-\d\d?-\d\d?(?!\d)")
_ONE_DIGIT: Final = re.compile(r"(?<![\d.,])\d(?!\d)")
_UTC: Final = re.compile(r" ?(Z|UTC|GMT)$")
_NUMBER: Final = re.compile(r"[+-]?([0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})([eE][+-]?[0-9]{1,2})?")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A progress message: no later record of its partition is below ``watermark`` (epoch milliseconds)."""

    watermark: int


class InputFormat(ABC):
    """How to read event times from the records of a topic.  A format of your own implements `tell` and `about`."""

    promises: bool = False
    """Whether the topic has its own progress messages, and needs no time policy."""
    per_millisecond: int = 1
    """How many of the unit of its numbers are a millisecond, to find a wrong unit."""

    @property
    @abstractmethod
    def about(self) -> str:
        """Describe in a few words what is read, for messages; injectors compare this text with the stored one."""

    @abstractmethod
    def tell(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        """Return what `read` returns; it may raise any error."""

    def read(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        """Return the event time (epoch milliseconds), a watermark, or ``None`` for a record without event time.

        Raises UnreadableValueError or InvalidEventTimeError if no event time in the years 1 to 9999 can be read, and
        InfrastructureError if a service that the format needs does not answer.
        """
        try:
            found = self.tell(key, value, log_time)
        except (UnreadableValueError, InvalidEventTimeError, InfrastructureError):
            raise
        except Exception as error:  # hostile bytes can raise anything in a decoder
            raise _unreadable(value, self.about, error) from error
        if type(found) is int and EARLIEST <= found <= END_OF_TIME:  # the common case first, for speed
            return found
        if found is not None:
            event_time_of(found.watermark if isinstance(found, Resolved) else found)
        return found


def _unreadable(value: bytes | None, schema: str, error: object) -> UnreadableValueError:
    size = 0 if value is None else len(value)
    reason = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return UnreadableValueError(size=size, schema=schema, reason=reason)


def json_object(value: bytes | None) -> dict[str, Any]:
    """Return a value's JSON object, or raise UnreadableValueError."""
    try:
        found = json.loads(value or b"")
    except (ValueError, RecursionError) as error:
        framed = "it begins with a schema id, as values of a schema registry do: use --event-time with --registry"
        raise _unreadable(value, "JSON", framed if (value or b"").startswith(b"\0") else error) from error
    if not isinstance(found, dict):
        raise _unreadable(value, "JSON", TypeError(f"a JSON {type(found).__name__}, expected an object"))
    return found


def find_field(found: dict[str, Any], field: str, path: list[str]) -> Any:  # noqa: ANN401  # JSON
    """Return a field, also within objects; ``None``: not found."""
    value = found.get(field)
    if value is not None or len(path) == 1:
        return value
    inner: Any = found
    for name in path:
        inner = inner.get(name) if isinstance(inner, dict) else None
    return inner


def _in_milliseconds(number: float | Decimal, unit: Unit) -> int:
    """Return a number of a unit since 1970 in milliseconds, rounded down."""
    multiply, divide = _PER_MS[unit]
    if isinstance(number, int):
        return number * multiply // divide
    if not isfinite(number):
        raise InvalidEventTimeError(value=number, reason="it is no finite number")
    written = number if isinstance(number, Decimal) else Decimal(repr(number))  # the digits as they were written
    numerator, denominator = written.as_integer_ratio()
    return numerator * multiply // (denominator * divide)


class _Field(InputFormat):
    """Values with the event time in a field; a dot separates the names of nested objects."""

    def __init__(self, kind: str, decode: Callable[[bytes], dict[str, Any]], field: str, unit: Unit) -> None:
        if unit not in _PER_MS:
            raise UsageError(reason=f"the unit of {field!r} is {unit!r}, expected one of {', '.join(_PER_MS)}")
        self._kind, self._decode = kind, decode
        self._field, self._path, self._unit = field, field.split("."), unit
        self.per_millisecond = _PER_MS[unit][1]

    @property
    @override
    def about(self) -> str:
        return f"{self._kind} with a time in {self._field!r} ({self._unit})"

    @override
    def tell(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        if value is None:
            return None
        found = self._decode(value)
        time = found.get(self._field)
        if type(time) is int and self._unit == "ms" and time <= END_OF_TIME:  # the common case first, for speed
            return time
        time = _time_in(found, self._field, self._path, self._unit)
        units = list(_PER_MS)
        fitting = fitting_unit(time, units[units.index(self._unit) :]) if time > END_OF_TIME else None
        if fitting:
            reason = f"read in {self._unit} it is outside the years 1 to 9999; in {fitting} it fits: use unit {fitting}"
            raise InvalidEventTimeError(value=find_field(found, self._field, self._path), reason=reason)
        return time


class JsonField(_Field):
    """JSON objects with the event time in a field: a number, or ISO text (in UTC if it has no zone).

    >>> JsonField("at", "s").read(None, b'{"at": 12}', 0)
    12000
    >>> JsonField("payload.at").read(None, b'{"payload": {"at": 12}}', 0)
    12
    """

    def __init__(self, field: str, unit: Unit = "ms") -> None:
        super().__init__("JSON", json_object, field, unit)


class FramedField(_Field):
    """Values with the id of a registered schema; the unit is for numbers without a logical type."""

    def __init__(self, decode: Callable[[bytes], dict[str, Any]], field: str, unit: Unit = "ms") -> None:
        super().__init__("framed values", decode, field, unit)


class AvroField(_Field):
    """Single-object Avro values; the unit defaults to that of the field's logical type, or milliseconds."""

    def __init__(self, schema: str, field: str, unit: Unit | None = None) -> None:
        codec = AvroCodec(without_logical_types(schema))
        kind = _type_at(json.loads(schema), field.split("."))
        if kind is None:
            raise SchemaError(schema=codec.name, reason=f"it has no field {field!r}, only {', '.join(codec.fields)}")
        fingerprint = codec.prefix[2:].hex()  # values of another schema of this name are unreadable
        super().__init__(f"Avro {codec.name} {fingerprint}", codec.decode, field, unit or _logical_unit(kind))


def _time_in(found: dict[str, Any], field: str, path: list[str], unit: Unit) -> int:
    """Return the time in a field: a number of a unit, also as text, ISO text, as Spark reads it, or a datetime."""
    time = find_field(found, field, path)
    if isinstance(time, str) and _ISO.match(time):
        text = _UTC.sub("+00:00", _ONE_DIGIT.sub(r"0\g<0>", time.strip()))
        try:
            time = datetime.fromisoformat(text)
        except ValueError as error:
            raise InvalidEventTimeError(value=short(time), reason=f"field {field!r}: {error}") from error
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
    elif isinstance(time, str) and _NUMBER.fullmatch(time):
        time = Decimal(time)
    if isinstance(time, datetime):
        return event_time_of(time)
    if isinstance(time, bool) or not isinstance(time, (int, float, Decimal)):
        what = "is missing or null" if time is None else "holds no time, which is a number or ISO 8601 text"
        reason = f"field {field!r} {what}; {_names(found)}"
        raise InvalidEventTimeError(value=time if time is None else short(time), reason=reason)
    return _in_milliseconds(time, unit)


def _names(found: Mapping[str, object]) -> str:
    """Say which fields an object has, the first ones."""
    names = [
        short(f"{name}.{inner}" if inner else name)
        for name, value in found.items()
        for inner in (value if isinstance(value, dict) and value else [None])
    ]
    more = " ..." if len(names) > _SHOWN_FIELDS else ""
    return f"the fields are {', '.join(names[:_SHOWN_FIELDS])}{more}" if names else "the value has no fields"


def _options(kind: Any) -> list[Any]:  # noqa: ANN401  # JSON
    return kind if isinstance(kind, list) else [kind]


def _type_at(schema: Any, path: list[str]) -> Any:  # noqa: ANN401  # JSON
    """Return the type of a field in a schema, also within unions; ``None``: not found."""
    kind = schema
    for name in path:
        records = [option for option in _options(kind) if isinstance(option, dict)]
        fields = [field for record in records for field in record.get("fields", []) if field["name"] == name]
        if not fields:
            return None
        kind = fields[0]["type"]
    return kind


def _logical_unit(kind: Any) -> Unit:  # noqa: ANN401  # JSON
    """Return the unit of a logical type, also within a union."""
    for option in _options(kind):
        if isinstance(option, dict) and option.get("logicalType") in _LOGICAL:
            return _LOGICAL[option["logicalType"]]
    return "ms"


class LogTime(InputFormat):
    """The Kafka timestamp is the event time."""

    about = "Kafka's timestamps"

    @override
    def tell(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        if log_time in NO_LOG_TIME:
            raise InvalidEventTimeError(value=log_time, reason="the record has no timestamp")
        return log_time


SubstreamKey = Callable[[bytes | None, bytes | None], bytes]
"""Returns the substream, which has its own watermark, of a record's key and value."""
NO_SUBSTREAM: Final = (b"", b"null")  # of records without the key, or without the JSON field


def substream_key(key: bytes | None, value: bytes | None) -> bytes:  # noqa: ARG001  # the shape of `SubstreamKey`
    """Make each Kafka key a substream; records without a key share one.

    >>> substream_key(b"N14228", None), substream_key(None, None)
    (b'N14228', b'')
    """
    return key or b""


def substream_json(field: str) -> SubstreamKey:
    """Make each value of a JSON field a substream; records without it share one.

    >>> substream_json("device")(None, b'{"device": "d1"}')
    b'"d1"'
    """
    path = field.split(".")

    def substream(_key: bytes | None, value: bytes | None) -> bytes:
        try:
            return json.dumps(find_field(json_object(value), field, path)).encode()
        except UnreadableValueError:
            return b""

    return substream
