"""The injector on a real Kafka: exactly once over crashes, restarts, growth; policies, adapters, alignment, replays."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from threading import Event, Thread, Timer

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from conformance.golden import POLICIES, golden
from floodmark.producers import Mark, TimePolicy
from floodmark.producers.clients.clock import Deadline
from floodmark.producers.event_times.changefeeds import CockroachDb, TiCdcCanal, TiCdcOpen
from floodmark.producers.event_times.formats import JsonField, substream_key
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.injector import Injector
from floodmark.producers.injector.topics import decisions_of
from floodmark.producers.testing import ManualClock
from floodmark.schemas.errors import FencedError, InjectorError, UnknownTopicError, UsageError
from support.harness import delete_before, grow, until
from support.injection import look, open_transaction, send, times

pytestmark = pytest.mark.kafka
MINUTES = timedelta(minutes=5)
FAST = timedelta(milliseconds=100)


@pytest.mark.parametrize("variant", POLICIES)
def test_the_golden_table(kafka, topic, variant):
    raw, marked, dropped = topic(1), topic(1), topic(1)
    send(kafka, raw, *((event.time, event.arrival, event.device) for event in golden(variant)))
    policy, over = POLICIES[variant], substream_key if variant == "substreams" else None
    with Injector(
        Injection(raw, marked, JsonField("at"), policy, substream_by=over, dropped_to=dropped), kafka.config
    ) as injector:
        injector.run(until_end=True)
        injector.end()
    data, _, tracker = look(kafka, marked)
    expected = [(event.time, event.expected) for event in golden(variant) if event.expected is not None]
    assert times(data) == expected
    assert [row.key for row in data] == [e.device.encode() for e in golden(variant) if e.expected is not None]
    assert [row.log_time for row in data] == [e.arrival for e in golden(variant) if e.expected is not None]
    assert tracker.ended
    lost = [(event.time, event.time) for event in golden(variant) if event.expected is None]
    assert times(look(kafka, dropped)[0]) == lost
    assert injector.outcomes["early_dropped"] == len(lost)


def test_a_restart_reads_what_another_writer_s_open_transaction_hides(kafka, topic):
    raw, marked = topic(1), topic(1)
    injection = Injection(raw, marked, JsonField("at"), interval=FAST)
    send(kafka, raw, (1, 1))
    with Injector(injection, kafka.config) as injector:
        injector.run(until_end=True)
        other = open_transaction(kafka, marked)
        send(kafka, raw, (2, 2))
        injector.run(until_end=True)
    Timer(1, other.abort).start()
    with Injector(injection, kafka.config) as injector:
        send(kafka, raw, (3, 3))
        injector.run(until_end=True)
    assert [json.loads(row.value)["at"] for row in look(kafka, marked)[0]] == [1, 2, 3]


def test_no_row_stands_behind_a_mark_and_restarts_repeat_nothing(kafka, topic):
    """Stopped and started again after every few records; two partitions."""
    raw, marked = topic(2), topic(2)
    injection = Injection(raw, marked, JsonField("at"), TimePolicy(late=MINUTES, out_of_order=FAST), interval=FAST)
    sent = []
    for round_ in range(4):
        for partition in (0, 1):
            rows = [(10_000 * round_ + 97 * (n * 7 % 50), 10_000 * round_ + 100 * n) for n in range(50)]
            sent += [(partition, event_time) for event_time, _ in rows]
            send(kafka, raw, *rows, partition=partition)
        injector = Injector(injection, kafka.config)
        injector.run(until_end=True)
        if round_ % 2:  # crashed in the middle of a transaction
            send(kafka, raw, (99_000, 10_000 * round_ + 5_000))
            sent.append((0, 99_000))
            until(lambda i=injector: i._take(i._input.take(0.5)) or i.counts["records"] > 100, "it", 20)  # noqa: SLF001
            injector._input.close()  # noqa: SLF001
            del injector
        else:
            injector.close()
    with Injector(injection, kafka.config) as injector:
        injector.run(until_end=True)
    data, marks, _ = look(kafka, marked)
    assert sorted((row.partition, json.loads(row.value)["at"]) for row in data) == sorted(sent)
    watermarks, epochs = {}, set()
    for record in sorted([*data, *marks], key=lambda record: (record.partition, record.offset)):
        place = record.partition
        if isinstance(record, Mark):
            assert record.record.watermark is None or record.record.watermark >= watermarks.get(place, 0)
            watermarks[place] = record.record.watermark or 0
            epochs.add(record.record.epoch)
        else:
            assert times([record])[0][1] >= watermarks.get(place, 0)
    assert len(epochs) == 5
    assert {mark.verdict.value for mark in marks} == {"accepted"}


def test_killed_in_the_middle_it_loses_and_doubles_nothing(kafka, topic):
    raw, marked = topic(2), topic(2)
    for partition in (0, 1):
        send(kafka, raw, *((n, n) for n in range(1, 60_001)), partition=partition)
    command = [
        *(sys.executable, "-m", "floodmark.producers.cli.main", "inject", "--from", raw, "--to", marked),
        *("--bootstrap-servers", kafka.bootstrap_servers, "--json-field", "at", "--interval", "0.1", "--until-end"),
    ]
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time_to_die = time.monotonic() + 1.6
        until(lambda p=process, t=time_to_die: p.poll() is not None or time.monotonic() > t, "the moment", 30)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    data, _, _ = look(kafka, marked)
    assert sorted((row.partition, json.loads(row.value)["at"]) for row in data) == [
        (partition, n) for partition in (0, 1) for n in range(1, 60_001)
    ]


def test_a_second_instance_fences_the_first(kafka, topic):
    raw, marked = topic(1), topic(1)
    injection = Injection(raw, marked, JsonField("at"), interval=FAST)
    first = Injector(injection, kafka.config)
    first.run(until_end=True)
    with Injector(injection, kafka.config) as second:
        second.run(until_end=True)
        send(kafka, raw, (1, 1))
        with pytest.raises(FencedError, match="inject-"):
            until(first.step, "the fence", 30)


def test_bad_records_are_passed_on_or_counted_and_move_nothing(kafka, topic):
    raw, marked, dropped = topic(1), topic(1), topic(1)
    send(kafka, raw, (1_000, 1_000))
    producer = Producer(kafka.config)
    for value in (
        b"garbage",
        b"[]",
        b'{"at": "noon"}',
        b'{"at": null}',
        b"{}",
        b'{"at": 1e300}',
        b'{"at": true}',
        None,
    ):
        producer.produce(raw, value, timestamp=1_000)
    producer.produce(raw, b'{"at": 1000}', key=b"__floodmark__/evil", timestamp=1_000)
    producer.produce(raw, b'{"at": -86400000}', timestamp=1_000)
    producer.produce(raw, b'{"at": 9e12}', timestamp=1_000)
    producer.flush(30)
    injection = Injection(raw, marked, JsonField("at"), TimePolicy(late=FAST), dropped_to=dropped)
    with Injector(injection, kafka.config) as injector:
        injector.run(until_end=True)
        assert (injector.outcomes["unreadable"], injector.outcomes["reserved"], injector.outcomes["early_dropped"]) == (
            7,
            1,
            1,
        )
    data, _, tracker = look(kafka, marked)
    assert len(data) == 10, "what cannot be read is passed on as it was"
    assert len(look(kafka, dropped)[0]) == 1
    assert tracker.watermark is not None
    assert tracker.watermark < 2_000 or tracker.watermark == injector.watermarks[0]


def open_protocol(event):
    """Return key and value of a message of TiCDC's open protocol: version 1, and an event with its length before it."""
    text = json.dumps(event).encode()
    return struct.pack(">QQ", 1, len(text)) + text, struct.pack(">Q", 0)


