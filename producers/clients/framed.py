"""Values with a schema id of a registry, as Python objects.  Needs ``floodmark[registry]``."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from floodmark.producers.clients.registry import Registry, Schema, registry_of
from floodmark.producers.event_times.formats import json_object
from floodmark.schemas.errors import RegistryError, SchemaError, UnreadableValueError
from floodmark.schemas.registered_values import AvroBody, message_path, unframed

_Decode = Callable[[bytes], dict[str, Any]]
_NAMED: Final = "a framed value"


class FramedValues:
    """Decodes Confluent-framed values by the schema that wrote each: Avro, Protobuf and JSON Schema, also mixed.

    Times become aware datetimes if the schema declares them as times.

    Args:
        registry: a `Registry`, or the settings of a ``SchemaRegistryClient``.
    """

    def __init__(self, registry: Registry | Mapping[str, Any]) -> None:
        self._registry = registry_of(registry)
        self._decoders: dict[int, _Decode] = {}

    def decode(self, value: bytes) -> dict[str, Any]:
        """Return a record's fields.

        Raises:
            UnreadableValueError: the value has no frame, the registry does not know its schema, or the schema does not
                fit.
            RegistryError: the registry does not answer.
        """
        schema_id, body = unframed(value)
        decode = self._decoders.get(schema_id)
        if decode is None:
            schema = self._registry.schema(schema_id)
            if schema is None:
                reason = f"the registry has no schema {schema_id}"
                raise UnreadableValueError(size=len(value), schema=_NAMED, reason=reason)
            try:
                decode = _decoder(schema)
            except SchemaError as error:
                if schema.kind == "PROTOBUF":  # the registry did not return all descriptors
                    action = f"give the descriptor of schema {schema_id}"
                    raise RegistryError(url=self._registry.url, action=action, reason=error.reason) from error
                reason = f"schema {schema_id} cannot be used: {error}"
                raise UnreadableValueError(size=len(value), schema=_NAMED, reason=reason) from error
            self._decoders[schema_id] = decode
        return decode(body)


def _decoder(schema: Schema) -> _Decode:
    if schema.kind == "AVRO":
        return AvroBody(schema.text, schema.referenced).decode
    if schema.kind == "JSON":
        return json_object
    if schema.kind == "PROTOBUF":
        from floodmark.producers.clients.messages import Messages  # noqa: PLC0415  # only an extra brings its library

        messages = Messages(schema)
        return lambda body: messages.fields(*message_path(body))
    raise SchemaError(schema=schema.kind, reason="it is neither AVRO nor PROTOBUF nor JSON")
