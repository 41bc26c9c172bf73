"""Values that name their schema in a registry: read by jobs, and written by them for Confluent's own deserializers."""

import json
import pickle
from datetime import datetime

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from floodmark.producers import Registry, WatermarkedProducer, explicit
from floodmark.producers.clients.clock import Deadline
from floodmark.schemas.errors import (
    IncompatibleSchemaError,
    JobFailedError,
    RegistryError,
    UnregisteredSchemaError,
    UsageError,
)
from floodmark.schemas.registered_values import frame
from floodmark.spark_jobs import confluent_avro, confluent_json, confluent_protobuf, read, write
from floodmark.spark_jobs.formats.bodies import AvroBodies
from pyspark import cloudpickle
from pyspark.sql.types import StructType
from support.harness import TIME, drain, record_schema
from support.orders import GARBAGE, V2, Order, Result, writer
from support.registry import EmbeddedRegistry

START = 1_700_000_000_000
OUT = record_schema("Result", id="long", at=TIME)
READER = record_schema("Order", id="long", note={"type": "string"}, payload=record_schema("Payload", at=TIME))
READER["fields"][1]["default"] = "none"
ROWS = {
    "avro": lambda registry: confluent_avro(registry, READER),
    "json": lambda registry: confluent_json(registry, "id BIGINT, payload STRUCT<at: TIMESTAMP>", unit="ms"),
    "protobuf": lambda registry: confluent_protobuf(registry, "id BIGINT, payload STRUCT<at: TIMESTAMP>, note STRING"),
}
RESULTS = {
    "avro": lambda registry: confluent_avro(registry, OUT),
    "json": lambda registry: confluent_json(registry, "id BIGINT, at TIMESTAMP", unit="ms"),
    "protobuf": lambda registry: confluent_protobuf(registry, "id BIGINT, at TIMESTAMP", message=Result, unit="ms"),
}


def results(url, topic, kind, values):
    """Decode values with Confluent's own deserializer."""
    client, context = SchemaRegistryClient({"url": url}), SerializationContext(topic, MessageField.VALUE)
    if kind == "protobuf":
        decode = ProtobufDeserializer(Result, {"use.deprecated.format": False}, client)
        return [(found.id, found.at) for found in (decode(value, context) for value in values)]
    decode = AvroDeserializer(client) if kind == "avro" else JSONDeserializer(None, schema_registry_client=client)
    found = [decode(value, context) for value in values]
    return [(one["id"], milliseconds(one["at"])) for one in found]


def milliseconds(time):
    return round(time.timestamp() * 1_000) if isinstance(time, datetime) else time


def orders(spark, kafka, source, value):
    servers = kafka.bootstrap_servers
    return read(spark, topics=source, value=value, event_time="payload.at", bootstrap_servers=servers)


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["avro", "json", "protobuf"])
def test_from_confluents_serializer_over_a_job_to_confluents_deserializer(
    spark, kafka, topic, registry, checkpoint, kind
):
    """Two versions of the schema in one topic, and garbage, which is counted."""
    source, target, known = topic(1), topic(1), Registry(registry.url)
    old, new = writer(registry.url, source, kind), writer(registry.url, source, kind, V2)
    with WatermarkedProducer(kafka.config, topic=source, source="shop", strategy=explicit()) as producer:
        for number in range(20):
            producer.produce((new if number % 2 else old)(number, START + number), event_time=START + number)
        for value in GARBAGE:
            producer.produce(value, event_time=START + 30)
        producer.end()
    rows = orders(spark, kafka, source, ROWS[kind](known))
    if kind != "json":
        assert "note" in rows.columns
    job = write(
        rows.select("id", "at"),
        topic=target,
        value=RESULTS[kind](known),
        event_time="at",
        checkpoint_location=checkpoint,
    )
    job.awaitTermination(timeout=120)
    assert (job.counts["records"] - job.counts["marks"], job.counts["unreadable"]) == (25, len(GARBAGE))
    found = results(registry.url, target, kind, drain(kafka.config, target)[0])
    assert sorted(found) == [(number, START + number) for number in range(20)]
    assert f"{target}-value" in SchemaRegistryClient({"url": registry.url}).get_subjects()


@pytest.mark.spark
def test_a_schema_registered_while_the_job_runs_and_a_registry_that_is_away(spark, kafka, topic, checkpoint, tmp_path):
    """A batch that meets an unknown schema while the registry is away fails, and the next start loses nothing."""
    source, seen = topic(1), []
    producer = WatermarkedProducer(kafka.config, topic=source, source="shop", strategy=explicit(), background=False)
    with EmbeddedRegistry(tmp_path) as registry, producer:
        known = Registry(registry.url, {"max.retries": 0})

        def start():
            rows = orders(spark, kafka, source, confluent_avro(known, READER))

            def keep(batch, _):
                seen.extend((row.id, row.note) for row in batch.collect())

            return write(rows, writer=keep, job="orders", checkpoint_location=checkpoint)

        def send(value, number):
            producer.produce(value, event_time=START + number)
            producer.flush()

        job = start()
        send(writer(registry.url, source, "avro")(1, START + 1), 1)
        job.processAllAvailable(60)
        new = writer(registry.url, source, "avro", V2)
        send(new(2, START + 2), 2)
        job.processAllAvailable(60)
        assert seen == [(1, "none"), (2, "new")]

        third = {**V2, "doc": "the third", "fields": [*V2["fields"], {"name": "x", "type": "int", "default": 0}]}
        value = writer(registry.url, source, "avro", third)(3, START + 3)
        registry.close()
        send(value, 3)
        with pytest.raises(JobFailedError, match=r"RegistryError: schema registry .* could not give schema") as failed:
            job.processAllAvailable(60)
        assert registry.url in failed.value.reason
        job.stop()
        with pytest.raises(RegistryError):
            start()
        registry.start()
        job = start()
        producer.end()
        job.awaitTermination(60)
    assert sorted(seen) == [(1, "none"), (2, "new"), (3, "-")]
    assert (job.counts["records"] - job.counts["marks"], job.counts["unreadable"]) == (3, 0)


