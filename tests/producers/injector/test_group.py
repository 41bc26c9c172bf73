"""A group of injectors: partitions move between its members, any of which may be killed, and no watermark goes back."""

import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, nullcontext
from datetime import timedelta
from functools import partial
from unittest.mock import Mock

import pytest
from confluent_kafka import Producer
from floodmark.producers import Mark, TimePolicy
from floodmark.producers.cli.inject import injection_json
from floodmark.producers.clients.admin import end_offsets
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.group import InjectorGroup
from floodmark.producers.injector.injector import Injector
from floodmark.producers.injector.topics import states_of
from floodmark.producers.readers.check import checker_of, findings
from floodmark.producers.testing import ManualClock
from floodmark.schemas.errors import BrokerUnavailableError, FencedError, InjectorError, UsageError
from support.harness import grow, until
from support.injection import look, send

pytestmark = pytest.mark.kafka
PARTITIONS = 4
SOON = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}


def injection(raw, marked, **options):
    policy = TimePolicy(late=timedelta(seconds=5), out_of_order=timedelta(seconds=5))
    return Injection(raw, marked, JsonField("at"), policy, interval=timedelta(milliseconds=100), **options)


@pytest.fixture
def topics(topic):
    return topic(PARTITIONS), topic(PARTITIONS)


@pytest.fixture
def fed(kafka, topics):
    """Write records in the background, a few at a time; returns the thread and what has been written."""
    producer, chance, stop = Producer(kafka.config), random.Random(4), threading.Event()  # noqa: S311  # repeatable
    written = defaultdict(list)

    def feed():
        at = 1_700_000_000_000
        while not stop.wait(0.02):
            for _ in range(20):
                at += 10
                place, time = chance.randrange(PARTITIONS), at - chance.randrange(8_000)
                producer.produce(topics[0], json.dumps({"at": time}), partition=place, timestamp=at)
                written[place].append(time)
            producer.flush(10)

    feeder = threading.Thread(target=feed)
    feeder.start()

    def finish():
        stop.set()
        feeder.join(30)
        return written

    yield finish
    finish()


def passed_on(kafka, topics):
    """Tell whether all that is in the input has been passed on."""
    states = states_of(kafka.config, topics[1], f"inject-{topics[0]}", range(PARTITIONS))
    ends = end_offsets(kafka.config, topics[0])
    return all(number in states and states[number].next_offset >= end for number, end in ends.items())


def assert_exact(kafka, topics, written):
    """Each record stands in the target once, in its order; no watermark went back; nothing is behind a mark."""
    data, marks, _ = look(kafka, topics[1])
    found = defaultdict(list)
    for record in sorted(data, key=lambda record: (record.partition, record.offset)):
        found[record.partition].append(json.loads(record.value)["at"])
    assert found == written
    last = {}
    epochs = Counter()
    for record in sorted((r for r in marks if isinstance(r, Mark)), key=lambda r: (r.partition, r.offset)):
        mark = record.record
        assert mark.watermark is None or mark.watermark >= last.get(record.partition, 0), record.place
        last[record.partition] = mark.watermark or 0
        epochs[record.partition, mark.epoch] += 1
    assert len(last) == PARTITIONS
    faults = [str(found) for found in findings(kafka.config, topics[1], None, checker_of(kafka.config, topics[1]))]
    assert faults == []
    return Counter(partition for partition, _ in epochs)


