"""Many sources over one client: joins and leaves, restarts, failures of one that must not touch the others."""

import itertools
import json
import random
import re
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from floodmark.producers import (
    EmbeddedKafka,
    Generator,
    Mark,
    Observer,
    SourcePool,
    Strategy,
    WatermarkedProducer,
    ascending,
    bounded_out_of_orderness,
    create_topics,
    explicit,
    per_partition,
    punctuated,
    with_idleness,
)
from floodmark.producers.clients.admin import end_offsets
from floodmark.producers.clients.clock import Clock
from floodmark.producers.pool import PoolMembership
from floodmark.producers.readers.check import checker_of, findings
from floodmark.producers.testing import ManualClock, mark
from floodmark.schemas import Membership
from floodmark.schemas.classify import mark_record
from floodmark.schemas.errors import (
    DeliveryError,
    EndedError,
    FencedError,
    InvalidRecordError,
    LateRecordError,
    UsageError,
)
from support.harness import StumblingStrategy, drain, faults, grow, read_to_end, record, until, until_promised

pytestmark = pytest.mark.kafka
PAGE = Path(__file__).parents[2] / "producers" / "SERVICES.md"
SOON = timedelta(milliseconds=1)
DAY = timedelta(days=1)


@pytest.mark.parametrize("seed", range(4))
def test_sources_that_join_and_leave_break_no_promise_and_are_all_waited_for(kafka, topic, seed):
    chance, target = random.Random(seed), topic(3)  # noqa: S311  # a repeatable stream
    sent, now, names = [], 1_000, iter(range(10_000))
    with SourcePool(kafka.config, topic=target, interval=timedelta(milliseconds=20)) as pool:
        promised = {}  # by source, as far as it has promised anything

        def join(count):
            for source in pool.join(*(f"s{next(names)}" for _ in range(count)), strategy=explicit(), on_late="raise"):
                promised[source] = now
                source.advance(now)

        join(20)
        for _ in range(600):
            what = chance.random()
            if what < 0.02:
                join(chance.choice([1, 1, 5]))
            elif what < 0.04 and len(promised) > 1:
                left = chance.choice(list(promised))
                left.end()
                del promised[left]
                with pytest.raises(EndedError):
                    left.produce(b"x", event_time=now)
            else:
                source = chance.choice(list(promised))
                for _ in range(chance.randrange(20)):
                    time = promised[source] + chance.randrange(500)
                    source.produce(record(time), event_time=time, key=b"%d" % chance.randrange(50))
                    sent.append(time)
                promised[source] += chance.randrange(100)
                source.advance(promised[source])
                now = max(now, promised[source])
        assert pool.membership.size >= len(pool.sources) == len(promised)
        pool.flush()
        until_promised(kafka, target, min(promised.values()))
        pool.end()
    values, _ = drain(kafka.config, target)
    assert sorted(json.loads(value)["at"] for value in values) == sorted(sent)
    assert faults(kafka, target) == []


def test_a_source_that_joins_is_waited_for_at_once(kafka, topic):
    target = topic(2)
    pool = SourcePool(kafka.config, topic=target, interval=SOON)
    [first] = pool.join("first", strategy=explicit())
    first.advance(100)
    pool.flush()
    until_promised(kafka, target, 100)
    [second] = pool.join("second", strategy=explicit())
    first.advance(500)
    pool.flush()
    second.advance(200)
    pool.flush()
    until_promised(kafka, target, 200)
    second.end()
    until_promised(kafka, target, 500)
    [again] = pool.join("second", strategy=explicit())
    assert again.epoch > second.epoch
    again.advance(600)
    first.advance(700)
    pool.flush()
    until_promised(kafka, target, 600)
    pool.end()
    assert faults(kafka, target) == []


