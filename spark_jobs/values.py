"""What a topic's bytes mean: a format decodes a column of values to structs, and encodes structs to values.

Both run in the JVM (Spark's Avro functions); no row passes through Python.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from floodmark.schemas.codec import HEADER_SIZE, AvroCodec
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.avro.functions import from_avro, to_avro


class Format(ABC):
    """How the values of a topic are written."""

    @abstractmethod
    def decode(self, value: Column) -> Column:
        """Turn binary values into structs; null where a value cannot be read."""

    @abstractmethod
    def encode(self, row: Column) -> Column:
        """Turn structs into binary values."""


class _Avro(Format):
    def __init__(self, schema: Mapping[str, Any] | str) -> None:
        codec = AvroCodec(schema)
        self._schema, self._prefix = codec.schema_json, codec.prefix
        self.fields = codec.fields

    def decode(self, value: Column) -> Column:
        body = F.substring(value, HEADER_SIZE + 1, 2**31 - 1 - HEADER_SIZE)
        ours = F.substring(value, 1, HEADER_SIZE) == F.lit(self._prefix)
        return F.when(ours, from_avro(body, self._schema, {"mode": "PERMISSIVE"}))

    def encode(self, row: Column) -> Column:
        picked = F.struct(*(row.getField(name).alias(name) for name in self.fields))
        return F.concat(F.lit(self._prefix), to_avro(picked, self._schema))


def avro(schema: Mapping[str, Any] | str) -> Format:
    """Read and write single-object Avro of one record schema.

    A value of another schema, or of none, decodes to null and is counted as unreadable.

    Raises:
        SchemaError: where it is no Avro schema.
    """
    return _Avro(schema)


class _Json(Format):
    def __init__(self, schema: str) -> None:
        self._schema = schema

    def decode(self, value: Column) -> Column:
        return F.from_json(value.cast("string"), self._schema)

    def encode(self, row: Column) -> Column:
        return F.to_json(row).cast("binary")


def json_lines(schema: str) -> Format:
    """Read and write JSON objects.

    Args:
        schema: the fields as Spark writes them in SQL, for example ``"user STRING, at TIMESTAMP"``.
    """
    return _Json(schema)
