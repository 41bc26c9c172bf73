"""Topics and checkpoints that 0.1.0 wrote are taken up, and nothing is lost or doubled.

The kept topics are written again at the same offsets: a hole in the offsets is the end of a transaction.
"""

import base64
import gzip
import json
import tarfile
from datetime import timedelta
from itertools import groupby
from pathlib import Path

import pytest
from confluent_kafka import Producer
from floodmark.producers import Data, Mark, Observer, Position, TimePolicy, WatermarkedConsumer, create_topics
from floodmark.producers.clients.admin import end_offsets
from floodmark.producers.event_times.formats import JsonField, substream_key
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.injector import Injector
from floodmark.schemas import is_late
from support.counting import WIDTH, counted, read_events, windowed
from support.harness import Stream, drain, events, until, window_counts
from support.injection import until_readable

pytestmark = pytest.mark.kafka
FOLDER = Path(__file__).parent
STREAM = Stream.seeded(11, sources=2, steps=8, per_step=4)
HALF = 6
JOBS = {"stopped": {}, "killed": {}, "late": {"late": "adjust"}}
POLICY = TimePolicy(late=timedelta(minutes=5), out_of_order=timedelta(milliseconds=100))
INJECTIONS = {"plain": None, "keyed": substream_key}


def kept(name):
    return json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))


def raw(value):
    return None if value is None else base64.b64decode(value)


def write_again(kafka, topic, partitions):
    """Write a kept topic: the same records at the same offsets."""
    create_topics(kafka.config, {topic: len(partitions)})
    plain = Producer({**kafka.config, "enable.idempotence": True})
    transactional = Producer({**kafka.config, "transactional.id": f"kept-{topic}"})
    transactional.init_transactions(30)
    for number, partition in enumerate(partitions):
        has_holes = partition["end"] != len(partition["records"])
        for run in runs(partition["records"]):
            if has_holes:
                transactional.begin_transaction()
            for _, timestamp, key, value, headers in run:
                headers = [(name, raw(header)) for name, header in headers]  # noqa: PLW2901  # decoded
                writer = transactional if has_holes else plain
                writer.produce(topic, raw(value), raw(key), number, timestamp=timestamp, headers=headers)
            if has_holes:
                transactional.commit_transaction(30)
        assert plain.flush(30) == 0
    until_readable(kafka, topic)
    assert end_offsets(kafka.config, topic) == {number: kept["end"] for number, kept in enumerate(partitions)}


def runs(records):
    """Return the records between holes in the offsets."""
    by_run = groupby(enumerate(records), lambda entry: entry[1][0] - entry[0])
    return [[record for _, record in run] for _, run in by_run]


def produce_rest(kafka, topic):
    producers = STREAM.producers(kafka.config, topic, timedelta(hours=1))
    for number in range(HALF, 8):
        for name, script in STREAM.steps.items():
            times, watermark = script[number]
            STREAM.produce_step(producers[name], times)
            producers[name].advance(watermark)
            producers[name].flush()
    for producer in producers.values():
        producer.end()


@pytest.mark.spark
@pytest.mark.parametrize("name", JOBS)
def test_a_kept_job_goes_on_without_loss_or_doubles(kafka, spark, tmp_path, name):
    """``killed``: its last batch is in the output topic, and Spark, which has not committed it, runs it again."""
    topics = kept("jobs")
    for topic in (f"{name}-in", f"{name}-out"):
        write_again(kafka, topic, topics[topic])
    with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4 and later ask for it
        archive.extractall(tmp_path, **safely)  # noqa: S202  # an archive of this folder
    before = len(drained(kafka, f"{name}-out"))
    assert 0 < before < len(STREAM.windows(WIDTH))
    produce_rest(kafka, f"{name}-in")
    rows = read_events(spark, kafka.bootstrap_servers, f"{name}-in", **JOBS[name])
    job = counted(windowed(rows), f"{name}-out", str(tmp_path / "checkpoint"))
    job.awaitTermination(200)
    assert {job.counts[count] for count in ("late", "lost", "surplus")} == {0}
    values, _ = drain(kafka.config, f"{name}-out")
    assert len(values) == len(STREAM.windows(WIDTH)), "a row was lost or written twice"
    assert window_counts(values) == STREAM.windows(WIDTH)


