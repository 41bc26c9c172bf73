"""`floodmark check` finds each fault that is seeded, one by one, and nothing in a sound topic."""

import json
import os
import pickle
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from floodmark.producers import WatermarkedProducer, ascending
from floodmark.producers.clients.admin import create_topics
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.readers.check import checker_of, findings
from floodmark.producers.testing import mark
from floodmark.schemas import Status, Tracker, WatermarkRecord
from floodmark.schemas import checker as checker_module
from floodmark.schemas.checker import Checker, Fault
from floodmark.schemas.classify import classify, mark_record
from floodmark.schemas.partition_state import ENDED
from floodmark.schemas.records import TIME_HEADER
from floodmark.spark_jobs.progress.lateness import Promises
from support.harness import EVENT, Stream, events

HISTORIES = int(os.environ.get("FLOODMARK_HISTORIES", "2000"))


def said(source="a", watermark=0, sequence=0, records=None, **more):
    return replace(mark(source, watermark, sequence, **more), records=records)


def on_topic(offset, record):
    return classify("t", 0, offset, 0, *mark_record(record))


def check(*log, partitions=1):
    """Check a log: ints are event times, records are marks, None is garbage, dicts give raw parts."""
    checker, found = Checker(), []
    for offset, entry in enumerate(log):
        match entry:
            case int():
                found += checker.data(0, offset, entry)
            case None:
                found += checker.data(0, offset, None, readable=False)
            case WatermarkRecord():
                found += checker.mark(on_topic(offset, entry))
            case dict():
                found += checker.mark(classify("t", 0, offset, 0, **{**mark_record(said())._asdict(), **entry}))
    return [*found, *checker.finish(partitions)]


SOUND = [10, said("a", 10, 0, 1, size=2), 12, said("b", 11, 0, 1, size=2), 11, said("a", 20, 1, 2, size=2)]


def test_a_zombie_of_another_membership_hides_no_late_row():
    log = [said("a", 10, 0, epoch=2), said("a", 5, 0, epoch=1, version=2), said("a", 20, 1, epoch=2), 15]
    assert [one.fault for one in check(*log)] == [Fault.ZOMBIE, Fault.LATE_ROW]


def test_marks_after_an_end_and_replays_of_another_membership_hide_no_late_row():
    ended = [said("a", 10, 0, size=2), said("b", 10, 0, size=2), said("b", 10, 1, size=2, status=Status.ENDED)]
    log = [*ended, said("b", 10, 2, version=2), said("a", 20, 1, size=2), 15]
    assert [one.fault for one in check(*log)] == [Fault.AFTER_END, Fault.LATE_ROW]
    log = [said("a", 10, 0), said("a", 10, 0, version=2), said("a", 20, 1), 15]
    assert [one.fault for one in check(*log)] == [Fault.CONFLICTING_REPLAY, Fault.LATE_ROW]


def test_an_unreadable_mark_of_a_source_that_is_known_in_another_partition_holds_the_watermark():
    checker = Checker()
    for partition, record in (
        (0, said("b", 10, 0, size=2, status=Status.IDLE)),
        (0, said("a", 10, 0, size=2, partitions=2)),
    ):
        checker.mark(classify("t", partition, checker.records["marks"], 0, *mark_record(record)))
    key, _, headers = mark_record(said("b", 10, 1, size=2))
    unread = checker.mark(classify("t", 1, 0, 0, key, b"?", headers))
    checker.mark(classify("t", 1, 1, 0, *mark_record(said("a", 20, 1, size=2, partitions=2))))
    assert [one.fault for one in unread] == [Fault.UNREADABLE_MARK]
    assert checker.data(1, 2, 15) == []


def test_a_sound_log_has_no_fault():
    assert check(*SOUND) == []


def test_a_membership_that_changes_source_by_source_is_no_fault():
    old, new = {"size": 2}, {"size": 2, "version": 2}
    ended = said("c", 12, 2, size=2, status=Status.ENDED)
    log = [said("a", 10, **old), said("c", 10, **old), said("a", 11, 1, **new), said("c", 11, 1, **old)]
    assert check(*log, said("b", 11, **new), ended) == []


