"""Values that name their schema in a registry, as Confluent's serializers write them: Avro, JSON Schema, Protobuf.

What is read is resolved from each writer's schema to the reader's; schemas may be registered while a job runs.  Avro
and Protobuf pass through Python for that, in Arrow's batches; JSON is read in the JVM alone, by the names of fields.
"""

import json as plain_json
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any, Final

from floodmark.producers.clients.registry import Kind, Registry, registry_of
from floodmark.schemas.codec import AvroCodec
from floodmark.schemas.errors import UsageError
from floodmark.schemas.registered_values import FRAME_SIZE, frame, path_bytes
from floodmark.spark_jobs.formats.bodies import AvroBodies, ObjectTexts, message_writer, of_process
from floodmark.spark_jobs.formats.format import Format
from floodmark.spark_jobs.formats.plain_values import Unit, json, json_schema
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.types import StructType
from typing_extensions import override

RegistryOrSettings = Registry | Mapping[str, Any]
"""A registry, or the settings that confluent-kafka's ``SchemaRegistryClient`` takes."""

_ALL: Final = 2**31 - 1 - FRAME_SIZE


def _converted(values: Column, converter: Callable[[], Callable[[Any], bytes | None]]) -> Column:
    """Return a column that Python has made of another; ``converter`` is called in Spark's workers."""
    import pandas as pd  # noqa: PLC0415  # half a second that only those wait for who use it
    from pyspark.sql.pandas.functions import pandas_udf  # noqa: PLC0415  # the same

    def converted(batch: pd.Series) -> pd.Series:
        convert = converter()
        return pd.Series([convert(value) for value in batch], dtype=object)

    column: Column = pandas_udf(converted, "binary")(values)  # type: ignore[call-overload, unused-ignore]
    return column


class _Confluent(Format):
    """What the three have in common: a frame, and a schema that is registered before the job begins."""

    _kind: Kind

    def __init__(
        self, registry: RegistryOrSettings, fields: Iterable[str], subject: str | None, *, auto_register: bool
    ) -> None:
        self._registry, self._subject, self._auto_register = registry_of(registry), subject, auto_register
        self._fields = tuple(fields)
        self._id: int | None = None
        self._answered = False

    @property
    @override
    def fields(self) -> tuple[str, ...]:
        return self._fields

    @override
    def for_topic(self, topic: str) -> "Format":
        subject = self._subject or f"{topic}-value"
        schema_id = self._registry.id_for(subject, self._kind, self._text(), register=self._auto_register)
        bound = copy(self)
        bound.__dict__["_id"] = schema_id
        return bound

    @override
    def decode(self, value: Column) -> Column:
        if not self._answered:
            self._registry.require()
            self._answered = True
        return self._decode(value)

    @override
    def encode(self, row: Column) -> Column:
        if self._id is None:
            raise UsageError(reason="a format with a registry does not know its topic yet: give it to write(topic=)")
        return F.concat(F.lit(frame(self._id)), self._body(row))

    @abstractmethod
    def _text(self) -> str:
        """Return the schema to write by."""

    @abstractmethod
    def _decode(self, value: Column) -> Column:
        """Turn framed values into structs."""

    @abstractmethod
    def _body(self, row: Column) -> Column:
        """Turn structs into what stands behind the frame."""


class _ConfluentAvro(_Confluent):
    _kind = "AVRO"

    def __init__(self, registry: RegistryOrSettings, schema: str, subject: str | None, *, auto_register: bool) -> None:
        codec = AvroCodec(schema)
        super().__init__(registry, codec.fields, subject, auto_register=auto_register)
        self._schema = codec.schema_json

    @override
    def _text(self) -> str:
        return self._schema

    @override
    def _decode(self, value: Column) -> Column:
        registry, schema = self._registry, self._schema
        body = _converted(value, lambda: of_process(AvroBodies, registry, schema).read)
        return from_avro(body, schema, {"mode": "PERMISSIVE"})

    @override
    def _body(self, row: Column) -> Column:
        return to_avro(F.struct(*(row.getField(name).alias(name) for name in self._fields)), self._schema)


class _ConfluentJson(_Confluent):
    _kind = "JSON"

    def __init__(
        self, registry: RegistryOrSettings, schema: str, unit: Unit | None, subject: str | None, *, auto_register: bool
    ) -> None:
        self._json, self._schema, self._unit = json(schema, unit=unit), schema, unit
        super().__init__(registry, self._json.fields, subject, auto_register=auto_register)

    @override
    def _text(self) -> str:
        fields = StructType.fromDDL(self._schema)
        assert isinstance(fields, StructType)  # noqa: S101  # json() has said so
        return plain_json.dumps(json_schema(fields, self._unit))

    @override
    def _decode(self, value: Column) -> Column:
        is_framed = F.substring(value, 1, 1) == F.lit(b"\x00")
        return F.when(is_framed, self._json.decode(F.substring(value, FRAME_SIZE + 1, _ALL)))

    @override
    def _body(self, row: Column) -> Column:
        return self._json.encode(row)


