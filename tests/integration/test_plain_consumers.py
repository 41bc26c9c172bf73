"""Consumers that know nothing of watermarks keep working next to them.

Kafka's console consumer, Kafka Connect with its ``HasHeaderKey`` predicate, Confluent-framed Avro, compacted topics.
"""

import json
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from floodmark.producers import Mark, Observer, WatermarkedConsumer, WatermarkedProducer, ascending, create_topics
from floodmark.producers.clients.admin import end_offsets
from floodmark.producers.embedded.broker import free_port
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.spark_jobs import read, write
from integration.kafka_programs import running
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.avro.functions import from_avro
from support.harness import EVENT, until

LINES = [f"line {number}" for number in range(50)]


def write_lines(kafka, topic, *, ends=True):
    with WatermarkedProducer(kafka.config, topic=topic, source="web", strategy=ascending()) as producer:
        for number, line in enumerate(LINES):
            producer.produce(line.encode(), key=f"k{number}", event_time=number)
            if number % 10 == 0:
                producer.flush()
        if ends:
            producer.end()
        else:
            producer.mark_idle()


@pytest.mark.kafka
def test_the_console_consumer(kafka, topic, tmp_path):
    target = topic(2)
    write_lines(kafka, target)
    log = tmp_path / "console.log"
    shown = ["--property", "print.headers=true", "--property", "print.key=true"]
    options = ["--bootstrap-server", kafka.bootstrap_servers, "--topic", target, "--from-beginning", *shown]
    with running(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", *options, log=log, modules=["kafka-tools"]
    ) as process:
        until(lambda: process.poll() is not None or log.read_bytes().count(b"line ") >= len(LINES), "all lines", 60)
    printed = log.read_bytes()
    assert all(b"\tk%d\tline %d\n" % (number, number) in printed for number in range(50))
    assert b"floodmark:1\t__floodmark__/web\t" in printed


@pytest.mark.kafka
@pytest.mark.parametrize("ends", [True, False], ids=["ended", "idle"])
def test_the_loop_of_the_page_closes_each_hour_by_the_watermark(kafka, topic, ends):
    page = (Path(__file__).parents[2] / "producers" / "READERS.md").read_text(encoding="utf-8")
    (loop,) = [block.partition("```")[0] for block in page.split("```python\n")[1:] if "close_hours_before" in block]
    target, kept, closed = topic(2), [], []
    write_lines(kafka, target, ends=ends)

    def close_hours_before(watermark):
        closed.append((watermark, len(kept)))
        if len(kept) == len(LINES) and not ends and watermark is not None:
            raise StopIteration

    with WatermarkedConsumer(kafka.config, [target], event_time=lambda record: int(record.value[5:])) as clicks:
        names = {"clicks": clicks, "keep": kept.append, "close_hours_before": close_hours_before}
        with nullcontext() if ends else pytest.raises(StopIteration):
            exec(loop, names)  # noqa: S102  # the page's
    assert sorted(record.value.decode() for record in kept) == sorted(LINES)
    watermark, rows = closed[-1]
    assert rows == len(LINES)
    assert watermark == END_OF_TIME if ends else 40 <= watermark <= 49


@pytest.mark.kafka
def test_kafka_connect_skips_marks_by_their_header(kafka, topic, tmp_path):
    target = topic(2)
    write_lines(kafka, target)
    port = free_port()
    worker, sink, out = tmp_path / "worker.properties", tmp_path / "sink.properties", tmp_path / "out.txt"
    strings = "org.apache.kafka.connect.storage.StringConverter"
    worker.write_text(
        f"bootstrap.servers={kafka.bootstrap_servers}\nkey.converter={strings}\nvalue.converter={strings}\n"
        f"offset.storage.file.filename={tmp_path / 'offsets'}\nlisteners=http://127.0.0.1:{port}\n"
        "offset.flush.interval.ms=1000\nplugin.discovery=hybrid_warn\n"
    )
    sink.write_text(
        f"name=lines\nconnector.class=FileStreamSink\ntasks.max=1\ntopics={target}\nfile={out}\n"
        "consumer.override.auto.offset.reset=earliest\n"
        "transforms=skip\ntransforms.skip.type=org.apache.kafka.connect.transforms.Filter\n"
        "transforms.skip.predicate=mark\npredicates=mark\n"
        "predicates.mark.type=org.apache.kafka.connect.transforms.predicates.HasHeaderKey\n"
        "predicates.mark.name=floodmark\n"
    )
    log, modules = tmp_path / "connect.log", ["connect-runtime", "connect-file"]
    with running("org.apache.kafka.connect.cli.ConnectStandalone", worker, sink, log=log, modules=modules) as process:
        until(
            lambda: process.poll() is not None or (out.exists() and out.read_bytes().count(b"\n") >= len(LINES)),
            f"the lines (see {log})",
            120,
        )
        time_to_see_more = time.monotonic() + 1
        until(lambda: time.monotonic() > time_to_see_more, "a moment for anything too many")
    assert sorted(out.read_text().splitlines()) == sorted(LINES), log.read_text()[-2000:]


