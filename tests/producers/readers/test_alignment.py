"""A source that runs ahead is held until the slowest comes, is not called idle meanwhile, and nobody waits for ever."""

import threading
import time
from datetime import timedelta

import pytest
from confluent_kafka import Producer
from floodmark.producers import (
    Alignment,
    Mark,
    Observer,
    SourcePool,
    TimePolicy,
    WatermarkedProducer,
    ascending,
    explicit,
    with_idleness,
)
from floodmark.producers.board.causes import Cause
from floodmark.producers.board.why import trace
from floodmark.producers.clients.clock import Clock
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.group import InjectorGroup
from floodmark.producers.injector.injector import Injector
from floodmark.producers.readers.alignment import PATIENCE, AlignmentReader, Downstream, Peers
from floodmark.producers.readers.chain import ChainReader
from floodmark.producers.readers.replay import read_until_end
from floodmark.producers.testing import ManualClock, mark
from floodmark.schemas import Membership, Status
from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import HELD_HEADER
from support.harness import grow, until
from support.injection import look, send, times

SOON = timedelta(milliseconds=50)
MINUTE = 60_000
BEGIN = 1_700_000_000_000


def test_only_active_peers_of_the_newest_membership_hold():
    peers = Peers("me", bound=10)
    assert not peers.is_ahead(10**9), "alone, nobody waits"
    peers.take(mark("me", 0))
    assert not peers.is_ahead(10**9), "nobody waits for itself"
    peers.take(mark("slow", 5))
    assert [peers.is_ahead(watermark) for watermark in (None, 15, 16)] == [False, False, True]
    peers.take(mark("slow", 6, 1, status=Status.IDLE))
    assert not peers.is_ahead(16)
    peers.take(mark("slow", 7, 2))
    peers.take(mark("slow", 1, 0))
    assert peers.slowest() == (7, "source 'slow'"), "a replay teaches nothing"
    peers.take(mark("new", 100, version=2))
    assert peers.slowest() == (100, "source 'new'"), "the old membership has retired"


def test_of_all_sources_the_slowest_never_waits():
    watermarks = {"a": 0, "b": 50, "c": 51}
    ahead = {}
    for name, watermark in watermarks.items():
        peers = Peers(name, bound=50)
        for other, other_watermark in watermarks.items():
            peers.take(mark(other, other_watermark))
        ahead[name] = peers.is_ahead(watermark)
    assert ahead == {"a": False, "b": False, "c": True}


def test_a_negative_bound_is_an_error():
    with pytest.raises(UsageError, match="alignment"):
        WatermarkedProducer({}, topic="t", source="a", strategy=ascending(), alignment=timedelta(seconds=-1))


def test_a_peer_that_died_is_waited_for_as_long_as_its_lease_says():
    peers = Peers("fast", bound=100)
    peers.take(mark("slow", 50, lease=1_000), log_time=5_000, now=0)
    peers.take(mark("third", 10_000), log_time=6_000, now=1_000)
    assert peers.is_ahead(10_000, now=10**9), "the clock of the log alone decides"
    peers.take(mark("fast", 10_000), log_time=6_001, now=1_001)
    assert not peers.is_ahead(10_000, now=1_002)
    peers.take(mark("slow", 50, 1, lease=1_000), log_time=6_500, now=1_500)
    assert peers.is_ahead(10_000, now=1_500), "it speaks again"


def test_a_peer_without_a_lease_is_waited_for_a_minute_after_its_last_word():
    peers = Peers("fast", bound=100)
    for sequence, now in enumerate((0, 50_000)):
        peers.take(mark("slow", 50, sequence), log_time=0, now=now)
    assert peers.is_ahead(10_000, now=110_000)
    assert not peers.is_ahead(10_000, now=110_001)