class _ConfluentProtobuf(_Confluent):
    _kind = "PROTOBUF"

    def __init__(  # one more than the others have
        self,
        registry: RegistryOrSettings,
        schema: str,
        message: Any,  # noqa: ANN401  # a class that Protobuf has generated
        unit: Unit | None,
        subject: str | None,
        *,
        auto_register: bool,
    ) -> None:
        self._json, self._message = json(schema, unit=unit), message
        super().__init__(registry, self._json.fields, subject, auto_register=auto_register)

    @property
    @override
    def fields(self) -> tuple[str, ...]:
        return self._json.fields

    @override
    def _text(self) -> str:
        if self._message is None:
            raise UsageError(reason="confluent_protobuf() writes by a type of message: name its class, message=")
        kind = self._message.DESCRIPTOR
        foreign = [each.name for each in kind.file.dependencies if not each.name.startswith("google/protobuf/")]
        unknown = [field for field in self.fields if field not in kind.fields_by_name]
        if foreign or unknown:
            found = f"imports {foreign}, which must stand in its own file" if foreign else f"has no field {unknown}"
            raise UsageError(reason=f"confluent_protobuf(): message {kind.full_name} {found}")
        return b64encode(kind.file.serialized_pb).decode()

    def _path(self) -> tuple[int, ...]:
        """Return where the type of message stands in its file."""
        kind = self._message.DESCRIPTOR
        path: list[int] = []
        while kind is not None:
            outer = kind.containing_type
            beside = kind.file.message_types_by_name.values() if outer is None else outer.nested_types
            path.insert(0, [one.name for one in beside].index(kind.name))
            kind = outer
        return tuple(path)

    @override
    def _decode(self, value: Column) -> Column:
        registry = self._registry
        return self._json.decode(_converted(value, lambda: of_process(ObjectTexts, registry).read))

    @override
    def _body(self, row: Column) -> Column:
        described, path = self._text(), self._path()
        message = _converted(self._json.encode(row).cast("string"), lambda: message_writer(described, path))
        return F.concat(F.lit(path_bytes(path)), message)


def confluent_avro(
    registry: RegistryOrSettings,
    schema: Mapping[str, Any] | str,
    *,
    subject: str | None = None,
    auto_register: bool = True,
) -> Format:
    """Read and write Avro whose values name their schema in a registry.

    Read is what any version of the schema has written, resolved to this one by Avro's rules.  A value without a frame,
    of a schema that the registry does not have, or of a record of another name is unreadable, and counted.

    Args:
        registry: a `floodmark.producers.Registry`, or the settings that ``SchemaRegistryClient`` takes.
        schema: the reader's schema, and the one to write by; ``registry.latest("orders-value")`` is the newest.
        subject: which subject it is written under; default: ``<topic>-value``.
        auto_register: whether `write` registers the schema where it is not there yet.

    Raises:
        SchemaError: where it is no Avro schema of a record.
        RegistryError: once it is used, where the registry does not answer; a batch that meets that fails, and is run
            again by the next start.
        IncompatibleSchemaError: from `write`, where the subject's rules refuse the schema.  A batch fails with it where
            the reader's schema cannot take a record.
        UnregisteredSchemaError: from `write`, without ``auto_register``, where the schema is not there.
    """
    text = schema if isinstance(schema, str) else plain_json.dumps(dict(schema))
    return _ConfluentAvro(registry, text, subject, auto_register=auto_register)


def confluent_json(
    registry: RegistryOrSettings,
    schema: str,
    *,
    unit: Unit | None = None,
    subject: str | None = None,
    auto_register: bool = True,
) -> Format:
    """Read and write JSON whose values name a JSON Schema in a registry.

    Read are the fields of ``schema`` by their names, whichever version has written them; see `json` for what is
    unreadable.  Written is by a JSON Schema that is made from ``schema``.

    Args:
        registry: as in `confluent_avro`.
        schema: the fields as Spark writes them in SQL.
        unit: what numbers in ``TIMESTAMP`` fields count, as `json` takes it.
        subject: as in `confluent_avro`.
        auto_register: the same.

    Raises:
        UsageError: as `json`.
        RegistryError, IncompatibleSchemaError, UnregisteredSchemaError: as `confluent_avro`.
    """
    return _ConfluentJson(registry, schema, unit, subject, auto_register=auto_register)


def confluent_protobuf(  # most have defaults
    registry: RegistryOrSettings,
    schema: str,
    *,
    message: Any = None,  # noqa: ANN401  # a class that Protobuf has generated
    unit: Unit | None = None,
    subject: str | None = None,
    auto_register: bool = True,
) -> Format:
    """Read and write Protobuf whose values name their schema in a registry.

    Read are the fields of ``schema`` by the names that the writer's schema gives them; a ``Timestamp`` is a
    ``TIMESTAMP``, an enum's value its name.

    Args:
        registry: as in `confluent_avro`.
        schema: the fields as Spark writes them in SQL.
        message: the generated class to write by; it is not needed for reading.
        unit: what numbers in ``TIMESTAMP`` fields count, as `json` takes it.
        subject: as in `confluent_avro`.
        auto_register: the same.

    Raises:
        UsageError: as `json`; from `write`, where the message lacks a field.
        RegistryError, IncompatibleSchemaError, UnregisteredSchemaError: as `confluent_avro`.
    """
    return _ConfluentProtobuf(registry, schema, message, unit, subject, auto_register=auto_register)
