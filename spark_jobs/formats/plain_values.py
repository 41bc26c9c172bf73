"""Formats without a registry: Avro of one schema, and JSON with one object per record.

Both use Spark's own functions in the JVM, so no row passes through Python.
"""

from collections.abc import Mapping
from decimal import Decimal
from functools import cached_property
from typing import Any, Final, Literal

from floodmark.schemas.codec import HEADER_SIZE, AvroCodec
from floodmark.schemas.errors import UsageError
from floodmark.spark_jobs.formats.format import Format
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    NullType,
    NumericType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)
from typing_extensions import override


def avro_struct(body: Column, codec: AvroCodec) -> Column:
    """Return an Avro body as a struct; null if it cannot be read, of which Spark makes a struct of nulls."""
    struct = from_avro(body, codec.schema_json, {"mode": "PERMISSIVE"})
    if codec.required is None:
        return struct
    read = F.transform(F.array(struct), lambda found: F.when(found[codec.required].isNotNull(), found))
    return F.get(read, F.lit(0))


class _Avro(Format):
    def __init__(self, schema: Mapping[str, Any] | str) -> None:
        self._codec = AvroCodec(schema)

    @property
    @override
    def fields(self) -> tuple[str, ...]:
        return tuple(self._codec.fields)

    @override
    def decode(self, value: Column) -> Column:
        body = F.substring(value, HEADER_SIZE + 1, 2**31 - 1 - HEADER_SIZE)
        is_of_schema = F.substring(value, 1, HEADER_SIZE) == F.lit(self._codec.prefix)
        return F.when(is_of_schema, avro_struct(body, self._codec))

    @override
    def encode(self, row: Column) -> Column:
        picked = F.struct(*(row.getField(name).alias(name) for name in self.fields))
        return F.concat(F.lit(self._codec.prefix), to_avro(picked, self._codec.schema_json))


def avro(schema: Mapping[str, Any] | str) -> Format:
    """Read and write single-object Avro of one record schema: the two bytes C3 01, the schema's fingerprint, the body.

    A value of another schema, or without one, is unreadable: it decodes to null and is counted.

    Raises:
        SchemaError: if the schema is not an Avro record.
    """
    return _Avro(schema)


Unit = Literal["s", "ms", "us"]  # the unit of an epoch number: seconds, milliseconds or microseconds

_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_MALFORMED: Final = "floodmark_malformed"
_STRICT: Final = {"allowSingleQuotes": "false"}
_ADJACENT: Final = r"\}[^\"{}]*\{"  # two objects, maybe of an array
_WITH_YEAR: Final = r"^[\x00-\x20]*[+-]?\d{4}"
_NO_SECONDS: Final = r"([ T]\d\d?:\d\d?)((?:[Z+-]| [UG]).*)$"
_NUMBER: Final = "decimal(25,6)"  # times a million, it still fits Spark's 38 digits