@pytest.mark.kafka
@pytest.mark.parametrize("lease", [timedelta(seconds=1), None], ids=["lease", "no lease"])
def test_a_dead_peer_does_not_block_produce_for_ever(kafka, topic, lease):
    target, steady = topic(1), [0]
    two = Membership(1, 2)
    slow = WatermarkedProducer(
        kafka.config,
        topic=target,
        source="slow",
        strategy=ascending(),
        membership=two,
        interval=timedelta(milliseconds=500),
        lease=lease,
        background=False,  # it is silent, as if dead
    )
    fast = WatermarkedProducer(
        kafka.config,
        topic=target,
        source="fast",
        strategy=ascending(),
        membership=two,
        interval=timedelta(milliseconds=100),
        alignment=timedelta(milliseconds=100),
        clock=Clock(steady=lambda: time.monotonic_ns() // 1_000_000 + steady[0]),
        background=False,
    )
    fast.produce(b"1", event_time=1)
    fast.flush()
    slow.produce(b"1", event_time=1)

    def knows_slow():
        slow.flush()  # until the other one reads its marks
        fast.poll(0.05)
        return fast.ahead or fast._channel.alignment.peers.slowest() is not None  # noqa: SLF001

    until(knows_slow, "the peer's marks")
    sent = []

    def run():
        for event_time in (201, 401, 601):
            fast.produce(b"x", event_time=event_time)
            sent.append(event_time)

    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    until(lambda: sent, "the first record")
    if lease is None:  # it is gone for good; nobody says so but the time
        runner.join(0.5)
        assert sent == [201], "it waits for a peer that it heard a moment ago"

    def goes_on():
        steady[0] += 1_000 if lease is None else 0  # whenever it heard the other one for the last time
        return len(sent) == 3

    until(goes_on, "records of the one that is alive")
    runner.join(30)
    fast.end()
    assert fast._channel.alignment is None, "the client that it read with is let go"  # noqa: SLF001


@pytest.mark.kafka
def test_a_fast_source_is_held_and_not_called_idle(kafka, topic):
    target = topic(2)

    def source(name, strategy):
        return WatermarkedProducer(
            kafka.config,
            topic=target,
            source=name,
            strategy=strategy,
            membership=Membership(1, 2),
            interval=timedelta(milliseconds=50),
            alignment=timedelta(seconds=1),
            background=False,
        )

    slow = source("slow", ascending())
    fast = source("fast", with_idleness(ascending(), timedelta(milliseconds=300)))
    sent = []

    def run():
        for second in range(10):
            fast.produce(b"", event_time=second * 1000)
            sent.append(second)
        fast.flush()

    slow.produce(b"", event_time=0)
    slow.flush()
    slow.produce(b"", event_time=1)
    slow.flush()
    # It reads marks from now on; the slow one goes on telling.

    def knows_slow():
        slow.emit()
        fast._channel.alignment.poll(time.monotonic_ns() // 1_000_000)  # noqa: SLF001  # poll() would mark it, and it is silent
        return fast.ahead or fast._channel.alignment.peers.slowest() is not None  # noqa: SLF001

    until(knows_slow, "the peers' marks", 20)
    runner = threading.Thread(target=run)
    runner.start()
    with Observer(kafka.config, [target]) as observer:
        statuses, held = [], 0
        deadline = [0]

        def watched():
            nonlocal held
            slow.emit()
            marks = [record.record for record in observer.poll(0.05) if isinstance(record, Mark)]
            statuses.extend(one.status for one in marks if one.source == "fast")
            deadline[0] += 1
            held = len(sent)
            return deadline[0] > 20 and len(statuses) > 10 and sent

        until(watched, "some rounds, and marks of the fast one while it waits")
        assert held <= 3, "the fast one waits a second ahead"
        assert set(statuses) == {Status.ACTIVE}
    for second in range(1, 12):
        slow.produce(b"", event_time=second * 1000)
        slow.poll(0.05)
        slow.emit()
    slow.end()
    runner.join(30)
    assert sent == list(range(10)), "with the slow one ended, nothing holds it"
    fast.end()


@pytest.mark.kafka
def test_a_slow_topic_downstream_holds_the_source_and_a_dead_one_not_for_ever(kafka, topic, caplog):
    clicks, daily = topic(1), topic(2)
    job = WatermarkedProducer(kafka.config, topic=daily, source="job", strategy=explicit(), background=False)
    job.advance(0)
    job.flush()  # it marks no more until the source is held
    given = Alignment(timedelta(seconds=10), topic=daily, patience=timedelta(seconds=2))
    fast = WatermarkedProducer(kafka.config, topic=clicks, source="web", strategy=ascending(), alignment=given)
    sent = []

    def run():
        for second in range(60):
            fast.produce(b"", event_time=second * 1000)
            sent.append(second)

    until(lambda: fast._channel.alignment.peers.slowest() is not None, "the last marks of the job")  # noqa: SLF001
    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    until(lambda: len(sent) == 12, "the bound")
    job.advance(20_000)
    job.flush()
    until(lambda: len(sent) == 32, "what the job allows")
    assert len(sent) == 32
    with caplog.at_level("WARNING"):
        until(lambda: len(sent) == 60, "the records that no longer wait for the dead job")
    runner.join(30)
    assert sum("no longer waits" in line for line in caplog.messages) == 1
    fast.end()


def test_each_source_waits_for_a_topic_as_long_as_its_own_wait_lasts(caplog):
    daily = Downstream("daily", bound=100, patience=1_000)
    daily.read(Mark("daily", 0, 0, 0, mark("job", 50)), now=0)
    assert daily.is_ahead(151, now=0, source="a")
    assert not daily.is_ahead(150, now=900, source="b"), "it is not ahead, and the wait of the other one goes on"
    assert daily.is_ahead(151, now=901, source="b")
    assert not daily.is_ahead(151, now=1_001, source="a")
    assert daily.is_ahead(151, now=1_901, source="b")
    assert not daily.is_ahead(151, now=1_902, source="b")
    assert len(caplog.messages) == 1, "one warning for all sources"
    daily.read(Mark("daily", 0, 1, 0, mark("job", 60, 1)), now=2_000)
    assert daily.is_ahead(161, now=3_000, source="a"), "the topic advances again"


@pytest.mark.kafka
@pytest.mark.parametrize("wrong", [timedelta(1), Alignment(timedelta(1))])
def test_pools_and_injectors_stay_near_a_topic_alone(kafka, topic, wrong):
    injection = Injection("raw", "marked", JsonField("at"))
    for build in (
        lambda: SourcePool(kafka.config, topic=topic(1), alignment=wrong),
        lambda: Injector(injection, kafka.config, alignment=wrong),
        lambda: InjectorGroup(injection, kafka.config, alignment=wrong),
    ):
        with pytest.raises(UsageError, match=r"pass Alignment\(bound, topic=\.\.\.\)"):
            build()


@pytest.mark.kafka
def test_a_source_of_a_pool_waits_for_a_topic_that_grows_and_the_others_go_on(kafka, topic):
    clicks, daily = topic(1), topic(1)
    job = WatermarkedProducer(kafka.config, topic=daily, source="job", strategy=explicit(), interval=SOON)
    near = Alignment(timedelta(seconds=10), topic=daily, patience=timedelta(minutes=5))
    with SourcePool(kafka.config, topic=clicks, interval=SOON, alignment=near) as pool:
        fast, slow = pool.join("fast", "slow", strategy=ascending())
        job.advance(0)
        until(lambda: pool._channel.alignment.peers.slowest() is not None, "the marks of the job")  # noqa: SLF001
        sent = []

        def run():
            for second in range(60):
                fast.produce(b"", event_time=second * 1000)
                sent.append(second)

        runner = threading.Thread(target=run, daemon=True)
        runner.start()
        until(lambda: len(sent) == 12 and fast.ahead, "the bound")
        for second in range(11):
            slow.produce(b"", event_time=second * 1000)
        slow.end()
        pool.flush()
        assert len(sent) == 12

        def named():
            with ChainReader(kafka.config, [clicks]) as reader:
                why = trace(reader.board(), clicks)
            held = why.steps[0].held_by
            return (
                held is not None
                and held.cause is Cause.ALIGNED
                and [step.topic for step in why.steps] == [clicks, daily]
            )

        until(named, "the topic that holds the source, by its marks")
        grow(kafka.config, daily, 2)
        job._channel.next_refresh = pool._channel.next_refresh = 0  # noqa: SLF001  # instead of waiting for 10 s
        job.advance(20_000)
        until(lambda: len(sent) == 32, "what the job allows, by its marks in the new partition")
        assert fast.ahead
        job.end()
        until(lambda: len(sent) == 60, "all records: nothing holds them")
        runner.join(30)
        pool.end()


@pytest.mark.kafka
@pytest.mark.parametrize(("silent", "ahead"), [(0, True), (PATIENCE + 1_000, False)], ids=["recent", "old"])
def test_a_source_stays_near_the_marks_before_its_start(kafka, topic, silent, ahead):
    """From its first record on, not from the first mark that it reads; marks of a source that is dead hold nothing."""
    target, two = topic(2), Membership(version=1, size=2)
    begin = ManualClock(wall=time.time_ns() // 1_000_000 - silent)
    with WatermarkedProducer(
        kafka.config, topic=target, source="slow", strategy=ascending(), membership=two, background=False, clock=begin
    ) as slow:
        slow.produce(b"x", event_time=1_000)
    with WatermarkedProducer(
        kafka.config, topic=target, source="fast", strategy=ascending(), membership=two, alignment=timedelta(seconds=1)
    ) as fast:
        fast.produce(b"x", event_time=9_000)
        assert fast.ahead is ahead


@pytest.mark.kafka
@pytest.mark.parametrize("together", [False, True], ids=["alone", "group"])
def test_an_injector_waits_for_a_topic_and_changes_no_row(kafka, topic, together):
    raw, marked, daily = topic(1), topic(1), topic(1)
    policy = TimePolicy(late=timedelta(milliseconds=100), out_of_order=timedelta(0))
    injection = Injection(raw, marked, JsonField("at"), policy, interval=SOON)
    near = Alignment(timedelta(minutes=1), topic=daily, patience=timedelta(minutes=5))
    job = WatermarkedProducer(kafka.config, topic=daily, source="job", strategy=explicit(), interval=SOON)
    job.advance(BEGIN)
    held, more, last = ([BEGIN + at * MINUTE + n * 1_000 for n in range(60)] for at in (2, 3, 9))

    def write(rows):
        send(kafka, raw, *((at, at) for at in rows))

    write([BEGIN])
    with (InjectorGroup if together else Injector)(injection, kafka.config, alignment=near) as injector:

        def alone():
            return injector._injectors.get(0) if together else injector  # noqa: SLF001

        def knows():
            injector.step()
            return alone() is not None and alone()._alignment.peers.slowest() is not None  # noqa: SLF001

        def until_held(count):
            until(lambda: injector.step() or injector.counts["records"] == count, "the records before the hold")
            until(lambda: injector.step() or "waits for topic" in injector.holders()[0].reason, "the hold")
            assert injector.counts["records"] == count

        def until_end():
            until(lambda: injector.step() or alone()._partitions[0].at_end, "the end")  # noqa: SLF001

        until(knows, "the marks of the job")
        until_end()
        write(held)
        until_held(2)
        reached = injector.watermarks[0]
        write(more)
        deadline = time.monotonic() + 1
        until(lambda: injector.step() or time.monotonic() > deadline, "time to read, or to follow the clock")
        assert (injector.counts["records"], injector.watermarks[0]) == (2, reached)
        job.advance(BEGIN + 2 * MINUTE)
        until_held(63)
        job.advance(BEGIN + 4 * MINUTE)
        until_end()
        write(last)
        until_held(122)
        job.end()
        until_end()
        assert injector.outcomes["on_time"] == injector.outcomes.total() == 181
    data, marks, _ = look(kafka, marked)
    assert times(data) == [(at, at) for at in [BEGIN, *held, *more, *last]]
    assert {bool(dict(one.headers).get(HELD_HEADER)) for one in marks} == {True, False}


@pytest.mark.kafka
def test_a_held_injector_marks_at_once_as_the_other_topic_may_wait_for_it(kafka, topic):
    raw, marked, daily = topic(1), topic(1), topic(1)
    injection = Injection(raw, marked, JsonField("at"), interval=timedelta(minutes=10))
    with WatermarkedProducer(kafka.config, topic=daily, source="job", strategy=explicit(), interval=SOON) as job:
        job.advance(BEGIN)
        job.flush()
        send(kafka, raw, *((at, at) for at in (BEGIN, BEGIN + 9 * MINUTE)))
        near = Alignment(timedelta(minutes=1), topic=daily)
        with Injector(injection, kafka.config, alignment=near) as injector:

            def marked_as_held():
                injector.step()
                committed = read_until_end(kafka.config, {(marked, 0): 0})  # its next transaction may be open
                return any(dict(one.headers).get(HELD_HEADER) for one in committed if isinstance(one, Mark))

            until(marked_as_held, "a mark long before the interval is over")


@pytest.mark.kafka
def test_aligned_sources_of_a_backlog_are_not_slowed_to_one_bound_an_interval(kafka, topic):
    target = topic(1)
    sources = [
        WatermarkedProducer(
            kafka.config,
            topic=target,
            source=name,
            strategy=ascending(),
            membership=2,
            interval=timedelta(seconds=2),
            alignment=timedelta(seconds=10),
        )
        for name in ("a", "b")
    ]

    def acquainted():
        for source in sources:
            source.emit()
            source._channel.alignment.poll(time.monotonic_ns() // 1_000_000)  # noqa: SLF001
        return all(source._channel.alignment.peers.slowest() is not None for source in sources)  # noqa: SLF001

    def run(source):
        for second in range(1, 200):
            source.produce(b"", event_time=second * 1000)
        source.end()

    for source in sources:
        source.produce(b"", event_time=0)
        source.flush()
    until(acquainted, "each other's marks")
    begun = time.monotonic()
    runners = [threading.Thread(target=run, args=[source], daemon=True) for source in sources]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join(120)
    assert time.monotonic() - begun < 20, "200 s of events, 10 s each interval of 2 s, would take 40 s"


@pytest.mark.kafka
def test_it_finds_new_partitions_also_by_the_other_name_of_the_address(kafka, topic):
    other, config = topic(1), {**kafka.config}
    config["metadata.broker.list"] = config.pop("bootstrap.servers")
    reader = AlignmentReader(config, Alignment(timedelta(seconds=10), topic=other), topic=topic(1))
    grow(kafka.config, other, 2)
    until(lambda: reader.look_for_partitions(Producer(config)) or reader._found == 2, "the partition")  # noqa: SLF001
    reader.close()