def drained(kafka, topic):
    """Return the records that stand in a topic now."""
    ends, found = end_offsets(kafka.config, topic), []
    with Observer(kafka.config, [topic]) as observer:

        def at_end():
            found.extend(observer.poll(0.1))
            return all(observer.ends.get((topic, number), 0) >= end for number, end in ends.items())

        until(at_end, f"the end of {topic}")
    return [record for record in found if isinstance(record, Data)]


@pytest.mark.parametrize("name", INJECTIONS)
def test_a_kept_injection_goes_on_as_if_it_had_never_stopped(kafka, name):
    topics = kept("injectors")
    source, target, fresh = f"{name}-raw", f"{name}-marked", f"{name}-fresh"
    for topic in (source, target):
        write_again(kafka, topic, topics[topic])
    create_topics(kafka.config, {fresh: 2})
    producer = Producer(kafka.config)
    for n in range(60, 120):
        value = json.dumps({"at": 10_000 + 97 * (n * 7 % 60)}).encode()
        producer.produce(source, value, f"k{n % 5}", n % 2, timestamp=10_000 + 100 * n)
    assert producer.flush(30) == 0
    for topic in (target, fresh):
        injection = Injection(
            source, topic, JsonField("at"), POLICY, substream_by=INJECTIONS[name], source=f"inject-{source}"
        )
        with Injector(injection, kafka.config) as injector:
            injector.run(until_end=True)
            injector.end()
    assert everything(kafka, target) == everything(kafka, fresh)


def everything(kafka, topic):
    """Return the data of a topic by partition, in order; no mark may be ahead of what stands behind it."""
    data, promised = {}, {}
    with Observer(kafka.config, [topic]) as observer:
        while not observer.trackers[topic].ended:
            for record in observer.poll():
                if isinstance(record, Mark) and record.record.watermark is not None:
                    assert record.record.watermark >= promised.get(record.partition, record.record.watermark)
                    promised[record.partition] = record.record.watermark
                elif isinstance(record, Data):
                    headers = dict(record.headers or [])
                    time = int(headers.get("floodmark-time", json.loads(record.value)["at"]))
                    assert not is_late(time, promised.get(record.partition))
                    data.setdefault(record.partition, []).append((record.key, record.value, record.log_time, headers))
            observer.trackers[topic].advance()
    return data


@pytest.fixture(scope="module")
def stored(kafka):
    """Write again what kept consumers have read, and what came after; return what they have left."""
    found = kept("consumers")
    write_again(kafka, "read", found["topic"])  # the positions name it
    produce_rest(kafka, "read")
    return found


@pytest.mark.parametrize("use", ["rows", "windows"])
def test_a_kept_position_hands_out_the_rest_and_nothing_twice(kafka, stored, use):
    handed_out = [tuple(place) for place in stored[use]["handed_out"]]
    position = Position(stored[use]["position"])
    everywhere = {(record.partition, record.offset) for record in drained(kafka, "read")}

    def event_time(record):
        return events.decode(record.value)["at"]

    with WatermarkedConsumer(kafka.config, ["read"], event_time, position=position) as consumer:

        def is_done():
            found = [record for _, record in consumer.rows()] if use == "rows" else []
            for window in consumer.windows(timedelta(seconds=10)) if use == "windows" else ():
                found.extend(window.rows)
            handed_out.extend((record.partition, record.offset) for record in found)
            return consumer.ended

        until(is_done, "the end")
    assert len(handed_out) == len(set(handed_out))
    assert set(handed_out) == everywhere
