"""The example programs, copied as a user copies them, and run as processes against a real Kafka."""

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path

import pytest
from floodmark.producers import Data, Observer
from floodmark.producers.examples import order_service
from support.harness import until

_ROOT = Path(__file__).parents[2]
_BEGIN = datetime(2026, 1, 5, 12, tzinfo=UTC)
_LIMIT = 240


@pytest.fixture
def start(tmp_path, kafka):
    """Start a copy of a program; those that still run at the end are killed, and what they said is shown."""
    with ExitStack() as stack:

        def new(path, *options, **piped):
            copy = shutil.copy(_ROOT / path, tmp_path)
            command = [sys.executable, copy, "--bootstrap-servers", kafka.bootstrap_servers, *options]
            process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, **piped)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield new


def orders(seed):
    """Make up a till's orders of ten minutes: each at most 4.9 s older than one before it."""
    chance = random.Random(seed)  # noqa: S311  # a repeatable stream
    times = [_BEGIN + timedelta(milliseconds=number * 150 - chance.randrange(4_900)) for number in range(100, 4_000)]
    return [
        {"shop": chance.choice(["north", "south", "west"]), "amount": chance.randrange(100), "at": time.isoformat()}
        for time in times
    ]


def lines(found):
    return "".join(json.dumps(order) + "\n" for order in found)


def minute(order):
    return (datetime.fromisoformat(order["at"]).replace(second=0, microsecond=0) + timedelta(minutes=1)).isoformat()


def totals(found):
    """Work out from all orders what the consumer has to store: minute, number of shops, revenue."""
    return [
        (end, len({order["shop"] for order in group}), sum(order["amount"] for order in group))
        for end, group in ((end, list(group)) for end, group in groupby(sorted(found, key=minute), minute))
    ]


def finished(process):
    """Return what a program printed, once it is done."""
    printed, _ = process.communicate(timeout=_LIMIT)
    assert process.returncode == 0
    return printed


@pytest.mark.spark
def test_the_three_programs_give_what_a_plain_computation_gives(start, topic, tmp_path):
    incoming, outgoing, database = topic(2), topic(2), tmp_path / "totals.sqlite"
    tills = {"till-1": orders(1), "till-2": orders(2)}
    for name, found in tills.items():
        tmp_path.joinpath(name).write_text(lines(found), encoding="utf-8")

    def consumer():
        return start("producers/examples/totals_consumer.py", "--topic", outgoing, "--database", str(database))

    def stored():
        with sqlite3.connect(database) as connection:
            if not connection.execute("SELECT * FROM sqlite_master WHERE name = 'totals'").fetchone():
                return []
            return connection.execute("SELECT minute, shops, revenue FROM totals ORDER BY minute").fetchall()

    first = consumer()
    job = start(
        "spark_jobs/examples/revenue_job.py",
        *("--orders", incoming, "--revenue", outgoing, "--checkpoint", str(tmp_path / "state")),
    )
    for name in tills:
        with tmp_path.joinpath(name).open(encoding="utf-8") as given:
            options = ("--topic", incoming, "--source", name, "--sources", "2")
            finished(start("producers/examples/order_service.py", *options, stdin=given))
    until(lambda: stored() or first.poll() is not None, "a total", _LIMIT)
    first.send_signal(signal.SIGKILL)
    finished(consumer())
    printed = finished(job)
    assert stored() == totals([order for found in tills.values() for order in found])
    assert "'late'" not in printed
    assert "'lost'" not in printed
    assert "'records'" in printed
    assert finished(consumer()) == "", "a start behind the end has nothing to do"


@pytest.mark.kafka
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with what it reads"])
def test_a_service_that_is_stopped_writes_the_orders_in_its_queue_and_may_come_back(monkeypatch, topic, kafka, alone):
    target, expected, over = topic(2), orders(3)[:200], threading.Event()

    def given():
        yield from lines(expected).splitlines()
        os.kill(os.getpid(), signal.SIGTERM)  # all orders are in the queue, and the producer does not exist yet
        if alone:
            over.wait(_LIMIT)

    monkeypatch.setattr(sys, "stdin", given())
    servers = ["--bootstrap-servers", kafka.bootstrap_servers]
    monkeypatch.setattr(sys, "argv", ["order_service", *servers, "--topic", target, "--source", "till-1"])
    before = signal.getsignal(signal.SIGTERM)
    try:
        order_service.main()
    finally:
        signal.signal(signal.SIGTERM, before)
        over.set()
    values = []
    with Observer(kafka.config, [target]) as observer:
        tracker = observer.trackers[target]
        last = max(datetime.fromisoformat(order["at"]) for order in expected) - timedelta(seconds=5)

        def read():
            values.extend(json.loads(record.value) for record in observer.poll() if isinstance(record, Data))
            tracker.advance()
            return tracker.watermark == round(last.timestamp() * 1000)

        until(read, "the marks that cover all orders")
        assert not tracker.ended
    assert sorted(values, key=json.dumps) == sorted(expected, key=json.dumps)
