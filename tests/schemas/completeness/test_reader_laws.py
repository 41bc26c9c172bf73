"""Whoever stops reading anywhere and begins again from what was stored loses nothing and sees nothing twice."""

import json
import pickle
import random
from collections import Counter
from contextlib import nullcontext, suppress

import pytest
from floodmark.producers import CompleteItems, Position
from floodmark.producers.testing import mark
from floodmark.schemas import Status, encode_watermark, mark_key
from floodmark.schemas.classify import classify, mark_record
from floodmark.schemas.completeness.complete_rows import Reader
from floodmark.schemas.completeness.position import TopicUser
from floodmark.schemas.errors import (
    ChangedEventTimeError,
    CorruptSnapshotError,
    DeletedRecordsError,
    RecreatedTopicError,
    UnreadableTopicError,
    UnreadInputError,
    UsageError,
)
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.schemas.tracker import MarkRouter
from hypothesis import assume, given, settings
from hypothesis import strategies as st

WIDTH = 20
ADJUSTED = "floodmark-time"


class Log:
    """A topic in memory: per partition a list of (key, value, headers)."""

    def __init__(self, partitions=1):
        self.partitions = [[] for _ in range(partitions)]

    def row(self, value, partition=0, headers=None):
        self.partitions[partition].append((None, b"%d" % value if isinstance(value, int) else value, headers))

    def mark(self, source, watermark, sequence, partition=0, **more):
        record = mark(source, watermark, sequence, partitions=len(self.partitions), **more)
        self.partitions[partition].append((mark_key(source), encode_watermark(record), None))

    @classmethod
    def seeded(cls, seed):
        """Make up a sound topic: sources with perfect watermarks, rows out of order and many at the same time.

        In half of the topics, the sources end and write again.
        """
        chance = random.Random(seed)  # noqa: S311  # a repeatable log
        log, size = cls(chance.randint(1, 3)), chance.randint(1, 2)
        watermark = dict.fromkeys(range(size))
        for epoch in range(1, 1 + chance.choice([1, 1, 2, 3])):
            log.run(chance, watermark, epoch)
        if chance.random() < 0.5:
            log.row(END_OF_TIME, 0)
            log.run(chance, watermark, epoch + 1)
        return log

    def run(self, chance, watermark, epoch):
        """Let all sources write in a new epoch, and end."""
        last, written = chance.randint(2, 8), Counter()

        def mark(source, sequence, **more):
            for partition in range(len(self.partitions)):
                given = {"records": written[source, partition], "size": len(watermark), "epoch": epoch, **more}
                self.mark(f"s{source}", watermark[source], sequence, partition, **given)

        highest = max((known for known in watermark.values() if known is not None), default=None)
        for source in watermark:
            watermark[source] = highest  # below it, the rows of a new run are late
            mark(source, 0)
        for sequence in range(1, last):
            for source in watermark:
                low = watermark[source] or 0
                for _ in range(chance.randint(0, 5)):
                    time = low + chance.choice([0, 1, chance.randrange(100)])
                    partition = chance.randrange(len(self.partitions))
                    self.row(time, partition)
                    written[source, partition] += 1
                watermark[source] = low + chance.randrange(40)
                mark(source, sequence)
        for source in watermark:
            mark(source, last, status=Status.ENDED)

    def rows(self):
        return sorted(
            (int(value), partition, offset)
            for partition, entries in enumerate(self.partitions)
            for offset, (key, value, _) in enumerate(entries)
            if key is None
        )


class MemoryConsumer:
    """A `Reader` fed from a `Log` as `WatermarkedConsumer` feeds it from Kafka, each poll as much as chance will."""

    def __init__(self, log, chance, position=None, event_time=lambda record: int(record.value)):
        self.reader = Reader(["t"], event_time, position)
        self.log, self.chance = log, chance
        self.router = MarkRouter({"t": self.reader.tracker}, self.reader.applied)
        self.at = [self.reader.begin.get(("t", n), 0) for n in range(len(log.partitions))]

    def poll(self, most=6):
        for partition in self.chance.sample(range(len(self.at)), len(self.at)):
            entries = self.log.partitions[partition]
            for _ in range(self.chance.randint(0, most)):
                if self.at[partition] == len(entries):
                    self.reader.take_ends([(("t", partition), len(entries))])
                    break
                offset = self.at[partition]
                key, value, headers = entries[offset]
                self.at[partition] += 1
                self.reader.take(self.router.take(classify("t", partition, offset, 0, key, value, headers)))

    def rows(self):
        self.reader.use_for("rows")
        self.poll()
        return self.reader.rows()

    def windows(self, width=WIDTH):
        self.reader.use_for("windows")
        self.poll()
        return self.reader.windows(width)

    def records(self):
        self.reader.use_for("records")
        self.poll()
        return self.reader.arrived()


