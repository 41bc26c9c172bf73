"""Makes the kept files: what 0.1.0 stores, so that each later version is tested with it.

    PYTHONPATH=tests python tests/kept/make.py tests/kept

Run it once for a new format, in the version that writes it, and keep the files of the formats before.

Kept are: ``jobs.json.gz`` and ``*.tar.gz``, topics and checkpoints of jobs in the middle of their input;
``injectors.json.gz``, topics of injections; ``consumers.json.gz``, positions and what was handed out before them;
``snapshots.json.gz``, trackers and progress, with marks that come next and what they change.
"""

import base64
import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections import Counter
from datetime import timedelta
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from floodmark.producers import EmbeddedKafka, TimePolicy, WatermarkedConsumer, create_topics
from floodmark.producers.event_times.formats import JsonField, substream_key
from floodmark.producers.event_times.injection import STATE_HEADER, Injection
from floodmark.producers.injector.injector import Injector
from floodmark.schemas import Membership, Status, Tracker, WatermarkRecord, encode_watermark
from floodmark.schemas.classify import Mark, Unreadable
from floodmark.schemas.records import READ_HEADER
from floodmark.schemas.tracker import MarkPolicy
from floodmark.spark_jobs import local_session
from floodmark.spark_jobs.lookahead.marks_ahead import Ahead
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.reconcile import BatchMarks
from floodmark.spark_jobs.progress.unusable import Skipped
from support.counting import counted, fails, read_events, windowed
from support.harness import Stream, events, until

STREAM = Stream.seeded(11, sources=2, steps=8, per_step=4)
HALF = 6
BATCHES = 6
JOBS = {"stopped": {}, "killed": {}, "late": {"late": "adjust"}}


def keep(path, content):
    """Write JSON so that equal content gives equal bytes."""
    Path(path).write_bytes(gzip.compress(json.dumps(content, sort_keys=True).encode(), mtime=0))


def without_ids(stored):
    """Leave out the ids of topics: tests write the topics again, and get other ids."""
    stored = re.sub(r'"topic_ids": ?{[^}]*}', '"topic_ids": {}', stored)
    return re.sub(r'"topic_id": "[^"]*"', '"topic_id": null', stored)


def header(name, value):
    """Return a header as JSON."""
    if name == STATE_HEADER:
        state = without_ids(zlib.decompress(base64.b64decode(value)).decode())
        value = base64.b64encode(zlib.compress(state.encode(), 1))
    if name == READ_HEADER:
        value = without_ids(value.decode()).encode()
    return [name, text(value)]


def text(value):
    return None if value is None else base64.b64encode(value).decode()


def dump(kafka, topic, partitions):
    """Return a topic as JSON: by partition its end, and of each record offset, timestamp, key, value and headers."""
    settings = {**kafka.config, "group.id": "dump", "enable.partition.eof": True, "auto.offset.reset": "error"}
    consumer, found = Consumer(settings), []
    for number in range(partitions):
        place, records = TopicPartition(topic, number, 0), []
        end = consumer.get_watermark_offsets(place, timeout=15)[1]
        consumer.assign([place])
        while (message := consumer.poll(15)) is not None and message.error() is None:
            headers = [header(name, value) for name, value in message.headers() or []]
            place = [message.offset(), message.timestamp()[1]]
            records.append([*place, text(message.key()), text(message.value()), headers])
        found.append({"end": end, "records": records})
    consumer.close()
    return found


def produce(kafka, topic):
    producers = STREAM.producers(kafka.config, topic, timedelta(hours=1))
    for number in range(HALF):
        for name, script in STREAM.steps.items():
            times, watermark = script[number]
            STREAM.produce_step(producers[name], times)
            producers[name].advance(watermark)
            producers[name].flush()


def run_job(kafka, name, checkpoint):
    """Run a job over some batches; ``killed`` dies behind the last transaction, before Spark has committed."""
    spark, batches = local_session(name), []

    def on_batch(batch):
        batches.append(batch)
        if name == "killed" and len(batches) == BATCHES:
            os.kill(os.getpid(), signal.SIGKILL)

    rows = read_events(spark, kafka, f"{name}-in", max_offsets_per_trigger=12, **JOBS[name])
    job = counted(windowed(rows), f"{name}-out", checkpoint, on_batch=on_batch)
    until(lambda: len(batches) >= BATCHES or fails(job), "the batches", 120)
    job.stop()
    spark.stop()