@pytest.mark.spark
def test_what_the_registry_refuses_is_an_error_before_the_job_begins(spark, kafka, topic, registry, checkpoint):
    source, target, known = topic(1), topic(1), Registry(registry.url)
    client = SchemaRegistryClient({"url": registry.url})
    rows = orders(spark, kafka, source, confluent_avro(known, READER))

    def begin(value):
        result = rows.select("id", "at")
        write(result, topic=target, value=value, event_time="at", checkpoint_location=checkpoint)

    with pytest.raises(UnregisteredSchemaError) as missing:
        begin(confluent_avro(known, OUT, auto_register=False))
    assert missing.value.subject == f"{target}-value"
    known.id_for(f"{target}-value", "AVRO", json.dumps(record_schema("Result", id="string", at=TIME)), register=True)
    client.set_compatibility(f"{target}-value", "BACKWARD")
    with pytest.raises(IncompatibleSchemaError, match=f"{target}-value"):
        begin(confluent_avro(known, OUT))
    with pytest.raises(UsageError, match="message="):
        begin(confluent_protobuf(known, "id BIGINT, at TIMESTAMP"))
    with pytest.raises(UsageError, match=r"has no field \['at'\]"):
        begin(confluent_protobuf(known, "id BIGINT, at TIMESTAMP", message=Order))
    with pytest.raises(RegistryError):
        begin(confluent_avro(Registry("http://127.0.0.1:9", {"max.retries": 0}), OUT))


def test_a_format_takes_the_settings_of_a_registry_client_and_goes_to_executors_with_them():
    settings = {"url": "http://me:hunter2@127.0.0.1:9", "max.retries": 0}
    with pytest.raises(RegistryError) as unreachable:
        pickle.loads(pickle.dumps(confluent_avro(settings, OUT))).for_topic("orders")  # noqa: S301  # its own
    assert unreachable.value.url == "http://127.0.0.1:9"
    with pytest.raises(UsageError, match="name no url, but max"):
        confluent_avro({"max.retries": 0}, OUT)


def test_copies_of_a_registry_share_its_clients_also_if_a_setting_is_a_function():
    """Each task of Spark has a copy; a function of a notebook is another object in each."""
    given = {"bearer.auth.credentials.source": "CUSTOM", "bearer.auth.custom.provider.config": {}}
    ours, other = (
        Registry("http://127.0.0.1:9", {**given, "bearer.auth.custom.provider.function": lambda _: {}})
        for _ in range(2)
    )
    copies = [cloudpickle.loads(cloudpickle.dumps(ours)) for _ in range(2)]
    assert {one.key for one in copies} == {ours.key} != {other.key}


def test_ids_that_were_missing_once_do_not_stop_the_retries_for_another(monkeypatch):
    known, answers = Registry("http://127.0.0.1:9"), iter([None, "found"])
    known._clients.missing.update(dict.fromkeys(range(9), Deadline(-1)))  # noqa: SLF001  # their time is over
    monkeypatch.setattr(known, "_fetch", lambda _: next(answers))
    monkeypatch.setattr(known, "_with_references", lambda found: found)
    assert known.schema(17) == "found"


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_column_that_no_message_can_be_written_from_is_refused():
    value = confluent_protobuf({"url": "http://127.0.0.1:9"}, "id BIGINT, at TIMESTAMP", message=Result, unit="ms")
    with pytest.raises(UsageError):
        value.require(StructType.fromDDL("id STRUCT<x: INT>, at TIMESTAMP"))


@pytest.mark.kafka
def test_another_record_is_unreadable_and_a_schema_that_cannot_be_resolved_an_error(registry):
    """Nothing that may be wanted is counted as garbage."""
    known = Registry(registry.url)

    def value(schema, body, kind="AVRO"):
        return frame(known.id_for("several-value", kind, json.dumps(schema), register=True)) + body

    point = record_schema("Point", x="long")
    bodies = AvroBodies(known, json.dumps(point))
    assert bodies.read(value(point, b"\x0e")) == b"\x0e"
    SchemaRegistryClient({"url": registry.url}).set_compatibility("several-value", "NONE")
    assert bodies.read(value(record_schema("Point", y="int", x="int"), b"\x02\x0e")) == b"\x0e"
    assert bodies.read(value(record_schema("Other", x="long"), b"\x0e")) is None
    assert bodies.read(None) is None
    with pytest.raises(IncompatibleSchemaError, match="Point"):
        bodies.read(value(record_schema("Point", z="int"), b"\x02"))
    in_micros = record_schema("Event", at={"type": "long", "logicalType": "timestamp-micros"})
    with pytest.raises(IncompatibleSchemaError, match="'at' was written as timestamp-micros"):
        AvroBodies(known, json.dumps(record_schema("Event", at=TIME))).read(value(in_micros, b"\x02"))
