"""A reader in Java, written from SPEC.md alone, says what Floodmark's own reader says."""

import random
import shlex
from datetime import timedelta

import pytest
from confluent_kafka import OFFSET_BEGINNING, Producer
from floodmark.producers import TimePolicy, WatermarkedProducer, explicit
from floodmark.producers.event_times.formats import JsonField, substream_key
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.injector import Injector
from floodmark.producers.readers.replay import read_until_end
from floodmark.producers.testing import mark
from floodmark.schemas import Membership, Tracker, encode_watermark, mark_key
from floodmark.schemas.classify import Data
from floodmark.schemas.conformance.__main__ import main
from floodmark.schemas.conformance.program import Program
from floodmark.schemas.conformance.reader_cases import history_case, told
from floodmark.schemas.records import SUBSTREAM_HEADER, TIME_HEADER, header_time
from support.counting import counted, read_events, windowed
from support.harness import Stream
from support.histories import History
from support.injection import send

pytestmark = pytest.mark.kafka


def test_it_conforms(command, capsys):
    assert main(["--reader", shlex.join([*command, "floodmark.Reader"])]) == 0
    assert "487 of 487 cases passed" in capsys.readouterr().out


def test_any_history_of_sources(command):
    """Sources that do what sources do; also while a part is read again."""
    cases = []
    for seed in range(400):
        drawn = History(seed)
        drawn.run()
        cases.append(history_case(f"sources {seed}", drawn.topics, [*drawn.history, *drawn.history[: seed % 60]]))
    program = Program(shlex.join([*command, "floodmark.Reader"]), cases, timeout=120)
    assert [(case.name, fault) for case, answers in program.answers() if (fault := case.fault(answers))] == []


def judged_alike(lines, config, *topics):
    """Apply what the reader has read in the order in which it has read it; return how many marks there were."""
    places = {(line["topic"], line["partition"]) for line in lines}
    stored = read_until_end(config, dict.fromkeys(places, OFFSET_BEGINNING))
    kept = {(record.topic, record.partition, record.offset): record for record in stored}
    assert len(kept) == len(lines)
    tracker, marks = Tracker(topics), 0
    for line in lines:
        record = kept[line["topic"], line["partition"], line["offset"]]
        partition = line["partition_is"]
        said = {"partition_is": None if isinstance(partition, str) else partition}
        assert {name: line[name] for name in ("is", "watermark")} | said == told(tracker, record)
        if isinstance(record, Data):
            assert line["time"] == header_time(record.headers, TIME_HEADER)
            assert line["substream"] == header_time(record.headers, SUBSTREAM_HEADER)
        marks += not isinstance(record, Data)
    return marks, tracker


def test_a_topic_of_producers(plain, kafka, topic):
    """Two sources, restarts, idleness, a lease, a join, a mark that nobody can read, a transaction that is aborted."""
    target = topic(3)
    Stream.seeded(7, sources=2, steps=5, per_step=20).produce(kafka.config, target, end=False)

    def source(name, size, **more):
        membership = Membership(version=2, size=size)
        options = {"strategy": explicit(), "membership": membership, "interval": timedelta(hours=1)}
        return WatermarkedProducer(kafka.config, topic=target, source=name, **options, **more, background=False)

    late, lazy, third = source("source-0", 3), source("source-1", 3, lease=timedelta(hours=2)), source("third", 3)
    for number, each in enumerate([late, lazy, third]):
        each.produce(b"{}", event_time=60_000 + number)
        each.advance(60_000)
        each.flush()
    lazy.mark_idle()
    later = Producer(kafka.config)
    later.produce(target, key=mark_key("third"), value=b"of a later version", partition=1)
    assert later.flush(30) == 0
    aborted = Producer({**kafka.config, "transactional.id": "aborted"})
    aborted.init_transactions(30)
    aborted.begin_transaction()
    aborted.produce(
        target, key=mark_key("third"), value=encode_watermark(mark("third", 9**12, 9, epoch=9**12)), partition=0
    )
    aborted.abort_transaction(30)
    for each in (late, third, lazy):
        each.advance(70_000)
        each.end()
    lines = plain("Reader", kafka.bootstrap_servers, target)
    marks, tracker = judged_alike(lines, kafka.config, target)
    assert tracker.ended
    assert marks > 50
    assert len({line["watermark"] for line in lines}) > 3
    assert len({line["partition_is"] for line in lines}) > 5


def test_topics_of_an_injector(plain, kafka, topic):
    """Adjusted times and substreams stand in headers of the data."""
    raw, adjusted, divided = topic(2), topic(2), topic(2)
    chance = random.Random(3)  # noqa: S311  # repeatable
    for partition in (0, 1):
        rows = [(10_000 + n * 100 - chance.choice([0, 50, 9_000]), 10_000 + n * 100, f"k{n % 3}") for n in range(100)]
        send(kafka, raw, *rows, partition=partition)
    policy = TimePolicy(late=timedelta(seconds=5), out_of_order=timedelta(seconds=1))
    for target, by in ((adjusted, None), (divided, substream_key)):
        with Injector(Injection(raw, target, JsonField("at"), policy, substream_by=by), kafka.config) as injector:
            injector.run(until_end=True)
            injector.end()
    lines = plain("Reader", kafka.bootstrap_servers, adjusted, divided)
    assert judged_alike(lines, kafka.config, adjusted, divided)[1].ended
    assert any(line["time"] is not None for line in lines if line["is"] == "data")
    assert all((line["substream"] is not None) <= (line["topic"] == divided) for line in lines if line["is"] == "data")


@pytest.mark.spark
def test_a_topic_of_a_job(plain, spark, kafka, topic, checkpoint):
    given, out = topic(2), topic(2)
    Stream.seeded(8, sources=2, steps=6).produce(kafka.config, given)
    counted(windowed(read_events(spark, kafka.bootstrap_servers, given)), out, checkpoint).awaitTermination(120)
    marks, tracker = judged_alike(plain("Reader", kafka.bootstrap_servers, out), kafka.config, out)
    assert tracker.ended
    assert marks > 1
