"""Protobuf messages by the descriptors of a registry.  Needs ``floodmark[registry]``."""

from base64 import b64decode
from datetime import UTC
from typing import Any

from floodmark.schemas.errors import SchemaError, UnreadableValueError
from floodmark.schemas.registered_values import Schema
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError, Message

_TIMESTAMP = timestamp_pb2.Timestamp.DESCRIPTOR.full_name


class Messages:
    """Decodes the messages of one schema; `SchemaError` if it is not a Protobuf schema."""

    def __init__(self, schema: Schema) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        try:
            self._file = self._add_file("floodmark.proto", schema)
        except (ValueError, TypeError, KeyError, DecodeError) as error:
            raise SchemaError(schema="Protobuf", reason=f"{type(error).__name__}: {error}") from error

    def _add_file(self, name: str, schema: Schema) -> FileDescriptor:
        described = descriptor_pb2.FileDescriptorProto.FromString(b64decode(schema.text, validate=True))
        described.name = name
        named = dict(schema.references)
        for each in described.dependency:
            if not self._has(each):
                if each in named:
                    self._add_file(each, named[each])
                else:
                    self._add_builtin_file(descriptor_pool.Default().FindFileByName(each))
        self._pool.AddSerializedFile(described.SerializeToString())
        return self._pool.FindFileByName(name)

    def _add_builtin_file(self, known: FileDescriptor) -> None:
        """Add a file that ships with Protobuf, and its dependencies."""
        for each in known.dependencies:
            if not self._has(each.name):
                self._add_builtin_file(each)
        self._pool.AddSerializedFile(known.serialized_pb)

    def _has(self, name: str) -> bool:
        try:
            self._pool.FindFileByName(name)
        except KeyError:
            return False
        return True

    def type_of(self, path: tuple[int, ...]) -> Descriptor:
        """Return the type of message at a path in the file, or raise `UnreadableValueError`."""
        types: Any = list(self._file.message_types_by_name.values())
        found: Descriptor | None = None
        for number in path:
            if not 0 <= number < len(types):
                raise UnreadableValueError(size=0, schema="Protobuf", reason=f"its schema has no message at {path}")
            found = types[number]
            types = found.nested_types
        assert found is not None  # noqa: S101  # a path is never empty
        return found

    def fields(self, path: tuple[int, ...], body: bytes) -> dict[str, Any]:
        """Return a message's fields by name, or raise `UnreadableValueError`; unset fields are ``None``."""
        return _plain(self.message(self.type_of(path), body))

    @staticmethod
    def message(kind: Descriptor, body: bytes) -> Message:
        """Decode a message of this type, or raise `UnreadableValueError`."""
        try:
            return message_factory.GetMessageClass(kind).FromString(body)
        except DecodeError as error:
            raise UnreadableValueError(size=len(body), schema=kind.full_name, reason=str(error)) from error


def _plain(message: Message) -> dict[str, Any]:
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Message, field: FieldDescriptor) -> Any:  # noqa: ANN401  # whatever the schema says
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        kind = field.message_type.fields_by_name["value"]
        return {key: _single(one, kind) for key, one in value.items()}
    if field.is_repeated:
        return [_single(one, field) for one in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single(value, field)


def _single(value: Any, field: FieldDescriptor) -> Any:  # noqa: ANN401  # as above
    if field.message_type is None:
        if field.enum_type is not None:
            named = field.enum_type.values_by_number.get(value)
            return value if named is None else named.name
        return value
    if field.message_type.full_name == _TIMESTAMP:
        try:
            return value.ToDatetime(tzinfo=UTC)
        except (ValueError, OverflowError) as error:
            raise UnreadableValueError(size=0, schema=_TIMESTAMP, reason=str(error)) from error
    return _plain(value)
