"""The changefeeds of CockroachDB and TiDB, which have their own watermarks, by their documentation.  Pure.

Their watermarks allow for later records at exactly that time.  Earlier records after a watermark are repeated ones.
"""

import json
import struct
from reprlib import repr as short
from typing import Any, Final

from floodmark.producers.event_times.formats import InputFormat, Resolved, json_object
from typing_extensions import override

_OPEN_VERSION: Final = 1
_OPEN_RESOLVED: Final = 3
_OPEN_DDL: Final = 2


def _whole(number: object) -> int:
    """Return a whole number, also from text; a float is refused, because it has lost digits."""
    if isinstance(number, int) and not isinstance(number, bool):
        return number
    if isinstance(number, str) and number.isascii() and number.isdigit():
        return int(number)
    raise ValueError(f"{short(number)}, expected a whole number")


def hlc_to_milliseconds(text: str) -> int:
    """Return the wall time of CockroachDB's hybrid logical clock, rounded down."""
    return _whole(text.partition(".")[0]) // 1_000_000


def tso_to_milliseconds(timestamp: object) -> int:
    """Return the physical time of a TiDB timestamp."""
    return _whole(timestamp) >> 18  # the lower bits are a logical clock


class CockroachDb(InputFormat):
    """A CockroachDB changefeed with ``WITH resolved, updated`` in JSON.

    >>> CockroachDb().read(None, b'{"resolved": "1701102296662969433.0000000000"}', 0)
    Resolved(watermark=1701102296662)
    """

    promises = True
    about = "CockroachDB changefeed messages"

    @override
    def tell(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        if value is None:
            return None
        message = json_object(value)
        told = message.get("__crdb__", message)  # of the bare envelope
        if "resolved" in told and "after" not in message:
            return Resolved(hlc_to_milliseconds(told["resolved"]))
        if "updated" in told:
            return hlc_to_milliseconds(told["updated"])
        if "after" in message:
            return None
        raise ValueError("it has none of 'after', 'updated' and 'resolved'")


class TiCdcCanal(InputFormat):
    """TiCDC's canal-json with ``enable-tidb-extension=true``.

    >>> TiCdcCanal().read(None, b'{"type": "TIDB_WATERMARK", "_tidb": {"watermarkTs": 429918007904436226}}', 0)
    Resolved(watermark=1640007049196)
    """

    promises = True
    about = "TiCDC canal-json messages"

    @override
    def tell(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        if value is None:
            return None
        message = json_object(value)
        if message.get("type") == "TIDB_WATERMARK":
            return Resolved(tso_to_milliseconds(message["_tidb"]["watermarkTs"]))
        if "_tidb" not in message:
            raise ValueError("it has no '_tidb', which enable-tidb-extension=true adds")
        return tso_to_milliseconds(message["_tidb"]["commitTs"])


class TiCdcOpen(InputFormat):
    """TiCDC's open protocol: a key has a version and several length-prefixed events; the earliest row counts."""

    promises = True
    about = "TiCDC open protocol keys"

    @override
    def tell(self, key: bytes | None, value: bytes | None, log_time: int) -> int | Resolved | None:
        events = _open_keys(key or b"")
        kinds = {event.get("t") for event in events}
        if _OPEN_RESOLVED in kinds and len(kinds) > 1:
            raise ValueError("other events beside a promise, which would take them away")
        times = [tso_to_milliseconds(event["ts"]) for event in events if event.get("t") != _OPEN_DDL]
        return Resolved(max(times)) if _OPEN_RESOLVED in kinds else min(times, default=None)


def _open_keys(key: bytes) -> list[dict[str, Any]]:
    (version,) = struct.unpack_from(">Q", key)
    if version != _OPEN_VERSION:
        raise ValueError(f"version {version}, expected {_OPEN_VERSION}")
    position, found = 8, []
    while position < len(key):
        (length,) = struct.unpack_from(">Q", key, position)
        position += 8
        if position + length > len(key):
            raise ValueError(f"an event of {length} bytes, and {len(key) - position} are left")
        found.append(json.loads(key[position : position + length]))
        position += length
    return found
