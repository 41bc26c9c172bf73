"""A second reader of the wire format, written from ``SPEC.md`` alone: the judge of what the codec accepts.

It shares no code with the product: no fastavro, no record classes.  Strict, and short enough to be checked by eye.
"""

import json
import struct
from importlib.resources import files

PREFIX = b"__floodmark__/"
EARLIEST, END_OF_TIME = -62_135_596_800_000, 253_402_300_799_999
MAX_BYTES = 1024
MAX_INT, MAX_LONG = 2**31 - 1, 2**63 - 1
_STATUS = ("ACTIVE", "IDLE", "ENDED")
_PERCENTS = {str(percent): percent for percent in range(1, 101)}


class RefusedError(Exception):
    """SPEC does not allow these bytes."""


def fingerprint(text: str) -> bytes:
    """Return the CRC-64-AVRO of a schema in canonical form, little-endian."""
    empty = 0xC15D213AA4D7A795
    table = []
    for number in range(256):
        value = number
        for _ in range(8):
            value = (value >> 1) ^ (empty & -(value & 1))
        table.append(value)
    result = empty
    for byte in text.encode():
        result = (result >> 8) ^ table[(result ^ byte) & 0xFF]
    return struct.pack("<Q", result)


def canonical(schema: object) -> str:
    """Return Avro's parsing canonical form of the schemas at hand: names in full, order of attributes fixed."""
    return json.dumps(_canonical(schema, ""), separators=(",", ":"))


def _canonical(schema: object, space: str) -> object:
    if isinstance(schema, str):
        return schema
    if isinstance(schema, list):
        return [_canonical(part, space) for part in schema]
    kind = schema["type"]
    if kind not in ("record", "enum", "map"):
        return _canonical(kind, space)  # a logical type stands for what is below it
    if kind == "map":
        return {"type": "map", "values": _canonical(schema["values"], space)}
    space = schema.get("namespace", space)
    made = {"name": f"{space}.{schema['name']}" if space else schema["name"], "type": kind}
    if kind == "enum":
        return {**made, "symbols": schema["symbols"]}
    fields = [{"name": part["name"], "type": _canonical(part["type"], space)} for part in schema["fields"]]
    return {**made, "fields": fields}


def _header() -> bytes:
    text = files("floodmark.schemas").joinpath("watermark.avsc").read_text(encoding="utf-8")
    return b"\xc3\x01" + fingerprint(canonical(json.loads(text)))


HEADER = _header()


class _Body:
    """The bytes after the header, read from left to right."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise RefusedError("it ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def long(self, most: int = MAX_LONG) -> int:
        """Read a zigzag varint in its shortest form."""
        shift = value = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise RefusedError("a varint of more than ten bytes")
        if shift and not byte:
            raise RefusedError("a varint longer than it must be")
        if value > 2**64 - 1:
            raise RefusedError("a varint of more than 64 bits")
        number = (value >> 1) ^ -(value & 1)
        if not -most - 1 <= number <= most:
            raise RefusedError("an int of more than 32 bits")
        return number

    def int32(self) -> int:
        return self.long(MAX_INT)

    def text(self) -> str:
        try:
            return self.take(self.long()).decode("utf-8")
        except UnicodeDecodeError as error:
            raise RefusedError("no UTF-8") from error

    def either(self, read: object) -> object:
        """Read a union with null."""
        branch = self.long()
        if branch not in (0, 1):
            raise RefusedError("no such branch")
        return read() if branch else None

    def percentiles(self) -> dict[int, int]:
        """Read a map in one block."""
        found = {}
        count = self.long()
        if count < 0:
            raise RefusedError("a block with its size")
        for _ in range(count):
            key = self.text()
            if key not in _PERCENTS or _PERCENTS[key] in found:
                raise RefusedError("no percent, or one twice")
            found[_PERCENTS[key]] = self.long()
        if count and self.long():
            raise RefusedError("a second block")
        return found

    def holder(self) -> dict[str, object]:
        return {
            "topic": self.text(),
            "partition": self.either(self.int32),
            "source": self.either(self.text),
            "stage": self.either(self.text),
        }


def read(key: bytes, value: bytes | None) -> dict[str, object]:
    """Return the fields of a watermark record, or raise `RefusedError`."""
    if not key.startswith(PREFIX):
        raise RefusedError("no mark key")
    if value is None or len(value) > MAX_BYTES:
        raise RefusedError("no value, or too large")
    if value[:10] != HEADER:
        raise RefusedError("another schema")
    body = _Body(value[10:])
    fields: dict[str, object] = {"source": body.text(), "epoch": body.long(), "sequence": body.long()}
    fields["watermark"] = body.either(body.long)
    number = body.long()
    if number not in (0, 1, 2):
        raise RefusedError("no such status")
    fields["status"] = _STATUS[number]
    fields["version"], fields["size"] = body.int32(), body.int32()
    fields["partitions"] = body.int32()
    fields["records"] = body.either(body.long)
    fields["emitted_at"] = body.long()
    fields["processing_time_watermark"] = body.either(body.long)
    fields["lease"] = body.either(body.long)
    fields["percentiles"] = body.either(body.percentiles)
    fields["holder"] = body.either(body.holder)
    if body.at != len(body.data):
        raise RefusedError("bytes are left over")
    _in_range(key, fields)
    return fields


def _in_range(key: bytes, fields: dict[str, object]) -> None:
    source = fields["source"].encode()
    if not 1 <= len(source) <= 200 or key != PREFIX + source:
        raise RefusedError("the key is of another source")
    times = [fields[name] for name in ("watermark", "emitted_at", "processing_time_watermark")]
    times += (fields["percentiles"] or {}).values()
    if any(time is not None and not EARLIEST <= time <= END_OF_TIME for time in times):
        raise RefusedError("a time outside the years 1 to 9999")
    holder = fields["holder"]
    if holder is not None:
        if not 1 <= len(holder["topic"].encode()) <= 249 or (holder["partition"] or 0) < 0:
            raise RefusedError("no topic, or no partition, can be called so")
        if any(holder[part] is not None and not 1 <= len(holder[part].encode()) <= 200 for part in ("source", "stage")):
            raise RefusedError("no source can be called so")
    if (fields["lease"] or 0) > END_OF_TIME:
        raise RefusedError("a lease that never ends")
    least = {"epoch": 0, "sequence": 0, "version": 1, "size": 1, "partitions": 1, "records": 0, "lease": 1}
    for name, bound in least.items():
        if fields[name] is not None and fields[name] < bound:
            raise RefusedError(f"{name} is too small")