def test_a_tick_counts_the_sources_only_after_one_has_ended(kafka, topic, monkeypatch):
    ticks, counted, step, shrunk = [], [], SourcePool._background_step, PoolMembership.shrunk  # noqa: SLF001
    monkeypatch.setattr(SourcePool, "_background_step", lambda pool: step(pool) or ticks.append(1))
    monkeypatch.setattr(PoolMembership, "shrunk", lambda its, now: counted.append(1) or shrunk(its, now))

    def tick():
        seen = len(ticks)
        until(lambda: len(ticks) > seen + 3, "ticks of the pool")

    with SourcePool(kafka.config, topic=topic(1), interval=SOON) as pool:
        first, _ = pool.join("first", "second", strategy=ascending())
        tick()
        assert counted == []
        first.end()
        until(lambda: pool.membership.size == 1, "the smaller membership")
        seen = len(counted)
        tick()
        assert len(counted) == seen > 0


@pytest.mark.parametrize("before", ["close", "end", "nothing"])
def test_a_pool_that_begins_anew_goes_on_above_the_last_membership(kafka, topic, before):
    target = topic(2)
    last = SourcePool(kafka.config, topic=target, interval=DAY)
    for source in last.join("a", "b", strategy=ascending()):
        source.produce(record(10), event_time=10)
    last.join("c", strategy=ascending())
    last.flush()
    if before != "nothing":
        getattr(last, before)()
    pool = SourcePool(kafka.config, topic=target, interval=DAY)
    assert pool.membership.version == last.membership.version
    sources = pool.join("b", "a", strategy=ascending())
    assert [source.source for source in sources] == ["b", "a"]
    for source in sources:
        source.produce(record(20), event_time=20)
    pool.end()
    last.close()
    _, observer = drain(kafka.config, target)
    assert observer.trackers[target].ended
    if before != "nothing":
        assert faults(kafka, target) == []


@pytest.mark.parametrize("partition", [0, 1])
def test_a_pool_begins_above_what_a_killed_one_has_left_in_any_partition(kafka, topic, partition):
    target = topic(2)
    last = SourcePool(kafka.config, topic=target, interval=DAY)
    [first] = last.join("a", strategy=ascending())
    first.produce(record(10), event_time=10)
    last.flush()
    last.close()
    # Of the marks of the next `join` only one was written, when the clock was a day ahead.
    epoch, version = first.epoch + 86_400_000, last.membership.version + 1
    for name in "ab":
        key, value, headers = mark_record(mark(name, 0, epoch=epoch, version=version, size=2, partitions=2))
        raw = Producer(kafka.config)
        raw.produce(target, value, key, partition, headers=headers)
        raw.flush()
    with SourcePool(kafka.config, topic=target, interval=SOON) as pool:
        [again] = pool.join("a", strategy=explicit())
        assert (again.epoch, pool.membership.version) == (epoch + 1, version + 1)
        again.advance(20)
        until_promised(kafka, target, 20)


def test_a_reader_that_starts_after_retention_waits_for_no_source_that_has_ended(kafka, topic):
    target = topic(2)
    with SourcePool(kafka.config, topic=target, interval=SOON) as pool:
        ended, *lasting = pool.join("a", "b", "c", strategy=explicit())
        for source in [ended, *lasting]:
            source.advance(10)
        until_promised(kafka, target, 10)
        ended.end()
        until(lambda: pool.membership.size == 2, "the smaller membership")
        ends = [TopicPartition(target, partition, end) for partition, end in end_offsets(kafka.config, target).items()]
        admin = AdminClient(kafka.config)
        for deleted in admin.delete_records(ends).values():
            deleted.result(30)
        for source in lasting:
            source.advance(20)
        until_promised(kafka, target, 20)
    assert faults(kafka, target) == []


class FailsAt(Strategy):
    """A strategy of a user that fails for the source with this number."""

    def __init__(self, number):
        self.number = number

    def __repr__(self):
        return f"FailsAt({self.number})"

    def build(self):
        self.number -= 1
        if self.number < 0:
            raise ZeroDivisionError
        return explicit().build()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"strategy": FailsAt(number)} for number in range(3)),
        *({name: timedelta(days=-1)} for name in ("lease", "early")),
        {"on_late": "drop"},
    ],
    ids=str,
)
def test_a_join_that_fails_at_any_step_leaves_the_pool_as_it_was(kafka, topic, wrong):
    target = topic(2)
    with SourcePool(kafka.config, topic=target, interval=SOON) as pool:
        [first] = pool.join("a", strategy=explicit())
        first.advance(10)
        before = pool.membership
        with pytest.raises((ZeroDivisionError, UsageError)):
            pool.join("b", "c", "d", **{"strategy": explicit(), **wrong})
        assert (pool.membership, list(pool.sources)) == (before, ["a"])
        until_promised(kafka, target, 10)
        for source in pool.join("b", "c", strategy=explicit()):
            source.advance(20)
        first.advance(30)
        until_promised(kafka, target, 20)
        pool.end()
    assert faults(kafka, target) == []


