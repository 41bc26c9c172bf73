"""Marks without a call: several threads, forks, the end of the process, errors that nobody is there to take."""

import json
import random
import re
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import pytest
from floodmark.producers import (
    Data,
    EmbeddedKafka,
    Generator,
    Mark,
    Observer,
    Strategy,
    WatermarkedProducer,
    ascending,
    create_topics,
    explicit,
)
from floodmark.producers.channel import Background
from floodmark.schemas.errors import DeliveryError, EndedError, UsageError
from support.harness import drain, faults, record, records_by_partition, until, until_promised

PAGE = Path(__file__).parents[2] / "producers" / "SERVICES.md"
SOON = timedelta(milliseconds=1)
DAY = timedelta(days=1)


def producer(config, target, **options):
    given = {"source": "a", "strategy": ascending(), "interval": SOON, "background": True, **options}
    return WatermarkedProducer(config, topic=target, **given)


class Owner:
    """Has a thread, and is served by it."""

    def __init__(self):
        self.served = 0
        self.background = Background(repr(self), self.serve, self.close, interval=1)

    def serve(self):
        self.served += 1
        if self.served <= 2:
            raise ValueError(self.served)

    def close(self, timeout=10):
        self.background.stop()
        return timeout > 0


def test_an_error_in_the_thread_is_logged_and_raised_once_and_does_not_end_it(caplog):
    owner = Owner()
    until(lambda: owner.served > 3, "serving after an error")
    with pytest.raises(ValueError, match="1"):
        owner.background.raise_failure()
    owner.background.raise_failure()
    assert len([one for one in caplog.records if "beside the caller" in one.message]) == 1
    owner.close()
    threads = {thread.name: thread for thread in threading.enumerate()}
    until(lambda: f"floodmark {owner!r}" not in {thread.name for thread in threading.enumerate()}, "the thread's end")
    assert all(thread.daemon for name, thread in threads.items() if name.startswith("floodmark"))


@pytest.mark.kafka
def test_a_source_that_nobody_calls_marks_and_promises(kafka, topic):
    target = topic(2)
    ours = producer(kafka.config, target)
    with Observer(kafka.config, [target]) as observer:
        marked = set()
        until(lambda: marked.update(m.partition for m in observer.poll()) or marked == {0, 1}, "the first marks")
    ours.produce(record(12), event_time=12)
    until_promised(kafka, target, 12)
    ours.end()
    assert faults(kafka, target) == []


@pytest.mark.kafka
@pytest.mark.parametrize("seed", range(3))
def test_threads_that_produce_while_the_background_marks_break_no_promise(kafka, topic, monkeypatch, seed):
    """Each thread takes a time from a shuffled stream; the promise is the earliest that is still to be produced."""
    target, lock = topic(3), threading.Lock()
    chance = random.Random(seed)  # noqa: S311  # a repeatable stream
    times = list(range(20_000))
    for begin in range(0, len(times), 50):  # out of order by up to 50
        times[begin : begin + 50] = chance.sample(times[begin : begin + 50], 50)
    open_, rest = set(range(len(times))), iter(times)

    def work():
        while True:
            with lock:
                time = next(rest, None)
            if time is None:
                return
            ours.produce(record(time), event_time=time, key=b"%d" % (time % 17))
            with lock:
                open_.discard(time)
                if time % 10 == 0 and open_:
                    ours.advance(min(open_))

    ours = producer(kafka.config, target, strategy=explicit(), on_late="raise")
    failures = []
    monkeypatch.setattr(threading, "excepthook", lambda failed: failures.append(failed.exc_value))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert ours.late == 0
    ours.advance(len(times))
    ours.flush()
    until_promised(kafka, target, len(times))
    ours.end()
    values, observer = drain(kafka.config, target)
    assert sorted(json.loads(value)["at"] for value in values) == list(range(len(times)))
    assert observer.counts[target]["marks"] > 30, "the background had its part"
    assert faults(kafka, target) == []


@pytest.mark.kafka
def test_polling_leaves_other_threads_room(kafka, topic):
    # The report comes when the poller waits for it, and not to the call that produces.
    ours = producer({**kafka.config, "linger.ms": 500}, topic(1), background=False, interval=DAY)
    ours.flush()
    poller = threading.Thread(target=ours.poll, args=(60,), daemon=True)
    poller.start()
    ours.produce(record(1), event_time=1)  # would wait for a minute
    until(lambda: not poller.is_alive(), "a report, which ends the poll", 30)
    ours.end()


