"""A Spark job on a real broker: exact results, one scan, clear errors."""

import json
import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from floodmark.producers import WatermarkedProducer, ascending, explicit
from floodmark.producers.clients.admin import end_offsets
from floodmark.producers.testing import mark
from floodmark.schemas import END_OF_TIME, Membership, encode_watermark, mark_key
from floodmark.schemas.errors import (
    BrokerUnavailableError,
    CorruptSnapshotError,
    DeadlineError,
    ForeignCheckpointError,
    InvalidOutputError,
    JobFailedError,
    MissingSnapshotError,
    PromiseBrokenError,
    UnknownTopicError,
    UsageError,
)
from floodmark.spark_jobs import ExactlyOnceWriter, WriteOptions, delta, formats, local_session, write
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.counting import WIDTH, counted, fails, read_events, windowed
from support.harness import Stream, counts, drain, events, until, window_counts
from support.injection import until_readable

pytestmark = pytest.mark.spark

_LIMIT = 120


@pytest.fixture
def source(spark, kafka):
    """Read topics of `harness.EVENT`."""

    def reader(*topics, **options):
        servers = options.pop("bootstrap_servers", kafka.bootstrap_servers)
        return read_events(spark, servers, *topics, **options)

    return reader


def at(milliseconds):
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


@pytest.mark.every_spark
def test_windows_equal_a_batch_computation_and_each_record_is_read_once(kafka, topic, source, checkpoint):
    given, out = topic(3), topic(2)
    stream = Stream.seeded(1, sources=3)
    stream.produce(kafka.config, given)
    batches = []
    job = counted(windowed(source(given, max_offsets_per_trigger=150)), out, checkpoint, on_batch=batches.append)
    job.awaitTermination(_LIMIT)
    values, _ = drain(kafka.config, out)
    _, observer = drain(kafka.config, given)
    assert window_counts(values) == stream.windows(WIDTH)
    assert len(values) == len(stream.windows(WIDTH))
    assert job.counts["late"] == 0
    assert sum(progress["numInputRows"] for progress in job.query.recentProgress) == sum(
        observer.counts[given].values()
    )
    assert len({batch.output for batch in batches}) > 3
    assert [b.output for b in batches if b.output] == sorted(b.output for b in batches if b.output)