def test_a_source_of_a_pool_cannot_change_the_membership_alone(kafka, topic):
    with SourcePool(kafka.config, topic=topic(1)) as pool:
        [source] = pool.join("a", strategy=ascending())
        before = pool.membership
        with pytest.raises(UsageError, match="membership of its pool"):
            source.change_membership(Membership(before.version + 50, 2))
        pool.join("b", strategy=ascending())
        assert pool.membership == Membership(before.version + 1, 2)


def test_what_cannot_be_right_is_refused_and_changes_nothing(kafka, topic):
    target = topic(1)
    with SourcePool(kafka.config, topic=target) as pool:
        before = pool.membership
        for ids in ([], ["a", "a"], [["a", "b"]], [5]):
            with pytest.raises(UsageError, match="one or more different ids"):
                pool.join(*ids, strategy=ascending())
        with pytest.raises(UsageError, match=r"expected what it returns: ascending\(\)"):
            pool.join("a", strategy=ascending)
        with pytest.raises(InvalidRecordError):
            pool.join("a", "b" * 201, strategy=ascending())
        with pytest.raises(UsageError, match="counts its sources itself"):
            pool.change_membership(Membership(1, 5))
        assert pool.membership == before == Membership(before.version, 0)
        pool.join("a", strategy=ascending())
        with pytest.raises(UsageError, match=r"\['a'\] have joined already"):
            pool.join("b", "a", strategy=ascending())
        assert pool.membership == Membership(before.version + 1, 1)
        assert list(pool.sources) == ["a"]
    with pytest.raises(UsageError, match="is closed"):
        pool.join("b", strategy=ascending())
    with SourcePool(kafka.config, topic=target, source="a") as one:
        for wrong in ({"lease": DAY, "strategy": ascending()}, {"strategy": per_partition(ascending())}):
            with pytest.raises(UsageError, match="writes as one source"):
                one.join("b", **wrong)
        assert (one.sources, one.membership.size) == ({}, 1)
    with pytest.raises(UsageError, match="expected a name"):
        SourcePool(kafka.config, topic=target, source="")
    with pytest.raises(UsageError, match="is closed"):
        pool.sources["a"].produce(b"x", event_time=1)
    with pytest.raises(UsageError, match="idempotence"):
        SourcePool({**kafka.config, "enable.idempotence": False}, topic=target)


def test_two_pools_share_a_topic_under_a_membership_that_counts_both(kafka, topic):
    target, both = topic(2), Membership(1, 3)
    one, two = (SourcePool(kafka.config, topic=target, membership=both, interval=SOON) for _ in range(2))
    with pytest.raises(UsageError, match="counts fewer"):
        one.join(*"abcd", strategy=explicit())
    for source in [*one.join("a", "b", strategy=explicit()), *two.join("c", strategy=explicit())]:
        source.advance(10)
    until_promised(kafka, target, 10)
    with pytest.raises(UsageError, match="it has 2 sources"):
        one.change_membership(Membership(2, 1))
    for pool in (one, two):
        pool.change_membership(Membership(2, 4))
    two.join("d", strategy=explicit())[0].advance(20)
    for source in [*one.sources.values(), two.sources["c"]]:
        source.advance(30)
    until_promised(kafka, target, 20)
    one.end()
    two.end()
    assert faults(kafka, target) == []


