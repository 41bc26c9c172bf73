"""Records to bytes and back: Avro single-object encoding.  Pure.  Only this and `registered_values` import fastavro.

Single-object encoding (Avro 1.11 specification) is ``C3 01``, the 8 little-endian bytes of the schema's CRC-64-AVRO
fingerprint, then the body.  So a value names its schema without a registry.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from io import BytesIO
from typing import Any, Final

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import fingerprint, to_parsing_canonical_form
from floodmark.schemas.errors import (
    InvalidRecordError,
    InvalidValueError,
    SchemaError,
    UnreadableMarkError,
    UnreadableValueError,
)
from floodmark.schemas.records import KEY_PREFIX, Holder, Membership, Round, Status, WatermarkRecord

MAGIC: Final = b"\xc3\x01"
HEADER_SIZE: Final = 10
MAX_MARK_BYTES: Final = 1024  # the size limit of a mark; checked before it is decoded
_SHOWN: Final = 80
_PERCENT: Final = re.compile(r"[1-9][0-9]?|100", re.ASCII)


def single_object_prefix(schema: Any) -> bytes:  # noqa: ANN401  # JSON
    """Return the first ten bytes of every value of a schema.

    >>> single_object_prefix("null").hex()  # the specification's example: 0x63dd24e7cc258f8a, little-endian
    'c3018a8f25cce724dd63'
    """
    # fastavro prints the little-endian bytes of the fingerprint, which is what goes on the wire.
    return MAGIC + bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


class AvroCodec:
    """Encode and decode dicts of one Avro schema (a dict or JSON text), in single-object encoding.

    Raises:
        SchemaError: if it is not an Avro schema.

    >>> codec = AvroCodec({"type": "record", "name": "Score", "fields": [{"name": "points", "type": "int"}]})
    >>> codec.decode(codec.encode({"points": 7}))
    {'points': 7}
    """

    def __init__(self, schema: Mapping[str, Any] | str) -> None:
        try:
            raw = json.loads(schema) if isinstance(schema, str) else dict(schema)
            self.schema_json: Final[str] = json.dumps(raw)
            self.name: Final[str] = str(raw["name"])
            self.fields: Final[list[str]] = [str(field["name"]) for field in raw["fields"]]
            self.required: Final = next(
                (str(field["name"]) for field in raw["fields"] if not _may_be_null(field["type"])), None
            )
            """The first field that is never null; ``None``: each may be."""
            self.prefix: Final[bytes] = single_object_prefix(raw)
            self._parsed = fastavro.parse_schema(raw)
        except (ValueError, TypeError, LookupError, fastavro.schema.SchemaParseException) as error:
            raise SchemaError(schema=str(schema)[:_SHOWN], reason=f"{type(error).__name__}: {error}") from error

    def encode(self, value: Mapping[str, Any]) -> bytes:
        """Return the bytes of one value, or raise `InvalidValueError` if it does not fit the schema."""
        body = BytesIO()
        body.write(self.prefix)
        try:
            fastavro.schemaless_writer(body, self._parsed, value)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise InvalidValueError(value=repr(value)[:_SHOWN], schema=self.name, reason=reason) from error
        return body.getvalue()

    def decode(self, data: bytes) -> dict[str, Any]:
        """Return the value of some bytes, or raise `UnreadableValueError` for any that this schema did not write."""
        if data[:HEADER_SIZE] != self.prefix:
            expected = f"{self.prefix.hex()} of Avro's single-object encoding"
            reason = f"it begins with {data[:HEADER_SIZE].hex()}, expected {expected}"
            raise UnreadableValueError(size=len(data), schema=self.name, reason=reason)
        return decoded(data, self._parsed, self.name, start=HEADER_SIZE)


def _may_be_null(kind: object) -> bool:
    if isinstance(kind, list):
        return any(map(_may_be_null, kind))
    return kind == "null" or (isinstance(kind, Mapping) and _may_be_null(kind.get("type")))


def decoded(
    data: bytes,
    parsed: Any,  # noqa: ANN401  # as fastavro parses it
    name: str,
    *,
    start: int = 0,
    reader: Any = None,  # noqa: ANN401  # the same
    branches: bool = False,
) -> dict[str, Any]:
    """Return the value of an Avro body, resolved to a reader's schema, or raise `UnreadableValueError`.

    A value that cannot be resolved raises fastavro's own error.  ``branches``: whether a value of a named type in a
    union is a tuple of the type's name and the value.
    """
    body = BytesIO(data)
    body.seek(start)
    try:
        value = fastavro.schemaless_reader(body, parsed, reader, return_named_type=branches)
    except Exception as error:  # a hostile body can raise anything in the decoder
        if reader is not None and isinstance(error, SchemaResolutionError):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise UnreadableValueError(size=len(data), schema=name, reason=reason) from error
    if body.tell() != len(data):
        reason = f"{len(data) - body.tell()} bytes are left over"
        raise UnreadableValueError(size=len(data), schema=name, reason=reason)
    return value  # type: ignore[return-value]  # a record schema decodes to a dict


def without_logical_types(schema: Mapping[str, Any] | str) -> dict[str, Any]:
    """Return a schema whose times are plain ints.  Its fingerprint stays: the canonical form has no logical types.

    >>> without_logical_types('{"type": "long", "logicalType": "timestamp-millis"}')
    {'type': 'long'}
    """
    try:
        return dict(_strip(json.loads(schema) if isinstance(schema, str) else schema))
    except (ValueError, TypeError) as error:
        raise SchemaError(schema=str(schema)[:_SHOWN], reason=f"{type(error).__name__}: {error}") from error


def _strip(schema: Any) -> Any:  # noqa: ANN401  # JSON
    if isinstance(schema, Mapping):
        return {key: _strip(part) for key, part in schema.items() if key != "logicalType"}
    if isinstance(schema, list):
        return [_strip(part) for part in schema]
    return schema


def watermark_schema() -> dict[str, Any]:
    """Read the schema of watermark records, ``watermark.avsc``.

    >>> watermark_schema()["name"]
    'Watermark'
    """
    return dict(json.loads(files("floodmark.schemas").joinpath("watermark.avsc").read_text(encoding="utf-8")))


_WATERMARK: Final = AvroCodec(without_logical_types(watermark_schema()))


def _fields_schema(first: str, last: str) -> Any:  # noqa: ANN401  # as fastavro has it
    """Return a schema of a range of fields: Avro writes the fields of a record one after the other."""
    raw = json.loads(_WATERMARK.schema_json)
    begin, end = _WATERMARK.fields.index(first), _WATERMARK.fields.index(last)
    return fastavro.parse_schema({**raw, "fields": raw["fields"][begin : end + 1]})


_SOURCE_TO_EPOCH: Final = _fields_schema("source", "epoch")
_SEQUENCE: Final = _fields_schema("sequence", "sequence")["fields"][0]["type"]
_WATERMARK_TO_PARTITIONS: Final = _fields_schema("watermark", "partitions")
_RECORDS: Final = _fields_schema("records", "records")["fields"][0]["type"]
_EMITTED_AT_TO_HOLDER: Final = _fields_schema("emitted_at", "holder")


def encode_watermark(record: WatermarkRecord) -> bytes:
    """Return the Kafka value of a watermark record; `InvalidRecordError` if it is larger than `MAX_MARK_BYTES`.

    >>> record = WatermarkRecord(source="JFK", epoch=1, sequence=0, watermark=12, partitions=4, emitted_at=15)
    >>> decode_watermark(b"__floodmark__/JFK", encode_watermark(record)) == record
    True
    """
    return _checked_size(record, _WATERMARK.encode(_fields(record)))


def encode_round(marks: Round) -> list[bytes]:
    """Return the Kafka values of the marks of a round; `InvalidRecordError` if one is invalid or too large."""
    if marks.apart is not None:
        return [encode_watermark(record) for _, record in marks]
    shared, fields = marks.shared, _fields(marks.shared)
    begin = _WATERMARK.prefix + _written(_SOURCE_TO_EPOCH, fields)
    middle, end = _written(_WATERMARK_TO_PARTITIONS, fields), _written(_EMITTED_AT_TO_HOLDER, fields)
    values = []
    for position, (_, sequence, records) in enumerate(marks.numbers):
        if sequence < 0 or (records is not None and records < 0):
            marks[position]  # building the record raises InvalidRecordError
        value = b"".join((begin, _written(_SEQUENCE, sequence), middle, _written(_RECORDS, records), end))
        values.append(_checked_size(shared, value))
    return values


def _fields(record: WatermarkRecord) -> dict[str, Any]:
    holder, percentiles = record.holder, record.percentiles
    return {
        **{field: getattr(record, field) for field in _WATERMARK.fields},
        "status": record.status.value,
        "membership": {"version": record.membership.version, "size": record.membership.size},  # asdict is slow
        "percentiles": None if percentiles is None else {str(part): time for part, time in percentiles.items()},
        "holder": None if holder is None else asdict(holder),
    }


def _written(schema: Any, value: Any) -> bytes:  # noqa: ANN401  # as fastavro has it
    body = BytesIO()
    fastavro.schemaless_writer(body, schema, value)
    return body.getvalue()


def _checked_size(record: WatermarkRecord, data: bytes) -> bytes:
    if len(data) > MAX_MARK_BYTES:
        expected = f"at most {MAX_MARK_BYTES} bytes"
        raise InvalidRecordError(source=record.source, field="its size", value=len(data), expected=expected)
    return data


def decode_watermark(key: bytes, value: bytes | None) -> WatermarkRecord:
    """Return the watermark record under a mark key, or raise `UnreadableMarkError`.

    Only the canonical encoding (``SPEC.md``) is accepted.
    """
    if value is None or len(value) > MAX_MARK_BYTES:
        size = "no value" if value is None else f"{len(value)} bytes"
        reason = f"it has {size}, expected at most {MAX_MARK_BYTES} bytes"
        raise UnreadableMarkError(key=key, reason=reason)
    try:
        fields = _WATERMARK.decode(value)
        if _WATERMARK.encode(fields) != value:
            raise UnreadableMarkError(key=key, reason="it is not in the canonical form: it encodes otherwise")
        membership, holder, percentiles = fields.pop("membership"), fields.pop("holder"), fields.pop("percentiles")
        record = WatermarkRecord(
            **{**fields, "status": Status(fields["status"])},
            membership=Membership(**membership),
            holder=None if holder is None else Holder(**holder),
            percentiles=None if percentiles is None else {_percent(text): time for text, time in percentiles.items()},
        )
    except (UnreadableValueError, InvalidRecordError, InvalidValueError, ValueError) as error:
        raise UnreadableMarkError(key=key, reason=str(error)) from error
    if key != KEY_PREFIX + record.source.encode():
        raise UnreadableMarkError(key=key, reason=f"its value is of another source, {record.source!r}")
    return record


def _percent(text: str) -> int:
    if _PERCENT.fullmatch(text) is None:
        raise ValueError(f"the percent {text!r} is no plain decimal from 1 to 100")
    return int(text)