def jobs(kafka, folder):
    kept = {}
    for name in JOBS:
        create_topics(kafka.config, {f"{name}-in": 2, f"{name}-out": 2})
        produce(kafka, f"{name}-in")
        with tempfile.TemporaryDirectory() as place:
            command = [sys.executable, __file__, "job", name, kafka.bootstrap_servers, place]
            subprocess.run(command, check=name != "killed", timeout=200)
            for path in Path(place, "floodmark").glob("[0-9]*.json"):
                path.write_text(without_ids(path.read_text()))
                path.with_name(f".{path.name}.crc").unlink()
            with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
                archive.add(place, arcname="checkpoint")
        kept |= {topic: dump(kafka, topic, 2) for topic in (f"{name}-in", f"{name}-out")}
    keep(folder / "jobs.json.gz", kept)


POLICY = TimePolicy(late=timedelta(minutes=5), out_of_order=timedelta(milliseconds=100))
INJECTIONS = {"plain": None, "keyed": substream_key}


def injectors(kafka, folder):
    kept = {}
    for name, over in INJECTIONS.items():
        raw, marked = f"{name}-raw", f"{name}-marked"
        create_topics(kafka.config, {raw: 2, marked: 2})
        producer = Producer(kafka.config)
        for n in range(60):
            value = json.dumps({"at": 10_000 + 97 * (n * 7 % 60)}).encode()
            producer.produce(raw, value, f"k{n % 5}", n % 2, timestamp=10_000 + 100 * n)
        producer.flush()
        injection = Injection(
            raw, marked, JsonField("at"), POLICY, substream_by=over, interval=timedelta(milliseconds=100)
        )
        injector = Injector(injection, kafka.config)
        injector.run(until_end=True)
        injector.close()
        kept |= {topic: dump(kafka, topic, 2) for topic in (raw, marked)}
    keep(folder / "injectors.json.gz", kept)


def consumers(kafka, folder):
    create_topics(kafka.config, {"read": 2})
    produce(kafka, "read")
    kept = {"topic": dump(kafka, "read", 2)}
    with WatermarkedConsumer(kafka.config, ["read"], lambda row: events.decode(row.value)["at"]) as consumer:
        rows = []
        while not rows:
            for _, record in consumer.rows():
                rows.append([record.partition, record.offset])
                if len(rows) == 7:
                    break
        kept["rows"] = {"handed_out": rows, "position": without_ids(consumer.position().text)}
    with WatermarkedConsumer(kafka.config, ["read"], lambda row: events.decode(row.value)["at"]) as consumer:
        rows, width = [], timedelta(seconds=10)
        while not rows:
            for window in consumer.windows(width):
                rows += [[record.partition, record.offset] for record in window.rows]
                kept["windows"] = {"handed_out": rows, "position": without_ids(window.position.text)}
                break
    keep(folder / "consumers.json.gz", kept)


