"""The table of streams, three times: pure, a consumer on a real Kafka, a Spark job on a real Kafka."""

import json
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest
from floodmark.producers import WatermarkedConsumer, WatermarkedProducer, bounded_out_of_orderness, with_idleness
from floodmark.producers.clients.admin import end_offsets
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.numbering import Identity
from floodmark.producers.testing import ManualClock
from floodmark.schemas import Membership, Status, Tracker
from floodmark.schemas.completeness.complete_rows import Buffer
from floodmark.spark_jobs import WriteOptions, avro, read, write
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.counting import fails
from support.harness import EVENT, events, until

CASES = tomllib.loads(Path(__file__).with_name("streams.toml").read_text(encoding="utf-8"))["case"]
cases = pytest.mark.parametrize("case", CASES, ids=[f"{case['origin']}: {case['name']}" for case in CASES])


def expected(step):
    watermark = step["watermark"]
    windows = [tuple(window) for window in step.get("windows", [])]
    return None if watermark == "none" else watermark, windows, step.get("late", 0)


def the_source(case, step):
    return step.get("source", next(iter(case["sources"])))


def strategy(case, name):
    bounded = bounded_out_of_orderness(timedelta(milliseconds=case["sources"][name]))
    timeout = case.get("idle", {}).get(name)
    return bounded if timeout is None else with_idleness(bounded, timedelta(milliseconds=timeout))


@cases
def test_the_pure_core_does_what_the_stream_expects(case):
    membership = Membership(1, len(case["sources"]))
    emitters = {
        name: Emitter(Identity(name, 1, membership), strategy(case, name).build(), partitions=1)
        for name in case["sources"]
    }
    tracker, buffer, late, now = Tracker({"t"}), Buffer(), 0, 0

    def tell(emitter):
        for partition, record in emitter.marks(now):
            tracker.apply(record, topic="t", partition=partition, log_time=0)

    for step in case["steps"]:
        if step.get("restart"):
            tracker = Tracker.restore(tracker.snapshot())
        now += step.get("wait", 0)
        emitter = emitters[the_source(case, step)]
        if step["events"] and emitter.status is Status.IDLE:
            emitter.mark_active()
            tell(emitter)
        for event in step["events"]:
            emitter.send(0, event, now).ack()
            # Late is late by the watermark, not by the window: a row may miss it and still find its window open.
            late += tracker.watermark is not None and event < tracker.watermark
            buffer.add(event, event)
        tell(emitter)
        tracker.advance()
        windows = buffer.windows(case.get("width", 1 << 50), tracker.watermark)
        found = [(start, len(rows)) for start, rows in windows.items()]
        assert (tracker.watermark, found, late) == expected(step)


@pytest.fixture
def sources(kafka):
    """Make the sources of a case, and a function that writes one step; their clock stands still but for `wait`."""
    made, clock = {}, ManualClock()

    def make(case, topic):
        for name in case["sources"]:
            made[name] = WatermarkedProducer(
                kafka.config,
                topic=topic,
                source=name,
                strategy=strategy(case, name),
                epoch=1,
                membership=Membership(1, len(case["sources"])),
                interval=timedelta(hours=1),
                clock=clock,
                background=False,
            )

    def step(name, times, wait=0):
        clock.advance(timedelta(milliseconds=wait))
        for time in times:
            made[name].produce(events.encode({"user": "u", "at": time}), event_time=time)
        made[name].flush()

    return make, step


@pytest.mark.kafka
@cases
def test_over_kafka(kafka, topic, sources, case):
    make, write_step = sources
    target = topic(1)
    make(case, target)
    width = timedelta(milliseconds=case.get("width", 1 << 45))

    def consumer(position=None):
        reads = lambda record: events.decode(record.value)["at"]  # noqa: E731
        return WatermarkedConsumer(kafka.config, [target], reads, position=position)

    reader, late, stored = consumer(), 0, []
    try:
        for step in case["steps"]:
            if step.get("restart"):
                late += reader.counts["late"]
                reader.close()
                reader = consumer(stored[-1] if stored else None)
            write_step(the_source(case, step), step["events"], step.get("wait", 0))
            windows, end = [], end_offsets(kafka.config, target)[0]

            def all_read(reader=reader, windows=windows, end=end):
                handed = reader.windows(width, 0.05)
                windows += [(window.start, len(window.rows)) for window in handed]
                stored.append(handed.position)
                return [read for _, _, _, read, _ in json.loads(handed.position.text)["partitions"]] == [end]

            until(all_read, f"reading to offset {end}")
            assert (reader.watermark, windows, late + reader.counts["late"]) == expected(step)
    finally:
        reader.close()


@pytest.mark.spark
@cases
def test_in_a_spark_job(spark, kafka, topic, sources, checkpoint, case):
    make, write_step = sources
    target = topic(1)
    make(case, target)
    out, batches = [], []

    def keep(frame, _):
        out.extend((row["start"], row["n"]) for row in frame.collect())

    def start():
        rows = read(spark, topics=target, value=avro(EVENT), event_time="at", bootstrap_servers=kafka.bootstrap_servers)
        windows = rows.groupBy(F.window("at", f"{case.get('width', 1 << 40)} milliseconds")).count()
        result = windows.select(F.unix_millis("window.start").alias("start"), F.col("count").alias("n"))
        job = write(
            result,
            writer=keep,
            job="conformance",
            checkpoint_location=checkpoint,
            options=WriteOptions(windows_close="at", on_batch=batches.append),
        )
        job.processAllAvailable(60)
        return job

    job = start()
    try:
        for step in case["steps"]:
            if step.get("restart"):
                job.stop()
                job = start()
            out.clear()
            write_step(the_source(case, step), step["events"], step.get("wait", 0))
            watermark, due, _ = expected(step)
            until(
                lambda job=job, watermark=watermark, due=due: (
                    fails(job) or (job.watermark == watermark and len(out) >= len(due))
                ),
                f"watermark {watermark} and windows {due}",
            )
            job.processAllAvailable(60)
            assert (job.watermark, sorted(out), job.counts["late"]) == expected(step)
    finally:
        job.stop()
