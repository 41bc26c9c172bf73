"""Orders in three formats, as Confluent's own serializers write them: two versions of a schema, and garbage."""

import json
from collections.abc import Callable
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from support.harness import TIME, record_schema

V1 = record_schema("Order", id="int", payload=record_schema("Payload", at=TIME))  # what the first producers wrote

V2 = record_schema("Order", note={"type": "string"}, id="long", payload=record_schema("Payload", at=TIME))
V2["fields"][0]["default"] = "-"  # wider ids, and a new field before the others

# No frame, half a frame, another one, a schema that is not registered.
GARBAGE = [b"", b"\x00", b"{}", b"\x00\x00\x00\xff\xff\x02", b"\x01\x00\x00\x00\x01\x02\x02"]

_JSON = {
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "payload": {"type": "object", "properties": {"at": {"type": "integer"}}}},
}
_file = descriptor_pb2.FileDescriptorProto(
    name="order.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
)
_file.message_type.add(name="Other")
_order = _file.message_type.add(name="Order")
_order.field.add(name="id", number=1, type=3, label=1)
_order.field.add(name="payload", number=2, type=11, label=1, type_name=".shop.Order.Payload")
_order.field.add(name="note", number=3, type=9, label=1)
_order.nested_type.add(name="Payload").field.add(
    name="at", number=1, type=11, label=1, type_name=".google.protobuf.Timestamp"
)
_result = _file.message_type.add(name="Result")
_result.field.add(name="id", number=1, type=3, label=1)
_result.field.add(name="at", number=2, type=3, label=1)
_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
_pool.AddSerializedFile(_file.SerializeToString())
# A message that is not the first of its file, with a message of its own and a time of Protobuf's.
Order: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName("shop.Order"))
Result: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName("shop.Result"))  # what jobs make of orders


def writer(url: str, topic: str, kind: str, schema: dict[str, Any] = V1) -> Callable[[int, int], bytes]:
    """Return what makes the value of an id and a time with Confluent's serializer of a kind: avro, json or protobuf."""
    client, context = SchemaRegistryClient({"url": url}), SerializationContext(topic, MessageField.VALUE)
    if kind == "protobuf":
        to_message = ProtobufSerializer(Order, client, {"use.deprecated.format": False})
        time = lambda at: {"seconds": at // 1_000, "nanos": at % 1_000 * 1_000_000}  # noqa: E731
        return lambda number, at: bytes(to_message(Order(id=number, payload={"at": time(at)}), context))
    if kind == "json":
        to_json = JSONSerializer(json.dumps(_JSON), client)
        return lambda number, at: bytes(to_json({"id": number, "payload": {"at": at}}, context))
    to_avro = AvroSerializer(client, json.dumps(schema))
    extra = {"note": "new"} if schema is V2 else {}
    return lambda number, at: bytes(to_avro({"id": number, "payload": {"at": at}, **extra}, context))
