"""`floodmark board` and `why` on a real chain of two jobs: who holds it, since when, and what the exit status says."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from floodmark.producers import Mark, Observer
from floodmark.producers.clients.clock import Clock
from floodmark.producers.testing import mark
from floodmark.schemas.classify import mark_record
from floodmark.schemas.records import Holder
from support.harness import delete_before, until
from support.marked_chain import marked_chain

COMMAND = [sys.executable, "-m", "floodmark.producers.cli.main"]


def floodmark(kafka, *arguments, columns=200):
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run(
        [*COMMAND, *arguments, "--bootstrap-servers", kafka.bootstrap_servers],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env=environment if columns is None else {**environment, "COLUMNS": str(columns)},
    )


def told(kafka, *arguments):
    done = floodmark(kafka, *arguments, "--json")
    assert not done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def rows(board):
    return [
        row
        for stage in board["stages"]
        for topic in stage["topics"]
        for partition in topic["partitions"]
        for row in partition["sources"]
    ]


def standing_since(kafka, topic, source, partition):
    """Return when Kafka took the first mark with a source's last watermark in a partition; all have the same one."""
    marks = defaultdict(list)
    with Observer(kafka.config, [topic]) as observer:

        def are_read():
            for record in observer.poll(0.1):
                if isinstance(record, Mark) and record.record.source == source:
                    marks[record.partition].append(record)
            return len(observer.ends) == 2

        until(are_read, f"the ends of {topic}")
    lasts = [said[-1].record.watermark for said in marks.values()]
    assert len(set(lasts)) == 1
    return min(one.log_time for one in marks[partition] if one.record.watermark == lasts[0])


@pytest.mark.kafka
@pytest.mark.timeout(240)
def test_a_paused_source_is_named_from_the_last_topic_and_forgotten_when_it_goes_on(kafka, topic):
    first, second, third = topic(2), topic(1), topic(1)
    with marked_chain(kafka.config, first, second, third) as chain:

        def is_well():
            return told(kafka, "board", third, "--once")[0] == 0

        until(is_well, "a board on which all is well", 60)
        _, board = told(kafka, "board", third, "--once")
        assert [stage["name"] for stage in board["stages"]] == ["sources", "counts", "means"]
        assert [stage["inputs"] for stage in board["stages"]] == [[], [first], [second]]
        until(lambda: told(kafka, "why", third)[1]["cause"] is None, "no cause")

        chain.paused.add("web-2")
        answer = {}

        def is_named():
            status, found = told(kafka, "why", third)
            cause = found["cause"]
            answer.update(found)
            return status == 1 and cause and (cause["source"], cause["verdict"]) == ("web-2", "STALL")

        until(is_named, "the stall", 60)
        cause = answer["cause"]
        assert cause["topic"] == first
        assert cause["partition"] in {0, 1}
        assert cause["since_exact"]
        assert cause["since"] == standing_since(kafka, first, "web-2", cause["partition"])
        assert [step["topic"] for step in answer["steps"]] == [third, second, first]
        shown = []

        def is_told():
            shown[:] = [floodmark(kafka, "why", third)]
            return f"{first}/{cause['partition']}/web-2" in shown[0].stdout

        until(is_told, "the same as text")
        assert shown[0].returncode == 1
        assert "mark_idle()" in shown[0].stdout
        assert "/web-2 (2 partitions)" in shown[0].stdout
        in_a_pipe = floodmark(kafka, "why", third, columns=None).stdout.splitlines()
        (advice,) = (line for line in in_a_pipe if line.startswith("do  "))
        assert advice.endswith("or use with_idleness() and wait for its timeout"), "no line is wrapped"

        def is_alone():
            status, board = told(kafka, "board", third, "--once")
            return status == 1 and {row["source"] for row in rows(board) if row["verdict"] == "STALL"} == {"web-2"}

        until(is_alone, "a board on which it is the only one")
        for columns in (40, 60, 80, 120):
            shown = floodmark(kafka, "board", third, "--once", columns=columns)
            assert shown.returncode == 1
            assert max(map(len, shown.stdout.splitlines())) <= columns
            assert "Traceback" not in shown.stderr

        chain.paused.clear()
        until(is_well, "recovery", 60)