def test_a_source_of_a_pool_stops_where_a_later_process_has_its_name(kafka, topic):
    target, clock = topic(2), ManualClock(wall=datetime.now(UTC))
    older, newer = (SourcePool(kafka.config, topic=target, clock=which) for which in (clock, Clock()))
    ours, other = older.join("a", "b", strategy=ascending())
    older.flush()
    newer.join("a", strategy=ascending())
    newer.flush()

    def is_fenced():
        clock.advance(timedelta(seconds=10))
        with suppress(FencedError):
            ours.poll()
            return False
        return True

    until(is_fenced, "the look at later runs")
    with pytest.raises(FencedError, match="'a' was fenced"):
        ours.produce(record(10), event_time=10)
    other.produce(record(10), event_time=10)
    for finish in (older.flush, older.end):
        with pytest.raises(FencedError, match="'a' was fenced"):
            finish()
    newer.end()


def test_quiet_sources_all_mark_new_partitions_as_soon_as_they_are_seen(kafka, topic):
    target, clock = topic(1), ManualClock(wall=datetime.now(UTC))
    with SourcePool(kafka.config, topic=target, interval=DAY, clock=clock) as pool:
        pool.join("a", "b", "c", strategy=explicit())
        pool.flush()
        grow(kafka.config, target, 3)
        clock.advance(timedelta(seconds=10))
        with Observer(kafka.config, [target]) as observer:
            marked = set()

            def everywhere():
                marked.update((one.source, one.partition) for one in observer.poll() if isinstance(one, Mark))
                clock.advance(timedelta(seconds=1))  # the first answer may still be the old one
                return marked == {(source, partition) for source in "abc" for partition in range(3)}

            until(everywhere, "marks of all in the new partitions")


def test_the_first_record_after_growth_and_silence_is_sent(kafka, topic):
    target, clock = topic(1), ManualClock(wall=datetime.now(UTC))
    with SourcePool(kafka.config, topic=target, source="gateway", interval=DAY, clock=clock) as pool:
        ours, _ = pool.join("a", "b", strategy=with_idleness(explicit(), timedelta(seconds=10)))
        ours.produce(b"x", event_time=5)
        pool.flush()
        grow(kafka.config, target, 2)
        clock.advance(timedelta(seconds=60))
        ours.produce(b"x", event_time=6, partition=1)
        assert ours.metrics().records == 2


def test_a_punctuation_is_sent_at_once_though_no_marks_are_due(kafka, topic):
    target, clock = topic(1), ManualClock(wall=datetime.now(UTC))
    with SourcePool(kafka.config, topic=target, interval=DAY, clock=clock) as pool:
        [ours] = pool.join("a", strategy=punctuated(lambda value: 12 if value == b"all before 12" else None))
        ours.produce(b"all before 12", event_time=12)
        until_promised(kafka, target, 12)


class Broken(Generator):
    """A strategy of a user, with a fault."""

    def on_tick(self, now, wall=None):  # noqa: ARG002  # as all are called
        raise ZeroDivisionError

    def watermark(self):
        return None


class BrokenStrategy(Strategy):
    def build(self):
        return Broken()


def test_an_error_of_one_source_silences_no_other_and_is_raised(kafka, topic):
    target = topic(1)
    pool = SourcePool(kafka.config, topic=target, interval=SOON)
    with pool._channel.lock:  # noqa: SLF001  # else the background may meet the error first, and the next call raises it
        [good] = pool.join("good", strategy=bounded_out_of_orderness(timedelta(0)))
        pool.join("bad", strategy=BrokenStrategy())
        [late] = pool.join("late", strategy=ascending())
        good.produce(record(12), event_time=12)
    with Observer(kafka.config, [target]) as observer:
        until(
            lambda: any(getattr(one, "record", None) and one.record.watermark == 12 for one in observer.poll()),
            "the good one's promise",
        )
    with pytest.raises(ZeroDivisionError):
        until(lambda: good.produce(record(13), event_time=13), "the error")
    with pytest.raises(ZeroDivisionError):
        pool.flush()
    with pytest.raises(ZeroDivisionError):
        pool.close()
    assert late._emitter.registered, "behind the bad one, and marked all the same"  # noqa: SLF001