def run(script, kafka, target, status=0):
    """Run a program that has a producer `ours`, in a process of its own."""
    head = f"""
        import os, sys, threading, time
        from datetime import timedelta
        from floodmark.producers import WatermarkedProducer, ascending, create_topics
        from floodmark.schemas.errors import ForkedError
        ours = WatermarkedProducer({kafka.config!r}, topic={target!r}, source="a", strategy=ascending(),
                                   interval=timedelta(days=1), background=True)
    """
    command = [sys.executable, "-c", dedent(head) + dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout.split(), done.stderr


def last_words(script):
    """Return what a program tells at its end of the records that Kafka does not have."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(script)], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line.split("may lack ")[1] for line in done.stderr.splitlines() if "the process ends, but Kafka" in line]


@pytest.mark.kafka
def test_a_process_without_a_thread_that_ends_without_flush_says_what_kafka_may_lack(kafka, topic):
    slow = {**kafka.config, "linger.ms": 60_000}
    script = f"""
        from floodmark.producers import WatermarkedProducer, ascending
        ours = WatermarkedProducer({slow!r}, topic={topic(1)!r}, source="a",
                                   strategy=ascending(), background=False)
        ours.produce(b"x", event_time=1)
    """
    assert last_words(script) == ["2 records or marks: call flush(), end() or close() before"]


@pytest.mark.kafka
def test_a_process_whose_last_close_was_in_vain_says_what_kafka_may_lack(tmp_path):
    script = f"""
        import time
        from datetime import timedelta
        from floodmark.producers import EmbeddedKafka, WatermarkedProducer, ascending, create_topics
        with EmbeddedKafka({str(tmp_path)!r}) as kafka:
            create_topics(kafka.config, {{"t": 1}})
            ours = WatermarkedProducer(kafka.config, topic="t", source="a", strategy=ascending(),
                                       interval=timedelta(days=1))
        ours.produce(b"x", event_time=1)
        begun = time.monotonic()
        assert not ours.close(timeout=4)
        assert time.monotonic() - begun < 7.2, "one timeout for all"
    """
    late = "Kafka did not acknowledge them before the timeout of close()"
    assert last_words(script) == [f"3 records or marks: {late}"]


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("last", "status"),
    [("", 0), ("sys.exit(3)", 3), ("raise ValueError", 1), ("threading.Timer(0.2, last).start()", 0)],
)
def test_a_process_that_ends_without_close_promises_what_it_wrote(kafka, topic, last, status):
    target = topic(2)
    script = """
        for time_ in range(1, 4):
            ours.produce(b'{"at": %d}' % time_, event_time=time_)
        last = lambda: ours.produce(b'{"at": 4}', event_time=4)
        blocked = threading.Thread(target=ours.poll, args=(-1,), daemon=True)
        blocked.start()
    """
    run(dedent(script) + last, kafka, target, status)
    until_promised(kafka, target, 4 if "Timer" in last else 3)
    assert faults(kafka, target) == []


@pytest.mark.kafka
@pytest.mark.parametrize("ending", ["sys.exit(0)", "os._exit(0)"])
def test_a_forked_process_is_refused_and_the_parent_goes_on(kafka, topic, ending):
    target = topic(1)
    script = f"""
        ours.produce(b'{{"at": 1}}', event_time=1)
        with ours:
            child = os.fork()
            if child == 0:
                for use in (lambda: ours.produce(b'{{"at": 5}}', event_time=5), ours.poll, ours.flush, ours.end,
                            ours.close, ours.emit, ours.metrics, lambda: ours.watermark):
                    try:
                        use()
                    except ForkedError as error:
                        print(error.child == os.getpid(), error.parent == os.getppid(), flush=True)
                {ending}
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            ours.produce(b'{{"at": 2}}', event_time=2)
            ours.end()
    """
    said, complaints = run(script, kafka, target)
    assert said == ["True"] * 16 + ["0"]
    assert complaints == ""
    values, _ = drain(kafka.config, target)
    assert values == [record(1), record(2)]
    assert faults(kafka, target) == []


@pytest.mark.kafka
def test_what_a_delivery_report_raises_comes_out_of_the_next_produce_and_nothing_is_sent(kafka, topic):
    def fail(_error, _message):
        reported.set()
        raise ValueError("the caller's own")

    target, reported = topic(1), threading.Event()
    ours = producer(kafka.config, target)
    ours.produce(record(12), event_time=12, on_delivery=fail)
    assert reported.wait(60)
    with pytest.raises(ValueError, match="the caller's own"):
        until(lambda: ours.produce(record(13), event_time=13), "the error")
    reported.clear()
    ours.produce(record(14), event_time=14, on_delivery=fail)
    with pytest.raises(ValueError, match="the caller's own"):
        ours.end()
    values, _ = drain(kafka.config, target)
    assert values[0] == record(12)
    assert values[-1] == record(14)
    assert faults(kafka, target) == []


class Broken(Generator):
    """A strategy of a user, with a fault."""

    broken = False

    def on_tick(self, now, wall=None):  # noqa: ARG002  # as all are called
        if self.broken:
            self.broken = False
            raise ZeroDivisionError

    def watermark(self):
        return None


class BrokenStrategy(Strategy):
    def build(self):
        return Broken()


@pytest.mark.kafka
@pytest.mark.parametrize("call", ["poll", "close", "produce"])
def test_an_error_of_the_strategy_is_raised_by_the_next_call(kafka, topic, caplog, call):
    ours = producer(kafka.config, topic(1), strategy=BrokenStrategy())
    generator = ours._generator  # noqa: SLF001  # a user's own would break by itself
    generator.broken = True
    until(lambda: "beside the caller" in caplog.text, "the error in the log")
    with pytest.raises(ZeroDivisionError):
        ours.produce(record(1), event_time=1) if call == "produce" else getattr(ours, call)()
    ours.close()


@pytest.mark.kafka
def test_marks_that_fail_after_a_record_was_sent_are_the_error_of_the_next_call(kafka, topic, monkeypatch):
    """Who gets the error sends the record again, so nothing may have been sent."""
    target = topic(1)
    ours = producer(kafka.config, target, interval=DAY)
    ours.produce(record(12), event_time=12)

    def fail(_now):
        if threading.current_thread() is threading.main_thread():
            raise ZeroDivisionError

    monkeypatch.setattr(ours._sender, "send_due_marks", fail)  # noqa: SLF001  # a strategy would fail in either thread
    ours._served = -1  # noqa: SLF001  # marks may be due now
    ours.produce(record(13), event_time=13)
    monkeypatch.undo()
    with pytest.raises(ZeroDivisionError):
        ours.produce(record(14), event_time=14)
    ours.produce(record(14), event_time=14)
    ours.end()
    assert drain(kafka.config, target)[0] == [record(12), record(13), record(14)]


@pytest.mark.kafka
def test_a_broker_that_is_gone_holds_the_watermark_until_what_failed_is_sent_again(tmp_path):
    with EmbeddedKafka(tmp_path / "dying") as broker:
        create_topics(broker.config, {"t": 1})
        ours = producer({**broker.config, "message.timeout.ms": 5_000}, "t", interval=timedelta(milliseconds=100))
        ours.produce(record(12), event_time=12)
        ours.flush()
        broker.kill()
        ours.produce(record(30), event_time=30)
        ours.produce(record(40), event_time=40)
        until(lambda: len(ours.failed) == 2, "failure, with nobody polling")
        assert ours.watermark == 30
        with pytest.raises(DeliveryError):
            ours.flush(timeout=2)
        broker.start()
        until(
            lambda: not (ours.failed and ours.resend()) and ours.metrics().processing_time_delay_seconds == 0,
            "delivery",
        )
        until_promised(broker, "t", 40)
        ours.end()
        records = records_by_partition(broker.config, "t")[0]
        rows = sum(isinstance(one, Data) for one in records)
        assert (records[-1].record.records, rows) == (3, 3), "no mark that reached the topic has counted one twice"


@pytest.mark.kafka
def test_close_promises_and_ends_the_thread_and_then_nothing_is_taken(kafka, topic):
    target = topic(1)
    ours = producer(kafka.config, target, interval=DAY)
    ours.produce(record(12), event_time=12)
    assert ours.close()
    assert ours.close(), "twice is as good as once"
    until_promised(kafka, target, 12)
    with pytest.raises(UsageError, match="is closed"):
        ours.produce(record(13), event_time=13)
    until(lambda: not [t for t in threading.enumerate() if t.name == f"floodmark {ours!r}"], "the thread's end")
    ended = producer(kafka.config, topic(1))
    ended.end()
    with pytest.raises(EndedError):
        ended.produce(record(13), event_time=13)


@pytest.mark.kafka
def test_a_block_that_fails_promises_nothing_more(kafka, topic):
    target = topic(1)

    def fail():
        with producer(kafka.config, target, interval=DAY) as ours:
            ours.produce(record(12), event_time=12)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with Observer(kafka.config, [target]) as observer:
        found = []
        until(lambda: found.extend(observer.poll()) or any(isinstance(one, Data) for one in found), "the record")
    assert [one.record.watermark for one in found if isinstance(one, Mark)] == [None]


@pytest.mark.kafka
def test_the_asyncio_example_of_the_page_runs(kafka, topic):
    target = topic(1)
    section = PAGE.read_text(encoding="utf-8").split("\n## Asyncio")[1]
    names = {"config": kafka.config, "topic": target}
    exec(re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1), names)  # noqa: S102  # our own page
    assert len(set(names["offsets"])) == 3
    values, _ = drain(kafka.config, target)
    assert values == [b"1", b"2", b"3"]
