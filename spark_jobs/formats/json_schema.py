"""The JSON Schema of what `json` writes."""

from typing import Any, Final

from floodmark.spark_jobs.formats.json_values import Unit
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    FractionalType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

_PLAIN: Final[tuple[tuple[type[DataType], dict[str, str]], ...]] = (
    (IntegralType, {"type": "integer"}),
    (FractionalType, {"type": "number"}),
    (BooleanType, {"type": "boolean"}),
    (DateType, {"type": "string", "format": "date"}),
    (BinaryType, {"type": "string", "contentEncoding": "base64"}),
    (StringType, {"type": "string"}),
)


def json_schema(kind: DataType, unit: Unit | None = None) -> dict[str, Any]:
    """Return the JSON Schema of a type: fields that are null are left out when they are written, so none is required.

    Args:
        kind: of Spark.
        unit: what times are written in; ``None``: as ISO text.

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