def test_a_pool_whose_end_met_an_error_ends_all_sources_at_the_next_call(kafka, topic):
    target = topic(2)
    pool = SourcePool(kafka.config, topic=target, interval=DAY, clock=ManualClock(wall=datetime.now(UTC)))
    [ours] = pool.join("a", strategy=StumblingStrategy())
    pool.join("b", strategy=ascending())
    ours._generator.stumbles = 1  # noqa: SLF001  # at its end, and no sooner
    with pytest.raises(ZeroDivisionError):
        pool.end()
    pool.end()
    read_to_end(kafka.config, target)
    assert not pool.sources


def test_a_broker_that_is_gone_holds_those_that_wrote_and_resend_lets_go(tmp_path):
    with EmbeddedKafka(tmp_path / "dying") as broker:
        create_topics(broker.config, {"apart": 1, "merged": 1})
        config, soon = {**broker.config, "message.timeout.ms": 5_000}, timedelta(milliseconds=100)
        pools = [
            SourcePool(config, topic="apart", interval=soon),
            SourcePool(config, topic="merged", source="gateway", interval=soon),
        ]
        joined = [pool.join("one", "two", strategy=ascending()) for pool in pools]
        for source in itertools.chain(*joined):
            source.produce(record(12), event_time=12)
        for pool in pools:
            pool.flush()
        broker.kill()
        for one, _ in joined:
            one.produce(record(30), event_time=30)
        for pool in pools:
            with pytest.raises(DeliveryError) as caught:
                pool.end(timeout=30)
            assert (caught.value.source, caught.value.held_at) == ("one", 30)
        broker.start()
        [*_, two] = joined[1]
        two.produce(record(50), event_time=50)
        until_promised(broker, "merged", 30)
        for pool, (one, _), held in zip(pools, joined, (12, 30), strict=True):
            until(
                lambda one=one: not (one.failed and one.resend()) and one.metrics().processing_time_delay_seconds == 0,
                "delivery",
            )
            until_promised(broker, pool.topic, held)
            pool.end(timeout=60)
        for pool, sent in zip(pools, ({12, 30}, {12, 30, 50}), strict=True):
            values, _ = drain(broker.config, pool.topic)
            assert set(values) == set(map(record, sent))


def test_late_records_of_a_joined_source_are_told_and_an_ended_topic_once(kafka, topic, caplog):
    target = topic(1)
    with WatermarkedProducer(kafka.config, topic=target, source="a", strategy=ascending()) as before:
        before.produce(record(1), event_time=1)
        before.end()
    clock = ManualClock(wall=datetime.now(UTC))
    with SourcePool(kafka.config, topic=target, interval=DAY, clock=clock, membership=Membership(2, 3)) as pool:
        for number, name in enumerate("bcd"):
            pool.join(name, strategy=ascending())
            pool._channel.tell("a follower of the marks", None if number else "another advice")  # noqa: SLF001
    assert caplog.text.count("another advice") == 1
    assert caplog.text.count("all sources of the topic have ended") == 1
    with SourcePool(kafka.config, topic=topic(1), interval=DAY, clock=clock, source="gateway") as pool:
        [ours] = pool.join("one", strategy=ascending())
        for time in (100, 50, 60):
            clock.advance(timedelta(seconds=1))
            ours.produce(record(time), event_time=time)
            ours.flush()
    assert caplog.text.count("source 'one': 1 record(s) are below its watermark") == 1


GATEWAY = """
    import os, sys
    from datetime import timedelta
    from floodmark.producers import SourcePool, explicit
    pool = SourcePool({config!r}, topic={topic!r}, source="gateway", membership=2, interval=timedelta(milliseconds=1))
    one, two = pool.join("one", "two", strategy=explicit())
    for source, time in ((one, 100), (two, 200)):
        source.produce(b'{{"at": %d}}' % time, event_time=time)
        source.advance(time)
    pool.flush()
    print(pool.sources["one"].epoch, flush=True)
    one.produce(b'{{"at": 101}}', event_time=101)
    two.advance(300)
    os.kill(os.getpid(), 9)
"""