def is_resolved(*parts):
    return any(text in b"".join(filter(None, parts)) for text in (b"resolved", b"TIDB_WATERMARK", b'"t": 3'))


def test_cockroachdb_and_ticdc_promises_become_marks(kafka, topic):
    for fmt, rows, expected in (
        (
            CockroachDb(),
            [
                b'{"after": {"id": 1}, "key": [1], "updated": "5000000000.0000000000"}',
                b'{"resolved": "6000000000.0000000000"}',
                b'{"after": {"id": 1}, "key": [1], "updated": "5000000000.0000000000"}',
                b'{"after": null, "key": [1], "updated": "7000000000.0000000001"}',
                b'{"resolved": "6500000000.0000000000"}',
            ],
            6_500,
        ),
        (
            TiCdcCanal(),
            [
                b'{"id": 0, "type": "INSERT", "es": 1, "_tidb": {"commitTs": %d}}' % (5_000 << 18),
                b'{"id": 0, "type": "TIDB_WATERMARK", "_tidb": {"watermarkTs": %d}}' % (6_000 << 18),
            ],
            6_000,
        ),
        (
            TiCdcOpen(),
            [
                open_protocol({"ts": 5_000 << 18, "scm": "test", "tbl": "t1", "t": 1}),
                open_protocol({"ts": 6_000 << 18, "t": 3}),
                open_protocol({"ts": 7_000 << 18, "scm": "test", "tbl": "t1", "t": 2}),
            ],
            6_000,
        ),
    ):
        raw, marked = topic(2), topic(2)
        producer = Producer(kafka.config)
        for partition in (0, 1):
            for row in rows:
                key, value = row if isinstance(row, tuple) else (None, row)
                producer.produce(raw, value, key, partition=partition)
        producer.flush(30)
        with Injector(Injection(raw, marked, fmt), kafka.config) as injector:
            injector.run(until_end=True)
        data, _, tracker = look(kafka, marked)
        assert tracker.watermark == expected
        assert not any(is_resolved(row.key, row.value) for row in data)
        assert len(data) == 2 * sum(not is_resolved(*(row if isinstance(row, tuple) else (row,))) for row in rows)