@pytest.mark.kafka
@pytest.mark.timeout(240)
def test_a_job_that_is_dead_is_the_cause_though_its_input_goes_on(kafka, topic):
    first, second, third = topic(2), topic(1), topic(1)
    with marked_chain(kafka.config, first, second, third) as chain:
        until(lambda: told(kafka, "why", third)[0] == 0, "a chain that is well", 60)
        chain.silent.add("counts")

        answer = {}

        def is_stopped():
            status, found = told(kafka, "why", third)
            cause = found["cause"]
            answer.update(found)
            return status == 1 and cause and (cause["source"], cause["verdict"]) == ("counts", "STOP")

        until(is_stopped, "the stop", 60)
        assert [step["topic"] for step in answer["steps"]] == [third, second]
        assert "job counts" in answer["advice"]
        found = {
            topic["topic"]: topic
            for stage in told(kafka, "board", third, "--once")[1]["stages"]
            for topic in stage["topics"]
        }
        assert found[second]["lags"]["local"] > 1_000
        assert found[third]["lags"]["local"] < 1_000
        assert found[third]["lags"]["root"] > 1_000


@pytest.mark.kafka
def test_an_event_from_the_future_is_named_long_after_it_came(kafka, topic):
    name, producer, now = topic(1), Producer(kafka.config), time.time_ns() // 1_000_000
    for number in range(1_000):
        at = now - 100 * (1_000 - number)
        said = mark("web", at - 1_000 if number < 100 else now + 86_400_000, number, records=number, emitted_at=at)
        key, value, headers = mark_record(said)
        producer.produce(name, value, key, headers=headers, timestamp=at)
        producer.produce(name, b"data", timestamp=at)
    producer.flush(30)
    status, answer = told(kafka, "why", name)
    assert (status, answer["cause"]["cause"]) == (1, "future")
    assert "early=" in answer["advice"]
    assert told(kafka, "board", name, "--once")[0] == 1


@pytest.mark.kafka
def test_what_cannot_be_told_has_its_own_status(kafka, topic):
    plain = topic(1)
    producer = Producer(kafka.config)
    producer.produce(plain, b"data")
    producer.flush(30)
    for command in (["board", "--once"], ["why"]):
        done = floodmark(kafka, command[0], plain, *command[1:])
        assert done.returncode == 2
        assert "no marks" in done.stdout or "no watermark record" in done.stdout
        done = floodmark(kafka, command[0], "no-such-topic", *command[1:])
        assert done.returncode == 2
        assert "it does not exist, or you have no right to describe it" in done.stdout
        assert "Traceback" not in done.stderr


def test_no_broker_is_one_line():
    for command in (["board", "t", "--once"], ["why", "t"]):
        done = subprocess.run(
            [*COMMAND, *command, "--bootstrap-servers", "127.0.0.1:1"],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 2
        assert "Kafka at 127.0.0.1:1 is not available" in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.kafka
@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("shown", [[], ["--json"]])
def test_it_follows_without_a_terminal_and_ends_at_a_signal(kafka, topic, number, shown):
    first, second, third = topic(2), topic(1), topic(1)
    with marked_chain(kafka.config, first, second, third):
        line = [*COMMAND, "board", third, "--interval", "0.2", *shown, "--bootstrap-servers", kafka.bootstrap_servers]
        with subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        ) as running:
            lines = [running.stdout.readline() for _ in range(20)]
            running.send_signal(number)
            _, errors = running.communicate(timeout=30)
        assert running.returncode == 0
        assert errors == ""
        assert any(first in line for line in lines), "the topics that lead to it are found"


KEYS = {
    "": {"format", "status", "now", "answered", "stages", "unread", "notes"},
    "stage": {"name", "inputs", "topics"},
    "topic": {
        *("topic", "state", "verdict", "watermark", "lags", "since", "since_exact", "held_by", "partitions", "whole"),
        *("input_watermark", "batch_watermark", "topic_id"),
    },
    "partition": {"partition", "state", "watermark", "sources", "begin", "counted"},
    "source": {
        *("topic", "partition", "source", "state", "verdict", "watermark", "lags", "since", "since_exact", "last"),
        *("holder", "inputs", "waits_for", "injects", "cause", "reason"),
    },
    "lags": {"wall", "processing", "local", "root"},
    "why": {"format", "status", "topic", "watermark", "state", "steps", "cause", "advice"},
    "step": {"topic", "held_by", "partitions", "others", "unread", "unmarked"},
}