def test_a_surplus_member_is_found_although_a_later_membership_has_room_for_it():
    log = [said("a", 10), said("b", 10), said("a", 20, 1, version=2, size=2), said("b", 20, 1, version=2, size=2)]
    assert [(one.fault, one.offset) for one in check(*log)] == [(Fault.SURPLUS_MEMBER, 1)]


def test_a_row_is_judged_without_looking_at_every_source(monkeypatch):
    checker, looks = Checker(), []
    for number in range(100):
        assert not checker.mark(on_topic(number, said(f"s{number}", 30, size=100)))
    members = checker_module._members  # noqa: SLF001  # a look at every source
    monkeypatch.setattr(checker_module, "_members", lambda state: looks.append(state) or members(state))
    for number in range(300):
        assert not checker.data(0, 100 + number, 40)
    assert not looks, "the last mark has looked"


@pytest.mark.parametrize("unread", [False, True])
def test_a_row_is_judged_by_what_holds_when_it_comes(unread):
    checker = Checker()

    def faults(partition, offset, time=10):
        return [found.fault for found in checker.data(partition, offset, time)]

    for number in range(2):
        assert checker.mark(classify("t", number, 0, 0, *mark_record(said("a", 30, partitions=2)))) == []
        assert faults(number, 1) == [Fault.LATE_ROW]
    more = {"size": 2, "version": 2, "partitions": 2}
    checker.mark(classify("t", 1, 2, 0, *mark_record(said("b", 5, **more))))
    checker.mark(classify("t", 0, 2, 0, *mark_record(said("a", 60, 1, **more))))
    assert (faults(0, 3, time=40), faults(0, 4)) == ([], [Fault.LATE_ROW]), "readers wait for a second source, at 30"
    for number in range(2):
        for sequence, source in enumerate("ba", start=1):
            ended = said(source, 20, sequence, status=Status.ENDED, **more)
            checker.mark(classify("t", number, 4 + sequence, 0, *mark_record(ended)))
        assert faults(number, 9, time=70) == [Fault.AFTER_END]
    if unread:
        garbage = {**mark_record(said("a", 20))._asdict(), "value": b"?"}
        assert checker.mark(classify("t", 0, 10, 0, **garbage))
        assert (faults(0, 11, time=25), faults(0, 12, time=70)) == ([Fault.LATE_ROW], [])
        assert faults(1, 12, time=70) == [Fault.AFTER_END]