def place(record):
    return record.partition, record.offset


def times(what, item):
    """Give what an item holds, as (event time, partition, offset)."""
    if what == "rows":
        return [(item[0], *place(item[1]))]
    rows = [(int(row.value), *place(row)) for row in item.rows]
    assert rows == sorted(rows)
    assert all(item.start <= time < item.end for time, _, _ in rows)
    return rows


def run(log, chance, what, stop):
    """Read to the end, and begin again wherever ``stop`` gives a position; return what was stored, in order."""
    stored, position, ended = [], None, False
    while not ended:
        consumer, crashed = MemoryConsumer(log, chance, position), False
        while not consumer.reader.ended and not crashed:
            handed = getattr(consumer, what)()
            assert isinstance(handed, CompleteItems)
            position, crashed = stop(consumer.reader, handed, lambda item: stored.extend(times(what, item)))
        ended = not crashed
        position = position and Position(position.text)
    return stored


def store_with_the_item(chance):
    """Store ``window.position`` with each window."""
    kept = [None]

    def stop(_, handed, store):
        for item in handed:
            store(item)
            kept[0] = item.position
            if chance.random() < 0.15:
                return kept[0], True
        return kept[0], chance.random() < 0.02

    return stop


def store_in_the_loop(chance):
    """Store `position` with each item: the loop that the README had."""
    kept = [None]

    def stop(reader, handed, store):
        for item in handed:
            store(item)
            kept[0] = reader.position()
            if chance.random() < 0.15:
                return kept[0], True
            if chance.random() < 0.15:
                break  # and go on with the next call
        return kept[0], chance.random() < 0.02

    return stop


def store_whole_calls(chance):
    """Store all that a call gave at once."""

    def stop(_, handed, store):
        items = list(handed)
        for item in items:
            store(item)
        return handed.position, chance.random() < (0.4 if items else 0.02)

    return stop


@pytest.mark.parametrize(
    ("what", "way"),
    [
        ("windows", store_with_the_item),
        ("windows", store_in_the_loop),
        ("windows", store_whole_calls),
        ("rows", store_in_the_loop),
        ("rows", store_whole_calls),
    ],
)
@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_stored_with_its_position_is_all_there_is_and_once(what, way, seed):
    log, chance = Log.seeded(seed), random.Random(seed)  # noqa: S311  # a repeatable log
    assert run(log, chance, what, way(chance)) == log.rows()


@pytest.mark.parametrize("what", ["windows", "rows"])
@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_a_position_taken_over_a_list_loses_nothing(what, seed):
    """At least once: what stands in a list is not taken for stored."""
    log, chance = Log.seeded(seed), random.Random(seed)  # noqa: S311  # a repeatable log
    kept = [None]

    def stop(reader, handed, store):
        for item in list(handed):
            kept[0] = reader.position()
            if chance.random() < 0.02:
                return kept[0], True
            store(item)
        kept[0] = reader.position()
        return kept[0], chance.random() < 0.02

    stored = run(log, chance, what, stop)
    assert sorted(set(stored)) == log.rows()


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_a_position_beside_poll_loses_nothing(seed):
    log, chance = Log.seeded(seed), random.Random(seed)  # noqa: S311  # a repeatable log
    stored, position, ended = [], None, False
    while not ended:
        consumer, crashed = MemoryConsumer(log, chance, position), False
        while not consumer.reader.ended and not crashed:
            for record in consumer.records():
                position = consumer.reader.position()
                crashed = chance.random() < 0.05
                if crashed:
                    break
                stored.append((int(record.value), *place(record)))
        ended = not crashed
        position = position and Position(position.text)
    assert sorted(set(stored)) == log.rows()


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_counted_twice_over_restarts(seed):
    """Each record counts once, and no honest row is late or lost because it is read again."""
    log = Log.seeded(seed)
    assert counted(log, seed) == +Counter({"data": len(log.rows())})


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_a_row_that_marks_count_and_the_topic_lacks_is_lost_once_over_restarts(seed):
    chance, log = random.Random(seed), Log(2)  # noqa: S311  # a repeatable log
    log.run(chance, dict.fromkeys(range(chance.randint(1, 2))), 1)
    rows = log.rows()
    assume(rows)
    _, partition, offset = chance.choice(rows)
    del log.partitions[partition][offset]
    assert counted(log, seed) == +Counter({"data": len(rows) - 1, "lost": 1})


