"""What the records of an existing topic say of time: fields of rows, or the progress messages of other systems.  Pure.

A format turns a record into a `Row` with its event time or into a `Resolved` promise.  The shapes are those of the
documentation: CockroachDB "Changefeed messages" (``resolved``, ``updated``), TiCDC "Canal-JSON Protocol"
(``TIDB_WATERMARK``) and "TiCDC Open Protocol" (resolved event).  Their promises are strict as ours: nothing below is to
come, equal may; what they repeat below it they have sent before.
"""

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from floodmark.schemas.codec import AvroCodec, without_logical_types
from floodmark.schemas.errors import InvalidEventTimeError, SchemaError, UnreadableValueError, UsageError
from floodmark.schemas.timestamps import event_time_of
from typing_extensions import override

Unit = Literal["s", "ms", "us", "ns"]
_PER_MS: Final[Mapping[str, tuple[int, int]]] = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}
_TSO_LOGICAL_BITS: Final = 18
_OPEN_VERSION: Final = 1
_OPEN_RESOLVED: Final = 3
_OPEN_DDL: Final = 2


@dataclass(frozen=True, slots=True)
class Resolved:
    """A progress message: nothing below ``watermark`` (epoch milliseconds) will come in its partition."""

    watermark: int


class InputFormat(ABC):
    """How a topic's records tell their times."""

    promises: bool = False
    """Whether the topic brings its own progress messages, so that no policy has to guess."""

    @abstractmethod
    def read(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        """Return a row's event time (epoch milliseconds), a promise, or ``None`` for a record that tells no time.

        Raises:
            UnreadableValueError, InvalidEventTimeError: where it tells one that cannot be read.
        """


Over = Callable[[bytes | None, bytes | None], bytes]
"""From a record's key and value to its substream: what has a watermark of its own."""


def over_key(key: bytes | None, value: bytes | None) -> bytes:  # noqa: ARG001  # the shape of `Over`
    """Let every Kafka key be a substream; records without one are a substream together.

    >>> over_key(b"N14228", None), over_key(None, None)
    (b'N14228', b'')
    """
    return key or b""


def over_json(field: str) -> Over:
    """Let every value of a JSON field be a substream; records without it are a substream together.

    >>> over_json("device")(None, b'{"device": "d1"}')
    b'"d1"'
    """

    def over(_key: bytes | None, value: bytes | None) -> bytes:
        try:
            return json.dumps(_object(value, "JSON").get(field)).encode()
        except UnreadableValueError:
            return b""

    return over


def _unreadable(value: bytes | None, schema: str, error: object) -> UnreadableValueError:
    size = 0 if value is None else len(value)
    return UnreadableValueError(size=size, schema=schema, reason=f"{type(error).__name__}: {error}")


def _object(value: bytes | None, what: str) -> dict[str, Any]:
    try:
        found = json.loads(value or b"")
    except ValueError as error:
        raise _unreadable(value, what, error) from error
    if not isinstance(found, dict):
        raise _unreadable(value, what, TypeError(f"a JSON {type(found).__name__}, expected an object"))
    return found


class JsonField(InputFormat):
    """JSON objects with a numeric time in one of their fields.

    >>> JsonField("at", "s").read(None, b'{"at": 12}', 0)
    12000
    """

    def __init__(self, field: str, unit: Unit = "ms") -> None:
        """Name the field, and the unit of its numbers since 1970."""
        if unit not in _PER_MS:
            raise UsageError(reason=f"the unit of {field!r} is {unit!r}, expected one of {', '.join(_PER_MS)}")
        self._field = field
        self._multiply, self._divide = _PER_MS[unit]

    @override
    def read(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        if value is None:
            return None
        time = _object(value, "JSON").get(self._field)
        if isinstance(time, bool) or not isinstance(time, (int, float)):
            raise InvalidEventTimeError(value=time, reason=f"field {self._field!r} holds no number")
        return event_time_of(int(time * self._multiply // self._divide))


class AvroField(InputFormat):
    """Single-object Avro values with a time in one of their fields."""

    def __init__(self, schema: str, field: str) -> None:
        """Take the schema as JSON text."""
        self._codec = AvroCodec(without_logical_types(schema))
        if field not in self._codec.fields:
            fields = ", ".join(self._codec.fields)
            raise SchemaError(schema=self._codec.name, reason=f"it has no field {field!r}, only {fields}")
        self._field = field

    @override
    def read(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        return None if value is None else event_time_of(self._codec.decode(value)[self._field])


class LogTime(InputFormat):
    """The Kafka timestamp is the event time."""

    @override
    def read(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        return log_time


def hlc_to_milliseconds(text: str) -> int:
    """Return the wall time of CockroachDB's hybrid logical clock, rounded down.

    >>> hlc_to_milliseconds("1701102296662969433.0000000007")
    1701102296662
    """
    return int(text.partition(".")[0]) // 1_000_000


def tso_to_milliseconds(timestamp: int) -> int:
    """Return the physical time of a TiDB timestamp.

    >>> tso_to_milliseconds(429918007904436226)
    1640007049196
    """
    return int(timestamp) >> _TSO_LOGICAL_BITS


class CockroachDb(InputFormat):
    """A CockroachDB changefeed with ``WITH resolved, updated`` in JSON.

    >>> CockroachDb().read(None, b'{"resolved": "1701102296662969433.0000000000"}', 0)
    Resolved(watermark=1701102296662)
    """

    promises = True

    @override
    def read(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        if value is None:
            return None
        message = _object(value, "CockroachDB changefeed message")
        try:
            if "resolved" in message and "after" not in message:
                return Resolved(hlc_to_milliseconds(message["resolved"]))
            updated = message.get("updated")
            return None if updated is None else hlc_to_milliseconds(updated)
        except (ValueError, AttributeError) as error:
            raise _unreadable(value, "CockroachDB changefeed message", error) from error


class TiCdcCanal(InputFormat):
    """TiCDC's canal-json with ``enable-tidb-extension=true``.

    >>> TiCdcCanal().read(None, b'{"type": "TIDB_WATERMARK", "_tidb": {"watermarkTs": 429918007904436226}}', 0)
    Resolved(watermark=1640007049196)
    """

    promises = True

    @override
    def read(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        if value is None:
            return None
        message = _object(value, "canal-json message")
        try:
            extension = message.get("_tidb")
            if message.get("type") == "TIDB_WATERMARK":
                return Resolved(tso_to_milliseconds(message["_tidb"]["watermarkTs"]))
            return None if extension is None else tso_to_milliseconds(extension["commitTs"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _unreadable(value, "canal-json message", error) from error


class TiCdcOpen(InputFormat):
    """TiCDC's open protocol: the key is a version and length-prefixed JSON keys, several events to a record.

    A record of rows has the time of its earliest row.
    """

    promises = True

    @override
    def read(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        try:
            events = [event for event in _open_keys(key or b"") if event.get("t") != _OPEN_DDL]
            if any(event.get("t") == _OPEN_RESOLVED for event in events):
                return Resolved(max(tso_to_milliseconds(event["ts"]) for event in events))
            return min((tso_to_milliseconds(event["ts"]) for event in events), default=None)
        except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
            raise _unreadable(key, "TiCDC open protocol key", error) from error


def _open_keys(key: bytes) -> list[dict[str, Any]]:
    (version,) = struct.unpack_from(">Q", key)
    if version != _OPEN_VERSION:
        raise ValueError(f"version {version}, expected {_OPEN_VERSION}")
    position, found = 8, []
    while position < len(key):
        (length,) = struct.unpack_from(">Q", key, position)
        position += 8
        found.append(json.loads(key[position : position + length]))
        position += length
    return found
