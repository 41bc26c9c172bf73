"""Values that name their schema in a registry: injected, shown, checked and consumed without Spark."""

import base64
import json
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema as Asked
from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient
from floodmark.producers import TimePolicy, WatermarkedConsumer, WatermarkedProducer, ascending
from floodmark.producers.cli import main
from floodmark.producers.clients.messages import Messages
from floodmark.producers.clients.registry import FramedValues, Registry
from floodmark.producers.event_times.formats import FramedField
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.injector import Injector
from floodmark.schemas.errors import (
    InvalidEventTimeError,
    RegistryError,
    SchemaError,
    UnreadableValueError,
    UnregisteredSchemaError,
    UsageError,
)
from floodmark.schemas.registered_values import Schema, frame
from support.orders import GARBAGE, V2, Order, writer
from typer.testing import CliRunner

pytestmark = pytest.mark.kafka
KINDS = ["avro", "json", "protobuf"]
START = 1_700_000_000_000


def command(*arguments, **environment):
    return CliRunner(env={"COLUMNS": "200", **environment}).invoke(main.app, list(map(str, arguments)))


def produce(kafka, topic, values):
    producer = Producer(kafka.config)
    for value in values:
        producer.produce(topic, value)
    producer.flush()


@contextmanager
def guarded(url, user, password):
    """Stand before a registry, and ask for a name and a password."""
    expected = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    class Guard(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.headers["Authorization"] != expected:
                self.answer(401, b'{"error_code": 401, "message": "who are you?"}')
                return
            try:
                with urlopen(Request(url + self.path)) as found:  # noqa: S310  # our own
                    self.answer(found.status, found.read())
            except HTTPError as error:
                self.answer(error.code, error.read())

        def answer(self, status, body):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Guard) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("kind", KINDS)
def test_framed_values_are_injected_shown_and_checked(kafka, topic, registry, kind):
    """A nested time; versions of a schema in one topic; what is garbage is passed on and counted."""
    raw, marked = topic(1), topic(1)
    old = writer(registry.url, raw, kind)
    new = writer(registry.url, raw, kind, V2)
    values = [old(1, START + 1), new(2, START + 2), *GARBAGE, old(3, START + 3)]
    produce(kafka, raw, values)
    address = ["--bootstrap-servers", kafka.bootstrap_servers, "--registry", registry.url]
    options = ["--from", raw, "--to", marked, "--event-time", "payload.at", "--late", 10**9, "--until-end", "--end"]
    done = command("inject", *options, "--out-of-order", 0, *address)
    assert done.exit_code == 0, done.output
    assert f"{len(values)} records read, 3 on time, {len(GARBAGE)} unreadable" in done.output
    assert "2023-11-14T22:13:20.003000+00:00" in done.output

    shown = command("tail", marked, "--from-beginning", "--until-end", "--json", *address).stdout.splitlines()
    data = [line["value"] for line in map(json.loads, shown) if line["kind"] == "data"]
    assert [value["id"] for value in data if isinstance(value, dict)] == [1, 2, 3]
    times = [str(value["payload"]["at"]) for value in data if isinstance(value, dict)]
    assert times[0].startswith(str(START + 1) if kind == "json" else "2023-11-14 22:13:20.001")
    checked = command("check", marked, "--event-time", "payload.at", "--json", *address)
    *found, summary = map(json.loads, checked.stdout.splitlines())
    faults = [finding["fault"] for finding in found]
    assert set(faults) == {"unreadable row"}, checked.output
    assert summary["faults"] == len(faults)


@pytest.mark.parametrize("kind", KINDS)
def test_the_consumer_without_spark(kafka, topic, registry, kind):
    target = topic(1)
    write = writer(registry.url, target, kind)
    with WatermarkedProducer(kafka.config, topic=target, source="shop", strategy=ascending()) as producer:
        for number in range(10):
            producer.produce(write(number, START + number), event_time=START + number)
        producer.produce(GARBAGE[-1], event_time=START + 10)
        producer.end()
    values, found = FramedValues(Registry(registry.url)), []

    def order(record):
        return values.decode(record.value)

    with WatermarkedConsumer(
        kafka.config, [target], event_time=lambda record: order(record)["payload"]["at"]
    ) as orders:
        while not orders.ended:
            windows = orders.windows(timedelta(milliseconds=5))
            found += [(window.start - START, [order(row)["id"] for row in window.rows]) for window in windows]
        assert orders.counts["timeless"] == 1
    assert found == [(0, [0, 1, 2, 3, 4]), (5, [5, 6, 7, 8, 9])]


def test_a_registry_out_of_reach_ends_an_injection_and_the_next_goes_on(kafka, topic, registry):
    """What it could not be asked of is neither passed on nor skipped."""
    raw, marked = topic(1), topic(1)
    write = writer(registry.url, raw, "avro")
    produce(kafka, raw, [write(number, START + number) for number in range(5)])

    def inject(url):
        values = FramedValues(Registry(url, {"max.retries": 0}))
        fmt = FramedField(values.decode, "payload.at")
        with Injector(Injection(raw, marked, fmt, TimePolicy(late=timedelta(days=10_000))), kafka.config) as injector:
            injector.run(until_end=True)
            return injector.outcomes

    with pytest.raises(RegistryError) as caught:
        inject("http://127.0.0.1:9")
    assert caught.value.url == "http://127.0.0.1:9"
    assert caught.value.action.startswith("give schema")
    assert inject(registry.url) == {"on_time": 5}