@pytest.mark.kafka
def test_the_json_has_the_keys_that_scripts_rely_on(kafka, topic):
    first, second, third = topic(2), topic(1), topic(1)
    with marked_chain(kafka.config, first, second, third):
        until(lambda: told(kafka, "board", third, "--once")[0] == 0, "a board", 60)
        _, board = told(kafka, "board", third, "--once")
        _, answer = told(kafka, "why", third)
    assert board["format"] == answer["format"] == 1
    assert set(board) == KEYS[""]
    stage = board["stages"][0]
    assert set(stage) == KEYS["stage"]
    assert set(stage["topics"][0]) == KEYS["topic"]
    assert set(stage["topics"][0]["partitions"][0]) == KEYS["partition"]
    assert set(stage["topics"][0]["partitions"][0]["sources"][0]) == KEYS["source"]
    assert set(stage["topics"][0]["lags"]) == KEYS["lags"]
    assert set(answer) == KEYS["why"]
    assert set(answer["steps"][0]) == KEYS["step"]


def in_terminal(line, columns, rows, number, shown):
    """Run a command in a terminal until it has shown something, then send it a signal; return status and screen."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    environment["TERM"] = "xterm"
    screen = b""
    with subprocess.Popen(line, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as running:
        os.close(theirs)
        deadline = time.monotonic() + 60
        while shown not in screen and time.monotonic() < deadline:
            screen += os.read(ours, 65_536)
        running.send_signal(number)
        with suppress(OSError):  # the other end is closed
            while found := os.read(ours, 65_536):
                screen += found
        status = running.wait(30)
    os.close(ours)
    return status, screen.decode()


@pytest.mark.kafka
@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_is_live_in_a_narrow_terminal_and_leaves_it_as_it_was(kafka, topic, number):
    first, second, third = topic(2), topic(1), topic(1)
    with marked_chain(kafka.config, first, second, third):
        line = [*COMMAND, "board", third, "--interval", "0.2", "--bootstrap-servers", kafka.bootstrap_servers]
        status, screen = in_terminal(line, 60, 20, number, b"all is well")
    assert status == 0, screen
    assert "Traceback" not in screen
    assert all(name in screen for name in (first, second, third))
    assert screen.count("\x1b[?1049h") == screen.count("\x1b[?1049l") == 1, "the screen before is there again"
    assert screen.rindex("\x1b[?25h") > screen.rindex("\x1b[?25l"), "and so is the cursor"
    assert third in screen.split("\x1b[?1049l")[1], "with the last look"


@pytest.mark.kafka
def test_a_restart_is_not_advised_where_kafka_has_deleted_what_the_job_has_not_read(kafka, topic):
    first, second = topic(1), topic(1)
    now, producer = Clock().wall(), Producer(kafka.config)
    read = ("floodmark-read", json.dumps({"input_offsets": {first: {"0": 2}}}).encode())
    for number in range(4):
        for target, source, held in ((first, "web", None), (second, "counts", Holder(first, 0, "web"))):
            at = now - 60_000 + number * 500 + (target == first) * 50_000
            said = replace(mark(source, at - 5_000, number, emitted_at=at), holder=held)
            key, value, headers = mark_record(said)
            producer.produce(target, value, key, 0, timestamp=at, headers=[*headers, *([read] if held else [])])
    assert producer.flush(30) == 0
    assert "Restart it with its checkpoint_location" in told(kafka, "why", second)[1]["advice"]
    delete_before(kafka.config, first, 3, partitions=1)
    status, found = told(kafka, "why", second)
    assert (status, found["cause"]["source"], "a restart of job counts fails" in found["advice"]) == (1, "counts", True)
    assert f"Kafka has deleted 1 records of {first} that it has not read" in found["cause"]["reason"]