@pytest.fixture
def member(kafka, topics, tmp_path):
    """Start processes that are members of one group; each is killed at the end."""
    settings = tmp_path / "kafka.properties"
    settings.write_text("".join(f"{name}={value}\n" for name, value in SOON.items()), encoding="utf-8")
    raw, marked = topics
    with ExitStack() as stack:

        def start(name):
            command = [sys.executable, "-m", "floodmark.producers.cli.main", "inject", "--from", raw, "--to", marked]
            options = ["--json-field", "at", "--interval", "0.1", "--group", "together", "--json"]
            servers = ["--bootstrap-servers", kafka.bootstrap_servers, f"--config={settings}"]
            with (tmp_path / name).open("w", encoding="utf-8") as log:
                process = subprocess.Popen([*command, *options, *servers], stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            process.log = tmp_path / name
            return process

        yield start


def has_partitions(process, count):
    """Tell whether a member has so many partitions."""
    lines = [line for line in process.log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    return bool(lines) and len(json.loads(lines[-1])["watermarks"]) == count


def test_members_join_leave_and_are_killed_and_each_record_is_passed_on_once(kafka, topics, fed, member):
    first = member("first")
    until(lambda: has_partitions(first, 4), "all partitions with the first")
    second = member("second")
    until(lambda: has_partitions(first, 2) and has_partitions(second, 2), "half of them with the second")
    first.kill()
    until(lambda: has_partitions(second, 4), "those of the dead with the second")
    third = member("third")
    until(lambda: has_partitions(third, 2), "half of them with the third")
    third.send_signal(signal.SIGTERM)
    assert third.wait(30) == 0
    until(lambda: has_partitions(second, 4), "those of the one that left with the second")
    written = fed()
    until(lambda: passed_on(kafka, topics), "the last record")
    second.send_signal(signal.SIGINT)
    assert second.wait(30) == 0
    for stopped in (third, second):
        line = stopped.log.read_text(encoding="utf-8").splitlines()[-1]
        said = r" records read; its present partitions, since the first run: .* on time.*; watermark 2023-"
        assert re.search(said, line), line
    takeovers = assert_exact(kafka, topics, written)
    assert min(takeovers.values()) >= 2, "each partition has moved"


def test_a_member_that_believes_too_long_that_a_partition_is_its_own_is_shut_out(kafka, topics, fed):
    """It stands still while the group gives its partitions to another one, then wakes up amid a transaction."""
    config = {**kafka.config, **SOON, "max.poll.interval.ms": 6_000}
    with InjectorGroup(injection(*topics), config, group="awake") as sleeper:
        until(lambda: sleeper.step() or len(sleeper.partitions) == PARTITIONS, "all partitions with the first")
        with InjectorGroup(injection(*topics), config, group="awake") as other:
            until(lambda: other.step() or len(other.partitions) == PARTITIONS, "all partitions with the second")
            written = fed()
            until(lambda: sleeper.step() or other.step() or passed_on(kafka, topics), "the last record")
            assert set(sleeper.partitions).isdisjoint(other.partitions)
    assert_exact(kafka, topics, written)


@pytest.mark.parametrize("together", [False, True], ids=["injector", "group"])
def test_a_group_whose_partitions_another_writes_says_so_at_once_and_ends(kafka, topics, caplog, together):
    clock = ManualClock(wall=1_700_000_000_000)
    with InjectorGroup(injection(*topics), {**kafka.config, **SOON}, group="one", clock=clock) as first:
        until(lambda: first.step() or len(first.partitions) == PARTITIONS, "all partitions with the first")
        other = partial(InjectorGroup, group="two") if together else Injector
        with other(injection(*topics), {**kafka.config, **SOON}) as second:
            until(lambda: second.step() or len(second.watermarks) == PARTITIONS, "all partitions with the second")

            def fenced():
                clock.advance(timedelta(seconds=1))  # its transactions are due
                first.step()
                return not first.partitions

            until(fenced, "the first without partitions")
            assert len([one for one in caplog.records if "is no member of this group" in one.message]) == PARTITIONS
            clock.advance(timedelta(minutes=2))
            with pytest.raises(FencedError, match="an injector outside the group writes to its partitions"):
                first.step()


def test_a_group_stops_an_earlier_injector_of_all_partitions(kafka, topics, fed):
    with Injector(injection(*topics), kafka.config) as earlier:
        earlier.step()
        with InjectorGroup(injection(*topics), {**kafka.config, **SOON}) as group:
            until(lambda: group.step() or len(group.partitions) == PARTITIONS, "all partitions with the group")
            written = fed()
            with pytest.raises(FencedError, match="another instance with the same name"):
                until(earlier.step, "that the earlier one is stopped")
            until(lambda: group.step() or passed_on(kafka, topics), "the last record")
    assert_exact(kafka, topics, written)


def test_a_member_whose_partitions_start_slowly_keeps_them(kafka, topics, monkeypatch):
    """All together take longer than the group waits for a poll."""
    started = []

    def slow(*given, partition, **options):
        started.append(partition)
        time.sleep(1.6)
        return Injector(*given, partition=partition, **options)

    monkeypatch.setattr("floodmark.producers.injector.group.Injector", slow)
    with InjectorGroup(injection(*topics), {**kafka.config, **SOON, "max.poll.interval.ms": 6_000}) as member:
        until(lambda: member.step() or len(member.partitions) == PARTITIONS, "all partitions")
        for number in range(PARTITIONS):
            send(kafka, topics[0], (1_700_000_000_000, 1_700_000_000_000), partition=number)
        until(lambda: member.step() or passed_on(kafka, topics), "the records")
    assert started == list(range(PARTITIONS))


def test_no_transaction_is_open_while_the_injector_of_a_new_partition_starts(kafka, topics, monkeypatch):
    """Its start may take longer than Kafka keeps a transaction open."""
    config, clock, started = {**kafka.config, **SOON}, ManualClock(wall=1_700_000_000_000), []

    def checked(*given, partition, **options):
        started.append([injector._out._open for injector in first._injectors.values()])  # noqa: SLF001
        return Injector(*given, partition=partition, **options)

    with InjectorGroup(injection(*topics), config, clock=clock) as first:  # no transaction is due
        with InjectorGroup(injection(*topics), config) as second:
            half = PARTITIONS // 2
            until(lambda: first.step() or second.step() or len(second.partitions) == half, "half with the second")
            for _ in range(2):
                first.step()
            assert all(injector._out._open for injector in first._injectors.values())  # noqa: SLF001
            monkeypatch.setattr("floodmark.producers.injector.group.Injector", checked)
        until(lambda: first.step() or len(first.partitions) == PARTITIONS, "all partitions with the first")
    assert started == [[False] * half, [False] * (half + 1)]


@pytest.mark.parametrize(
    "error",
    [
        BrokerUnavailableError(bootstrap_servers="localhost:1", seconds=30, reason="away"),
        FencedError(writer="injector", topic="t", reason="another writes to it", advice="stop one"),
    ],
    ids=["away", "fenced"],
)
def test_a_last_commit_that_fails_is_told_unless_another_member_has_the_partition(
    kafka, topics, monkeypatch, caplog, error
):
    fenced = isinstance(error, FencedError)
    with InjectorGroup(injection(*topics), {**kafka.config, **SOON}) as group:
        until(lambda: group.step() or len(group.partitions) == PARTITIONS, "all partitions")
        monkeypatch.setattr(Injector, "commit", Mock(side_effect=error))
        with nullcontext() if fenced else pytest.raises(BrokerUnavailableError):
            group.run(stop=lambda: True)
        group._members.unsubscribe()  # noqa: SLF001
        until(lambda: group.step() or not group.partitions, "no partitions")
    told = [one.message for one in caplog.records if "were not committed. The next owner copies" in one.message]
    assert len(told) == (0 if fenced else PARTITIONS)


def test_what_a_group_cannot_do_is_refused(kafka, topic, topics):
    with pytest.raises(InjectorError, match="needs the same number"):
        InjectorGroup(injection(topics[0], topic(PARTITIONS + 1)), kafka.config)
    with pytest.raises(UsageError, match="cannot align"):
        InjectorGroup(injection(*topics, align=timedelta(seconds=1)), kafka.config)


def test_a_partition_without_a_right_time_ends_a_member_only_if_no_other_partition_has_one(kafka, topics):
    raw, marked = topics
    producer = Producer(kafka.config)
    producer.produce(raw, b"no JSON", partition=0)
    producer.flush(10)
    send(kafka, raw, (1_700_000_000, 1_700_000_000_000), partition=1)  # seconds
    config = {**kafka.config, **SOON}
    with InjectorGroup(injection(raw, marked), config) as group, pytest.raises(InjectorError, match="another unit"):
        until(group.step, "a refusal")
    ends = end_offsets(kafka.config, marked)
    assert (ends[0], ends[1]) == (0, 0)
    send(kafka, raw, (1_700_000_000_000, 1_700_000_000_000), partition=2)
    with InjectorGroup(injection(raw, marked), config) as group:
        until(lambda: group.step() or passed_on(kafka, topics), "the first records")
        send(kafka, raw, (1_700_000_000, 1_700_000_000_000), partition=3)
        until(lambda: group.step() or passed_on(kafka, topics), "seconds after the start")
        assert group.outcomes["unreadable"] == 1


@pytest.mark.parametrize("which", [0, 1], ids=["the input", "the target"])
def test_a_group_ends_where_one_topic_alone_grows(kafka, topics, which):
    send(kafka, topics[0], (1_000, 1_000))

    def step():
        for injector in group._injectors.values():  # noqa: SLF001  # the metadata is looked at every ten seconds
            injector._next_look = 0  # noqa: SLF001
        group.step()

    with InjectorGroup(injection(*topics), {**kafka.config, **SOON}) as group:
        until(lambda: group.step() or group.counts["records"] == 1, "the group runs", 30)
        grow(kafka.config, topics[which], PARTITIONS + 1)
        with pytest.raises(InjectorError, match=r"5.*; a group needs the same number in both"):
            until(step, "the partition is seen", 30)
    marks = look(kafka, topics[1])[1]
    assert {mark.record.partitions for mark in marks} == {PARTITIONS}, "no mark names a partition without marks"


def test_a_group_goes_on_where_one_injector_stopped(kafka, topics, fed):
    with Injector(injection(*topics), kafka.config) as alone:
        until(lambda: alone.step() or alone.counts["records"] > 100, "some records")
        alone.commit()
    group = InjectorGroup(injection(*topics), {**kafka.config, **SOON})
    with group:
        written = fed()
        until(lambda: group.step() or passed_on(kafka, topics), "the last record")
    assert_exact(kafka, topics, written)


def test_a_member_tells_what_it_has_counted_itself(kafka, topics, monkeypatch):
    """Together the members count each record once, and a series of one of them never goes back."""
    raw, _ = topics
    for place in range(PARTITIONS):
        send(kafka, raw, (1_000_000, 1_000_000), (1_000, 1_000_100), partition=place)
    config = {**kafka.config, **SOON}
    told = []
    with InjectorGroup(injection(*topics), config) as first:
        idle = first.metrics()
        assert (idle.state, idle.records, idle.late_events, idle.processing_time_delay_seconds) == ("idle", 0, 0, 0.0)
        assert first.holders() == []
        said = json.loads(injection_json(first))
        assert (said["records"], said["late_events"], said["outcomes"], said["watermark_utc"]) == (0, 0, {}, None)
        with monkeypatch.context() as patch:
            patch.setattr(first, "_follow", lambda: None)  # the group has not answered yet
            first.step(lambda group: told.append(group.partitions))
        assert told == [[]]
        until(lambda: first.step() or passed_on(kafka, topics), "the first records")
        alone = first.metrics()
        assert (alone.records, alone.late_events, alone.state) == (2 * PARTITIONS, PARTITIONS, "active")
        assert alone.watermark == min(first.watermarks.values())
        then = json.loads(injection_json(first))
        assert then.keys() == said.keys(), "a program finds each count in each line"
        assert (then["records"], then["late_events"]) == (2 * PARTITIONS, PARTITIONS)
        assert {hold.watermark for hold in first.holders()} == {alone.watermark}
        with InjectorGroup(injection(*topics), config) as second:
            half = PARTITIONS // 2
            until(lambda: first.step() or second.step() or len(second.partitions) == half, "half with the second")
            assert {hold.holder.partition for hold in second.holders()} <= set(second.partitions)
            for place in range(PARTITIONS):
                send(kafka, raw, (2_000, 2_000_000), partition=place)
            until(lambda: first.step() or second.step() or passed_on(kafka, topics), "the last records")
            shared, other = first.metrics(), second.metrics()
    assert (shared.records, other.records) == (2 * PARTITIONS + half, half)
    assert (shared.late_events, other.late_events) == (PARTITIONS + half, half)
    assert first.outcomes["late_events"] == PARTITIONS + half, "also without partitions, in its last line"
    assert shared.epoch == alone.epoch
    assert (shared.before, other.before) == ({}, {})


FORGOTTEN = """\
import json, sys, time
from datetime import timedelta
from floodmark.producers import TimePolicy
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.group import InjectorGroup
config, raw, marked = json.loads(sys.argv[1])
injection = Injection(raw, marked, JsonField("at"), TimePolicy(late=timedelta(seconds=5)))
first = InjectorGroup(injection, config)
deadline = time.monotonic() + 60
while len(first.partitions) < 4 and time.monotonic() < deadline:
    first.step()
second = InjectorGroup(injection, config)
time.sleep(2)  # the group asks the first for a half, and is not answered
print(first.partitions)
"""


def test_a_program_that_forgets_to_close_its_members_ends(kafka, topics):
    given = json.dumps([{**kafka.config, **SOON}, *topics])
    command = [sys.executable, "-c", FORGOTTEN, given]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "[0, 1, 2, 3]\n"