class _Json(Format):
    def __init__(self, schema: str, unit: Unit | None) -> None:
        if unit is not None and unit not in _MICROSECONDS:
            raise UsageError(reason=f"json(): unit is {unit!r}, expected one of {', '.join(_MICROSECONDS)}")
        self._text = schema
        self._unit = unit
        self.unit = unit or "s"
        self._factor = _MICROSECONDS[self.unit]

    @cached_property
    def _schema(self) -> StructType:
        """The fields; Spark parses them, so a session must exist."""
        schema = StructType.fromDDL(self._text)
        if not isinstance(schema, StructType):
            raise UsageError(reason=f"json(): schema {self._text!r} names no fields")
        if self._unit is not None and any(_holds_times(field.dataType) for field in schema):
            reason = f"json(): unit={self._unit!r} cannot be applied within an ARRAY or MAP: read those as BIGINT"
            raise UsageError(reason=reason)
        return schema

    @property
    @override
    def fields(self) -> tuple[str, ...]:
        return tuple(self._schema.names)

    @override
    def decode(self, value: Column) -> Column:
        text = F.rtrim(F.try_validate_utf8(value.cast("string")), F.lit(" \t\r\n"))
        # As a lambda's argument, text and object are computed once, not once per use.
        return F.get(F.transform(F.transform(F.array(text), self._parsed), self._typed), F.lit(0))

    def _parsed(self, text: Column) -> Column:
        wire = StructType([*_with_text(self._schema), StructField(_MALFORMED, StringType())])
        # Spark ignores what follows an object, and reads `null` as an object without fields.
        items = F.size(F.from_json(F.concat(F.lit("["), text, F.lit("]")), "array<string>", _STRICT))
        opened, closed = (F.length(F.translate(text, brace, "")) for brace in "{}")
        is_flat = (F.locate("{", text, 2) == 0) & (F.locate("}", text) == F.length(text))
        is_one = is_flat | ((opened == closed) & ~text.rlike(_ADJACENT)) | (items == 1)  # the quick ones first
        whole = F.when(F.endswith(text, F.lit("}")) & is_one, text)
        return F.from_json(whole, wire, {**_STRICT, "columnNameOfCorruptRecord": _MALFORMED})

    def _typed(self, parsed: Column) -> Column:
        struct, readable = self._struct(parsed, self._schema)
        return F.when(parsed.isNotNull() & parsed[_MALFORMED].isNull() & readable, struct)

    def _struct(self, parsed: Column, schema: StructType) -> tuple[Column, Column]:
        """Return the struct with its times as timestamps, and whether all of them could be read."""
        columns, readable = [], F.lit(True)  # noqa: FBT003  # a SQL literal
        for field in schema:
            found = parsed.getField(field.name)
            if isinstance(field.dataType, TimestampType):
                time = self._time(found)
                readable &= found.isNull() | time.isNotNull()
                columns.append(time.alias(field.name))
            elif isinstance(field.dataType, StructType):
                inner, fine = self._struct(found, field.dataType)
                readable &= found.isNull() | fine
                columns.append(F.when(found.isNotNull(), inner).alias(field.name))
            else:
                columns.append(found.alias(field.name))
        return F.struct(*columns), readable

    def _time(self, text: Column) -> Column:
        # Spark itself multiplies seconds without a check for overflow, which gives wrong times.
        number = F.floor(text.try_cast(_NUMBER) * F.lit(self._factor)).try_cast("long")
        # `timestamp` may have no zone (spark.sql.timestampType), and to a time alone, Spark adds the present day.
        is_dated = (F.locate(":", text) > len("2026-01-05")) & (F.substring(text, 1, 1) > F.lit(" "))  # quicker
        whole = F.regexp_replace(text, _NO_SECONDS, "$1:00$2")  # without seconds, Spark reads no zone
        time = F.coalesce(text.try_cast("timestamp_ltz"), whole.try_cast("timestamp_ltz"))
        iso = F.when(is_dated | text.rlike(_WITH_YEAR), time)
        # A failing cast is slow, so most text should not need one.
        is_number = F.length(F.translate(text, "0123456789.+-eE", "")) == 0
        return F.when(is_number, F.coalesce(F.timestamp_micros(number), iso)).otherwise(iso)

    @override
    def require(self, row: StructType) -> None:
        columns = {field.name: field.dataType for field in row}
        for field in self._schema:
            found, wanted = columns[field.name], field.dataType
            if not _reads(wanted, found, self._unit):
                told = f"column {field.name!r} is a {found.simpleString()}, and its JSON cannot be read as"
                advice = "cast the column, or change the schema"
                raise UsageError(reason=f"json(): {told} {wanted.simpleString()}: {advice}")

    @override
    def encode(self, row: Column) -> Column:
        return F.to_json(self._wire(row, self._schema)).cast("binary")

    def _wire(self, row: Column, schema: StructType) -> Column:
        fields = [self._written(row.getField(field.name), field.dataType).alias(field.name) for field in schema]
        return F.struct(*fields)

    def _written(self, column: Column, kind: DataType) -> Column:
        if isinstance(kind, StructType):
            return F.when(column.isNotNull(), self._wire(column, kind))
        if self._unit is None or not isinstance(kind, TimestampType):
            return column
        if self._unit == "s":
            return F.unix_micros(column).cast("decimal(20,0)") * F.lit(Decimal("0.000001"))
        return F.unix_millis(column) if self._unit == "ms" else F.unix_micros(column)


_DIGITS: Final[Mapping[DataType, tuple[int, int]]] = {
    ByteType(): (2, 3),
    ShortType(): (4, 5),
    IntegerType(): (9, 10),
    LongType(): (38, 19),  # wider decimals are read: their values are rarely as large
}
"""Of integers: how many digits any number may have, and the largest has."""
_DATED: Final = (DateType, TimestampType, TimestampNTZType, StringType)
_READ: Final[tuple[tuple[type[DataType], tuple[type[DataType], ...]], ...]] = (
    (IntegralType, (IntegralType,)),
    (FractionalType, (NumericType,)),
    (BooleanType, (BooleanType,)),
    (BinaryType, (BinaryType,)),
    (DateType, _DATED),
    (TimestampNTZType, (DateType, TimestampNTZType, StringType)),
    (TimestampType, (*_DATED, NumericType)),
    (ArrayType, (ArrayType,)),
    (MapType, (MapType, StructType)),
    (StructType, (StructType, MapType)),
)
"""By the type of a field: the types of columns whose JSON it may read.  Other fields, such as ``STRING``, read all."""


