"""JSON values: one object a record, its timestamps as text or as epoch numbers of a stated unit."""

from decimal import Decimal
from functools import cached_property
from typing import Final, Literal

from floodmark.schemas.errors import UsageError
from floodmark.spark_jobs.formats.values import Format
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType, TimestampType
from typing_extensions import override

Unit = Literal["s", "ms", "us"]
"""What an epoch number counts: seconds, milliseconds or microseconds."""

_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_MALFORMED: Final = "floodmark_malformed"
_NUMBER: Final = "decimal(25,6)"  # times a million, it still fits Spark's 38 digits


class _Json(Format):
    def __init__(self, schema: str, unit: Unit | None) -> None:
        if unit is not None and unit not in _MICROSECONDS:
            raise UsageError(reason=f"json(): unit is {unit!r}, expected one of {', '.join(_MICROSECONDS)}")
        self._text = schema
        self._unit = unit
        self._factor = _MICROSECONDS[unit or "s"]

    @cached_property
    def _schema(self) -> StructType:
        """The fields; parsed by Spark, so not before there is a session."""
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
        wire = StructType([*_with_text(self._schema), StructField(_MALFORMED, StringType())])
        # Spark ignores what stands behind an object, and reads `null` as an object without fields.
        whole = F.when(F.endswith(text, F.lit("}")), text)
        parsed = F.from_json(whole, wire, {"columnNameOfCorruptRecord": _MALFORMED})
        # As a lambda's argument the object is parsed once, however often it is looked into.
        return F.get(F.transform(F.array(parsed), self._typed), F.lit(0))

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
        # Spark's own reading multiplies seconds unchecked: a number too large becomes some other time.
        number = F.floor(text.try_cast(_NUMBER) * F.lit(self._factor)).try_cast("long")
        iso = text.try_cast("timestamp")
        # A cast that fails is slow, so most text should not reach one.
        is_number = F.length(F.translate(text, "0123456789.+-eE", "")) == 0
        return F.when(is_number, F.coalesce(F.timestamp_micros(number), iso)).otherwise(iso)

    @override
    def encode(self, row: Column) -> Column:
        return F.to_json(self._wire(row, self._schema)).cast("binary")

    def _wire(self, row: Column, schema: StructType) -> Column:
        return F.struct(
            *(self._written(row.getField(field.name), field.dataType).alias(field.name) for field in schema)
        )

    def _written(self, column: Column, kind: DataType) -> Column:
        if isinstance(kind, StructType):
            return F.when(column.isNotNull(), self._wire(column, kind))
        if self._unit is None or not isinstance(kind, TimestampType):
            return column
        if self._unit == "s":
            return F.unix_micros(column).cast("decimal(20,0)") * F.lit(Decimal("0.000001"))
        return F.unix_millis(column) if self._unit == "ms" else F.unix_micros(column)


def _with_text(schema: StructType) -> StructType:
    """Return the schema with its timestamps as text; those within arrays and maps stay Spark's."""
    return StructType([StructField(field.name, _as_text(field.dataType)) for field in schema])


def _as_text(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return _with_text(kind)
    return StringType() if isinstance(kind, TimestampType) else kind


def _holds_times(kind: DataType, *, within: bool = False) -> bool:
    """Return whether there are timestamps within an array or map."""
    if isinstance(kind, ArrayType):
        return _holds_times(kind.elementType, within=True)
    if isinstance(kind, MapType):
        return _holds_times(kind.keyType, within=True) or _holds_times(kind.valueType, within=True)
    if isinstance(kind, StructType):
        return any(_holds_times(field.dataType, within=within) for field in kind)
    return within and isinstance(kind, TimestampType)


def json(schema: str, *, unit: Unit | None = None) -> Format:
    """Read and write JSON objects, one a record.

    A value that is no whole object in UTF-8, or that has a field of another type than the schema says, is unreadable:
    it decodes to null and is counted.  Written are the fields of the schema, no others.

    Args:
        schema: the fields as Spark writes them in SQL, for example ``"user STRING, at TIMESTAMP"``.
        unit: what numbers in its ``TIMESTAMP`` fields count: ``"s"`` seconds, ``"ms"`` milliseconds or ``"us"``
            microseconds since 1970.  They are then written as such numbers, too.  Default: numbers are read as seconds,
            and times are written as ISO text.  ISO text is read in any case.

    Raises:
        UsageError: for another unit; once it is used, for a schema that names no fields, or that has times within an
            array or map where a unit is set.
    """
    return _Json(schema, unit)
