"""A consumer without Spark: every row once, in order, and only when it is complete."""

from datetime import timedelta

import pytest
from confluent_kafka import Producer
from floodmark.producers import Position, WatermarkedConsumer, WatermarkedProducer, explicit
from floodmark.producers.completeness import Buffer
from floodmark.schemas import END_OF_TIME
from floodmark.schemas.errors import CorruptSnapshotError, UsageError
from harness import Stream, events, until
from hypothesis import given
from hypothesis import strategies as st


def event_time(record):
    return events.decode(record.value)["at"]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60))), st.integers(1, 20))
def test_windows_equal_a_batch_computation(steps, width):
    """Whatever comes in whatever order: each window once, whole, in order; the rest was late."""
    buffer, expected, late, watermark = Buffer(), {}, 0, 0
    windows = []
    for time, step in steps:
        if buffer.add(time, time):
            expected.setdefault(time // width * width, []).append(time)
        else:
            late += 1
            assert time < watermark
        watermark = max(watermark, step)
        windows += buffer.windows(width, watermark)
    windows += buffer.windows(width, END_OF_TIME)
    assert {window.start: sorted(window.rows) for window in windows} == {k: sorted(v) for k, v in expected.items()}
    assert [window.start for window in windows] == sorted(expected)
    assert (buffer.late, len(buffer)) == (late, 0)


def test_no_width_is_an_error():
    with pytest.raises(UsageError, match="width"):
        list(Buffer().windows(0, 5))


@pytest.mark.kafka
def test_windows_of_completeness(kafka, topic):
    target = topic(3)
    stream = Stream.seeded(5, sources=2)
    stream.produce(kafka.config, target)
    seen = {}
    with WatermarkedConsumer(kafka.config, [target], event_time) as consumer:

        def ended():
            for window in consumer.windows(timedelta(seconds=10)):
                assert window.end not in seen
                seen[window.end] = len(window.rows)
                assert list(map(event_time, window.rows)) == sorted(map(event_time, window.rows))
            return consumer.ended

        until(ended, "the end")
    totals = {}
    for (_, end), count in stream.windows(10_000).items():
        totals[end] = totals.get(end, 0) + count
    assert seen == totals
    assert +consumer.counts == {"data": stream.size}


@pytest.mark.kafka
def test_a_restart_at_any_position_repeats_nothing_and_loses_nothing(kafka, topic):
    target = topic(2)
    stream = Stream.seeded(6, sources=2, steps=6)
    stream.produce(kafka.config, target)
    rows, position, ended = [], None, False
    while not ended:  # a new consumer for every poll
        with WatermarkedConsumer(
            {**kafka.config, "max.partition.fetch.bytes": 1000},
            [target],
            event_time,
            position=position,
        ) as consumer:
            until(
                lambda: (
                    rows.extend(time for time, _ in consumer.rows(0.1)) or consumer.counts["data"] or consumer.ended
                ),
                "a record",
            )
            position, ended = Position(consumer.position().text), consumer.ended
    expected = sorted(time for script in stream.steps.values() for times, _ in script for time in times)
    assert rows == expected


@pytest.mark.kafka
def test_late_and_timeless_rows_and_garbage_marks_are_counted(kafka, topic):
    target = topic(1)
    with WatermarkedProducer(kafka.config, topic=target, source="a", strategy=explicit()) as ours:
        ours.produce(events.encode({"user": "u", "at": 7}), event_time=7)
        ours.advance(10)
    plain = Producer(kafka.config)
    plain.produce(target, value=events.encode({"user": "u", "at": 3}))
    plain.produce(target, value=events.encode({"user": "u", "at": None}))
    plain.produce(target, value=b"garbage")
    plain.produce(target, key=b"__floodmark__/a", value=b"garbage")
    plain.flush(30)
    with WatermarkedConsumer(kafka.config, [target], lambda record: events.decode(record.value)["at"]) as consumer:
        given = []
        until(lambda: given.extend(consumer.rows()) or consumer.counts["unreadable"], "the garbage mark")
        # Late it is; but read together with the mark that it is behind, it still comes in order.
        assert [time for time, _ in given] == [3, 7][consumer.counts["missed"] :]
        assert (consumer.counts["late"], consumer.counts["timeless"], consumer.counts["data"]) == (1, 2, 4)
        assert consumer.watermark == 10
        assert "a: lowest watermark" in str(consumer.holds()[0])


@pytest.mark.kafka
def test_a_position_of_something_else_is_an_error(kafka, topic):
    one, other = topic(1), topic(1)
    with WatermarkedConsumer(kafka.config, [one], event_time) as consumer:
        position = consumer.position()
    for wrong, topics in ((position, [other]), (Position("{}"), [one]), (Position("garbage"), [one])):
        with pytest.raises(CorruptSnapshotError, match="consumer"):
            WatermarkedConsumer(kafka.config, topics, event_time, position=wrong)