def counted(log, seed):
    """Read to the end, with restarts, and add up the counts of the runs that came further than where they resumed."""
    chance, position, total, ended = random.Random(seed), None, Counter(), False  # noqa: S311  # repeatable restarts
    while not ended:
        consumer = MemoryConsumer(log, chance, position)
        for _ in range(chance.randint(3, 60)):
            handed = consumer.rows()
            list(handed)
        if position is None or handed.position.text != position.text:  # else the next run reads the same again
            total += consumer.reader.counts
        position = handed.position
        ended = consumer.reader.ended
    return total


@pytest.mark.parametrize("what", ["rows", "windows", "records"])
@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_a_position_asks_for_no_record_that_was_deleted_before_the_first_read(what, seed):
    """Else a consumer that resumes from it would fail for records that it never needed."""
    log, chance = Log.seeded(seed), random.Random(seed)  # noqa: S311  # a repeatable log
    consumer = MemoryConsumer(log, chance)
    consumer.at = first = [chance.randint(0, len(entries)) for entries in log.partitions]
    first = list(first)
    for _ in range(chance.randint(1, 20)):
        handed = getattr(consumer, what)()
        for position in [consumer.reader.position(), *([] if what == "records" else [handed.position])]:
            for _, number, begin, read, _ in json.loads(position.text)["partitions"]:
                assert first[number] <= begin <= read
        list(handed)


def simple():
    log = Log()
    for number, time in enumerate((5, 25, 45, 65)):
        log.row(time)
        log.mark("a", time, number)
    log.mark("a", 65, 4, status=Status.ENDED)
    return log


def read_all(log, **options):
    consumer = MemoryConsumer(log, random.Random(1), **options)  # noqa: S311  # a repeatable log
    found = []
    while not consumer.reader.ended:
        found += [time for time, _ in consumer.rows()]
    return found, consumer.reader


def test_a_loop_that_is_left_early_goes_on_with_the_next_call():
    consumer = MemoryConsumer(simple(), random.Random(1))  # noqa: S311  # a repeatable log
    consumer.poll(most=20)
    handed = consumer.windows()
    first = next(handed)
    assert next(consumer.windows()).start == first.start + WIDTH


def test_rows_behind_an_end_that_was_given_out_are_refused_also_after_a_restart():
    log = simple()
    found, reader = read_all(log)
    assert found == [5, 25, 45, 65]
    position = reader.rows().position
    assert read_all(log, position=position)[0] == []
    log.mark("a", 65, 0, epoch=2)
    assert read_all(log, position=position)[0] == [], "marks alone"
    log.row(85)
    log.mark("a", 85, 1, epoch=2, status=Status.ENDED)
    with pytest.raises(UnreadInputError, match=r"1 record\(s\) that will not be read: t/0@10.*without position="):
        read_all(log, position=position)
    assert read_all(log)[0] == [5, 25, 45, 65, 85]


def test_an_error_in_event_time_loses_nothing():
    failures = [RuntimeError("no connection"), KeyboardInterrupt()]

    def event_time(record):
        if record.value == b"25" and failures:
            raise failures.pop()
        return int(record.value)

    log, reader = simple(), Reader(["t"], event_time)
    router = MarkRouter({"t": reader.tracker})
    for offset, (key, value, _) in enumerate(log.partitions[0]):
        record = router.take(classify("t", 0, offset, 0, key, value))
        while True:
            try:
                reader.take(record)
                break
            except (RuntimeError, KeyboardInterrupt):
                pass
    reader.take_ends([(("t", 0), len(log.partitions[0]))])
    assert [time for time, _ in reader.rows()] == [5, 25, 45, 65]
    assert reader.counts["data"] == 4


def test_the_header_says_which_time_counts():
    log = Log()
    log.row(1)
    log.mark("a", 10, 0)
    log.row(2, headers=[(ADJUSTED, b"10")])
    log.row(3, headers=[(ADJUSTED, b"99"), ("trace", b"x"), (ADJUSTED, b"11")])
    log.row(b"garbage", headers=[(ADJUSTED, b"12")])
    log.row(50, headers=[(ADJUSTED, b"13"), (ADJUSTED, b"yesterday"), (ADJUSTED, b"9" * 15), (ADJUSTED, None)])
    log.row(14, headers=[(ADJUSTED, b" 50"), (ADJUSTED, b"+50"), (ADJUSTED, b"\xd9\xa5")])
    log.row(b"garbage", headers=[(ADJUSTED, b"")])
    log.mark("a", 20, 1, status=Status.ENDED)
    found, reader = read_all(log)
    assert found == [1, 10, 11, 12, 13, 14]
    assert +reader.counts == {"data": 7, "timeless": 1}


