"""The rows of a closed period: those of the batch computation, or an error that says what is missing."""

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from confluent_kafka import Producer
from floodmark.producers import WatermarkedConsumer, WatermarkedProducer, ascending, complete, create_topics, explicit
from floodmark.producers.readers.check import checker_of
from floodmark.producers.readers.period import _Reading
from floodmark.producers.testing import mark
from floodmark.producers.trigger.topic_input import TopicInput
from floodmark.schemas import Status
from floodmark.schemas.classify import classify, mark_record
from floodmark.schemas.errors import IncompletePeriodError, RetentionError, UnreadableTopicError, UsageError
from floodmark.schemas.records import TIME_HEADER
from support.harness import Stream, delete_before, events, until

pytestmark = pytest.mark.kafka


def event_time(record):
    return events.decode(record.value)["at"]


def now():
    return time.time_ns() // 1_000_000


def test_each_closed_period_has_the_rows_of_the_batch_computation(kafka, topic):
    target, stream = topic(2), Stream.seeded(5)
    stream.produce(kafka.config, target)
    written = sorted(at for script in stream.steps.values() for times, _ in script for at in times)
    cuts = [0, written[len(written) // 3], written[-1], written[-1] + 1]
    for start, end in pairwise(cuts):
        found = complete(kafka.config, target, start, end, event_time)
        times = [moment // timedelta(milliseconds=1) for moment in _since_1970(found["event_time"])]
        assert times == [at for at in written if start <= at < end]
        rows = complete(kafka.config, target, start, end, event_time, decode=lambda record: events.decode(record.value))
        assert rows["at"].to_pylist() == times
    with pytest.raises(UsageError, match="is empty"):
        complete(kafka.config, target, 5, 5, event_time)
    with pytest.raises(UsageError, match="not seconds"):
        complete(kafka.config, target, now() // 1_000 - 60, now() // 1_000, event_time)
    with pytest.raises(UsageError, match=r"decode= returned 'u' for topic-\d+/\d+@\d+, expected a mapping"):
        complete(kafka.config, target, cuts[0], cuts[-1], event_time, decode=lambda _record: "u")
    with pytest.raises(UnreadableTopicError):
        complete(kafka.config, target, 0, 9, lambda record: json.loads(record.value)["at"])
    delete_before(kafka.config, target, 1)
    with pytest.raises(RetentionError, match=r"complete\(\) needs the records of topic-\d+/0 .*the first offset is 1"):
        complete(kafka.config, target, 0, 9, event_time)


@pytest.mark.parametrize("adjusted", [False, True], ids=["", "beside one that an injector adjusted"])
def test_event_times_in_seconds_are_told(kafka, topic, caplog, adjusted):
    target, begin = topic(1), now()
    with WatermarkedProducer(kafka.config, topic=target, source="web", strategy=explicit()) as web:
        web.produce(events.encode({"user": "u", "at": begin}), event_time=begin)
        web.flush()
        if adjusted:
            plain = Producer(kafka.config)
            plain.produce(target, events.encode({"user": "u", "at": 1}), headers=[(TIME_HEADER, b"%d" % begin)])
            plain.flush()
        web.end()
    in_seconds = lambda record: event_time(record) // 1_000  # noqa: E731
    told = (
        f"{target}/0@1: the event time is .*, as if it were in seconds: event_time returns milliseconds. No other time"
    )
    with pytest.raises(UsageError, match=told):
        complete(kafka.config, target, begin, begin + 1, in_seconds)
    with WatermarkedConsumer(kafka.config, [target], in_seconds) as consumer:
        until(lambda: list(consumer.rows()) and consumer.ended, "the row")
    told = [record.message for record in caplog.records if "as if it were in seconds: event_time" in record.message]
    assert [said.partition(": ")[0] for said in told] == [f"{target}/0@1"]


def test_a_compacted_topic_is_told(kafka, caplog):
    name, said = "compacted-period", "topic 'compacted-period' is compacted: "
    create_topics(kafka.config, {name: 1}, {"cleanup.policy": "compact,delete"})
    with WatermarkedConsumer(kafka.config, [name], event_time):
        assert caplog.text.count(said) == 1
    checker_of(kafka.config, name)
    assert caplog.text.count(said) == 2
    with pytest.raises(UsageError, match=said):
        complete(kafka.config, name, 0, 9, event_time)


def test_runs_that_end_one_after_another_are_all_read(kafka, topic):
    target, day, found = topic(2), timedelta(days=1), []
    millis = day // timedelta(milliseconds=1)
    for number in range(3):
        with WatermarkedProducer(kafka.config, topic=target, source="till", strategy=ascending()) as till:
            for at in range(number * millis, (number + 1) * millis, millis // 40):
                till.produce(events.encode({"user": "u", "at": at}), key=str(at), event_time=at)
            till.end()
    days = [complete(kafka.config, target, n * millis, (n + 1) * millis, event_time).num_rows for n in range(3)]
    assert days == [40, 40, 40]
    with WatermarkedConsumer(kafka.config, [target], event_time) as consumer:
        until(lambda: found.extend(consumer.windows(day)) or consumer.ended, "the end of the last run")
    assert [len(window.rows) for window in found] == [40, 40, 40]
    with WatermarkedProducer(kafka.config, topic=target, source="till", strategy=ascending()) as till:
        till.produce(events.encode({"user": "u", "at": 3 * millis}), event_time=3 * millis)
        till.flush()
        with pytest.raises(IncompletePeriodError, match="till: lowest watermark 1970-01-04"):
            complete(kafka.config, target, 3 * millis, 4 * millis, event_time)


def test_rows_that_the_marks_count_and_the_topic_lacks_are_told_by_complete_and_by_a_trigger(kafka, topic, caplog):
    """Such as those of a topic that was created again under its producer."""
    target, plain, start = topic(1), Producer(kafka.config), now()

    def write(rows, number, counted, watermark):
        for _ in range(rows):
            plain.produce(target, events.encode({"user": "u", "at": start}))
        key, value, headers = mark_record(mark("web", watermark, number, records=counted))
        plain.produce(target, value, key, headers=headers)
        plain.flush(30)

    def trigger(stored):
        with TopicInput(kafka.config, [target], None, stored) as given:
            until(lambda: given.poll(0.2, None) or given.has_read(given.end()), "the end")
            return given.state()

    read = lambda: complete(kafka.config, target, start, start + 1, event_time)  # noqa: E731
    write(3, 0, 3, start + 1)
    assert (read().num_rows, caplog.messages) == (3, [])
    state = trigger(None)
    write(1, 1, 6, start + 2)
    state = trigger(state)
    lost = f"lost rows: {target}/0 between offset 3 and offset 5: 2 rows, by the marks of source web"
    assert caplog.messages == [f"{lost}: their periods lack them"]
    write(0, 2, 6, start + 3)
    trigger(state)
    assert len(caplog.messages) == 1, "told once"
    assert (read().num_rows, caplog.messages[1:]) == (3, []), "it read up to where the period was closed"
    complete(kafka.config, target, start, start + 3, event_time)
    assert "2 row(s) are lost, and some may be of the period; the first: lost rows" in caplog.messages[-1]


def _since_1970(column):
    return [moment - datetime(1970, 1, 1, tzinfo=UTC) for moment in column.to_pylist()]


def test_a_source_that_was_idle_before_the_period_does_not_hold_it_and_a_missing_one_is_named(kafka, topic):
    target = topic(2)

    def write(source, at):
        source.produce(events.encode({"user": "u", "at": at}), event_time=at, timestamp=at)
        source.advance(at + 1)
        source.flush()

    with WatermarkedProducer(kafka.config, topic=target, source="b", strategy=explicit(), membership=3) as b:
        write(b, now())
        b.mark_idle()
    start = now() + 1
    until(lambda: now() > start, "the start of the period")
    end = start + 2
    read = lambda: complete(kafka.config, target, start, end, event_time, early=timedelta())  # noqa: E731
    with WatermarkedProducer(kafka.config, topic=target, source="a", strategy=explicit(), membership=3) as a:
        write(a, start)
        write(a, end)
        with pytest.raises(
            IncompletePeriodError, match="1 of 3 sources of membership 1 have not reported; reported: a, b"
        ) as caught:
            read()
        assert (caught.value.watermark, caught.value.end) == (None, end)
        with WatermarkedProducer(kafka.config, topic=target, source="c", strategy=explicit(), membership=3) as c:
            c.advance(end - 1)
            c.flush()
            with pytest.raises(IncompletePeriodError, match=f"waits for {target}/0/c"):
                read()
            c.advance(end)
            c.flush()
            assert read().num_rows == 1


def test_without_pyarrow_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pip install pyarrow"):
        complete({}, "clicks", 0, 1, event_time=int)


ONE_IDLE = [mark("a", 30, size=2), mark("b", 5, size=2, status=Status.IDLE), b"12", mark("b", 40, 1, size=2), b"13"]
ALL_IDLE = [b"12", mark("a", 30, status=Status.IDLE), b"13", mark("a", 30, 1), b"14"]


@pytest.mark.parametrize(("log", "times"), [(ONE_IDLE, [12]), (ALL_IDLE, [12, 13])])
def test_reading_goes_on_past_an_idle_source_until_it_has_passed_the_period(log, times):
    """It may return with rows that are not late; other partitions are read first here."""
    reading = _Reading("t", 0, 20, lambda record: int(record.value))
    reading.take(
        classify("t", 0, offset, 0, b"k", one, [])
        if isinstance(one, bytes)
        else classify("t", 0, offset, 0, *mark_record(one))
        for offset, one in enumerate(log)
    )
    assert [row.time for row in reading.rows()] == times