def test_both_topics_grow_while_it_runs(kafka, topic):
    raw, marked = topic(1), topic(2)
    send(kafka, raw, (5_000, 5_000))
    injection = Injection(
        raw, marked, JsonField("at"), TimePolicy(late=timedelta(hours=1), out_of_order=timedelta(0)), interval=FAST
    )
    with Injector(injection, kafka.config) as injector:
        injector.run(until_end=True)
        tracker = look(kafka, marked)[2]
        assert tracker.watermark == 5_000, "the partition that the input lacks holds nothing up"
        quiet = injector.counts["marks"]
        until(lambda: injector.step() or injector.counts["marks"] >= quiet + 20, "marks of both without news", 30)
        _, marks, tracker = look(kafka, marked)
        assert min(sum(mark.partition == number for mark in marks) for number in (0, 1)) > 10, (
            "readers see that it runs"
        )
        assert tracker.watermark == 5_000
        grow(kafka.config, raw, 2)
        grow(kafka.config, marked, 3)
        send(kafka, raw, (5_010, 5_010), partition=1)
        injector._next_look = 0  # noqa: SLF001  # the metadata is looked at every ten seconds
        until(lambda: injector.step() or injector.outcomes["on_time"] == 2, "the row of the new partition", 30)
        injector.commit()
    data, _, tracker = look(kafka, marked)
    assert sorted((row.partition, json.loads(row.value)["at"]) for row in data) == [(0, 5_000), (1, 5_010)]
    assert tracker.watermark >= 5_000
    shrunk = topic(1)
    with pytest.raises(InjectorError, match="as many partitions"):
        Injector(Injection(raw, shrunk, JsonField("at")), kafka.config)


def test_until_end_stops_at_the_end_of_the_start_while_the_input_grows(kafka, topic):
    raw, marked, done = topic(2), topic(2), Event()
    for partition in (0, 1):
        send(kafka, raw, *((n, n) for n in range(1, 101)), partition=partition)

    def grow_on():
        producer = Producer({**kafka.config, "linger.ms": 0})
        while not done.wait(0.001):
            for partition in (0, 1):
                producer.produce(raw, b'{"at": 101}', partition=partition, timestamp=101)
            producer.poll(0)
        producer.flush(30)

    writer, deadline = Thread(target=grow_on), Deadline(30)
    with Injector(Injection(raw, marked, JsonField("at"), interval=FAST), kafka.config) as injector:
        writer.start()
        try:
            injector.run(until_end=True, stop=lambda: deadline.passed)
        finally:
            done.set()
            writer.join()
        assert not deadline.passed
    data, _, _ = look(kafka, marked)
    assert sorted((row.partition, at) for row in data if (at := times([row])[0][0]) <= 100) == [
        (partition, n) for partition in (0, 1) for n in range(1, 101)
    ]


