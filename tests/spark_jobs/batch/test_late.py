"""Late rows: every row is kept or counted, and with ``late=`` neither batches nor replays change which."""

import random
from collections import Counter
from dataclasses import replace
from json import loads

import pytest
from confluent_kafka import Consumer, Producer
from floodmark.producers import create_topics
from floodmark.producers.clients.admin import end_offsets
from floodmark.producers.testing import mark
from floodmark.schemas import Status, encode_watermark, mark_key
from floodmark.schemas.errors import InvalidOutputError, UsageError
from floodmark.spark_jobs import json, route, write
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.counting import WIDTH, counted, fails, read_events, windowed
from support.harness import drain, events, until, window_counts

pytestmark = pytest.mark.spark

_LIMIT = 150


def history(seed, partitions=2, steps=15):
    """Make up, for each partition, a log of rows (event times, each once) and marks; rows fall behind at times."""
    chance, logs, taken = random.Random(seed), [], {0}  # noqa: S311  # a repeatable stream
    for _ in range(partitions):
        watermark, sent = 10_000, 0
        log = [replace(mark("a", None, 0, partitions=partitions), records=0)]
        for sequence in range(1, steps + 1):
            for _ in range(chance.randrange(4)):
                least = -15_000 if chance.random() < 0.3 else 0
                time = chance.choice(sorted(set(range(max(1, watermark + least), watermark + 20_000)) - taken))
                taken.add(time)
                log.append(time)
                sent += 1
            watermark += chance.randrange(4_000)
            log.append(replace(mark("a", watermark, sequence, partitions=partitions), records=sent))
        log.append(replace(log[-1], sequence=steps + 1, status=Status.ENDED))
        logs.append(log)
    return logs


def judged(logs):
    """Give (event time, the partition's watermark before it) of each row."""
    for log in logs:
        watermark = 0
        for entry in log:
            if isinstance(entry, int):
                yield entry, watermark
            else:
                watermark = max(watermark, entry.watermark or 0)


def kept(logs):
    return [time for time, watermark in judged(logs) if time >= watermark]


def late(logs):
    return [(time, watermark) for time, watermark in judged(logs) if time < watermark]


