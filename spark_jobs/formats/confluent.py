"""Values that name their schema in a registry, as Confluent's serializers write them: Avro, JSON Schema, Protobuf.

Each value is resolved from its writer's schema to the reader's.  Avro and Protobuf pass through Python for this, in
Arrow batches.  JSON is read in the JVM, by the names of fields.
"""

import json as plain_json
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any, Final, NamedTuple

from floodmark.producers.clients.registry import Kind, Registry, registry_of
from floodmark.schemas.codec import AvroCodec
from floodmark.schemas.errors import UsageError
from floodmark.schemas.registered_values import FRAME_SIZE, frame, path_bytes
from floodmark.spark_jobs.formats.bodies import AvroBodies, ObjectTexts, message_writer, of_process
from floodmark.spark_jobs.formats.format import Format
from floodmark.spark_jobs.formats.plain_values import Unit, avro_struct, json, json_schema
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.avro.functions import to_avro
from pyspark.sql.types import StructType
from typing_extensions import override

RegistryOrSettings = Registry | Mapping[str, Any]
"""A registry, or the settings that confluent-kafka's ``SchemaRegistryClient`` takes."""

_ALL: Final = 2**31 - 1 - FRAME_SIZE


def _converted(values: Column, converter: Callable[[], Callable[[Any], bytes | None]]) -> Column:
    """Convert a column in Python; ``converter`` is called in Spark's workers."""
    import pandas as pd  # noqa: PLC0415  # half a second to import, only if it is used
    from pyspark.sql.pandas.functions import pandas_udf  # noqa: PLC0415  # the same

    def converted(batch: pd.Series) -> pd.Series:
        convert = converter()
        return pd.Series([convert(value) for value in batch], dtype=object)

    column: Column = pandas_udf(converted, "binary")(values)  # type: ignore[call-overload, unused-ignore]
    return column


class _Subject(NamedTuple):
    """Where a schema is registered."""

    registry: RegistryOrSettings
    name: str | None
    auto_register: bool


class _Confluent(Format):
    """What the three share: a frame, and a schema that is registered before the job starts."""

    _kind: Kind

    def __init__(self, subject: _Subject, fields: Iterable[str]) -> None:
        self._registry, self._subject = registry_of(subject.registry), subject
        self._fields = tuple(fields)
        self._id: int | None = None
        self._answered = False

    @property
    @override
    def fields(self) -> tuple[str, ...]:
        return self._fields

    @override
    def for_topic(self, topic: str) -> "Format":
        name, register = self._subject.name or f"{topic}-value", self._subject.auto_register
        schema_id = self._registry.id_for(name, self._kind, self._text(), register=register)
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
        """Return framed values as structs."""

    @abstractmethod
    def _body(self, row: Column) -> Column:
        """Return structs as the bytes after the frame."""


class _ConfluentAvro(_Confluent):
    _kind = "AVRO"

    def __init__(self, subject: _Subject, schema: str) -> None:
        self._codec = AvroCodec(schema)
        super().__init__(subject, self._codec.fields)

    @override
    def _text(self) -> str:
        return self._codec.schema_json

    @override
    def _decode(self, value: Column) -> Column:
        registry, schema = self._registry, self._codec.schema_json
        body = _converted(value, lambda: of_process(AvroBodies, registry, schema).read)
        return F.when(body.isNotNull(), avro_struct(body, self._codec))

    @override
    def _body(self, row: Column) -> Column:
        return to_avro(F.struct(*(row.getField(name).alias(name) for name in self._fields)), self._text())


class _ConfluentJson(_Confluent):
    _kind = "JSON"

    def __init__(self, subject: _Subject, schema: str, unit: Unit | None) -> None:
        self._json, self._schema, self._unit = json(schema, unit=unit), schema, unit
        super().__init__(subject, self._json.fields)
        self.unit = self._json.unit

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

    @override
    def require(self, row: StructType) -> None:
        self._json.require(row)


class _ConfluentProtobuf(_Confluent):
    _kind = "PROTOBUF"

    def __init__(self, subject: _Subject, schema: str, unit: Unit | None, message: Any) -> None:  # noqa: ANN401  # a class
        self._json, self._message = json(schema, unit=unit), message
        super().__init__(subject, self._json.fields)
        self.unit = self._json.unit

    @override
    def _text(self) -> str:
        if self._message is None:
            raise UsageError(reason="confluent_protobuf() writes by a type of message: name its class, message=")
        kind = self._message.DESCRIPTOR
        foreign = [each.name for each in kind.file.dependencies if not each.name.startswith("google/protobuf/")]
        unknown = [field for field in self.fields if field not in kind.fields_by_name]
        if foreign or unknown:
            found = f"imports {foreign}, but its file must not import others" if foreign else f"has no field {unknown}"
            raise UsageError(reason=f"confluent_protobuf(): message {kind.full_name} {found}")
        return b64encode(kind.file.serialized_pb).decode()

    def _path(self) -> tuple[int, ...]:
        """Return the indexes of the message type in its file."""
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
    def require(self, row: StructType) -> None:
        self._json.require(row)

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

    Values of all versions of the schema are resolved to this version by Avro's rules.  A value is unreadable, and
    counted, if it has no frame, a schema that the registry lacks, or a record of another name.

    Args:
        registry: a `floodmark.producers.Registry`, or the settings of ``SchemaRegistryClient``.
        schema: to read and to write; ``registry.latest("orders-value")`` returns the newest one.
        subject: for writes; default: ``<topic>-value``.
        auto_register: whether `write` registers the schema if the subject lacks it.

    Raises:
        SchemaError: if the schema is not an Avro record.
        RegistryError: later, if the registry does not answer; the batch fails, and the next start runs it again.
        IncompatibleSchemaError: from `write`, if the subject's rules refuse the schema; and from a batch with a record
            that does not fit the schema.
        UnregisteredSchemaError: from `write`, without ``auto_register``, if the subject lacks the schema.
    """
    text = schema if isinstance(schema, str) else plain_json.dumps(dict(schema))
    return _ConfluentAvro(_Subject(registry, subject, auto_register), text)


def confluent_json(
    registry: RegistryOrSettings,
    schema: str,
    *,
    unit: Unit | None = None,
    subject: str | None = None,
    auto_register: bool = True,
) -> Format:
    """Read and write JSON whose values name a JSON Schema in a registry.

    Values of all versions are read by the names of the fields in ``schema``; see `json` for unreadable values.  `write`
    registers a JSON Schema made from ``schema``.  The arguments are those of `confluent_avro` and `json`.

    Raises:
        UsageError: as `json`.
        RegistryError, IncompatibleSchemaError, UnregisteredSchemaError: as `confluent_avro`.
    """
    return _ConfluentJson(_Subject(registry, subject, auto_register), schema, unit)


def confluent_protobuf(
    registry: RegistryOrSettings,
    schema: str,
    *,
    message: Any = None,  # noqa: ANN401  # a class that Protobuf has generated
    unit: Unit | None = None,
    subject: str | None = None,
    auto_register: bool = True,
) -> Format:
    """Read and write Protobuf whose values name their schema in a registry.

    Fields are read by their names in the writer's schema.  A ``Timestamp`` becomes a ``TIMESTAMP``, an enum value its
    name.  ``message`` is the generated class of the message, for writes.  The other arguments are those of
    `confluent_avro` and `json`.

    Raises:
        UsageError: as `json`; and from `write`, if the message lacks a field.
        RegistryError, IncompatibleSchemaError, UnregisteredSchemaError: as `confluent_avro`.
    """
    return _ConfluentProtobuf(_Subject(registry, subject, auto_register), schema, unit, message)