def test_it_waits_for_the_sources_that_readers_wait_for():
    for seed in range(HISTORIES // 10):
        wait_as_readers_do(seed)


def wait_as_readers_do(seed):
    """Sources mark in rounds, restart, end and learn of partitions late, and some name too few of them."""
    chance, checker, tracker = random.Random(seed), Checker(), Tracker({"t"})  # noqa: S311  # a repeatable history
    sources, version, size = "abc"[: chance.randint(1, 3)], 1, chance.randint(1, 3)
    begins, knows = {name: chance.choice([0, 0, 1]) for name in sources}, dict.fromkeys(sources, 1)
    epochs, last = dict.fromkeys(sources, 0), dict.fromkeys(sources, Status.ENDED)
    for step in range(30):
        if chance.random() < 0.1:
            version, size = version + 1, chance.randint(1, 3)
        name = chance.choice(sources)
        knows[name] += chance.random() < 0.2
        epochs[name] += last[name] is Status.ENDED or chance.random() < 0.1
        status = last[name] = chance.choice([Status.ACTIVE, Status.ACTIVE, Status.IDLE, Status.ENDED])
        named = chance.choice([knows[name], knows[name], 1])
        more = {"epoch": epochs[name], "status": status, "version": version, "size": size, "partitions": named}
        for number in reversed(range(begins[name], knows[name])):
            record = said(name, step, step, **more)
            checker.mark(classify("t", number, step, 0, *mark_record(record)))
            tracker.apply(record, topic="t", partition=number, log_time=0)
        topic = tracker._topics["t"]  # noqa: SLF001  # the tracker does not say which partitions have ended
        waiting = {found.partition for found in checker.finish(0) if found.fault is not Fault.SURPLUS_MEMBER}
        for number in range(topic.partition_count):
            combined = topic.partitions.get(number, topic.empty(number)).combine()
            assert combined.unknown == (number in waiting), f"seed {seed}"
            if checker._partitions[number].version == topic.roster.version:  # noqa: SLF001  # else it holds later
                judged = checker._combine(number)  # noqa: SLF001  # no row is read
                assert (combined.watermark, combined == ENDED) == judged, f"seed {seed}"


def test_what_it_finds_does_not_depend_on_which_partition_is_read_first():
    """Sources join and leave; each partition alone has the order of its log."""
    kinds = Counter()
    for seed in range(HISTORIES // 10):
        logs, found = joining(seed), []
        for turn in range(3):
            chance, checker, faults = random.Random(turn), Checker(), []  # noqa: S311  # a repeatable order
            order = chance.sample([number for number, log in enumerate(logs) for _ in log], sum(map(len, logs)))
            rest = [iter(enumerate(log)) for log in logs]
            for number in [0] * len(logs[0]) + [1] * len(logs[1]) if turn == 0 else order:
                offset, entry = next(rest[number])
                if isinstance(entry, int):
                    faults += checker.data(number, offset, entry)
                else:
                    faults += checker.mark(classify("t", number, offset, 0, *mark_record(entry)))
            found.append(Counter([*faults, *checker.finish(2)]))
        assert found[0] == found[1] == found[2], f"seed {seed}"
        kinds.update(fault.fault for fault in found[0])
    assert kinds[Fault.LATE_ROW] > HISTORIES, kinds


def joining(seed):
    """Make up the logs of two partitions: rows, and marks of sources whose membership changes in both."""
    chance, logs, version, size = random.Random(seed), ([], []), 1, 1  # noqa: S311  # a repeatable history
    for step in range(40):
        if chance.random() < 0.1:
            version, size = version + 1, chance.randint(1, 3)
        if chance.random() < 0.5:
            chance.choice(logs).append(chance.randint(0, 10 * step))
            continue
        record = said(chance.choice("abc"[:size]), 10 * step, step, version=version, size=size, partitions=2)
        for log in logs:
            log.append(record)
    return logs


def test_it_finds_the_rows_late_that_readers_find_late():
    """Also of a source that was idle or silent for longer than its lease, when it writes again."""
    found = Counter()
    for seed in range(HISTORIES // 2):
        found += judge_as_readers_do(seed)
    assert all(found[kind] > HISTORIES for kind in ("late", "on time")), found


def judge_as_readers_do(seed):
    """Sources of one partition write, mark, pause and restart; log time passes."""
    chance, checker, promises = random.Random(seed), Checker(), Promises()  # noqa: S311  # a repeatable history
    clock, found, epochs, size = 0, Counter(), Counter(), chance.randint(1, 3)
    reached, lease = dict.fromkeys("abc"[:size], 0), chance.choice([None, 20, 50])
    for step in range(60):
        clock += chance.choice([0, 5, 10])
        name = chance.choices(list(reached), range(1, size + 1))[0]
        epochs[name] += chance.random() < 0.05
        if chance.random() < 0.5:
            reached[name] = max(0, reached[name] + chance.randint(-20, 40))
            status = chance.choice([Status.ACTIVE, Status.ACTIVE, Status.ACTIVE, Status.IDLE, Status.ENDED])
            record = said(name, reached[name], step, epoch=epochs[name], status=status, size=size)
            mark_read = classify("t", 0, step, clock, *mark_record(replace(record, lease=lease)))
            checker.mark(mark_read)
            promises.apply(mark_read)
        else:
            time = chance.randint(0, 30 * step)
            is_late = time < promises.promised(("t", 0))
            faults = [finding.fault for finding in checker.data(0, step, time)]
            assert (Fault.LATE_ROW in faults) == is_late, f"seed {seed}, offset {step}"
            found["late" if is_late else "on time"] += 1
    return found


def test_replays_of_marks_are_no_fault():
    assert check(*SOUND, SOUND[1], SOUND[5], SOUND[3]) == []


def test_a_restart_is_no_fault():
    assert check(said("a", 5, 0, 0), 7, 8, said("a", 5, 0, 0, epoch=2), 9, said("a", 9, 1, 1, epoch=2)) == []


@pytest.mark.parametrize(
    ("log", "fault"),
    [
        pytest.param([*SOUND, 10], Fault.LATE_ROW, id="a row behind the watermark"),
        pytest.param([said("a", 10), said("a", 9, 1)], Fault.REGRESSING_MARK, id="a promise taken back"),
        pytest.param([said("a", 10, size=2)], Fault.MISSING_MEMBER, id="a source that never spoke"),
        pytest.param([said("a", 10), said("b", 10)], Fault.SURPLUS_MEMBER, id="a source too many"),
        pytest.param(
            [said("b", 10), said("a", 10, version=2), said("b", 11, 1)],
            Fault.SURPLUS_MEMBER,
            id="a source that retired",
        ),
        pytest.param([said("a", 10), said("a", 11, 2)], Fault.SEQUENCE_GAP, id="a mark lost"),
        pytest.param([10, said("a", 10, 0, 2)], Fault.LOST_ROWS, id="a row lost, one source"),
        pytest.param([*SOUND, said("b", 30, 1, 3, size=2)], Fault.LOST_ROWS, id="a row lost, two sources"),
        pytest.param([10, 10, said("a", 10, 0, 1)], Fault.SURPLUS_ROWS, id="a row doubled, one source"),
        pytest.param(
            [
                *SOUND,
                21,
                said("a", 20, 2, 2, size=2, status=Status.ENDED),
                said("b", 11, 1, 1, size=2, status=Status.ENDED),
            ],
            Fault.SURPLUS_ROWS,
            id="a row doubled, two sources",
        ),
        pytest.param([*SOUND, {"value": b"garbage"}], Fault.UNREADABLE_MARK, id="a garbage mark"),
        pytest.param([*SOUND, {"value": None}], Fault.UNREADABLE_MARK, id="a tombstone under a mark key"),
        pytest.param([*SOUND[:4], None, *SOUND[5:]], Fault.UNREADABLE_ROW, id="a garbage row"),
        pytest.param([None, said("a", 10)], Fault.UNREADABLE_TOPIC, id="no row with a time"),
        pytest.param([said("a", 10), said("a", 11)], Fault.CONFLICTING_REPLAY, id="two words under one number"),
        pytest.param([said("a", 10, epoch=2), said("a", 11, 1, epoch=1)], Fault.ZOMBIE, id="a zombie"),
        pytest.param(
            [said("a", 10, size=2), said("b", 10), said("a", 10, 1, size=2)], Fault.MEMBERSHIP_CONFLICT, id="two sizes"
        ),
        pytest.param(
            [said("a", 10, status=Status.ENDED), said("a", 11, 1)], Fault.AFTER_END, id="a mark after the end"
        ),
        pytest.param([said("a", 10, status=Status.ENDED), 11], Fault.AFTER_END, id="a row after the end"),
        pytest.param([said("a", 10, partitions=2)], Fault.UNMARKED_PARTITION, id="a partition never marked"),
        pytest.param([{"headers": None}], Fault.MISSING_HEADER, id="a mark without its header"),
    ],
)
def test_a_seeded_fault_is_found_and_named_alone(log, fault):
    rows = {Fault.UNREADABLE_ROW} if fault is Fault.UNREADABLE_TOPIC else set()
    assert {finding.fault for finding in check(*log)} == {fault} | rows


def test_a_new_epoch_may_begin_lower_and_its_rows_may_not():
    restart = [said("a", None, 0), said("a", 30, 1), said("a", None, 0, epoch=2), said("a", 5, 1, epoch=2)]
    assert check(*restart) == []
    assert [finding.fault for finding in check(*restart, 7)] == [Fault.LATE_ROW]
    assert [finding.fault for finding in check(*restart, said("a", 4, 2, epoch=2))] == [Fault.REGRESSING_MARK]


def test_a_source_whose_mark_cannot_be_read_is_waited_for():
    log = [
        *(said("a", 10, 0, size=2, status=Status.IDLE), said("b", 30, 0, size=2)),
        *({"value": b"of a newer format"}, said("b", 40, 1, size=2), 35),
    ]
    assert [finding.fault for finding in check(*log)] == [Fault.UNREADABLE_MARK]
    assert [finding.fault for finding in check(*log, 12)] == [Fault.UNREADABLE_MARK, Fault.LATE_ROW]


def test_what_is_deleted_on_purpose_is_not_lost():
    late, compacted = Checker({0}), Checker(compacted=True)
    for checker in (late, compacted):
        found = []
        for offset, record in enumerate([said("a", 10, 7, 100), said("a", 20, 9 if checker is compacted else 8, 100)]):
            found += checker.mark(on_topic(offset, record))
        assert found == []


def test_memory_goes_by_sources_not_by_marks():
    checker, size = Checker(), 0
    for number in range(5_000):
        assert list(checker.mark(on_topic(number, said("a", number, number, 0)))) == []
        if number == 1_000:
            size = len(pickle.dumps(checker))
    assert len(pickle.dumps(checker)) < size * 1.1


def test_every_kind_of_fault_is_seeded():
    parameters = test_a_seeded_fault_is_found_and_named_alone.pytestmark[0].args[1]
    assert {parameter.values[1] for parameter in parameters} == set(Fault)


def test_a_partition_of_the_topic_that_no_source_names_is_found():
    assert [finding.fault for finding in check(*SOUND, partitions=2)] == [Fault.UNMARKED_PARTITION]


@pytest.mark.parametrize(("partitions", "named"), [(1, [1, 2**31 - 2]), (2, [1, 2, 2**31 - 2]), (0, [1, 2**31 - 2])])
def test_of_partitions_that_marks_alone_name_the_lowest_and_the_highest_are_found(partitions, named):
    found = check(said(partitions=2**31 - 1), partitions=partitions)
    assert {finding.fault for finding in found} == {Fault.UNMARKED_PARTITION}
    assert [finding.partition for finding in found] == named


def command(kafka, topic, tmp_path, *options):
    schema = tmp_path / "event.avsc"
    schema.write_text(json.dumps(EVENT))
    given = ["--bootstrap-servers", kafka.bootstrap_servers, "--schema", str(schema), "--event-time", "at"]
    return run_check(topic, *given, *options)


def run_check(topic, *options):
    arguments = [sys.executable, "-m", "floodmark.producers.cli.main", "check", topic, *options]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.kafka
def test_the_command_passes_a_sound_topic(kafka, topic, tmp_path):
    target = topic(3)
    Stream.seeded(41, sources=3).produce(kafka.config, target)
    done = command(kafka, target, tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "0 fault(s)" in done.stderr


@pytest.mark.kafka
def test_many_faults_of_one_kind_are_a_line_for_each_partition_and_hide_no_other(kafka, topic):
    target = topic(30)
    plain = Producer(kafka.config)
    for number in range(90):
        plain.produce(target, value=b'{"at": 5}', partition=number % 30)
    plain.flush(30)
    options = ["--bootstrap-servers", kafka.bootstrap_servers, "--json-field", "att"]
    done = run_check(target, *options)
    lines = [line for line in done.stdout.splitlines() if line.startswith("unreadable row ")]
    assert (done.returncode, len(lines)) == (1, 20), done.stdout
    assert all(re.search(r"partition \d+ offset 0: .*; 2 more until offset 2$", line) for line in lines)
    assert "and 30 more: unreadable row (--json prints all)" in done.stderr
    assert len(run_check(target, *options, "--json").stdout.splitlines()) > 90


@pytest.mark.kafka
def test_the_command_names_the_place_of_a_fault_and_fails(kafka, topic, tmp_path):
    target = topic(1)
    with WatermarkedProducer(kafka.config, topic=target, source="a", strategy=ascending()) as ours:
        ours.produce(events.encode({"user": "u", "at": 30}), event_time=30)
    plain = Producer(kafka.config)
    plain.produce(target, value=events.encode({"user": "u", "at": 29}))
    plain.produce(target, value=b"garbage")
    plain.flush(30)
    done = command(kafka, target, tmp_path, "--json")
    assert done.returncode == 1
    *found, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(finding["fault"], finding["offset"]) for finding in found] == [("late row", 3), ("unreadable row", 4)]
    counts = {"data": 3, "marks": 2, "faults": 2}
    assert summary == {"topic": target, **counts, "lateness_judged": True, "compacted": False, "hidden_from": []}


@pytest.mark.kafka
def test_a_program_that_reads_the_summary_learns_that_rows_may_be_missing(kafka):
    create_topics(kafka.config, {"compacted-check": 1}, {"cleanup.policy": "compact,delete"})
    done = run_check("compacted-check", "--bootstrap-servers", kafka.bootstrap_servers, "--json")
    assert (json.loads(done.stdout.splitlines()[-1])["compacted"], "is compacted" in done.stderr) == (True, True)


@pytest.mark.kafka
def test_the_command_says_what_it_cannot_check(kafka, tmp_path):
    done = command(kafka, "no-such-topic", tmp_path)
    assert done.returncode == 2
    assert "no-such-topic" in done.stderr


@pytest.mark.kafka
def test_json_is_judged_settings_come_from_a_file_and_adjusted_rows_are_not_late(kafka, topic, tmp_path):
    target, settings = topic(1), tmp_path / "kafka.properties"
    settings.write_text(f"bootstrap.servers={kafka.bootstrap_servers}\n")
    with WatermarkedProducer(kafka.config, topic=target, source="a", strategy=ascending()) as ours:
        ours.produce(b'{"payload": {"at": 1790000030}}', event_time=1_790_000_030_000)
        ours.flush()
        ours.produce(
            b'{"payload": {"at": 1790000029}}', event_time=1_790_000_030_000, headers=[(TIME_HEADER, b"1790000030000")]
        )
        ours.flush()
        options = ["--config", str(settings), "--json-field", "payload.at", "--unit", "s"]
        assert run_check(target, *options).returncode == 0
        other_unit = run_check(target, *options[:-2])
        assert (other_unit.returncode, other_unit.stdout) == (2, ""), "no fault for each record"
        assert re.search(
            r"read as .* 1,000 times that is 2026-\S+\. Pass the --unit that gives the later", other_unit.stderr
        )
        ours.produce(b'{"payload": {"at": 1790000028}}', event_time=1_790_000_028_000)
        ours.flush()
    done = run_check(target, *options)
    assert (done.returncode, "event time 1790000028000 is behind" in done.stdout) == (1, True), (
        done.stdout + done.stderr
    )
    wrong = run_check(target, "--config", str(settings), "--json-field", "att", "--json")
    found = [json.loads(line)["fault"] for line in wrong.stdout.splitlines()[:-1]]
    assert (wrong.returncode, found) == (1, ["unreadable row"] * 2)


@pytest.mark.kafka
def test_partitions_that_are_added_while_it_reads_are_checked(kafka, topic, monkeypatch):
    target, sizes = topic(2), [1, 2, 2]
    with WatermarkedProducer(kafka.config, topic=target, source="a", strategy=ascending()) as ours:
        ours.produce(b"x", event_time=30, partition=1)
    monkeypatch.setattr("floodmark.producers.readers.check.require_topics", lambda _, topics: {topics[0]: sizes.pop(0)})
    checker = checker_of(kafka.config, target)
    found = list(findings(kafka.config, target, None, checker))
    assert (found, checker.records["data"], sizes) == ([], 1, [])


def test_half_a_way_to_judge_lateness_is_an_error():
    done = run_check("t", "--bootstrap-servers", "localhost:1", "--event-time", "at")
    assert (done.returncode, "--schema or --registry describes: name one" in done.stderr) == (2, True)


@pytest.mark.kafka
def test_marks_after_one_time_in_seconds_do_not_make_a_topic_one_of_another_unit(kafka, topic):
    target, plain = topic(1), Producer(kafka.config)
    plain.produce(target, b'{"at": 1763938400}', partition=0)
    for number in range(1_100):
        key, value, headers = mark_record(said("a", None, number, 1))
        plain.produce(target, value, key, 0, headers=headers)
    plain.produce(target, b'{"at": 1763938400123}', partition=0)
    plain.flush(30)
    assert list(findings(kafka.config, target, JsonField("at"), checker_of(kafka.config, target))) == []