def test_rows_at_the_end_of_time_come_when_all_have_ended():
    log = Log()
    log.row(END_OF_TIME)
    log.row(3)
    log.mark("a", END_OF_TIME, 0)
    log.row(END_OF_TIME)
    log.mark("a", 10, 1, status=Status.ENDED)
    assert read_all(log)[0] == [3, END_OF_TIME, END_OF_TIME]


def test_a_topic_read_whole_wrong_is_an_error_once():
    log = Log()
    log.mark("a", None, 0)
    for _ in range(3):
        log.row(b"garbage")
    log.mark("a", 10, 1, status=Status.ENDED)
    consumer = MemoryConsumer(log, random.Random(1))  # noqa: S311  # a repeatable log

    def read():
        while not consumer.reader.ended:
            list(consumer.rows())
        list(consumer.rows())

    with pytest.raises(UnreadableTopicError, match="garbage") as caught:
        read()
    error = caught.value
    assert (error.topic, error.count, error.partition, error.offset) == ("t", 3, 0, 1)
    assert list(consumer.rows()) == []


def test_one_readable_record_is_not_wholly_wrong_also_after_a_restart():
    log = Log()
    log.mark("a", None, 0)
    log.row(3)
    log.mark("a", 10, 1)
    consumer = MemoryConsumer(log, random.Random(1))  # noqa: S311  # a repeatable log
    while not len(handed := consumer.rows()):
        pass
    log.row(b"garbage")
    log.mark("a", 10, 2, status=Status.ENDED)
    assert read_all(log, position=handed.position)[0] == []


def typo(record):
    raise KeyError(record.place)