@pytest.mark.spark
def test_confluent_framed_avro_next_to_marks(spark, kafka, topic, checkpoint):
    """A schema id before each value: for Confluent's own deserializer, and for a job with a decoder of its own."""
    target = topic(2)
    registry = SchemaRegistryClient.new_client({"url": "mock://registry"})
    context = SerializationContext(target, MessageField.VALUE)
    to_bytes = AvroSerializer(registry, json.dumps(EVENT))
    with WatermarkedProducer(kafka.config, topic=target, source="web", strategy=ascending()) as producer:
        for number in range(10, 50):
            event = {"user": "u", "at": number}
            producer.produce(to_bytes(event, context), key=f"k{number}", event_time=number)
        producer.end()

    from_bytes, found = AvroDeserializer(registry, json.dumps(EVENT)), []
    consumer = Consumer({**kafka.config, "group.id": "confluent", "auto.offset.reset": "earliest"})
    consumer.subscribe([target])

    def all_of_them():
        came = [message for message in consumer.consume(100, 0.2) if message.error() is None]
        data = [message for message in came if "floodmark" not in dict(message.headers() or [])]
        found.extend(from_bytes(message.value(), context) for message in data)
        return len(found) >= 40

    until(all_of_them, "the events", 30)
    consumer.close()
    assert len(found) == 40

    rows = read(
        spark,
        topics=target,
        value=lambda raw: from_avro(F.substring(raw, 6, 2**31 - 7), json.dumps(EVENT)),
        event_time="at",
        bootstrap_servers=kafka.bootstrap_servers,
    )
    counted = []
    windows = rows.groupBy(F.window("at", "10 milliseconds")).count()
    job = write(
        windows,
        writer=lambda frame, _: counted.extend(row["count"] for row in frame.collect()),
        job="framed",
        checkpoint_location=checkpoint,
    )
    job.awaitTermination(90)
    assert counted == [10, 10, 10, 10]
    assert job.counts["unreadable"] == 0


@pytest.mark.kafka
def test_a_compacted_topic_keeps_the_last_mark_of_each_source(kafka):
    name = "compacted-with-marks"
    settings = {
        "cleanup.policy": "compact",
        "segment.ms": "200",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "500",
    }
    create_topics(kafka.config, {name: 1}, settings)
    producer = WatermarkedProducer(
        kafka.config, topic=name, source="a", strategy=ascending(), interval=timedelta(hours=1)
    )
    number = [0]

    def marks():
        """Write on, so that segments roll, and return how many marks still stand in the topic."""
        producer.produce(b"x", key="k", event_time=number[0])
        producer.flush()
        number[0] += 1
        with Observer(kafka.config, [name]) as observer:
            seen, end = [], end_offsets(kafka.config, name)[0]
            until(lambda: seen.extend(observer.poll(0.1)) or observer.ends.get((name, 0), 0) >= end, "its end")
            observer.trackers[name].advance()
            kept = [record for record in seen if isinstance(record, Mark)]
            return len(kept), observer.trackers[name].watermark

    until(lambda: (found := marks())[0] < number[0] - 5 and found[1] == number[0] - 1, "compaction", 90)
    kept, watermark = marks()
    assert watermark == number[0] - 1, "what is left says all that matters"
    assert kept < number[0]