def test_until_end_stops_at_an_open_transaction_says_so_and_ends_no_source(kafka, topic, caplog):
    raw, marked = topic(2), topic(2)
    send(kafka, raw, (1, 1), (2, 2))
    writer = Producer({**kafka.config, "transactional.id": raw})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(raw, b'{"at": 3}', partition=0, timestamp=3)
    assert writer.flush(30) == 0
    injection = Injection(raw, marked, JsonField("at"))
    hides = f"an open transaction hides the records from {raw}/0@2 on"
    with Injector(injection, kafka.config) as injector:
        injector.run(until_end=True)
        assert f"{hides}: they are not copied until it has ended" in caplog.text
        with pytest.raises(InjectorError, match=f"{hides}.*the source was not ended"):
            injector.end()
    assert not look(kafka, marked)[2].ended
    caplog.clear()
    clock = ManualClock(wall=datetime.now(UTC) + timedelta(hours=1))
    with Injector(injection, kafka.config, clock=clock) as injector:
        for _ in range(4):  # it looks every ten seconds, and tells once
            clock.advance(timedelta(seconds=11))
            injector.step()
    assert [hides in message for message in caplog.messages] == [True]
    writer.commit_transaction(30)
    caplog.clear()
    with Injector(injection, kafka.config) as injector:
        injector.run(until_end=True)
        injector.end()
    data, _, tracker = look(kafka, marked)
    assert ([at for at, _ in times(data)], tracker.ended, "hides" in caplog.text) == ([1, 2, 3], True, False)


def test_an_empty_partition_and_silence_hold_nothing_for_ever(kafka, topic):
    """With nothing to read, time passes by the estimated arrival."""
    raw, marked = topic(2), topic(2)
    now = time.time_ns() // 1_000_000
    send(kafka, raw, (now, now))
    with Injector(
        Injection(raw, marked, JsonField("at"), TimePolicy(late=timedelta(seconds=1)), interval=FAST), kafka.config
    ) as injector:
        until(
            lambda: injector.step() or min(w or 0 for w in injector.watermarks.values()) > now + 500, "the estimate", 30
        )
    assert look(kafka, marked)[2].watermark > now


def test_no_record_that_kafka_has_is_behind_the_estimate(kafka, topic):
    """Neither one that arrived while the injector stood still, nor one of an open transaction."""
    raw, marked = topic(1), topic(1)
    now = 1_763_712_000_000
    clock = ManualClock(wall=now)
    with Injector(Injection(raw, marked, JsonField("at")), kafka.config, clock=clock) as injector:

        def until_copied(count):
            at_end = lambda: injector.counts["records"] == count and injector._partitions[0].at_end  # noqa: E731, SLF001
            until(lambda: injector.step() or at_end(), f"{count} records")

        def mark_after(seconds):
            clock.advance(timedelta(seconds=seconds))
            injector.commit()
            return (injector.watermarks[0] - now) / 1_000

        send(kafka, raw, (now, now))
        until_copied(1)
        assert mark_after(60) == 55
        send(kafka, raw, (now + 61_000, now + 61_000))
        assert mark_after(60) == 55, "it has not read that record"
        until_copied(2)
        assert mark_after(1) == 57
        writer = Producer({**kafka.config, "transactional.id": raw})
        writer.init_transactions(30)
        writer.begin_transaction()
        writer.produce(raw, b'{"at": %d}' % (now + 62_000), timestamp=now + 62_000)
        assert writer.flush(30) == 0
        assert mark_after(60) == 57, "nor may it read this one"
        writer.commit_transaction(30)
        until_copied(3)
        assert mark_after(1) == 58
    assert injector.outcomes == {"on_time": 3}


def test_a_partition_that_is_ahead_is_paused_until_the_slowest_comes(kafka, topic):
    """A backlog of two partitions, one ten hours ahead of the other: it waits, and then everything is passed on."""
    raw, marked = topic(2), topic(2)
    begin, hour, rows = 1_700_000_000_000, 3_600_000, 40_000
    send(kafka, raw, *((begin + n * 100, begin + n * 100) for n in range(rows)), partition=0)
    send(kafka, raw, *((begin + 10 * hour + n, begin + 10 * hour + n) for n in range(rows)), partition=1)
    injection = Injection(raw, marked, JsonField("at"), TimePolicy(late=FAST), interval=FAST, align=timedelta(hours=1))
    progress = []
    with Injector(injection, kafka.config) as injector:

        def passed():
            injector.step()
            progress.append([one.next for _, one in injector._partitions.items()])  # noqa: SLF001
            return injector.counts["records"] == 2 * rows

        until(passed, "all", 60)
        injector.commit()
        assert injector.outcomes["on_time"] == 2 * rows
    ahead = max(second for first, second in progress if first < rows)
    assert ahead <= 1, "while the first had a backlog, the second has passed on the record that showed how far it is"