def test_a_password_stands_in_the_file_of_settings_and_is_never_printed(kafka, topic, registry, tmp_path):
    raw = topic(1)
    produce(kafka, raw, [writer(registry.url, raw, "avro")(7, START)])
    file = tmp_path / "kafka.properties"
    with guarded(registry.url, "me", "hunter2") as url:
        file.write_text(
            f"bootstrap.servers={kafka.bootstrap_servers}\nschema.registry.url={url}\n"
            "schema.registry.basic.auth.user.info=me:${env:REGISTRY_PASSWORD}\n"
        )
        options = ["tail", raw, "--from-beginning", "--until-end", "--config", file]
        assert "'id': 7" in command(*options, REGISTRY_PASSWORD="hunter2").stdout  # noqa: S106  # made up
        refused = command(*options, REGISTRY_PASSWORD="hunter3")  # noqa: S106  # the same
        assert isinstance(refused.exception, RegistryError)
        assert "401" in str(refused.exception)
        assert "hunter" not in str(refused.exception) + refused.output + repr(Registry(f"http://me:hunter2@x:{1}"))


def test_what_a_registry_does_not_have(registry):
    values, known = FramedValues(Registry(registry.url)), Registry(registry.url)
    with pytest.raises(UnreadableValueError, match="no schema 77777"):
        values.decode(b"\x00" + (77_777).to_bytes(4, "big") + b"\x02")
    with pytest.raises(UnregisteredSchemaError) as missing:
        known.latest("nothing-value")
    assert missing.value.subject == "nothing-value"
    with pytest.raises(RegistryError, match="404"):
        Registry(f"{registry.url}/elsewhere").schema(1)
    with pytest.raises(UsageError, match="settings nonsense"):
        Registry(registry.url, {"nonsense": "me:hunter2"})


def test_a_schema_that_names_a_type_of_another_subject(registry):
    client = SchemaRegistryClient({"url": registry.url})
    point = {"type": "record", "name": "shop.Point", "fields": [{"name": "x", "type": "int"}]}
    line = {"type": "record", "name": "shop.Line", "fields": [{"name": "start", "type": "shop.Point"}]}
    client.register_schema("point", Asked(json.dumps(point), "AVRO"))
    named = [SchemaReference("shop.Point", "point", 1)]
    schema_id = client.register_schema("line-value", Asked(json.dumps(line), "AVRO", named))
    values = FramedValues(Registry(registry.url))
    assert values.decode(frame(schema_id) + b"\x0e") == {"start": {"x": 7}}


@pytest.mark.parametrize("behind", [1, 9])
def test_a_registry_without_a_schema_that_another_one_names_makes_no_record_unreadable(monkeypatch, behind):
    """A replica of it may be a moment behind."""
    answers = iter([None] * behind)
    point = SimpleNamespace(schema_type="AVRO", schema_str='{"type": "fixed", "name": "P", "size": 1}', references=[])
    line = '{"type": "record", "name": "L", "fields": [{"name": "start", "type": "P"}]}'
    named = SimpleNamespace(schema_type="AVRO", schema_str=line, references=[SchemaReference("P", "point", 1)])
    known = Registry("http://127.0.0.1:9")
    given = {"subject 'point'": lambda: next(answers, SimpleNamespace(schema=point)), "give schema 5": lambda: named}
    monkeypatch.setattr(known, "_answer", lambda action, _: next(given[part]() for part in given if part in action))
    fmt = FramedField(FramedValues(known).decode, "start")
    with pytest.raises(RegistryError if behind > 3 else InvalidEventTimeError) as raised:
        fmt.read(None, frame(5) + b"\x07", 0)
    told = "could not give version 1 of subject 'point', to which a schema refers: it has no such version. If it was"
    assert (told in str(raised.value)) == (behind > 3)


def test_a_registry_that_gives_no_descriptors_is_an_error_and_what_it_gives_is_read():
    """Old registries give Protobuf as text alone: its records are not garbage."""
    with pytest.raises(SchemaError, match="Protobuf"):
        Messages(Schema("PROTOBUF", 'syntax = "proto3"; message Order {}'))
    text = base64.b64encode(Order.DESCRIPTOR.file.serialized_pb).decode()
    order = Order(id=7, note="n")
    order.payload.at.FromMilliseconds(START)
    fields = Messages(Schema("PROTOBUF", text)).fields((1,), order.SerializeToString())
    assert fields == {"id": 7, "note": "n", "payload": {"at": datetime.fromtimestamp(START / 1_000, UTC)}}
    assert Messages(Schema("PROTOBUF", text)).fields((1,), b"") == {"id": 0, "note": "", "payload": None}
    for path, body in (((9,), b""), ((1, 5), b""), ((1,), b"\xff")):
        with pytest.raises(UnreadableValueError):
            Messages(Schema("PROTOBUF", text)).fields(path, body)


def test_times_of_each_kind():
    """Numbers of a unit, ISO text with and without a zone, aware datetimes, deep within."""
    fmt = lambda time, unit="ms": FramedField(lambda _: {"a": {"b": time}}, "a.b", unit).read(None, b"x", 0)  # noqa: E731
    assert fmt(5) == fmt(5_000, "us") == fmt(datetime.fromtimestamp(0.005, UTC)) == fmt("1970-01-01T00:00:00.005") == 5
    assert fmt("1970-01-01T01:00:00.005+01:00") == fmt("1970-01-01T00:00:00.005Z") == fmt(0.005, "s") == 5
