"""Event times that are derived, nested or adjusted, and deduplication within a time."""

import json
import random
from collections import Counter
from datetime import timedelta
from functools import partial
from itertools import pairwise

import pytest
from confluent_kafka import Producer
from floodmark.producers import Data, Observer, TimePolicy
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.injector import Injector
from floodmark.schemas.errors import EventTimeShiftError, EventTimeUnitError, UsageError
from floodmark.spark_jobs import ReadOptions, drop_duplicates_within, event_time, formats, read
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.harness import until
from support.json_source import BASE, LIMIT, keep, windows

pytestmark = pytest.mark.spark

MINUTE = 1_020_000
ONE_MINUTE = timedelta(minutes=1)
FLOOR = "date_trunc('minute', at)"


def test_no_two_rows_that_come_out_are_near_and_none_is_dropped_without_one_near(source, rows, tmp_path):
    chance, times, promised, within = random.Random(11), [], BASE, 10_000  # noqa: S311  # a repeatable stream
    for _ in range(120):
        times.append((chance.choice("ab"), promised + chance.choice([0, 1, within, chance.randrange(4 * within)])))
        source.send(times[-1][1], key=times[-1][0])
        if chance.random() < 0.3:
            promised += chance.randrange(2 * within)
            source.mark(promised)
    source.end()
    for size in (1_000, 17):
        unique = drop_duplicates_within(rows(max_offsets_per_trigger=size), ["k"], timedelta(milliseconds=within))
        job, found = keep(unique.select("k", F.unix_millis("at")), str(tmp_path / str(size)))
        job.awaitTermination(LIMIT)
        states = [state for run in job.query.recentProgress for state in run["stateOperators"]]
        dropped = sum(state["customMetrics"]["numDroppedDuplicateRows"] for state in states)
        assert (job.counts["late"], dropped) == (0, len(times) - len(found))
        assert [state["numRowsTotal"] for state in states[-2:]] == [0, 0]
        for key in "ab":
            kept = sorted(time for name, time in found if name == key)
            assert all(later - earlier > within for earlier, later in pairwise(kept))
            given = {time for name, time in times if name == key}
            for time in given - set(kept):
                assert min(abs(other - time) for other in given - {time}) < 2 * within
                assert min(abs(other - time) for other in kept) < 4 * within


