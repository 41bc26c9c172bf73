"""Kafka's timestamp as the event time: of ingress(), and of an injector that takes the time of arrival."""

from collections import Counter
from datetime import timedelta

import pytest
from confluent_kafka import Producer
from floodmark.producers import TimePolicy, WatermarkedConsumer, WatermarkedProducer, ingress
from floodmark.producers.event_times.formats import LogTime
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.event_times.time_policy import Outcome
from floodmark.producers.injector.injector import Injector
from floodmark.producers.testing import ManualClock
from floodmark.schemas.classify import Data
from floodmark.schemas.records import TIME_HEADER
from floodmark.spark_jobs import formats, kafka_timestamp, read
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.harness import records_by_partition, until
from support.json_source import LIMIT, keep

pytestmark = pytest.mark.spark
WIDTH = 1_000


@pytest.fixture
def windows(spark, kafka):
    def counts(topic):
        rows = read(
            spark,
            topics=topic,
            value=formats.json("k STRING"),
            event_time=kafka_timestamp(),
            bootstrap_servers=kafka.bootstrap_servers,
        )
        assert rows.columns == ["k", "kafka_timestamp"]
        grouped = rows.groupBy(F.window("kafka_timestamp", "1 second")).agg(F.count("*").alias("n"))
        return grouped.select(F.unix_millis("window.end").alias("end"), "n")

    return counts


def counted(kafka, topic):
    """Count the data records of a topic in windows of the time that counts."""
    found = Counter()
    for records in records_by_partition(kafka.config, topic).values():
        for record in records:
            if isinstance(record, Data):
                time = int(dict(record.headers or ()).get(TIME_HEADER, record.log_time))
                found[time // WIDTH * WIDTH + WIDTH] += 1
    return found


def test_the_time_of_arrival_drives_windows_over_a_restart(kafka, topic, windows, checkpoint):
    name, clock = topic(2), ManualClock(wall=1_000_000)
    given = {"topic": name, "source": "door", "strategy": ingress(), "clock": clock}
    out = []
    with WatermarkedProducer(kafka.config, interval=timedelta(milliseconds=200), **given) as door:

        def arrive(events):
            for n in range(events):
                door.produce(b'{"k": "%d"}' % n, key=str(n))
                clock.advance(timedelta(milliseconds=70))
                door.poll()
            door.flush()

        arrive(60)
        job, kept = keep(windows(name), checkpoint)
        until(lambda: len(kept) >= 3, "the first windows")
        job.stop()
        out += kept
        arrive(60)
        door.end()
    job, kept = keep(windows(name), checkpoint)
    job.awaitTermination(LIMIT)
    out += kept
    assert len(out) == len(dict(out)), "each window comes once"
    assert dict(out) == counted(kafka, name)
    assert sum(dict(out).values()) == 120
    assert not job.counts["late"]
    assert not job.counts["lost"]


def test_arrival_through_the_injector_ignores_what_compares_a_time_with_arrival(kafka, topic, windows, checkpoint):
    """No event is early or late by its own arrival; out of order it can be."""
    raw, marked = topic(2), topic(2)
    producer = Producer(kafka.config)
    for n in range(40):
        arrival = 1_000_000 + n * 150 - (n % 5 == 4) * 900
        producer.produce(raw, b'{"k": "%d"}' % n, partition=n % 2, timestamp=arrival)
    assert producer.flush(30) == 0
    policy = TimePolicy(early=timedelta(0), late=timedelta(0), out_of_order=timedelta(milliseconds=500))
    with Injector(Injection(raw, marked, LogTime(), policy), kafka.config) as injector:
        injector.run(until_end=True)
        assert set(injector.outcomes) <= {Outcome.ON_TIME, Outcome.OUT_OF_ORDER_ADJUSTED}
        assert injector.outcomes[Outcome.OUT_OF_ORDER_ADJUSTED] > 0
        injector.end()
    job, kept = keep(windows(marked), checkpoint)
    job.awaitTermination(LIMIT)
    assert dict(kept) == counted(kafka, marked)
    assert sum(dict(kept).values()) == 40
    assert not job.counts["late"]
    with WatermarkedConsumer(kafka.config, [marked], event_time=lambda record: record.log_time) as consumer:
        found = {}
        while not consumer.ended:
            found |= {window.end: len(window.rows) for window in consumer.windows(timedelta(milliseconds=WIDTH))}
    assert found == dict(kept)
