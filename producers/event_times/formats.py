"""What the records of an existing topic say of time, in a field or by Kafka's timestamp.  Pure.

A format turns a record into its event time, or into a `Resolved` promise: see `changefeeds`.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from reprlib import repr as short
from typing import Any, Final, Literal

from floodmark.schemas.codec import AvroCodec, without_logical_types
from floodmark.schemas.errors import InvalidEventTimeError, SchemaError, UnreadableValueError, UsageError
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME, event_time_of
from typing_extensions import override

Unit = Literal["s", "ms", "us", "ns"]
_PER_MS: Final[Mapping[str, tuple[int, int]]] = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}
_LOGICAL: Final[Mapping[object, Unit]] = {"timestamp-micros": "us", "timestamp-nanos": "ns"}
_SHOWN_FIELDS: Final = 10


@dataclass(frozen=True, slots=True)
class Resolved:
    """A progress message: nothing below ``watermark`` (epoch milliseconds) will come in its partition."""

    watermark: int


class InputFormat(ABC):
    """How a topic's records tell their times.  A format of your own implements `tell` and `about`."""

    promises: bool = False
    """Whether the topic brings its own progress messages, so that no policy has to guess."""

    @property
    @abstractmethod
    def about(self) -> str:
        """Say in a few words what is read, for messages; the same words mean the same times."""

    @abstractmethod
    def tell(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        """Return what `read` does; it may fail with any error."""

    def read(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        """Return a row's event time (epoch milliseconds), a promise, or ``None`` for a record that tells no time.

        Whatever the bytes are, a time within the years 1 to 9999 or one of two errors comes out.

        Raises:
            UnreadableValueError, InvalidEventTimeError: where it tells a time that cannot be read.
        """
        try:
            found = self.tell(key, value, log_time)
        except (UnreadableValueError, InvalidEventTimeError):
            raise
        except Exception as error:  # hostile bytes can fail anywhere in a decoder; they must only ever be an error
            raise _unreadable(value, self.about, error) from error
        if type(found) is int and EARLIEST <= found <= END_OF_TIME:  # most are: asked first, for speed
            return found
        if found is not None:
            event_time_of(found.watermark if isinstance(found, Resolved) else found)
        return found


def _unreadable(value: bytes | None, schema: str, error: object) -> UnreadableValueError:
    size = 0 if value is None else len(value)
    return UnreadableValueError(size=size, schema=schema, reason=f"{type(error).__name__}: {error}")


def json_object(value: bytes | None) -> dict[str, Any]:
    """Return a value's JSON object.

    Raises:
        UnreadableValueError: where it is none.
    """
    try:
        found = json.loads(value or b"")
    except (ValueError, RecursionError) as error:
        raise _unreadable(value, "JSON", error) from error
    if not isinstance(found, dict):
        raise _unreadable(value, "JSON", TypeError(f"a JSON {type(found).__name__}, expected an object"))
    return found


def find_field(found: dict[str, Any], field: str, path: list[str]) -> Any:  # noqa: ANN401  # JSON
    """Return a field, or one within objects; ``None`` where it is not there."""
    value = found.get(field)
    if value is not None or len(path) == 1:
        return value
    inner: Any = found
    for name in path:
        inner = inner.get(name) if isinstance(inner, dict) else None
    return inner


def _in_milliseconds(number: float, unit: Unit) -> int:
    """Return a number of a unit since 1970 in milliseconds, rounded down.

    >>> _in_milliseconds(1.5, "s"), _in_milliseconds(-1, "us")
    (1500, -1)
    """
    multiply, divide = _PER_MS[unit]
    scaled = number * multiply // divide
    if isinstance(scaled, float) and not isfinite(scaled):
        raise InvalidEventTimeError(value=number, reason="it is no finite number")
    return int(scaled)


def _check_unit(field: str, unit: str) -> None:
    if unit not in _PER_MS:
        raise UsageError(reason=f"the unit of {field!r} is {unit!r}, expected one of {', '.join(_PER_MS)}")


class JsonField(InputFormat):
    """JSON objects with a numeric time in one of their fields.

    >>> JsonField("at", "s").read(None, b'{"at": 12}', 0)
    12000
    >>> JsonField("payload.at").read(None, b'{"payload": {"at": 12}}', 0)
    12
    """

    def __init__(self, field: str, unit: Unit = "ms") -> None:
        """Name the field (a dot leads into an object within), and the unit of its numbers since 1970."""
        _check_unit(field, unit)
        self._field, self._path, self._unit = field, field.split("."), unit

    @property
    @override
    def about(self) -> str:
        return f"JSON with a time in {self._field!r} ({self._unit})"

    @override
    def tell(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        if value is None:
            return None
        found = json_object(value)
        time = found.get(self._field)
        if type(time) is int and self._unit == "ms":  # most are: asked first, for speed
            return time
        time = find_field(found, self._field, self._path)
        if isinstance(time, bool) or not isinstance(time, (int, float)):
            reason = f"field {self._field!r} holds no number; there are {_names(found)}"
            raise InvalidEventTimeError(value=time if time is None else short(time), reason=reason)
        return _in_milliseconds(time, self._unit)


def _names(found: Mapping[str, object]) -> str:
    """Name the fields of an object, not too many of them.

    >>> _names({"at": 1, "payload": {"at": 2}})
    "'at', 'payload.at'"
    """
    names = [
        short(f"{name}.{inner}" if inner else name)
        for name, value in found.items()
        for inner in (value if isinstance(value, dict) and value else [None])
    ]
    return ", ".join(names[:_SHOWN_FIELDS]) + (" ..." if len(names) > _SHOWN_FIELDS else "") or "no fields"


class AvroField(InputFormat):
    """Single-object Avro values with a time in one of their fields."""

    def __init__(self, schema: str, field: str, unit: Unit | None = None) -> None:
        """Take the schema as JSON text; the unit's default is what the field's logical type says, else milliseconds."""
        self._codec = AvroCodec(without_logical_types(schema))
        if field not in self._codec.fields:
            fields = ", ".join(self._codec.fields)
            raise SchemaError(schema=self._codec.name, reason=f"it has no field {field!r}, only {fields}")
        self._unit: Unit = unit or _logical_unit(json.loads(schema), field)
        _check_unit(field, self._unit)
        self._field = field

    @property
    @override
    def about(self) -> str:
        return f"Avro {self._codec.name} with a time in {self._field!r} ({self._unit})"

    @override
    def tell(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        if value is None:
            return None
        time = self._codec.decode(value)[self._field]
        if isinstance(time, bool) or not isinstance(time, int):
            raise InvalidEventTimeError(value=short(time), reason=f"field {self._field!r} holds no whole number")
        return _in_milliseconds(time, self._unit)


def _logical_unit(schema: Mapping[str, Any], field: str) -> Unit:
    """Return the unit that a field's logical type names, also within a union."""
    kind = next(each["type"] for each in schema["fields"] if each["name"] == field)
    for option in kind if isinstance(kind, list) else [kind]:
        if isinstance(option, dict) and option.get("logicalType") in _LOGICAL:
            return _LOGICAL[option["logicalType"]]
    return "ms"


class LogTime(InputFormat):
    """The Kafka timestamp is the event time."""

    about = "Kafka's timestamps"

    @override
    def tell(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        return log_time