def test_a_pool_with_a_source_is_one_source_of_the_topic_as_sources_join_and_leave_and_it_is_killed(kafka, topic):
    target = topic(3)
    with WatermarkedProducer(kafka.config, topic=target, source="web", strategy=explicit(), membership=2) as web:
        web.advance(5_000)
        web.flush()
        script = dedent(GATEWAY).format(config=kafka.config, topic=target)
        killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
        assert (killed.returncode, killed.stderr) == (-9, "")
        until_promised(kafka, target, 100)
        pool = SourcePool(kafka.config, topic=target, source="gateway", membership=2, interval=SOON)
        one, three = pool.join("one", "three", strategy=explicit(), on_late="raise")
        assert one.epoch == three.epoch > int(killed.stdout)
        pool.flush()
        for source, time in ((one, 400), (three, 300)):
            source.produce(record(time), event_time=time, key="k")
            source.advance(time)
        until_promised(kafka, target, 300)
        three.mark_idle()
        until_promised(kafka, target, 400)
        [late] = pool.join("late", strategy=explicit())
        late.produce(record(399), event_time=399)
        with pytest.raises(LateRecordError):
            three.produce(record(399), event_time=399)
        one.advance(900)
        late.advance(500)
        until_promised(kafka, target, 500)
        late.end()
        until_promised(kafka, target, 900)
        assert (late.late, one.late, sorted(pool.sources)) == (1, 0, ["one", "three"])
        one.end()
        three.end()
        until_promised(kafka, target, 5_000)
        with pytest.raises(EndedError):
            one.produce(record(1), event_time=1)
        [last] = pool.join("last", strategy=ascending())
        last.produce(record(6_000), event_time=6_000)
        assert pool.membership == Membership(1, 2)
        pool.end()
        web.end()
    records, observer = read_to_end(kafka.config, target)
    marks = [one.record for one in records if isinstance(one, Mark)]
    assert {mark.source for mark in marks} == {"gateway", "web"}
    assert len({(mark.source, mark.epoch) for mark in marks}) == 3
    assert observer.trackers[target].ended
    [fault] = faults(kafka, target)
    assert fault.startswith("late row")


def test_of_two_pools_with_one_source_the_older_stops(kafka, topic):
    target, clock = topic(2), ManualClock(wall=datetime.now(UTC))
    older, newer = (SourcePool(kafka.config, topic=target, source="gateway", clock=one) for one in (clock, Clock()))
    one, two = older.join("one", "two", strategy=ascending())
    one.produce(record(5), event_time=5)
    older.flush()
    newer.join("one", strategy=ascending())
    newer.flush()

    def is_fenced():
        clock.advance(timedelta(seconds=10))
        with suppress(FencedError):
            one.poll()
            return False
        return True

    until(is_fenced, "the look at later runs")
    for call in (lambda: two.produce(record(10), event_time=10), two.end, older.flush, older.end):
        with pytest.raises(FencedError, match="'gateway' was fenced"):
            call()
    newer.end()


def test_the_end_of_the_process_flushes_and_a_fork_is_refused(kafka, topic):
    target = topic(2)
    script = f"""
        import os, sys
        from datetime import timedelta
        from floodmark.producers import SourcePool, ascending
        from floodmark.schemas.errors import ForkedError
        pool = SourcePool({kafka.config!r}, topic={target!r}, interval=timedelta(days=1))
        one, two = pool.join("one", "two", strategy=ascending())
        one.produce(b'{{"at": 3}}', event_time=3)
        two.produce(b'{{"at": 4}}', event_time=4)
        child = os.fork()
        if child == 0:
            for use in (pool.flush, pool.end, pool.close, lambda: pool.join("c", strategy=ascending()),
                        lambda: pool.sources, one.poll, lambda: one.produce(b"x", event_time=5)):
                try:
                    use()
                except ForkedError:
                    print("refused", flush=True)
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    command = [sys.executable, "-c", dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["refused"] * 7 + ["0"]
    until_promised(kafka, target, 3)
    assert faults(kafka, target) == []


def test_the_example_of_the_page_runs(kafka, topic):
    target = topic(2)
    section = PAGE.read_text(encoding="utf-8").split("\n## Many sources in one process")[1]
    names = {"config": kafka.config, "topic": target}
    exec(re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1), names)  # noqa: S102  # our own page
    assert sorted(names["pool"].sources) == ["JFK", "LGA"]
    found = findings(kafka.config, target, None, checker_of(kafka.config, target))
    assert list(map(str, found)) == []