def test_a_replay_of_the_decisions_gives_the_same_topic(kafka, topic):
    """The first run sees silence, and moves the watermark by the clock; the second is told, not the time."""
    raw, marked, again = topic(1), topic(1), topic(1)
    policy = TimePolicy(late=timedelta(milliseconds=500), out_of_order=timedelta(0))
    injection = Injection(raw, marked, JsonField("at"), policy, interval=FAST)
    send(kafka, raw, (1_000, 1_000))
    with Injector(injection, kafka.config) as injector:
        until(lambda: injector.step() or injector.watermarks[0] > 1_500, "an estimate", 30)
        reached = injector.watermarks[0]
        send(kafka, raw, (1_200, 1_300), (9_000, 9_000))
        until(lambda: injector.step() or injector.outcomes.total() >= 3, "the rows", 30)
        injector.commit()
    assert times(look(kafka, marked)[0])[1][1] >= reached, "the silent clock has adjusted it"
    with pytest.raises(InjectorError, match="has no decisions of it to repeat"):
        decisions_of(kafka.config, marked, "replay")
    decisions = decisions_of(kafka.config, marked, injection.source)
    with Injector(
        Injection(raw, again, JsonField("at"), policy, source=injection.source), kafka.config, decisions=decisions
    ) as replay:
        replay.run(until_end=True)
    assert times(look(kafka, again)[0]) == times(look(kafka, marked)[0])


def test_retention_that_overtook_it_is_an_error(kafka, topic):
    raw, marked = topic(1), topic(1)
    send(kafka, raw, (1, 1))
    injection = Injection(raw, marked, JsonField("at"))
    with Injector(injection, kafka.config) as injector:
        injector.run(until_end=True)
    send(kafka, raw, (2, 2), (3, 3))
    admin = AdminClient(kafka.config)
    for future in admin.delete_records([TopicPartition(raw, 0, 2)]).values():
        future.result(30)
    with pytest.raises(InjectorError, match="retention"):
        Injector(injection, kafka.config)


def test_the_first_start_says_which_records_of_the_input_kafka_has_deleted(kafka, topic, caplog):
    raw = topic(2)
    send(kafka, raw, *((n, n) for n in range(1, 6)))
    delete_before(kafka.config, raw, 3, 1)
    for partition in (None, 0, 1):
        marked = topic(2)
        for number in range(2):
            caplog.clear()
            with Injector(Injection(raw, marked, JsonField("at")), kafka.config, partition=partition) as injector:
                injector.run(until_end=True)
            told = f"Kafka has deleted up to 3 records before {raw}/0@3: the output begins behind them"
            assert caplog.text.count(told) == (number == 0 and partition != 1)


def test_a_partition_that_the_input_gets_while_it_is_down_is_read_from_offset_0(kafka, topic):
    raw, marked = topic(2), topic(2)
    injection = Injection(raw, marked, JsonField("at"))
    for number in range(2):
        send(kafka, raw, (1, 1), (2, 2), partition=number)
    delete_before(kafka.config, raw, 1)
    for number in range(2):  # as a group; at its first start, each member begins with what is left
        with Injector(injection, kafka.config, partition=number) as member:
            member.run(until_end=True)
            assert member.counts["records"] == 1
    for one in (raw, marked):
        grow(kafka.config, one, 3)
    send(kafka, raw, (1, 1), (2, 2), partition=2)
    delete_before(kafka.config, raw, 1, 3)
    for partition in (None, 2):
        with pytest.raises(InjectorError, match="partition 2 was read up to 0, and Kafka has it from 1 on"):
            Injector(injection, kafka.config, partition=partition)


def test_an_injection_that_contradicts_itself_is_refused(kafka, topic):
    for wrong in (
        {"source_topic": "t", "target_topic": "t"},
        {"interval": timedelta(0)},
        {"align": timedelta(-1)},
        {"fmt": CockroachDb(), "substream_by": substream_key},
    ):
        with pytest.raises(UsageError):
            Injection(**{"source_topic": "a", "target_topic": "b", "fmt": JsonField("at"), **wrong})
    with pytest.raises(UnknownTopicError):
        Injector(Injection("no-such-topic", topic(1), JsonField("at")), kafka.config)
