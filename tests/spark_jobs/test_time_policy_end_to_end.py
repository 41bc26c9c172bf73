"""The golden table through Kafka, the injector and a Spark window job, all three variants; and substreams per key."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from confluent_kafka import Producer
from conformance.golden import POLICIES, clock, golden
from floodmark.producers import TimePolicy
from floodmark.producers.event_times.formats import JsonField, substream_json, substream_key
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.injector import Injector
from floodmark.schemas.errors import JobFailedError, UsageError
from floodmark.spark_jobs import ReadOptions, event_time, read, windows_per_key, write
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

pytestmark = pytest.mark.spark
WIDTH = 5 * 60_000
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def produce(kafka, topic, events, **where):
    producer = Producer(kafka.config)
    for time, arrival, device in events:
        value = b'{"at": %d, "device": "%s"}' % (time, device.encode())
        producer.produce(topic, value, device, timestamp=arrival, **where)
    assert producer.flush(30) == 0


def inject(kafka, raw, marked, policy, *, substream_by=None, end=True):
    with Injector(Injection(raw, marked, JsonField("at"), policy, substream_by=substream_by), kafka.config) as injector:
        injector.run(until_end=True)
        if end:
            injector.end()
        return injector.metrics()


@pytest.fixture
def source(spark, kafka):
    def reader(topic, *, event_time="at", shift=timedelta(0), **options):
        # JSON numbers are seconds for Spark; the time that counts comes from the header or the milliseconds field.
        value = lambda raw: F.struct(  # noqa: E731
            F.timestamp_millis(F.get_json_object(raw.cast("string"), "$.at").cast("long")).alias("at"),
            F.get_json_object(raw.cast("string"), "$.device").alias("device"),
        )
        return read(
            spark,
            topics=topic,
            value=value,
            event_time=event_time,
            bootstrap_servers=kafka.bootstrap_servers,
            shift=shift,
            options=ReadOptions(**options),
        )

    return reader


@pytest.fixture
def rocksdb(spark):
    spark.conf.set(PROVIDER, ROCKSDB)
    yield
    spark.conf.unset(PROVIDER)


def dropping():
    """Return the golden table where late and out-of-order events are dropped, not adjusted."""
    return [replace(event, expected=event.time if event.expected == event.time else None) for event in golden("policy")]


@pytest.mark.parametrize("variant", ["policy", "without_early", "drop"])
def test_the_golden_table_in_a_window_job(kafka, topic, source, checkpoint, variant):
    raw, marked = topic(1), topic(1)
    events = dropping() if variant == "drop" else golden(variant)
    produce(kafka, raw, [(event.time, event.arrival, event.device) for event in events])
    policies = {**POLICIES, "drop": replace(POLICIES["policy"], on_late="drop", on_out_of_order="drop")}
    counted = inject(kafka, raw, marked, policies[variant])
    assert counted.dropped == sum(event.expected is None for event in events)
    if variant != "without_early":
        assert (counted.early_events, counted.late_events, counted.out_of_order_events) == (1, 1, 2)
    rows = source(marked, adjusted="counts_at")
    windows = rows.groupBy(F.window("counts_at", "5 minutes")).agg(
        F.count("device").alias("n"),
        F.sum(F.unix_millis("at")).alias("untouched"),
        F.count_if(F.col("counts_at") != F.col("at")).alias("adjusted"),
    )
    out = []
    job = write(
        windows.select(F.unix_millis("window.end").alias("end"), "n", "untouched", "adjusted"),
        writer=lambda frame, _: out.extend(map(tuple, frame.collect())),
        job="golden",
        checkpoint_location=checkpoint,
    )
    job.awaitTermination(120)
    passed = [event for event in events if event.expected is not None]
    expected = Counter(event.expected // WIDTH * WIDTH + WIDTH for event in passed)
    own = Counter()
    for event in passed:
        own[event.expected // WIDTH * WIDTH + WIDTH] += event.time
    assert {end: n for end, n, _, _ in out} == dict(expected)
    assert {end: total for end, _, total, _ in out} == dict(own), "the field of the event is untouched"
    assert sum(adjusted for *_, adjusted in out) == sum(event.expected != event.time for event in passed)
    assert job.counts["late"] == 0


def per_key(source, marked, **shifted):
    rows = source(marked, adjusted="counts_at", substream="key_watermark", **shifted)
    return windows_per_key(
        rows,
        key="device",
        event_time="counts_at",
        substream="key_watermark",
        width=timedelta(milliseconds=WIDTH),
        # Defined here, so that it travels by value: the workers cannot import this module.
        aggregate=lambda window: {"n": len(window), "first": min(row["at"] for row in window)},
        schema="n BIGINT, first STRING",
    )


@pytest.mark.newest_spark
def test_the_golden_table_with_substreams(kafka, topic, source, checkpoint, rocksdb):
    raw, marked = topic(1), topic(1)
    events = golden("substreams")
    produce(kafka, raw, [(event.time, event.arrival, event.device) for event in events])
    inject(kafka, raw, marked, POLICIES["substreams"], substream_by=substream_json("device"))
    out = []
    job = write(
        per_key(source, marked).select("device", F.unix_millis("window_end"), "n"),
        writer=lambda frame, _: out.extend(map(tuple, frame.collect())),
        job="golden-substreams",
        checkpoint_location=checkpoint,
    )
    job.awaitTermination(120)
    expected = Counter(
        (event.device, event.expected // WIDTH * WIDTH + WIDTH) for event in events if event.expected is not None
    )
    assert len(out) == len(expected)
    assert {(device, end): n for device, end, n in out} == dict(expected)
    assert job.counts["late"] == 0
    states = [state["numRowsTotal"] for run in job.query.recentProgress for state in run["stateOperators"]]
    assert states[-1] == 0, "keys that are complete leave no state"


def test_a_key_that_is_on_time_does_not_wait_for_a_slow_one(kafka, topic, source, checkpoint, rocksdb):
    """One watermark for all would hold every window until the late tolerance has passed."""
    raw, marked = topic(1), topic(1)
    noon = clock("12:00")
    minutes = lambda n: noon + n * 60_000  # noqa: E731
    produce(
        kafka,
        raw,
        [
            (minutes(1), minutes(1), "fast"),
            (minutes(1) - 50 * 60_000, minutes(2), "slow"),
            (minutes(3), minutes(3), "fast"),
            (minutes(6), minutes(6), "fast"),
        ],
    )
    inject(kafka, raw, marked, TimePolicy(late=timedelta(hours=1)), substream_by=substream_key, end=False)
    out = []
    job = write(
        per_key(source, marked).select("device", F.unix_millis("window_end"), "n"),
        writer=lambda frame, _: out.extend(map(tuple, frame.collect())),
        job="skew",
        checkpoint_location=checkpoint,
    )
    try:
        job.processAllAvailable(90)
        assert job.watermark < minutes(-50), "the promise for all keys is an hour behind"
        assert out == [("fast", minutes(5), 2)]
    finally:
        job.stop()


def test_a_key_in_two_partitions_loses_no_row_in_silence(kafka, topic, source, checkpoint, rocksdb):
    """Each partition says how complete its own records of a key are, and knows nothing of the other one."""
    raw, marked = topic(2), topic(2)
    at = lambda minutes: clock("12:00") + minutes * 60_000  # noqa: E731
    policy = TimePolicy(late=timedelta(hours=1))
    produce(kafka, raw, [(at(1), at(1), "other")], partition=0)
    produce(kafka, raw, [(at(1), at(1), "d"), (at(6), at(6), "d")], partition=1)
    inject(kafka, raw, marked, policy, substream_by=substream_json("device"), end=False)
    job = write(
        per_key(source, marked).select("device", F.unix_millis("window_end"), "n"),
        writer=lambda _frame, _: None,
        job="spread",
        checkpoint_location=checkpoint,
    )
    job.processAllAvailable(90)
    produce(kafka, raw, [(at(2), at(7), "d")], partition=0)
    inject(kafka, raw, marked, policy, substream_by=substream_json("device"))
    with pytest.raises(JobFailedError, match=r"'d'.*12:02:00.*12:06:00.*one partition"):
        job.awaitTermination(90)


def test_a_key_waits_for_rows_that_are_shifted(kafka, topic, source, checkpoint, rocksdb):
    raw, marked = topic(1), topic(1)
    at = lambda minutes: clock("12:00") + minutes * 60_000  # noqa: E731
    policy = TimePolicy(late=timedelta(hours=1))
    produce(kafka, raw, [(at(6), at(6), "d")])
    inject(kafka, raw, marked, policy, substream_by=substream_key, end=False)
    rows = per_key(source, marked, event_time="date_trunc('hour', at)", shift=timedelta(hours=1))
    out = []
    job = write(
        rows.select(F.unix_millis("window_end"), "n"),
        writer=lambda frame, _: out.extend(map(tuple, frame.collect())),
        job="shifted",
        checkpoint_location=checkpoint,
    )
    job.processAllAvailable(90)
    produce(kafka, raw, [(at(7), at(7), "d")])
    inject(kafka, raw, marked, policy, substream_by=substream_key)
    job.awaitTermination(90)
    assert out == [(at(5), 2)]


def test_without_rocksdb_it_says_what_to_set(kafka, topic, source):
    with pytest.raises(UsageError, match="RocksDB"):
        per_key(source, topic(1))


def test_a_time_that_is_shifted_after_read_is_refused_since_the_watermark_of_a_key_does_not_follow(
    topic, source, rocksdb
):
    rows = source(topic(1), substream="key_watermark").withColumn("hour", F.date_trunc("hour", "at"))
    shifted, usual = event_time(rows, "hour", shift=timedelta(hours=1)), timedelta(hours=1)
    with pytest.raises(UsageError, match=r"windows_per_key\(\): .*a key does not follow event_time\(.*read\(shift=\)"):
        windows_per_key(
            shifted,
            key="device",
            event_time="hour",
            substream="key_watermark",
            width=usual,
            aggregate=len,
            schema="n INT",
        )