def _reads(wanted: DataType, found: DataType, unit: Unit | None) -> bool:
    """Tell whether a field may read the JSON of a column.

    >>> _reads(LongType(), DecimalType(9, 0), None), _reads(LongType(), TimestampType(), None)
    (True, False)
    >>> _reads(LongType(), IntegerType(), None), _reads(IntegerType(), LongType(), None)
    (True, False)
    """
    if isinstance(found, NullType | VariantType):
        return True
    if isinstance(wanted, StructType) and isinstance(found, StructType):
        inner = {field.name: field.dataType for field in found}
        return all(_reads(field.dataType, inner.get(field.name, NullType()), unit) for field in wanted)
    if isinstance(wanted, ArrayType) and isinstance(found, ArrayType):
        return _reads(wanted.elementType, found.elementType, unit)
    if isinstance(wanted, MapType) and isinstance(found, MapType):
        return _reads(wanted.valueType, found.valueType, unit)
    fits = wanted == found or _digits(wanted)[0] >= _digits(found)[1]
    if isinstance(wanted, TimestampType) and unit is not None:
        return isinstance(found, TimestampType)
    if isinstance(found, DecimalType) and found.scale == 0:
        found = LongType()
    return fits and next((isinstance(found, kinds) for kind, kinds in _READ if isinstance(wanted, kind)), True)


def _digits(kind: DataType) -> tuple[int, int]:
    """Return how many digits before the point a type always holds, and may need."""
    if isinstance(kind, DecimalType):
        return kind.precision - kind.scale, kind.precision - kind.scale
    return _DIGITS.get(kind, (38, 0))


def _with_text(schema: StructType) -> StructType:
    """Return the schema with its timestamps as text, except within arrays and maps."""
    return StructType([StructField(field.name, _as_text(field.dataType)) for field in schema])


def _as_text(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return _with_text(kind)
    return StringType() if isinstance(kind, TimestampType) else kind


def _holds_times(kind: DataType, *, within: bool = False) -> bool:
    """Tell whether there are timestamps within an array or map."""
    if isinstance(kind, ArrayType):
        return _holds_times(kind.elementType, within=True)
    if isinstance(kind, MapType):
        return _holds_times(kind.keyType, within=True) or _holds_times(kind.valueType, within=True)
    if isinstance(kind, StructType):
        return any(_holds_times(field.dataType, within=within) for field in kind)
    return within and isinstance(kind, TimestampType)


def json(schema: str, *, unit: Unit | None = None) -> Format:
    """Read and write JSON objects, one per record.

    A value is unreadable if it is not a whole object in UTF-8, or a field does not have the type of the schema: it
    decodes to null and is counted.  Only the fields of the schema are written.

    Args:
        schema: the fields in Spark's SQL types, for example ``"user STRING, at TIMESTAMP"``.
        unit: of numbers in ``TIMESTAMP`` fields, for reads and writes: ``"s"`` seconds, ``"ms"`` milliseconds or
            ``"us"`` microseconds since 1970.  Default: numbers are read as seconds, and times are written as ISO text.
            ISO text is always read.

    Raises:
        UsageError: for another unit; and when the format is used, for a schema without fields, or with times within an
            array or map and a unit.
    """
    return _Json(schema, unit)


_PLAIN: Final[tuple[tuple[type[DataType], dict[str, str]], ...]] = (
    (IntegralType, {"type": "integer"}),
    (FractionalType, {"type": "number"}),
    (BooleanType, {"type": "boolean"}),
    (DateType, {"type": "string", "format": "date"}),
    (BinaryType, {"type": "string", "contentEncoding": "base64"}),
    (StringType, {"type": "string"}),
)


def json_schema(kind: DataType, unit: Unit | None = None) -> dict[str, Any]:
    """Return the JSON Schema of a Spark type; no field is required, since null fields are not written.

    ``unit``: of times; ``None``: ISO text.

    >>> json_schema(StructType().add("n", "long").add("at", "timestamp"), "ms")["properties"]
    {'n': {'type': 'integer'}, 'at': {'type': 'integer'}}
    """
    if isinstance(kind, StructType):
        return {"type": "object", "properties": {field.name: json_schema(field.dataType, unit) for field in kind}}
    if isinstance(kind, ArrayType):
        return {"type": "array", "items": _or_null(json_schema(kind.elementType, unit))}
    if isinstance(kind, MapType):
        return {"type": "object", "additionalProperties": _or_null(json_schema(kind.valueType, unit))}
    if isinstance(kind, TimestampType):
        if unit is None:
            return {"type": "string", "format": "date-time"}
        return {"type": "number" if unit == "s" else "integer"}
    return dict(next((schema for plain, schema in _PLAIN if isinstance(kind, plain)), {}))


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, schema]}