def test_a_frame_used_twice_is_one_reading(kafka, topic, source, checkpoint):
    """A self-union and a self-join: Spark reads the topic once for both uses, and nothing is counted twice."""
    given, out = topic(2), topic(1)
    stream = Stream.seeded(16, steps=6)
    stream.produce(kafka.config, given)
    rows = source(given, max_offsets_per_trigger=150)
    other = rows.select(F.col("user").alias("name"), F.col("at").alias("then"))
    paired = rows.join(other, F.expr("user = name and at = then")).select("user", "at")
    job = counted(windowed(rows.union(rows).union(paired)), out, checkpoint)
    job.awaitTermination(_LIMIT)
    times = Counter(time_ for script in stream.steps.values() for times, _ in script for time_ in times)
    expected = Counter[tuple[str, int]]()
    for time_, count in times.items():
        expected[f"u{time_ % 5}", time_ // WIDTH * WIDTH + WIDTH] += 2 * count + count**2
    assert window_counts(drain(kafka.config, out)[0]) == expected
    assert job.counts["records"] - job.counts["marks"] == stream.size
    assert [job.counts[name] for name in ("late", "lost", "surplus")] == [0, 0, 0]
    assert job.counts.get("replayed", 0) == 0


def test_no_window_comes_behind_the_mark_that_completes_it(kafka, topic, source, checkpoint):
    given, out = topic(2), topic(2)
    Stream.seeded(2).produce(kafka.config, given)
    counted(windowed(source(given, max_offsets_per_trigger=100)), out, checkpoint).awaitTermination(_LIMIT)
    from floodmark.producers import Data, Mark, Observer  # noqa: PLC0415

    with Observer(kafka.config, [out]) as observer:
        watermark, moved = {}, 0
        tracker = observer.trackers[out]
        deadline = time.monotonic() + 30
        while not tracker.ended:
            assert time.monotonic() < deadline
            for record in observer.poll():
                before = watermark.get(record.partition)
                if isinstance(record, Data):
                    assert before is None or counts.decode(record.value)["ended"] >= before
                elif isinstance(record, Mark) and record.record.watermark is not None:
                    moved += 1
                    watermark[record.partition] = record.record.watermark
                    assert record.record.holder is None or record.record.holder.topic == given
            tracker.advance()
    assert moved > 5


@pytest.mark.parametrize(
    ("windows_close", "watermark", "closed"),
    [
        ("after", WIDTH - 1, False),
        ("after", WIDTH, False),
        ("after", WIDTH + 1, True),
        ("at", WIDTH - 1, False),
        ("at", WIDTH, True),
        ("at", WIDTH + 1, True),
    ],
)
def test_when_a_window_closes(kafka, topic, source, checkpoint, windows_close, watermark, closed):
    given, out = topic(1), topic(1)
    upstream = WatermarkedProducer(kafka.config, topic=given, source="a", strategy=explicit(), background=False)
    upstream.produce(events.encode({"user": "u", "at": 5}), event_time=5)
    upstream.advance(watermark)
    upstream.flush()
    rows = []
    job = counted(
        windowed(source(given)), out, checkpoint, windows_close=windows_close, on_batch=lambda b: rows.append(b.rows)
    )
    job.processAllAvailable(_LIMIT)
    until(lambda: job.watermark == watermark, "the watermark")
    job.processAllAvailable(_LIMIT)
    job.stop()
    assert sum(rows) == int(closed)


@pytest.mark.parametrize(("windows_close", "kept"), [("after", 1), ("at", 0)])
def test_a_row_at_exactly_the_watermark_is_no_late_row_by_default(
    kafka, topic, source, checkpoint, windows_close, kept
):
    """DropDuplicates works on raw event times: Spark's own filter drops a row at exactly its watermark."""
    given, out = topic(1), topic(1)
    upstream = WatermarkedProducer(kafka.config, topic=given, source="a", strategy=explicit(), background=False)
    upstream.advance(1_000)
    upstream.flush()
    unique = (
        source(given).dropDuplicates(["user", "at"]).select("user", F.col("at").alias("ended"), F.lit(1).alias("n"))
    )
    job = counted(unique.withColumn("n", F.col("n").cast("long")), out, checkpoint, windows_close=windows_close)
    job.processAllAvailable(_LIMIT)
    until(lambda: job.watermark == 1_000, "the watermark")
    upstream.produce(events.encode({"user": "u", "at": 1_000}), event_time=1_000)
    upstream.end()
    job.awaitTermination(_LIMIT)
    assert len(drain(kafka.config, out)[0]) == kept
    assert job.counts["late"] == 0


def test_two_topics_wait_for_the_slower_one(kafka, topic, source, checkpoint):
    left, right, out = topic(2), topic(1), topic(1)
    one, two = Stream.seeded(3, sources=1), Stream.seeded(4, sources=2, steps=6)
    one.produce(kafka.config, left)
    two.produce(kafka.config, right, end=False)
    union = source(left).unionByName(source(right))
    job = counted(windowed(union), out, checkpoint)
    slower = min(script[-1][1] for script in two.steps.values())
    until(lambda: fails(job) or job.watermark == slower, "the watermark of the slower one")
    job.processAllAvailable(_LIMIT)
    with pytest.raises(DeadlineError, match=right):
        job.awaitTermination(1)
    assert {hold.holder.topic for hold in job.holders()} == {right}
    assert job.watermark == slower
    membership = Membership(version=1, size=2)
    for name in two.steps:
        WatermarkedProducer(
            kafka.config, topic=right, source=name, strategy=explicit(), membership=membership, background=False
        ).end()
    job.awaitTermination(_LIMIT)
    total = Counter(one.windows(WIDTH))
    total.update(two.windows(WIDTH))
    assert window_counts(drain(kafka.config, out)[0]) == total


def test_late_rows_are_counted_exactly(kafka, topic, source, checkpoint):
    given, out = topic(1), topic(1)
    upstream = WatermarkedProducer(kafka.config, topic=given, source="a", strategy=ascending(), background=False)
    for event_time in (5_000, 25_000):
        upstream.produce(events.encode({"user": "u", "at": event_time}), event_time=event_time)
        upstream.flush()
    job = counted(windowed(source(given)), out, checkpoint)
    until(lambda: job.watermark == 25_000, "the watermark")
    job.processAllAvailable(_LIMIT)
    for event_time in (24_999, 6_000, 25_000, 7_000):
        upstream.produce(events.encode({"user": "u", "at": event_time}), event_time=event_time)
    upstream.end()
    job.awaitTermination(_LIMIT)
    assert job.counts["late"] == 3
    found = window_counts(drain(kafka.config, out)[0])
    assert found == {("u", 10_000): 1, ("u", 30_000): 3}  # 24,999 was late, but its window was open


def test_what_cannot_be_read_is_skipped_and_counted(kafka, topic, source, checkpoint):
    given, out = topic(1), topic(1)
    upstream = WatermarkedProducer(kafka.config, topic=given, source="a", strategy=ascending(), background=False)
    upstream.produce(events.encode({"user": "u", "at": 5}), event_time=5)
    upstream.produce(b"garbage", event_time=6)
    upstream.produce(counts.encode({"user": "u", "ended": 1, "n": 1}), event_time=6)
    upstream.produce(events.encode({"user": "u", "at": None}), event_time=6)
    upstream.produce(None, event_time=6, key="u")
    plain = Producer(kafka.config)
    plain.produce(given, key=mark_key("a"), value=b"garbage")
    plain.produce(given, key=mark_key("b"), value=encode_watermark(mark("c", END_OF_TIME)))
    plain.flush(30)
    upstream.end()
    job = counted(windowed(source(given)), out, checkpoint)
    job.awaitTermination(_LIMIT)
    seen = {
        name: job.counts[name]
        for name in ("unreadable", "missing_event_time", "tombstones", "unreadable_marks", "late")
    }
    assert seen == {"unreadable": 2, "missing_event_time": 1, "tombstones": 1, "unreadable_marks": 2, "late": 0}
    assert window_counts(drain(kafka.config, out)[0]) == {("u", WIDTH): 1}


@pytest.mark.newest_spark
def test_a_job_without_state_hands_the_watermark_on_at_once(kafka, topic, source, checkpoint):
    given, out = topic(2), topic(1)
    stream = Stream.seeded(5)
    stream.produce(kafka.config, given)
    mapped = source(given).select("user", F.col("at").alias("ended"), F.lit(1).cast("long").alias("n"))
    job = counted(mapped, out, checkpoint)
    job.awaitTermination(_LIMIT)
    assert len(drain(kafka.config, out)[0]) == stream.size


def test_new_partitions_of_input_and_output_are_taken_in(kafka, topic, source, checkpoint):
    given, out = topic(1), topic(1)
    upstream = WatermarkedProducer(kafka.config, topic=given, source="a", strategy=ascending(), background=False)
    upstream.produce(events.encode({"user": "u", "at": 5_000}), event_time=5_000)
    upstream.flush()
    options = {"kafka.metadata.max.age.ms": "1000"}
    job = counted(windowed(source(given, source_options=options)), out, checkpoint)
    until(lambda: job.watermark == 5_000, "the first watermark")
    admin = AdminClient(kafka.config)
    for future in admin.create_partitions([NewPartitions(given, 3), NewPartitions(out, 2)]).values():
        future.result(30)
    until(lambda: len(admin.list_topics(given).topics[given].partitions) == 3, "growth")
    until(lambda: len(admin.list_topics(out).topics[out].partitions) == 2, "growth")
    upstream.flush()
    for number in range(30):
        event_time = 6_000 + number * 1_000
        value = events.encode({"user": f"u{number}", "at": event_time})
        upstream.produce(value, event_time=event_time, partition=number % 3)
    upstream.end()
    job.awaitTermination(_LIMIT)
    values, observer = drain(kafka.config, out)
    assert sum(window_counts(values).values()) == 31
    assert job.counts["late"] == 0
    assert observer.trackers[out].snapshot()["topics"][out]["partition_count"] == 2


def test_a_function_takes_batches_and_at_least_once_writes_them(kafka, topic, source, tmp_path):
    given, out = topic(2), topic(2)
    stream = Stream.seeded(6)
    stream.produce(kafka.config, given)
    taken = []

    def keep(frame, batch_id):
        taken.extend(frame.collect())

    first = write(windowed(source(given)), writer=keep, job="keeper", checkpoint_location=str(tmp_path / "function"))
    first.awaitTermination(_LIMIT)
    assert sum(row.n for row in taken) == stream.size
    second = counted(windowed(source(given)), out, str(tmp_path / "fast"), delivery="at-least-once")
    second.awaitTermination(_LIMIT)
    assert window_counts(drain(kafka.config, out)[0]) == stream.windows(WIDTH)


def test_json_values_work_the_same(kafka, topic, source, checkpoint):
    given, out = topic(1), topic(1)
    upstream = WatermarkedProducer(kafka.config, topic=given, source="a", strategy=ascending(), background=False)
    for user in ("u", "v"):
        upstream.produce(json.dumps({"user": user, "at": "1970-01-01T00:00:05Z"}).encode(), event_time=5_000)
    upstream.produce(b"{", event_time=5_000)
    upstream.end()
    rows = source(given, value=formats.json("user STRING, at TIMESTAMP"))
    job = counted(windowed(rows), out, checkpoint, value=formats.json("user STRING, ended TIMESTAMP, n LONG"))
    job.awaitTermination(_LIMIT)
    found = sorted(drain(kafka.config, out)[0])
    assert [json.loads(value)["user"] for value in found] == ["u", "v"]


def test_results_stamped_too_early_fail_before_anything_is_written(kafka, topic, source, checkpoint):
    """Windows stamped with their start come behind a watermark with no hold: the next stage would lose them."""
    given, out = topic(1), topic(1)
    Stream.seeded(8, sources=1).produce(kafka.config, given)
    grouped = source(given, max_offsets_per_trigger=60).groupBy("user", F.window("at", f"{WIDTH} milliseconds")).count()
    started = grouped.select("user", F.col("window.start").alias("ended"), F.col("count").alias("n"))
    job = counted(started, out, checkpoint, watermark_hold=timedelta(0))
    with pytest.raises(PromiseBrokenError, match="hold="):
        job.awaitTermination(_LIMIT)


@pytest.mark.parametrize("stamp", ["window.start", "earliest", "latest"])
def test_early_stamps_hold_the_watermark(kafka, topic, source, checkpoint, stamp):
    """No element of a window is earlier than its start, whichever is chosen."""
    given, out = topic(1), topic(1)
    stream = Stream.seeded(8, sources=1)
    stream.produce(kafka.config, given)
    rows = source(given, max_offsets_per_trigger=60).groupBy("user", F.window("at", f"{WIDTH} milliseconds"))
    grouped = rows.agg(F.count("*").alias("n"), F.min("at").alias("earliest"), F.max("at").alias("latest"))
    started = grouped.select("user", F.col(stamp).alias("ended"), "n")
    counted(started, out, checkpoint).awaitTermination(_LIMIT)
    assert sum(window_counts(drain(kafka.config, out)[0]).values()) == stream.size


def test_a_result_without_event_time_is_refused(kafka, topic, source, checkpoint):
    given, out = topic(1), topic(1)
    Stream.seeded(9, sources=1, steps=1).produce(kafka.config, given)
    rows = source(given).select("user", F.lit(None).cast("timestamp").alias("ended"), F.lit(1).cast("long").alias("n"))
    job = counted(rows, out, checkpoint, value=formats.json("user STRING"))
    with pytest.raises(InvalidOutputError, match="no event time"):
        job.awaitTermination(_LIMIT)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_job_stopped_and_started_goes_on(kafka, topic, source, checkpoint, delivery):
    given, out = topic(2), topic(1)
    stream = Stream.seeded(10)
    stream.produce(kafka.config, given, end=False)
    first = counted(windowed(source(given, max_offsets_per_trigger=200)), out, checkpoint, delivery=delivery)
    first.processAllAvailable(_LIMIT)
    reached = first.watermark
    first.stop()
    assert first.awaitTermination(5)
    assert not first.ended
    for producer in stream.producers(kafka.config, given, timedelta(hours=1)).values():
        producer.end()
    second = counted(windowed(source(given)), out, checkpoint, delivery=delivery)
    second.awaitTermination(_LIMIT)
    assert reached is not None
    assert window_counts(drain(kafka.config, out)[0]) == stream.windows(WIDTH)
    assert second.counts["records"] > stream.size  # the totals go on, too


def test_a_lost_or_damaged_snapshot_names_the_way_out(kafka, topic, source, checkpoint):
    given, out = topic(1), topic(1)
    Stream.seeded(11, sources=1, steps=2).produce(kafka.config, given, end=False)
    job = counted(windowed(source(given)), out, checkpoint)
    job.processAllAvailable(_LIMIT)
    job.stop()
    snapshots = sorted(Path(checkpoint, "floodmark").glob("[0-9]*.json"))
    for snapshot in snapshots:
        snapshot.write_text("{")
        Path(snapshot.parent, f".{snapshot.name}.crc").unlink(missing_ok=True)
    _more(kafka, given)
    with pytest.raises(CorruptSnapshotError, match="new checkpoint_location"):
        counted(windowed(source(given)), out, checkpoint).awaitTermination(_LIMIT)


def _more(kafka, given):
    """Give the job a reason to run a batch."""
    WatermarkedProducer(kafka.config, topic=given, source="source-0", strategy=explicit()).end()


def test_a_missing_snapshot_is_an_error_and_not_a_new_start(kafka, topic, source, checkpoint):
    given, out = topic(1), topic(1)
    Stream.seeded(11, sources=1, steps=2).produce(kafka.config, given, end=False)
    job = counted(windowed(source(given)), out, checkpoint)
    job.processAllAvailable(_LIMIT)
    job.stop()
    for snapshot in Path(checkpoint, "floodmark").glob("[0-9]*.json"):
        snapshot.unlink()
    _more(kafka, given)
    with pytest.raises(MissingSnapshotError, match="is missing"):
        counted(windowed(source(given)), out, checkpoint).awaitTermination(_LIMIT)


def test_stopped_in_full_flow_it_runs_no_batch_twice(kafka, topic, source, checkpoint):
    """At least once doubles rows after a crash, and only then."""
    given, out = topic(2), topic(1)
    stream = Stream.seeded(18, steps=10)
    stream.produce(kafka.config, given)
    ended, stops = False, 0
    while not ended:
        batches = []
        rows = source(given, max_offsets_per_trigger=60)
        job = counted(windowed(rows), out, checkpoint, delivery="at-least-once", on_batch=batches.append)
        enough = 1 + stops % 3
        until(lambda job=job, batches=batches, enough=enough: job.ended or len(batches) > enough, "some batches")
        ended, stops = job.ended, stops + 1
        job.stop()
    assert stops > 3
    assert window_counts(drain(kafka.config, out)[0]) == stream.windows(WIDTH)


@pytest.mark.parametrize("lost", [None, pytest.param("[0-9]*.json", marks=pytest.mark.newest_spark)])
@pytest.mark.parametrize("stateful", [True, False])
def test_a_job_that_has_ended_knows_it_when_it_starts_again(kafka, topic, source, checkpoint, stateful, lost):
    """Nothing comes any more, so no batch will tell it."""
    given, out = topic(1), topic(1)
    stream = Stream.seeded(17, sources=1, steps=3)
    stream.produce(kafka.config, given)

    def start(*, rebuild=True):
        rows = source(given)
        single = rows.select("user", F.col("at").alias("ended"), F.lit(1).cast("long").alias("n"))
        return counted(windowed(rows) if stateful else single, out, checkpoint, rebuild=rebuild)

    start().awaitTermination(_LIMIT)
    for snapshot in Path(checkpoint, "floodmark").glob(lost or "nothing"):
        snapshot.unlink()
    until_readable(kafka, out)
    before = end_offsets(kafka.config, out)
    for rebuild in (True, False):
        again = start(rebuild=rebuild)
        assert again.ended
        assert again.watermark == END_OF_TIME
        assert again.holders() == []
        again.awaitTermination(_LIMIT)
        assert end_offsets(kafka.config, out) == before


@pytest.mark.parametrize("lost", ["[0-9]*.json", "*"])
def test_a_lost_snapshot_is_rebuilt_from_the_topic_when_asked(spark, kafka, topic, source, checkpoint, lost):
    given, out = topic(2), topic(1)
    stream = Stream.seeded(13, sources=2)
    stream.produce(kafka.config, given, end=False)
    job = counted(windowed(source(given, max_offsets_per_trigger=300)), out, checkpoint)
    job.processAllAvailable(_LIMIT)
    reached = job.watermark
    job.stop()
    for snapshot in Path(checkpoint, "floodmark").glob(lost):
        snapshot.unlink()
    for producer in stream.producers(kafka.config, given, timedelta(hours=1)).values():
        producer.end()
    batches = []
    spark.conf.set("spark.floodmark.rebuild", "true")
    try:
        again = counted(windowed(source(given)), out, checkpoint, on_batch=batches.append)
    finally:
        spark.conf.unset("spark.floodmark.rebuild")
    again.awaitTermination(_LIMIT)
    assert batches[0].output == reached == min(script[-1][1] for script in stream.steps.values())
    assert window_counts(drain(kafka.config, out)[0]) == stream.windows(WIDTH)
    assert again.counts["late"] == 0


def test_a_python_worker_that_is_killed_costs_no_row(kafka, topic, source, checkpoint, tmp_path):
    """A user's Python function dies with its worker; the job fails, starts again, and ends right."""
    given, out = topic(2), topic(1)
    stream = Stream.seeded(14, sources=1)
    stream.produce(kafka.config, given)
    flag = str(tmp_path / "died")

    def dying(user: str) -> str:
        if user == "u3" and not os.path.exists(flag):  # noqa: PTH110  # runs in a bare worker
            open(flag, "w").close()  # noqa: PTH123
            os.kill(os.getpid(), signal.SIGKILL)
        return user

    def start():
        rows = source(given, max_offsets_per_trigger=150).withColumn(
            "user", F.udf(dying, "string", useArrow=False)("user")
        )
        return counted(windowed(rows), out, checkpoint)

    with pytest.raises(JobFailedError):
        start().awaitTermination(_LIMIT)
    start().awaitTermination(_LIMIT)
    assert Path(flag).exists()
    assert window_counts(drain(kafka.config, out)[0]) == stream.windows(WIDTH)


def test_a_checkpoint_of_another_job_is_refused(kafka, topic, source, checkpoint):
    given, out = topic(1), topic(1)
    Stream.seeded(12, sources=1, steps=1).produce(kafka.config, given)
    counted(windowed(source(given)), out, checkpoint).awaitTermination(_LIMIT)
    with pytest.raises(ForeignCheckpointError, match="belongs to job"):
        counted(windowed(source(given)), topic(1), checkpoint)
    with pytest.raises(ForeignCheckpointError, match=rf"not to job 'other' \({given} to a writer\)"):
        write(windowed(source(given)), writer=print, job="other", checkpoint_location=checkpoint)


def test_a_checkpoint_of_a_plain_query_is_refused_and_never_rebuilt(spark, kafka, topic, source, checkpoint):
    """The results of its committed batches would be missing in the output."""
    given, out = topic(1), topic(1)
    query = spark.readStream.format("rate").load().writeStream.format("noop").option("checkpointLocation", checkpoint)
    running = query.start()
    until(lambda: [*Path(checkpoint, "commits").glob("0")], "a batch of the plain query")
    running.stop()
    with pytest.raises(ForeignCheckpointError, match="with a plain query's, results would be missing"):
        counted(windowed(source(given)), out, checkpoint)
    with pytest.raises(ForeignCheckpointError, match="a plain Spark query, since the output has no batch of this job"):
        counted(windowed(source(given)), out, checkpoint, rebuild=True)


def test_a_local_session_of_another_thread_changes_no_setting_of_the_running_one(spark):
    zone = "spark.sql.session.timeZone"
    spark.conf.set(zone, "Asia/Tokyo")
    try:
        with ThreadPoolExecutor() as other:
            assert other.submit(local_session, "another thread").result().conf.get(zone) == "Asia/Tokyo"
    finally:
        spark.conf.set(zone, "UTC")


def test_wrong_use_is_refused_at_once(spark, kafka, topic, source, checkpoint):
    given, out = topic(1), topic(1)
    rows = windowed(source(given))
    with pytest.raises(UnknownTopicError, match="no-such-topic"):
        source("no-such-topic")
    with pytest.raises(UnknownTopicError, match="no-such-topic"):
        counted(rows, "no-such-topic", checkpoint)
    with pytest.raises(UsageError, match="is a string"):
        source(given, event_time="user")
    with pytest.raises(UsageError, match="is missing"):
        source(given, event_time="when")
    with pytest.raises(UsageError, match=r"expected a format, such as json\('a STRING'\)"):
        source(given, value="a STRING")
    with pytest.raises(UsageError, match="no topic"):
        source()
    for wrong, message in (
        ({"value": {"user": "STRING"}}, r"value is a value of type dict, expected a format"),
        ({"value": formats.json}, "expected a Column: give a format"),
        ({"event_time": None}, "event_time is a value of type NoneType"),
    ):
        with pytest.raises(UsageError, match=message):
            source(given, **wrong)
    for wrong, message in (
        ({"result": None}, "result is a value of type NoneType, expected a DataFrame"),
        ({"checkpoint_location": Path(checkpoint)}, "checkpoint_location is a value of type .*Path, expected a str"),
        ({"table": "lake.shops.x"}, r"table is a value of type str, expected iceberg\(.*delta\("),
        ({"writer": 3}, "writer is a value of type int, expected a function"),
        (
            {"writer": ExactlyOnceWriter},
            r"writer is the class ExactlyOnceWriter, expected an instance: Exactly.*\(...\)",
        ),
        ({"value": "a STRING"}, r"value is a value of type str, expected a format, such as json\("),
        ({"options": {"membership": 2}}, r"options is a value of type dict, expected WriteOptions\(...\)"),
        ({"output_mode": "Append"}, "output_mode is 'Append', expected 'append' or 'update'"),
        ({"trigger": {"processingtime": "1 second"}}, "'processingtime', expected 'processingTime' or 'availableNow'"),
        ({"trigger": {"processingTime": "1 secnd"}}, "Spark refuses trigger={'processingTime': '1 secnd'}.*secnd"),
        ({"trigger": {"processingTime": 1}}, "Spark refuses trigger={'processingTime': 1}"),
        ({"trigger": {"availableNow": False}}, "Spark refuses trigger={'availableNow': False}"),
    ):
        with pytest.raises(UsageError, match=message):
            write(**{"result": rows, "writer": print, "job": "j", "checkpoint_location": checkpoint, **wrong})
    for asked in ({"settings": {"spark.driver.memory": "9g"}}, {"tables": ["iceberg"]}):
        with pytest.raises(UsageError, match=r"already running without spark\..*spark\.stop\(\) first"):
            local_session("other", **asked)
    assert local_session("other", settings={"spark.driver.memory": "1g"}).version == spark.version
    spark = rows.sparkSession
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    try:
        with pytest.raises(UsageError, match="without rows would move nothing"):
            counted(rows, out, checkpoint)
    finally:
        spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")
    for outputs, found in (({}, "none"), ({"topic": out, "writer": print}, "topic= and writer=")):
        with pytest.raises(UsageError, match=f"exactly one of topic=, table=, writer=, and got {found}"):
            write(rows, job="j", checkpoint_location=checkpoint, **outputs)
    shards = WriteOptions(delivery="exactly-once-executors")
    for target in ({"writer": print, "job": "printed"}, {"table": delta("lake/totals")}):
        with pytest.raises(UsageError, match="'exactly-once-executors' needs topic="):
            write(rows, **target, checkpoint_location=checkpoint, options=shards)
    with pytest.raises(UsageError, match="expected a timestamp"):
        counted(rows, out, checkpoint, event_time="user")
    with pytest.raises(UsageError, match=r"key column 'users' .* has \['user', 'ended', 'n'\]"):
        counted(rows, out, checkpoint, key="users")
    with pytest.raises(UsageError, match=r"key column 'n' is a bigint, .* cast the key to STRING"):
        counted(rows, out, checkpoint, key="n")
    with pytest.raises(UsageError, match="both input and output"):
        counted(rows, given, checkpoint)
    with pytest.raises(UsageError, match="call it once"):
        counted(windowed(source(given).union(source(given))), out, checkpoint)
    with pytest.raises(UsageError, match="hold"):
        counted(rows, out, checkpoint, watermark_hold=timedelta(seconds=-1))
    with pytest.raises(UsageError, match="batch DataFrame"):
        counted(spark.range(1), out, checkpoint)
    with pytest.raises(UsageError, match=r"floodmark\.spark_jobs\.read"):
        counted(spark.readStream.format("rate").load(), out, checkpoint)


def test_two_addresses_of_one_input_are_refused(source, topic):
    with pytest.raises(UsageError, match="and client= has 'elsewhere:9092'"):
        source(topic(1), client={"bootstrap.servers": "elsewhere:9092"})


def test_no_broker_is_named(source, monkeypatch):
    monkeypatch.setattr("floodmark.producers.clients.admin.TIMEOUT", 1.0)
    with pytest.raises(BrokerUnavailableError, match=r"127\.0\.0\.1:1"):
        source("t", bootstrap_servers="127.0.0.1:1")


def test_a_spark_without_the_needed_internals_is_named(kafka, topic, source, checkpoint, monkeypatch):
    from floodmark.schemas.errors import UnsupportedSparkError  # noqa: PLC0415
    from floodmark.spark_jobs.internals.analysed import operators  # noqa: PLC0415
    from floodmark.spark_jobs.internals.engine import Engine  # noqa: PLC0415

    with pytest.raises(UnsupportedSparkError, match=r"watermarkTracker.*is not reachable"):
        Engine(object(), "after", None)
    with pytest.raises(UnsupportedSparkError, match="queryExecution"):
        operators(object(), bool)
