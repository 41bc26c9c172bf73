"""A consumer without Spark: every row once, in order, and only when it is complete."""

import json
import logging
from collections import Counter
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from floodmark.producers import (
    Observer,
    Position,
    SourcePool,
    WatermarkedConsumer,
    WatermarkedProducer,
    explicit,
    ingress,
)
from floodmark.producers.clients.admin import offset_bounds, partition_bounds
from floodmark.producers.readers.replay import read_until_end
from floodmark.producers.testing import ManualClock, mark
from floodmark.producers.trigger.topic_input import TopicInput
from floodmark.schemas import END_OF_TIME
from floodmark.schemas.classify import Data, mark_record
from floodmark.schemas.completeness.complete_rows import Buffer
from floodmark.schemas.errors import (
    BrokerUnavailableError,
    CorruptSnapshotError,
    DeletedRecordsError,
    RecreatedTopicError,
    UnknownTopicError,
    UnreadableTopicError,
    UsageError,
)
from hypothesis import given
from hypothesis import strategies as st
from support.harness import Stream, delete_before, delete_topic, events, grow, records_by_partition, recreate, until


def event_time(record):
    return events.decode(record.value)["at"]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60))), st.integers(1, 20))
def test_windows_equal_a_batch_computation(steps, width):
    """Whatever comes in whatever order: each window once, whole, in order; the rest was late."""
    buffer, expected, late, watermark = Buffer(), {}, 0, 0
    windows = []
    for at, step in steps:
        if buffer.add(at, at):
            expected.setdefault(at // width * width, []).append(at)
        else:
            late += 1
            assert at < watermark
        watermark = max(watermark, step)
        windows += buffer.windows(width, watermark).items()
    windows += buffer.windows(width, END_OF_TIME).items()
    assert {start: sorted(rows) for start, rows in windows} == {k: sorted(v) for k, v in expected.items()}
    assert [start for start, _ in windows] == sorted(expected)
    assert (buffer.late, len(buffer)) == (late, 0)


def test_no_width_is_an_error_at_once():
    with pytest.raises(UsageError, match="width"):
        Buffer().windows(0, 5)


def test_the_end_of_time_releases_rows_at_the_end_of_time():
    buffer = Buffer()
    buffer.add(END_OF_TIME, "row")
    assert buffer.release(END_OF_TIME - 1) == []
    assert buffer.release(END_OF_TIME) == [(END_OF_TIME, "row")]


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
def test_windows_of_arrival_complete_while_the_source_still_writes(kafka, topic):
    name, found, numbers = topic(2), {}, iter(range(10_000))
    door = WatermarkedProducer(
        kafka.config, topic=name, source="door", strategy=ingress(), interval=timedelta(milliseconds=50)
    )
    with door, WatermarkedConsumer(kafka.config, [name], lambda record: record.log_time) as consumer:

        def read():
            for window in consumer.windows(timedelta(milliseconds=200), timeout=0.02):
                assert window.start not in found, "each window comes once"
                found[window.start] = len(window.rows)

        def arrive_and_read():
            door.produce(b"", key=str(next(numbers)))
            read()
            return len(found) > 2

        until(arrive_and_read, "three windows")
        assert not consumer.ended
        door.end()
        until(lambda: read() or consumer.ended, "the end")
        assert not consumer.counts["late"]
    records = [one for part in records_by_partition(kafka.config, name).values() for one in part]
    arrivals = [one.log_time for one in records if isinstance(one, Data)]
    assert found == Counter(at // 200 * 200 for at in arrivals)
    assert len(arrivals) == next(numbers)


@pytest.mark.kafka
def test_a_restart_at_any_position_repeats_nothing_and_loses_nothing(kafka, topic):
    target = topic(2)
    stream = Stream.seeded(6, sources=2, steps=6)
    stream.produce(kafka.config, target)
    config = {**kafka.config, "max.partition.fetch.bytes": 1000}
    rows, position, ended = [], None, False
    while not ended:  # a new consumer for every poll with new records
        with WatermarkedConsumer(config, [target], event_time, position=position) as consumer:
            positions = []

            def progress(consumer=consumer, positions=positions):
                handed = consumer.rows(0.1)
                rows.extend(time for time, _ in handed)
                positions.append(handed.position)
                return consumer.counts["data"] or consumer.ended

            until(progress, "a record")
            position, ended = Position(positions[-1].text), consumer.ended
    expected = sorted(time for script in stream.steps.values() for times, _ in script for time in times)
    assert rows == expected


@pytest.mark.kafka
@pytest.mark.parametrize("what", ["windows", "windows, position of the consumer", "rows"])
def test_a_crash_after_each_item_loses_nothing_and_repeats_nothing(kafka, topic, what):
    """The README's loops: a consumer for each window or row, begun from the position stored with the one before."""
    target = topic(2)
    with WatermarkedProducer(kafka.config, topic=target, source="a", strategy=explicit()) as ours:
        for number in range(20):
            ours.produce(events.encode({"user": "u", "at": number * 7}), event_time=number * 7)
            ours.advance(number * 7)
        ours.end()
    stored, position, ended = [], None, False
    while not ended:
        with WatermarkedConsumer(kafka.config, [target], event_time, position=position) as clicks:

            def one(clicks=clicks):
                for item in clicks.rows() if what == "rows" else clicks.windows(timedelta(milliseconds=20)):
                    rows = [item[1]] if what == "rows" else item.rows
                    return [
                        [event_time(row) for row in rows],
                        item.position if what == "windows" else clicks.position(),
                    ]
                return clicks.ended

            found = []
            until(lambda found=found, one=one: found.append(one()) or found[-1], "an item")
            ended = found[-1] is True
            if not ended:
                stored += found[-1][0]
                position = Position(found[-1][1].text)
    assert stored == [number * 7 for number in range(20)]


@pytest.mark.kafka
def test_a_consumer_follows_a_topic_that_grows(kafka, topic):
    target, rows = topic(1), []
    with WatermarkedConsumer(kafka.config, [target], event_time) as consumer:
        read = lambda: rows.extend(time for time, _ in consumer.rows())  # noqa: E731
        with WatermarkedProducer(kafka.config, topic=target, source="a", strategy=explicit()) as ours:
            ours.produce(events.encode({"user": "u", "at": 1}), event_time=1)
            ours.advance(5)
            ours.flush()
            until(lambda: read() or rows == [1], "the first row")
        grow(kafka.config, target, 2)
        with WatermarkedProducer(kafka.config, topic=target, source="a", strategy=explicit()) as ours:
            ours.produce(events.encode({"user": "u", "at": 6}), event_time=6, partition=1)
            ours.end()
        until(lambda: read() or consumer.ended, "the end", 20)
    assert rows == [1, 6]


@pytest.mark.kafka
def test_an_observer_asks_for_partitions_now_and_then_and_lives_without_an_answer(kafka, topic, monkeypatch):
    target = topic(1)
    clock = ManualClock()
    with Observer(kafka.config, [target], clock=clock) as observer:
        asked = []
        monkeypatch.setattr(observer, "refresh", lambda: asked.append(1))
        for _ in range(50):
            list(observer.poll(0))
        assert not asked
        monkeypatch.undo()
        clock.advance(timedelta(seconds=60))
        away = Consumer({"bootstrap.servers": "localhost:1", "group.id": "x"}, logger=logging.getLogger("away"))
        monkeypatch.setattr(observer, "_consumer", away)
        assert list(observer.poll(0)) == []


@pytest.mark.kafka
def test_the_time_in_the_header_counts_for_lateness_and_windows(kafka, topic):
    target = topic(1)
    with WatermarkedProducer(kafka.config, topic=target, source="a", strategy=explicit()) as ours:
        ours.advance(10)
        ours.flush()
        ours.produce(events.encode({"user": "u", "at": 3}), event_time=12, headers=[("floodmark-time", b"12")])
        ours.end()
    with WatermarkedConsumer(kafka.config, [target], event_time) as consumer:
        rows = []
        until(lambda: rows.extend(consumer.rows()) or consumer.ended, "the end")
    assert [(time, event_time(record)) for time, record in rows] == [(12, 3)]
    assert +consumer.counts == {"data": 1}


@pytest.mark.kafka
def test_a_topic_read_whole_wrong_is_no_quiet_success(kafka, topic, caplog):
    target = topic(1)
    with WatermarkedProducer(kafka.config, topic=target, source="a", strategy=explicit()) as ours:
        for _ in range(3):
            ours.produce(b"not Avro", event_time=3)
        ours.end()
    with (
        WatermarkedConsumer(kafka.config, [target], event_time) as consumer,
        pytest.raises(UnreadableTopicError, match="none of its 3 data") as caught,
    ):
        until(lambda: list(consumer.rows()) or consumer.ended, "the end")
    assert (caught.value.topic, caught.value.count, caught.value.offset) == (target, 3, 1)
    assert caplog.text.count("no event time") == 1


@pytest.mark.kafka
def test_rows_that_follow_the_end_of_all_sources_are_told_once(kafka, topic, caplog):
    target, plain = topic(2), Producer(kafka.config)
    with WatermarkedProducer(kafka.config, topic=target, source="web", strategy=explicit()) as source:
        source.end()
    with WatermarkedConsumer(kafka.config, [target], event_time) as consumer:
        for number in range(3):
            plain.produce(target, events.encode({"user": "u", "at": number}), partition=number % 2)
        plain.flush(30)
        until(lambda: list(consumer.rows()) or consumer.counts["data"] == 3, "the rows")
    told = [message for message in caplog.messages if "all sources have ended, and rows follow" in message]
    assert len(told) == 1


@pytest.mark.kafka
@pytest.mark.parametrize("rows", [0, 1])
def test_a_topic_without_marks_is_told_once(kafka, topic, caplog, rows):
    target = topic(2)
    plain = Producer(kafka.config)
    for _ in range(rows):
        plain.produce(target, b"row")
    plain.flush()
    with WatermarkedConsumer(kafka.config, [target], event_time) as consumer:
        until(lambda: list(consumer.rows()) or "no watermark" in caplog.text, "the warning")
        list(consumer.rows())
    assert caplog.text.count(f"{target}: no watermark record (mark) was read yet") == 1


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
        assert f"unreadable mark of a at {target}/0@" in str(consumer.holders()[0])


@pytest.mark.kafka
def test_a_position_of_something_else_is_an_error(kafka, topic):
    one, other = topic(1), topic(1)
    with WatermarkedConsumer(kafka.config, [one], event_time) as consumer:
        position = consumer.position()
    for wrong, topics in ((position, [other]), (Position("{}"), [one]), (Position("garbage"), [one])):
        with pytest.raises(CorruptSnapshotError, match="consumer"):
            WatermarkedConsumer(kafka.config, topics, event_time, position=wrong)


def number_of(record):
    return int(record.value)


def write_numbers(kafka, topic, numbers, *, end=False):
    """Write numbers as their own event times, each with a mark behind it."""
    with WatermarkedProducer(
        kafka.config, topic=topic, source="a", strategy=explicit(), interval=timedelta(days=1)
    ) as ours:
        for number in numbers:
            ours.produce(b"%d" % number, event_time=number)
            ours.advance(number)
            ours.flush()
        if end:
            ours.end()


@pytest.mark.kafka
@pytest.mark.parametrize("deleted", [0, 1])
def test_a_consumer_resumes_unless_retention_has_deleted_what_it_needs(kafka, topic, deleted):
    """``deleted``: so many records more than those that the position does not need."""
    target = topic(1)
    write_numbers(kafka, target, range(10))
    rows, positions = [], []
    with WatermarkedConsumer(kafka.config, [target], number_of) as consumer:

        def are_read():
            handed = consumer.rows()
            rows.extend(time for time, _ in handed)
            positions.append(handed.position)
            return len(rows) == 9

        until(are_read, "the rows")
    position = positions[-1]
    write_numbers(kafka, target, range(10, 20), end=True)
    needed = json.loads(position.text)["partitions"][0][2]
    delete_before(kafka.config, target, needed + deleted, 1)
    with WatermarkedConsumer(kafka.config, [target], number_of, position=position) as consumer:
        read = lambda: rows.extend(time for time, _ in consumer.rows()) or consumer.ended  # noqa: E731
        if not deleted:
            until(read, "the end")
            assert rows == list(range(20))
            return
        for _ in range(2):  # and it stays so
            with pytest.raises(DeletedRecordsError) as caught:
                until(read, "the error")
            error = caught.value
            assert (error.topic, error.partition, error.position, error.earliest) == (target, 0, needed, needed + 1)
    assert rows == list(range(9))


READERS = {
    "consumer": (
        lambda config, topics, stored: WatermarkedConsumer(config, topics, number_of, position=stored),
        lambda consumer: consumer.poll(),
        lambda consumer: consumer.position(),
    ),
    "trigger": (
        lambda config, topics, stored: TopicInput(config, topics, None, stored),
        lambda trigger: trigger.poll(0.2, lambda *_: None),
        lambda trigger: trigger.state(),
    ),
}


@pytest.mark.kafka
@pytest.mark.parametrize("kind", READERS)
def test_a_partition_that_a_position_does_not_have_is_read_from_offset_0(kafka, topic, kind):
    target, (reader, read, position_of) = topic(2), READERS[kind]
    write_numbers(kafka, target, range(5))
    delete_before(kafka.config, target, 1)
    with reader(kafka.config, [target], None) as first:
        position = position_of(first)  # nothing is read, but it has both partitions
    with reader(kafka.config, [target], position) as second:
        until(lambda: read(second) or second.watermark == 4, "what is left")
        position = position_of(second)
    grow(kafka.config, target, 3)
    write_numbers(kafka, target, range(5, 10), end=True)
    delete_before(kafka.config, target, 1, 3)
    with reader(kafka.config, [target], position) as third:
        with pytest.raises(DeletedRecordsError) as caught:
            until(lambda: read(third) or third.watermark == END_OF_TIME, "the error")
        assert (caught.value.partition, caught.value.position, caught.value.earliest) == (2, 0, 1)


@pytest.mark.kafka
def test_windows_of_what_is_left_of_a_topic_come_with_one_warning(kafka, topic, caplog):
    target, position = topic(1), None
    write_numbers(kafka, target, range(10), end=True)
    for deleted in (0, 5, 0):  # the last one resumes
        delete_before(kafka.config, target, deleted, 1)
        with WatermarkedConsumer(kafka.config, [target], number_of, position=position) as consumer:
            until(lambda one=consumer: list(one.windows(timedelta(milliseconds=5))) is None or one.ended, "the end")
            position = consumer.position() if deleted else None
        assert caplog.text.count("Kafka has deleted") == bool(deleted)
        assert (
            f"the records before {target}/0@5 (inject --reset?): the first windows may lack rows" in caplog.text
        ) == bool(deleted)
        caplog.clear()


@pytest.mark.kafka
def test_a_slow_consumer_fails_where_retention_overtakes_it(kafka, topic):
    target = topic(1)
    write_numbers(kafka, target, range(10))
    small = {"queued.min.messages": 1, "queued.max.messages.kbytes": 1, "max.partition.fetch.bytes": 1_000}
    rows = []
    with WatermarkedConsumer({**kafka.config, **small}, [target], number_of) as consumer:
        read = lambda: rows.extend(time for time, _ in consumer.rows())  # noqa: E731
        until(lambda: read() or rows, "a row")
        write_numbers(kafka, target, range(10, 400), end=True)
        (_, end) = offset_bounds(kafka.config, target)[target, 0]
        delete_before(kafka.config, target, end - 10, 1)
        with pytest.raises(DeletedRecordsError):
            until(lambda: read() or consumer.ended, "the error")
    assert rows == list(range(len(rows)))


@pytest.mark.kafka
def test_a_reader_that_has_read_an_empty_partition_to_its_end_misses_nothing_that_comes(kafka, topic):
    target = topic(1)
    with Observer(kafka.config, [target]) as observer:
        until(lambda: list(observer.poll(0.1)) == [] and observer.ends, "the end")
        client, place = observer._consumer, [TopicPartition(target, 0)]  # noqa: SLF001
        client.pause(place)
        write_numbers(kafka, target, range(5))
        delete_before(kafka.config, target, 5, 1)
        client.resume(place)
        with pytest.raises(DeletedRecordsError):
            until(lambda: list(observer.poll(0.1)), "the error")


def unreachable(*_):
    raise BrokerUnavailableError(bootstrap_servers="a:1", seconds=1, reason="down")


@pytest.mark.kafka
def test_a_reader_that_has_read_nothing_yet_begins_with_what_is_left(kafka, topic, monkeypatch, caplog):
    """Retention deletes between the question where a partition begins and the first fetch."""
    target = topic(1)
    write_numbers(kafka, target, range(5), end=True)
    assign = Consumer.incremental_assign
    with monkeypatch.context() as patched:
        begins = [TopicPartition(target, 0, 0)]

        class Early(Consumer):
            """Begins where the partition began before."""

            def incremental_assign(self, places):
                assign(self, begins.copy() or places)
                begins.clear()

        delete_before(kafka.config, target, 5, 1)
        patched.setattr("floodmark.producers.clients.consumers.Consumer", Early)
        patched.setattr("floodmark.producers.readers.observer.partition_bounds", unreachable)
        with Observer(kafka.config, [target]) as observer:
            found = []
            for _ in range(2):  # until the broker answers
                with pytest.raises(BrokerUnavailableError):
                    until(lambda: list(observer.poll(0.1)), "the error")
            patched.setattr("floodmark.producers.readers.observer.partition_bounds", partition_bounds)
            until(lambda: found.extend(observer.poll(0.1)) or found, "the first record that is left")
    assert found[0].offset == 5
    assert f"Kafka has deleted the records before {target}/0@5: the first windows or periods may lack" in caplog.text


@pytest.mark.kafka
def test_a_partition_is_read_from_what_is_left_where_no_record_is_to_be_missed(kafka, topic):
    target = topic(1)
    write_numbers(kafka, target, range(10))
    delete_before(kafka.config, target, 6, 1)
    offsets = [record.offset for record in read_until_end(kafka.config, {(target, 0): 2})]
    assert offsets[0] == 6


@pytest.mark.kafka
def test_a_mark_of_an_aborted_transaction_promises_nothing_whatever_the_settings(kafka, topic):
    target = topic(1)
    writer = Producer({**kafka.config, "transactional.id": target})
    writer.init_transactions()
    for sequence, (watermark, commits) in enumerate(((1_000, True), (9_000, False), (6_000, True))):
        writer.begin_transaction()
        key, value, headers = mark_record(mark("a", watermark, sequence))
        writer.produce(target, value, key, 0, headers=headers)
        writer.flush()
        writer.commit_transaction() if commits else writer.abort_transaction()
    seen = set()
    with WatermarkedConsumer({**kafka.config, "isolation.level": "read_uncommitted"}, [target], number_of) as consumer:
        until(lambda: consumer.rows() is None or seen.add(consumer.watermark) or 6_000 in seen, "the last mark")
    assert seen <= {None, 1_000, 6_000}


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("answers", "code"),
    [
        (1, KafkaError.NOT_LEADER_FOR_PARTITION),
        (1, KafkaError.UNKNOWN_LEADER_EPOCH),
        (1, KafkaError.OFFSET_NOT_AVAILABLE),
        (1_000, KafkaError.NOT_LEADER_FOR_PARTITION),
    ],
)
def test_a_question_is_asked_again_while_a_leader_moves(kafka, topic, monkeypatch, answers, code):
    """As often as it takes within the time limit; then comes an error of Floodmark."""
    target, asked = topic(1), []

    class Moving(AdminClient):
        def list_offsets(self, *args, **more):
            asked.append(1)
            if len(asked) <= answers:
                raise KafkaException(KafkaError(code))
            return super().list_offsets(*args, **more)

    monkeypatch.setattr("floodmark.producers.clients.admin.AdminClient", Moving)
    if answers == 1:
        with SourcePool(kafka.config, topic=target) as pool:
            assert pool.membership.size == 0
        return
    monkeypatch.setattr("floodmark.producers.clients.admin.TIMEOUT", 1.0)
    with pytest.raises(BrokerUnavailableError, match="leader"):
        SourcePool(kafka.config, topic=target)
    assert len(asked) > 1


@pytest.mark.kafka
@pytest.mark.parametrize(("how", "length"), [("it resumes", 60), ("it reads", 60), ("it reads", 2)])
def test_a_topic_that_was_created_again_is_not_the_one_that_was_read(kafka, topic, monkeypatch, how, length):
    """Also where the new topic is longer than the old one, so that all offsets are there, or shorter."""
    refresh = 0.5 if length > 10 else 60_000  # out of range, the offset itself shows it
    monkeypatch.setattr("floodmark.producers.readers.observer._REFRESH", refresh)
    target, rows = topic(1), []
    write_numbers(kafka, target, range(10))
    with WatermarkedConsumer(kafka.config, [target], number_of) as consumer:
        read = lambda: rows.extend(time for time, _ in consumer.rows())  # noqa: E731
        until(lambda: read() or len(rows) == 9, "the rows")
        position = Position(consumer.position().text)
        recreate(kafka.config, target, 1)
        write_numbers(kafka, target, range(100, 100 + length), end=True)
        for _ in range(2 if how == "it reads" else 0):  # and it stays so
            with pytest.raises(RecreatedTopicError):
                until(lambda: read() or consumer.ended, "the error")
    with pytest.raises(RecreatedTopicError) as caught:
        WatermarkedConsumer(kafka.config, [target], number_of, position=position)
    assert caught.value.topic == target
    with WatermarkedConsumer(kafka.config, [target], number_of) as consumer:
        found = []
        until(lambda: found.extend(time for time, _ in consumer.rows()) or consumer.ended, "the end")
    assert found == list(range(100, 100 + length))


@pytest.mark.parametrize("topics", ["orders", [], ["orders", "orders"]])
@pytest.mark.parametrize("position", [None, Position("{}")])
def test_topics_are_a_list_of_names(topics, position):
    with pytest.raises(UsageError, match="expected a list of names"):
        WatermarkedConsumer({}, topics, number_of, position=position)
    with pytest.raises(UsageError, match="expected a list of names"):
        Observer({}, topics)


@pytest.mark.kafka
def test_an_end_before_what_was_read_is_first_compared_with_the_id_of_the_topic(kafka, topic, monkeypatch):
    target = topic(1)
    with Observer(kafka.config, [target], applied={(target, 0): 9}) as observer:
        monkeypatch.setattr("floodmark.producers.clients.admin.described", lambda *_, **_more: {target: ("another", 1)})
        with pytest.raises(RecreatedTopicError):
            until(lambda: list(observer.poll()) is None, "the error")


@pytest.mark.kafka
def test_a_consumer_of_a_deleted_topic_fails(kafka, topic, monkeypatch):
    monkeypatch.setattr("floodmark.producers.readers.observer._REFRESH", 0.5)
    target = topic(1)
    write_numbers(kafka, target, range(3))
    with WatermarkedConsumer(kafka.config, [target], number_of) as consumer:
        until(lambda: consumer.rows() is None or consumer.watermark is not None, "the marks")
        delete_topic(kafka.config, target)
        with pytest.raises(UnknownTopicError):
            until(lambda: consumer.rows() is None, "the error")