class History:
    """Marks of a few sources in a few partitions, made up from a seed."""

    def __init__(self, seed):
        self.chance = random.Random(seed)  # noqa: S311
        self.now, self.offsets = 0, Counter()
        self.known = {}
        self.size = self.chance.choice([1, 2, 3])
        self.leases = self.chance.random() < 0.4

    def step(self):
        """Return a topic, partition, offset, log time, and a mark or the name of one whose mark cannot be read."""
        chance = self.chance
        source, topic, partition = chance.choice("abc"[: self.size]), chance.choice("tu"), chance.randrange(2)
        self.now += chance.randrange(3_000)
        self.offsets[topic, partition] += 1 + chance.randrange(3)
        place = [topic, partition, self.offsets[topic, partition], self.now]
        if chance.random() < 0.04:
            return place, source
        epoch, sequence, watermark = self.known.get((source, topic, partition), (1, -1, 0))
        if chance.random() < 0.05:
            epoch, sequence = epoch + chance.choice([-1, 1, 1]), -1
        sequence, watermark = sequence + chance.choice([1, 1, 1, 1, 0, 2]), watermark + chance.randrange(-3, 40)
        self.known[source, topic, partition] = (epoch, sequence, watermark)
        record = WatermarkRecord(
            source=source,
            epoch=max(0, epoch),
            sequence=max(0, sequence),
            watermark=None if chance.random() < 0.05 else watermark,
            partitions=2,
            emitted_at=self.now,
            status=chance.choices(list(Status), [12, 2, 1])[0],
            membership=Membership(version=1 + (chance.random() < 0.1), size=self.size),
            records=chance.choice([None, sequence * 2 + 2]),
            lease=chance.choice([None, 5_000]) if self.leases else None,
            percentiles=chance.choice([None, {90: watermark - 20, 99: watermark - 10}]),
        )
        return place, record

    def steps(self, count):
        return [self.step() for _ in range(count)]


def kept_step(place, found):
    return [*place, found if isinstance(found, str) else encode_watermark(found).hex()]


def take(tracker, place, found):
    topic, partition, offset, log_time = place
    where = {"topic": topic, "partition": partition, "log_time": log_time}
    if isinstance(found, str):
        return tracker.apply_unreadable(found, offset=offset, **where)
    return tracker.apply(found, **where).value


def what_it_says(tracker):
    return {
        "watermark": tracker.watermark,
        "ended": tracker.ended,
        "holders": [str(hold) for hold in tracker.holders()],
    }


def trackers():
    for seed in range(10):
        history, tracker = History(seed), Tracker({"t", "u", "v"} if seed % 9 == 0 else {"t", "u"})
        for place, found in history.steps(seed * 3):
            take(tracker, place, found)
            tracker.advance()
        kept = {"snapshot": tracker.snapshot(), **what_it_says(tracker), "then": []}
        kept = json.loads(json.dumps(kept))
        for place, found in history.steps(25):
            verdict = take(tracker, place, found)
            kept["then"].append([kept_step(place, found), verdict, tracker.advance()])
        yield kept | {"at_last": tracker.snapshot()}


def mark_of(place, found):
    topic, partition, offset, log_time = place
    if isinstance(found, str):
        return Unreadable(topic, partition, offset, log_time, found, "it cannot be read")
    return Mark(topic, partition, offset, log_time, found)


def progresses():
    for seed in range(100, 106):
        history, progress = History(seed), Progress(Tracker({"t", "u"}))
        progress.resume(now=seed, percentile=seed % 3 == 0, judged=seed % 2 == 0)
        progress.topic_ids.update({"t": "Xq3"} if seed % 3 else {})
        for number in range(4):
            marks = sorted((mark_of(*step) for step in history.steps(10)), key=lambda mark: mark.place)
            progress.tally("t", number, {"missing_event_time": Skipped(2, "t", 0, 7)})
            progress.apply(marks, {"t": MarkPolicy(percentile=95 if seed % 3 == 0 else None)})
            progress.reconcile(BatchMarks(marks, {("t", 0): 7}), {}, {("t", 0): 9_999, ("t", 1): 9_999}, ["u"])
            complete = progress.batch_watermark
            progress.finish_batch(None if complete is None else complete - seed % 3, {"late": number})
        if seed % 2:
            progress.look_ahead(Ahead(10_000, {("t", 0): 99}))
        yield {"snapshot": progress.snapshot(), "output": progress.output, **what_it_says(progress.tracker_copy())}


def snapshots(folder):
    keep(folder / "snapshots.json.gz", {"trackers": list(trackers()), "progress": list(progresses())})


def main(folder):
    snapshots(folder)
    with tempfile.TemporaryDirectory() as place, EmbeddedKafka(Path(place)) as kafka:
        consumers(kafka, folder)
        injectors(kafka, folder)
        jobs(kafka, folder)


if __name__ == "__main__":
    if sys.argv[1] == "job":
        run_job(sys.argv[3], sys.argv[2], sys.argv[4])
    else:
        main(Path(sys.argv[1]))