def windows(times, width=WIDTH):
    return Counter((f"u{time % 5}", time // width * width + width) for time in times)


@pytest.fixture
def sent(kafka, topic):
    """Write a history to a topic of its own, or on to one."""

    def send(logs, target=None):
        target = target or topic(len(logs))
        producer = Producer(kafka.config)
        for partition, log in enumerate(logs):
            for entry in log:
                if isinstance(entry, int):
                    value = events.encode({"user": f"u{entry % 5}", "at": entry})
                    headers = [("trace", str(entry).encode()), ("trace", None)]
                    producer.produce(target, value=value, partition=partition, headers=headers)
                else:
                    value = encode_watermark(entry)
                    producer.produce(target, key=mark_key(entry.source), value=value, partition=partition)
        assert producer.flush(30) == 0
        return target

    return send


def run(rows, checkpoint):
    """Run to the end; return the job and what it wrote."""
    found = []
    job = write(
        rows,
        writer=lambda frame, _: found.extend(frame.collect()),
        job="late",
        checkpoint_location=checkpoint,
    )
    job.awaitTermination(_LIMIT)
    return job, found


def test_rows_behind_a_promise_are_counted_though_no_window_has_ended(spark, kafka, sent, checkpoint):
    """The promise lies between two ends of windows, so that Spark is not even told of it."""
    target = sent([[mark("a", 12_335, 0, records=0)]])
    rows = windowed(read_events(spark, kafka.bootstrap_servers, target), 1 << 40)
    job = write(rows, writer=lambda _frame, _: None, job="between", checkpoint_location=checkpoint)
    job.processAllAvailable(_LIMIT)
    sent([[12_300, 12_340, 12_280, mark("a", 12_335, 1, status=Status.ENDED, records=3)]], target)
    job.awaitTermination(_LIMIT)
    assert job.counts["late"] == 2


@pytest.mark.parametrize("batch", [1000, 9])
def test_what_is_dropped_does_not_depend_on_the_batches(spark, kafka, sent, checkpoint, batch):
    logs = history(seed=batch)
    rows = read_events(spark, kafka.bootstrap_servers, sent(logs), max_offsets_per_trigger=batch, late="drop")
    job, found = run(windowed(rows), checkpoint)
    assert len(late(logs)) >= 3
    assert Counter({(row["user"], round(row["ended"].timestamp() * 1000)): row["n"] for row in found}) == windows(
        kept(logs)
    )
    assert job.counts["late"] == len(late(logs))
    assert [job.counts[name] for name in ("lost", "surplus")] == [0, 0]


def test_adjusted_rows_count_at_the_watermark_they_were_behind(spark, kafka, sent, checkpoint):
    logs = history(seed=3)
    options = {"late": "adjust", "adjusted": "counts_at", "max_offsets_per_trigger": 20}
    rows = read_events(spark, kafka.bootstrap_servers, sent(logs), **options).withColumn(
        "was_adjusted", F.expr("counts_at != at")
    )
    times = [F.unix_millis(name).alias(name) for name in ("at", "counts_at")]
    job, found = run(rows.select("user", "was_adjusted", *times), checkpoint)
    assert Counter(row["counts_at"] for row in found) == Counter(max(entry) for entry in judged(logs))
    adjusted = Counter((row["at"], row["counts_at"]) for row in found if row["was_adjusted"])
    assert adjusted == Counter(late(logs)), "a reader tells which rows were adjusted"
    assert job.counts["late"] == len(late(logs))


@pytest.mark.parametrize("delivery", ["exactly-once", "exactly-once-executors", "at-least-once"])
def test_late_rows_go_to_their_topic_with_the_reason(spark, kafka, topic, sent, checkpoint, delivery):
    logs, out, aside = history(seed=4), topic(1), topic(2)
    given = sent(logs)
    rows = read_events(spark, kafka.bootstrap_servers, given, max_offsets_per_trigger=20, late=route(aside))
    job = counted(windowed(rows), out, checkpoint, delivery=delivery)
    job.awaitTermination(_LIMIT)
    assert window_counts(drain(kafka.config, out)[0]) == windows(kept(logs))
    assert job.counts["late"] == len(late(logs))
    routed = records(kafka.config, aside)
    assert Counter(
        (events.decode(value)["at"], int(dict(headers)["floodmark-late-watermark"])) for value, headers in routed
    ) == Counter(late(logs))
    for value, sent_with in routed:
        assert sent_with[:2] == [("trace", str(events.decode(value)["at"]).encode()), ("trace", None)], (
            "its own headers"
        )
        headers = dict(sent_with[2:])
        behind = int(headers["floodmark-late-watermark"]) - int(headers["floodmark-late-by"])
        assert behind == events.decode(value)["at"]
        assert headers["floodmark-late-reason"] == b"partition"
        assert headers["floodmark-late-from"].decode().startswith(f"{given}/")


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_late_row_that_kafka_rejects_fails_the_job(spark, kafka, topic, sent, checkpoint, delivery):
    out, aside = topic(1), f"small-{delivery}"
    create_topics(kafka.config, {aside: 1}, {"max.message.bytes": "100"})
    rows = read_events(spark, kafka.bootstrap_servers, sent(history(seed=4)), late=route(aside))
    job = counted(windowed(rows), out, checkpoint, delivery=delivery)
    with pytest.raises(
        InvalidOutputError, match=r"output row\(s\) of batch 0 have been rejected by Kafka: .*too large"
    ):
        job.awaitTermination(_LIMIT)


def records(config, target):
    """Read all records of a topic; returns values and headers."""
    ends, found = end_offsets(config, target), []
    consumer = Consumer({**config, "group.id": "late", "auto.offset.reset": "earliest"})
    consumer.subscribe([target])

    def read_all():
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append((message.value(), message.headers()))
        places = consumer.position(consumer.assignment())
        return len(places) == len(ends) and all(
            ends[place.partition] == 0 or place.offset >= ends[place.partition] for place in places
        )

    until(read_all, f"the end of {target}")
    consumer.close()
    return found


@pytest.mark.parametrize("policy", ["adjust", "a topic"])
def test_what_is_late_does_not_depend_on_stops(spark, kafka, topic, sent, checkpoint, policy):
    logs, out, aside = history(seed=6), topic(1), topic(1)
    given = sent(logs)
    for stops in (1, 4, None):
        batches = []
        late_ = route(aside) if policy == "a topic" else policy
        rows = read_events(spark, kafka.bootstrap_servers, given, max_offsets_per_trigger=9, late=late_)
        job = counted(windowed(rows), out, checkpoint, on_batch=batches.append)
        until(lambda: fails(job) or job.ended or (stops and len(batches) >= stops), "some batches", _LIMIT)  # noqa: B023
        job.stop()
    times = [max(entry) for entry in judged(logs)] if policy == "adjust" else kept(logs)
    users = [time % 5 for time, watermark in judged(logs) if policy == "adjust" or time >= watermark]
    expected = Counter((f"u{user}", time // WIDTH * WIDTH + WIDTH) for user, time in zip(users, times, strict=True))
    assert window_counts(drain(kafka.config, out)[0]) == expected
    assert job.counts["late"] == len(late(logs))
    if policy == "a topic":
        routed = Counter(events.decode(value)["at"] for value, _ in records(kafka.config, aside))
        assert routed == Counter(time for time, _ in late(logs))


@pytest.mark.parametrize("batch", [1000, 9])
def test_without_a_policy_every_row_is_kept_or_counted(spark, kafka, sent, checkpoint, batch):
    """What operators on raw times drop is what is counted; where that begins depends on the batches."""
    logs = history(seed=5)
    rows = read_events(spark, kafka.bootstrap_servers, sent(logs), max_offsets_per_trigger=batch)
    job, found = run(rows.dropDuplicates(["user", "at"]), checkpoint)
    assert len(found) + job.counts["late"] == len(list(judged(logs)))
    assert (job.counts["late"] > 0) == (batch < 1000)


def test_a_topic_for_late_rows_must_be_usable(spark, kafka, topic, checkpoint):
    given = topic(1)
    with pytest.raises(UsageError, match="needs topic="):
        run(read_events(spark, kafka.bootstrap_servers, given, late=route("aside")), checkpoint)
    with pytest.raises(UsageError, match="their own topic"):
        counted(windowed(read_events(spark, kafka.bootstrap_servers, given, late=route(given))), topic(1), checkpoint)
    for slip in (given, "Drop", route(7), 5):
        with pytest.raises(UsageError, match=r"expected 'drop', 'adjust' or route\('a-topic'\)"):
            read_events(spark, kafka.bootstrap_servers, given, late=slip)
    with pytest.raises(UsageError, match="minPartitions"):
        read_events(spark, kafka.bootstrap_servers, given, late="drop", source_options={"minPartitions": "4"})


@pytest.mark.every_spark
@pytest.mark.parametrize("drops", [False, True], ids=["kept", "dropped"])
@pytest.mark.parametrize("operator", ["join with a table", "sorted join with a table", "repartition"])
def test_a_late_row_before_a_shuffle_without_state_is_judged_as_any_other(
    spark, kafka, source, rows, topic, checkpoint, operator, drops
):
    """Adaptive execution, which newer Sparks use for such queries, would read rows before the handler runs."""
    source.send(30_000)
    source.mark(20_000)
    found = rows(**({"late": "drop"} if drops else {}))
    table = spark.createDataFrame([("k",)], "k STRING")
    table = table.hint("merge" if operator.startswith("sorted") else "broadcast")
    found = found.repartition(2, "k") if operator == "repartition" else found.join(table, "k", "left")
    found = found.select("at", F.unix_millis("at").alias("n"))
    out = topic(1)
    job = write(
        found, topic=out, value=json("at TIMESTAMP, n BIGINT"), event_time="at", job="x", checkpoint_location=checkpoint
    )
    job.processAllAvailable(_LIMIT)
    source.send(10_000, 31_000)
    source.mark(30_000)
    job.processAllAvailable(_LIMIT)
    source.send(29_000)
    source.end()
    job.awaitTermination(_LIMIT)
    assert job.counts["late"] == 2
    times = sorted(loads(value)["n"] for value in drain(kafka.config, out)[0])
    assert times == ([30_000, 31_000] if drops else [10_000, 29_000, 30_000, 31_000])