def test_windows_behind_a_deduplication_are_whole(source, rows, checkpoint):
    job, found = keep(windows(drop_duplicates_within(rows(), ["k", "at"], timedelta(seconds=1))), checkpoint)
    times = [BASE + step * 700 for step in range(60)]
    for time in times:
        source.send(time, time)
        source.mark(time)
    source.end()
    job.awaitTermination(LIMIT)
    expected = Counter(time // 10_000 * 10_000 + 10_000 for time in times)
    assert Counter(dict(found)) == expected


def test_a_deduplication_that_would_never_forget_is_refused(rows, checkpoint):
    with pytest.raises(UsageError, match="drop_duplicates_within"):
        keep(rows().dropDuplicatesWithinWatermark(["k"]), checkpoint)
    with pytest.raises(UsageError, match="s or more"):
        drop_duplicates_within(rows(), ["k"], timedelta(0))
    with pytest.raises(UsageError, match="none"):
        drop_duplicates_within(rows().drop("at"), ["k"], timedelta(1))
    for wrong in ("k", []):  # Spark would take a text as its letters, and no columns as all rows of a time span
        with pytest.raises(UsageError, match="expected a list of one or more"):
            drop_duplicates_within(rows(), wrong, timedelta(1))
    with pytest.raises(UsageError, match=r"the rows have no column 'kk', only .*k"):
        drop_duplicates_within(rows(), ["at", "kk"], timedelta(1))
    assert drop_duplicates_within(rows(), ["K"], timedelta(1)).columns == rows().columns


def through_python(frame):
    def floor(batches):
        for batch in batches:
            batch["minute"] = batch["at"].dt.floor("min")
            yield batch[["k", "minute"]]

    return frame.mapInPandas(floor, "k STRING, minute TIMESTAMP")


DERIVED = {
    "read": lambda rows, shift: rows(event_time=f"{FLOOR} AS minute", shift=shift),
    "column": lambda rows, shift: rows(event_time=F.expr(FLOOR).alias("minute"), shift=shift),
    "helper": lambda rows, shift: event_time(rows().withColumn("minute", F.expr(FLOOR)), "minute", shift=shift),
    "python": lambda rows, shift: event_time(through_python(rows()), "minute", shift=shift),
}


def two_in_a_minute(source, job):
    """Send a row of a minute, promise all before it, and send a second row of the same time."""
    source.send(MINUTE + 59_999, key="a")
    source.mark(MINUTE + 59_999)
    job.processAllAvailable(LIMIT)
    source.send(MINUTE + 59_999, key="b")
    source.end()
    job.awaitTermination(LIMIT)


@pytest.mark.parametrize("how", DERIVED)
def test_a_derived_time_is_exact_with_its_shift(source, rows, checkpoint, how):
    """Deduplication drops, by itself, what is at or behind Spark's watermark."""
    derived = DERIVED[how](rows, ONE_MINUTE)
    job, found = keep(derived.dropDuplicates(["k", "minute"]).select("k", F.unix_millis("minute")), checkpoint)
    two_in_a_minute(source, job)
    assert sorted(found) == [("a", MINUTE), ("b", MINUTE)]
    assert job.counts["late"] == 0


@pytest.mark.parametrize("late", [None, "drop", "adjust"])
def test_a_late_row_within_its_shift_does_not_fail_the_job(source, rows, checkpoint, late):
    derived = DERIVED["helper"](partial(rows, late=late), ONE_MINUTE)
    job, found = keep(derived.dropDuplicates(["k", "minute"]).select("k", F.unix_millis("minute")), checkpoint)
    source.send(MINUTE + 59_999, key="a")
    source.mark(MINUTE + 150_000)
    job.processAllAvailable(LIMIT)
    source.send(MINUTE + 100_000, key="b")
    source.end()
    job.awaitTermination(LIMIT)
    assert sorted(found) == [("a", MINUTE), *([("b", MINUTE + 120_000)] if late == "adjust" else [])]
    assert job.counts["late"] == 1


def test_a_shift_too_small_is_never_silent(source, rows, tmp_path):
    derived = DERIVED["read"](rows, timedelta(seconds=59)).dropDuplicates(["k", "minute"]).select("k")
    job, found = keep(derived, str(tmp_path / "read"))
    two_in_a_minute(source, job)
    assert (found, job.counts["late"]) == ([("a",)], 1)
    derived = event_time(through_python(rows(max_offsets_per_trigger=1)), "minute", shift=timedelta(seconds=59))
    job, found = keep(derived.dropDuplicates(["k", "minute"]).select("k"), str(tmp_path / "python"))
    with pytest.raises(EventTimeShiftError, match="larger shift="):
        job.awaitTermination(LIMIT)
    job.stop()


def test_results_of_python_behind_a_window_are_windowed_again(source, rows, checkpoint):
    def same(batches):
        yield from batches

    first = windows(rows()).select(F.timestamp_millis("end").alias("end"), "n")
    again = event_time(first.mapInPandas(same, "end TIMESTAMP, n LONG"), "end")
    second = again.groupBy(F.window("end", "30 seconds")).agg(F.sum("n").alias("n"))
    job, found = keep(second.select(F.unix_millis("window.end"), "n"), checkpoint)
    times = list(range(BASE, BASE + 100_000, 1_500))
    for time in times:
        source.send(time)
        source.mark(time)
    source.end()
    job.awaitTermination(LIMIT)
    ends = Counter(time // 10_000 * 10_000 + 10_000 for time in times)
    expected = Counter()
    for end, count in ends.items():
        expected[end // 30_000 * 30_000 + 30_000] += count
    assert dict(found) == dict(expected)


def test_a_shift_behind_state_is_refused(rows, checkpoint):
    first = windows(rows()).select(F.timestamp_millis(F.col("end") - 10_000).alias("start"), "n")
    shifted = event_time(first, "start", shift=timedelta(seconds=10))
    with pytest.raises(UsageError, match="behind an operator with state"):
        keep(shifted, checkpoint)


def test_a_nested_time_and_the_names_of_derived_ones(source, rows, caplog):
    nested = {"value": formats.json("k STRING, payload STRUCT<at: TIMESTAMP>")}
    assert rows(event_time="payload.at", **nested).columns == ["k", "payload", "at"]
    assert rows(event_time=F.col("payload.at"), **nested).columns == ["k", "payload", "at"]
    assert rows(event_time=F.col("at")).columns == ["k", "at"]
    assert rows(event_time=FLOOR).columns == ["k", "at", "event_time"]
    assert rows(adjusted="counts_at").columns == ["k", "at", "counts_at"]
    for wrong, message in (
        (f"{FLOOR} AS k", "already"),
        ("at +", "missing"),
        ("payload.at", "missing"),
        ("k", "string"),
    ):
        with pytest.raises(UsageError, match=message):
            rows(event_time=wrong)
    assert not caplog.records, "PySpark does not log what Floodmark says"
    with pytest.raises(UsageError, match="0 or more"):
        rows(shift=timedelta(seconds=-1))
    with pytest.raises(UsageError, match="0 or more"):
        event_time(rows(), "at", shift=timedelta(seconds=-1))
    with pytest.raises(UsageError, match="is missing"):
        event_time(rows(), "nothing")


def test_a_nested_time_drives_windows(source, rows, checkpoint):
    source.raw({"k": "k", "payload": {"at": 5}}, 5_000)
    source.raw({"k": "k", "payload": {"at": "x"}}, 5_000)
    source.raw({"k": "k", "payload": None}, 5_000)
    source.end()
    nested = rows(value=formats.json("k STRING, payload STRUCT<at: TIMESTAMP>"), event_time="payload.at")
    job, found = keep(windows(nested), checkpoint)
    job.awaitTermination(LIMIT)
    assert (found, job.counts["unreadable"], job.counts["missing_event_time"]) == ([(10_000, 1)], 1, 1)


def test_what_an_injector_has_adjusted_counts_in_a_job_with_defaults(spark, kafka, topic, checkpoint):
    raw, marked = topic(1), topic(1)
    producer, chance = Producer(kafka.config), random.Random(5)  # noqa: S311  # a repeatable stream
    for number in range(2_000):
        arrival = 1_700_000_000_000 + number * 10
        producer.produce(raw, b'{"at": %d}' % (arrival - chance.randrange(2_000)), timestamp=arrival)
    assert producer.flush(30) == 0
    with Injector(
        Injection(raw, marked, JsonField("at"), TimePolicy(out_of_order=timedelta(0))), kafka.config
    ) as injector:
        injector.run(until_end=True)
        injector.end()
    times, adjusted = [], 0
    with Observer(kafka.config, [marked]) as observer:

        def all_read():
            nonlocal adjusted
            for record in observer.poll():
                if isinstance(record, Data):
                    header = dict(record.headers or []).get("floodmark-time")
                    adjusted += header is not None
                    times.append(json.loads(record.value)["at"] if header is None else int(header))
            return len(times) == 2_000

        until(all_read, "all records")
    assert adjusted > 1_000
    events = read(
        spark,
        topics=marked,
        value=formats.json("at TIMESTAMP", unit="ms"),
        event_time="at",
        bootstrap_servers=kafka.bootstrap_servers,
        options=ReadOptions(max_offsets_per_trigger=300),
    )
    job, found = keep(windows(events), checkpoint)
    job.awaitTermination(LIMIT)
    assert job.counts["late"] == 0
    assert dict(found) == dict(Counter(time // 10_000 * 10_000 + 10_000 for time in times))


def test_a_forgotten_unit_fails_the_job_although_an_injector_adjusted_some_times(spark, kafka, source, checkpoint):
    at, producer = 1_700_000_000, Producer(kafka.config)
    for time, headers in [(at, []), (at - 60, [("floodmark-time", b"%d000" % at)]), (at + 1, [])]:
        producer.produce(source.topic, b'{"at": %d}' % time, headers=headers)
    assert producer.flush(30) == 0
    source.mark(at * 1_000)
    source.end()
    read_as = formats.json("at TIMESTAMP", unit="ms")
    servers = kafka.bootstrap_servers
    events = read(spark, topics=source.topic, value=read_as, event_time="at", bootstrap_servers=servers)
    job, _ = keep(windows(events), checkpoint)
    with pytest.raises(EventTimeUnitError, match="1,000 times as long: use unit='s' instead of 'ms'"):
        job.awaitTermination(LIMIT)


def test_the_last_header_that_holds_a_time_counts(kafka, source, rows, checkpoint):
    producer = Producer(kafka.config)
    headers = [[b"1000", b"5000"], [b"7000", b"soon"], [b"99999999999999999999"], [b"9" * 18], []]
    value = json.dumps({"k": "k", "at": "1970-01-01T00:00:15Z"}).encode()
    source.mark(1_000)
    for found in headers:
        producer.produce(source.topic, value, headers=[("floodmark-time", time) for time in found])
    assert producer.flush(30) == 0
    source.end()
    job, found = keep(rows().select(F.unix_millis("at")), checkpoint)
    job.awaitTermination(LIMIT)
    assert sorted(found) == [(5_000,), (7_000,), (15_000,), (15_000,), (15_000,)]
    assert job.counts["missing_event_time"] == 0
