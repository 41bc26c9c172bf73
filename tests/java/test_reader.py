"""A reader in Java, written from SPEC.md alone, says what Floodmark's own reader says."""

import json
import random
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Producer
from conformance.cases import CASES, records
from floodmark.producers import TimePolicy, WatermarkedProducer, explicit
from floodmark.producers.event_times.formats import JsonField, substream_key
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.injector import Injector
from floodmark.producers.readers.replay import read_until_end
from floodmark.producers.testing import mark
from floodmark.schemas import END_OF_TIME, Membership, Status, Tracker, Verdict, encode_watermark, mark_key
from floodmark.schemas.classify import Data, Mark
from floodmark.schemas.records import SUBSTREAM_HEADER, TIME_HEADER, header_time
from support.counting import counted, read_events, windowed
from support.harness import Stream
from support.histories import History, apply
from support.injection import send

pytestmark = pytest.mark.kafka
VECTORS = json.loads((Path(__file__).parents[2] / "schemas" / "vectors.json").read_text(encoding="utf-8"))
ACCEPTED = {Verdict.ACCEPTED, Verdict.REGRESSED}


def line_of(topic, partition, entry, offset, log_time):
    """Write a mark, or the source of an unreadable one, as the reader takes it from standard input."""
    unreadable = isinstance(entry, str)
    key, value = mark_key(entry if unreadable else entry.source), b"?" if unreadable else encode_watermark(entry)
    place = {"topic": topic, "partition": partition, "offset": offset, "log_time": log_time}
    return place | {"key": key.hex(), "value": value.hex()}


def applied(tracker, topic, partition, entry, *place):
    """Apply the same; return the parts of the reader's line that are to be equal."""
    accepted = apply(tracker, topic, partition, entry, *place) in ACCEPTED
    verdict = "unreadable" if isinstance(entry, str) else "mark" if accepted else "ignored"
    tracker.advance()
    return verdict, tracker.watermark, tracker.partition_watermark(topic, partition)


def told(line):
    partition = line["partition_is"]
    return line["is"], line["watermark"], None if isinstance(partition, str) else partition


def test_the_vectors_of_the_wire_format(plain):
    vectors = VECTORS["accepted"] + VECTORS["refused"]
    given = []
    for vector in vectors:
        place = {"topic": "t", "partition": 0, "offset": 0, "log_time": 0}
        given += [{"topics": ["t"]}, place | {"key": vector["key"], "value": vector["value"]}]
    found = dict(zip([vector["name"] for vector in vectors], plain("Reader", lines=given), strict=True))
    for vector in VECTORS["accepted"]:
        assert found[vector["name"]]["mark"] == vector["record"]
    assert [vector["name"] for vector in VECTORS["refused"] if found[vector["name"]]["is"] != "unreadable"] == []


def test_the_table_of_marks(plain):
    given, expected = [], []
    for case in CASES:
        given.append({"topics": ["t"]})
        highest = None
        for offset, (partition, entry, log_time, out) in enumerate(records(case)):
            given.append(line_of("t", partition, entry, offset, log_time))
            highest = highest if out is None else out
            expected.append((case["name"], offset, highest))
    found = [line["watermark"] for line in plain("Reader", lines=given)]
    assert [(name, step, line) for (name, step, _), line in zip(expected, found, strict=True)] == expected


def of_sources(seed):
    """Draw a history of sources that do what sources do."""
    history = History(seed)
    history.run()
    return history.topics, history.history


def of_anything(seed):
    """Draw a history in which any mark may stand anywhere: zombies, old versions, sizes that contradict each other."""
    chance = random.Random(seed)  # noqa: S311  # a repeatable history
    topics, sources = ("t", "u")[: chance.choice([1, 1, 2])], "abc"[: chance.choice([1, 2, 3])]
    most, odd, leases = chance.choice([1, 2, 2, 3]), chance.choice([0.02, 0.1, 0.3]), chance.choice([1, 2, 3])
    epochs, sizes, history, now = dict.fromkeys(sources, 1), [len(sources)], [], 0

    def rarely(usual, *others):
        return chance.choice(others) if chance.random() < odd else usual

    for offset in range(90):
        source = chance.choice(sources)
        now += chance.choice([0, 3, 9])
        if rarely(False, chance.random() < 0.2):  # noqa: FBT003  # what is usual
            sizes.append(chance.randint(1, len(sources)))
        epochs[source] += rarely(0, 0, 1)
        version = rarely(len(sizes), chance.randint(1, len(sizes)))
        record = mark(
            source,
            rarely(offset + chance.randint(0, 9), None, 0, END_OF_TIME),
            rarely(offset, chance.randint(0, offset)),
            epoch=rarely(epochs[source], chance.randint(0, epochs[source])),
            status=rarely(Status.ACTIVE, *Status),
            version=version,
            size=rarely(sizes[version - 1], chance.randint(1, 3)),
            partitions=rarely(most, chance.randint(1, most)),
            lease=chance.choice([None, 5, 20][:leases]),
        )
        place = chance.choice(topics), chance.randrange(most)
        history.append((*place, rarely(record, record, source, "stranger"), offset, rarely(now, now + 1_000, 0)))
    return topics, history


@pytest.mark.parametrize("draw", [of_sources, of_anything])
def test_any_history(plain, draw):
    """After each record: was it accepted, the partition's watermark, the stage's; also while a part is read again."""
    given, expected = [], []
    for seed in range(400):
        topics, history = draw(seed)
        tracker = Tracker(topics)
        given.append({"topics": topics})
        for step in [*history, *history[: seed % 60]]:
            given.append(line_of(*step))
            expected.append((draw.__name__, seed, step[3], *applied(tracker, *step)))
    found = [told(line) for line in plain("Reader", lines=given)]
    for line, wanted in zip(found, expected, strict=True):
        assert (*wanted[:3], *line) == wanted


def judged_alike(lines, config, *topics):
    """Apply what the reader has read in the order in which it has read it; return how many marks there were."""
    places = {(line["topic"], line["partition"]) for line in lines}
    stored = read_until_end(config, dict.fromkeys(places, OFFSET_BEGINNING))
    kept = {(record.topic, record.partition, record.offset): record for record in stored}
    assert len(kept) == len(lines)
    tracker, marks = Tracker(topics), 0
    for line in lines:
        record = kept[line["topic"], line["partition"], line["offset"]]
        if isinstance(record, Data):
            assert line["is"] == "data"
            assert line["time"] == header_time(record.headers, TIME_HEADER)
            assert line["substream"] == header_time(record.headers, SUBSTREAM_HEADER)
            assert line["watermark"] == tracker.watermark
        else:
            entry = record.record if isinstance(record, Mark) else record.source
            place = record.topic, record.partition, entry, record.offset, record.log_time
            assert told(line) == applied(tracker, *place)
            marks += 1
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
