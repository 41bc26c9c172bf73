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
from typing_extensions import override


class Format(ABC):
    """How the values of a topic are written."""

    @abstractmethod
    def decode(self, value: Column) -> Column:
        """Turn binary values into structs; null where a value cannot be read."""

    @abstractmethod
    def encode(self, row: Column) -> Column:
        """Turn structs into binary values."""

    def for_topic(self, topic: str) -> "Format":  # noqa: ARG002  # most write the same everywhere
        """Return what writes to a topic; called once, before a job begins, it may refuse."""
        return self

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns that `encode` takes from a row; empty: all of them."""
        return ()


class _Avro(Format):
    def __init__(self, schema: Mapping[str, Any] | str) -> None:
        codec = AvroCodec(schema)
        self._schema, self._prefix = codec.schema_json, codec.prefix
        self._fields = tuple(codec.fields)

    @property
    @override
    def fields(self) -> tuple[str, ...]:
        return self._fields

    @override
    def decode(self, value: Column) -> Column:
        body = F.substring(value, HEADER_SIZE + 1, 2**31 - 1 - HEADER_SIZE)
        is_of_schema = F.substring(value, 1, HEADER_SIZE) == F.lit(self._prefix)
        return F.when(is_of_schema, from_avro(body, self._schema, {"mode": "PERMISSIVE"}))

    @override
    def encode(self, row: Column) -> Column:
        picked = F.struct(*(row.getField(name).alias(name) for name in self.fields))
        return F.concat(F.lit(self._prefix), to_avro(picked, self._schema))


def avro(schema: Mapping[str, Any] | str) -> Format:
    """Read and write single-object Avro of one record schema: the two bytes C3 01, the schema's fingerprint, the body.

    A value of another schema, or of none, decodes to null and is counted as unreadable.

    Raises:
        SchemaError: where it is no Avro schema of a record.
    """
    return _Avro(schema)