CHANGED = {"none": typo, "in seconds": lambda record: int(record.value) // 1_000, "later": lambda r: int(r.value) + 50}


@pytest.mark.parametrize("event_time", CHANGED.values(), ids=CHANGED)
@pytest.mark.parametrize("what", ["rows", "windows"])
@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_a_changed_event_time_loses_and_repeats_no_row_in_silence(what, event_time, seed):
    log, chance = Log.seeded(seed), random.Random(seed)  # noqa: S311  # a repeatable log
    first, position, stored = MemoryConsumer(log, chance), None, []
    for _ in range(chance.randint(1, 30)):
        for item in getattr(first, what)():
            stored += [item[1]] if what == "rows" else item.rows
            position = first.reader.position()
            if chance.random() < 0.3:
                break
    again = MemoryConsumer(log, chance, position and Position(position.text), event_time=event_time)
    try:
        while not again.reader.ended:
            for item in getattr(again, what)():
                stored += [item[1]] if what == "rows" else item.rows
        told = again.reader.counts["timeless"] + again.reader.counts["missed"]
    except (ChangedEventTimeError, UnreadableTopicError):
        told = True
    assert told or sorted(map(place, stored)) == sorted(row[1:] for row in log.rows())


def test_a_position_of_poll_is_for_poll_alone():
    """Rows and windows from it on would lack what `poll` has returned."""
    consumer = MemoryConsumer(simple(), random.Random(1))  # noqa: S311  # a repeatable log
    assert consumer.records()
    position = consumer.reader.position()
    for what in ("rows", "windows"):
        with pytest.raises(UsageError, match=f"of poll\\(\\), and {what} from it on would lack"):
            getattr(MemoryConsumer(simple(), random.Random(1), position), what)()  # noqa: S311  # the same
    again = MemoryConsumer(simple(), random.Random(1), position)  # noqa: S311  # the same
    assert json.loads(again.reader.position().text)["polled"]
    again.records()


@pytest.mark.parametrize("text", [{"format": 1}, None])
def test_a_position_is_made_of_its_text(text):
    with pytest.raises(UsageError, match="the text of a Position is a value of type"):
        Position(text)
    with pytest.raises(UsageError, match=r"position is a value of type \w+, expected Position\(text\)"):
        Reader(["t"], lambda _: None, "{}")


def test_one_consumer_is_for_one_thing():
    reader = Reader(["t"], lambda _: None)
    reader.use_for("rows")
    with pytest.raises(UsageError, match="gives rows, it cannot give records"):
        reader.use_for("records")


@pytest.mark.parametrize("before", ["rows", "windows"])
@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([5, WIDTH, 30, 40, 100]))
def test_windows_that_resume_a_position_are_whole_or_refused(before, seed, width):
    """Also where the position is of another width, or of rows."""
    log, chance = Log.seeded(seed), random.Random(seed)  # noqa: S311  # a repeatable log
    consumer, position = MemoryConsumer(log, chance), None
    for _ in range(chance.randint(1, 30)):
        for item in getattr(consumer, before)():
            position = consumer.reader.position() if before == "rows" else item.position
            if chance.random() < 0.3:
                break
    again, whole = MemoryConsumer(log, chance, position), {}
    for row in log.rows():
        whole.setdefault(row[0] // width, []).append(row)
    with nullcontext() if (before, width) == ("windows", WIDTH) else suppress(UsageError):
        while not again.reader.ended:
            for window in again.windows(width):
                assert times("windows", window) == whole[window.start // width]


def test_a_position_of_windows_is_resumed_with_a_width_that_divides_its_time_or_row_by_row():
    consumer = MemoryConsumer(simple(), random.Random(1))  # noqa: S311  # a repeatable log
    consumer.poll(most=20)
    first = next(consumer.windows())
    assert read_all(simple(), position=first.position)[0] == [25, 45, 65]
    for width, allowed in ((5, True), (WIDTH, True), (2 * WIDTH, False)):
        reader = MemoryConsumer(simple(), random.Random(1), first.position)  # noqa: S311  # a repeatable log
        if allowed:
            reader.windows(width)
            continue
        with pytest.raises(UsageError, match=r"0:00:00\.040000 that begins at 1970-01-01T00:00:00\.000\+00:00"):
            reader.windows(width)


def test_a_partition_that_is_shorter_than_what_was_read_is_an_error():
    handed = None
    consumer = MemoryConsumer(simple(), random.Random(1))  # noqa: S311  # a repeatable log
    while not consumer.reader.ended:
        handed = consumer.rows()
        list(handed)
    short = Log()
    short.row(5)
    reader = Reader(["t"], lambda record: int(record.value), handed.position)
    with pytest.raises(DeletedRecordsError) as caught:
        reader.take_ends([(("t", 0), 1)])
    assert (caught.value.position, caught.value.end) == (9, 1)


def test_a_position_of_another_format_is_refused():
    state = json.loads(Reader(["t"], lambda _: 0).position().text)
    with pytest.raises(CorruptSnapshotError, match="its format is 2, expected 1"):
        Reader(["t"], lambda _: 0, Position(json.dumps({**state, "format": 2})))


def test_a_position_says_which_topics_its_offsets_are_of():
    reader = Reader(["t"], lambda _: 0)
    reader.ids.compare({"t": "Xq3"}, TopicUser("the consumer", "Start again"))
    again = Reader(["t"], lambda _: 0, Position(reader.position().text))
    with pytest.raises(RecreatedTopicError) as caught:
        again.ids.compare({"t": "b7A"}, TopicUser("the consumer", "Start again"))
    assert (caught.value.known, caught.value.found) == ("Xq3", "b7A")


def test_positions_are_values_and_cheap():
    writes = []
    position = Position(lambda: writes.append(1) or "text")
    assert not writes
    assert position == Position("text") == pickle.loads(pickle.dumps(position))  # noqa: S301  # our own
    assert (len(writes), repr(position), {position: 1}[Position("text")]) == (1, "Position('text')", 1)


def test_sizes_stay_bounded_over_many_events():
    """What waits is bounded by the disorder of the events, not by their number; one row may wait all the time."""
    reader = Reader(["t"], lambda record: int(record.value))
    router, most, rows = MarkRouter({"t": reader.tracker}), 0, 0
    first = router.take(classify("t", 0, 0, 0, None, b"99999999"))
    reader.take(first)
    for number in range(1, 30_001):
        if number % 100 == 0:
            record = mark("a", number, number // 100)
            reader.take(router.take(classify("t", 0, number, 0, *mark_record(record))))
            rows += sum(1 for _ in reader.rows())
            sizes = len(reader._buffer), len(reader._queue), len(reader._waiting["t", 0])  # noqa: SLF001  # its memory
            most = max(most, *sizes)
        else:
            value = b"%d" % (number + number % 7)
            reader.take(router.take(classify("t", 0, number, 0, None, value)))
    assert rows + len(reader._buffer) == 29_701  # noqa: SLF001  # the same
    assert most < 20
    assert len(reader.position().text) < 2_000
