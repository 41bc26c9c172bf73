"""Idleness around any strategy: it changes nothing else, measures silence alone, and ends with the next event."""

from datetime import timedelta

import pytest
from floodmark.producers import ascending, explicit, with_idleness
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.numbering import Identity
from floodmark.schemas import Status
from floodmark.schemas.errors import UsageError
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import MS, one_of_each

SECOND = timedelta(seconds=1)
ALL = one_of_each(SECOND)


def use(generator):
    """Use a generator in every way that its strategy allows; returns all that it answers."""
    answers = []
    for step in range(5):
        now = step * 100
        event_time = generator.stamp(now) if generator.stamps else 10_000 - 7 * step
        generator.on_event(event_time, now, b"%d" % (step * 10))
        for command in (lambda step=step: generator.advance(step), lambda now=now: generator.stamp(now)):
            try:
                answers.append(command())
            except UsageError as error:
                answers.append(str(error))
        answers.append(generator.punctual)
        generator.on_tick(now + 50, now + 60)
        answers += [generator.stamps, generator.watermark(), generator.percentiles()]
    return answers


@pytest.mark.parametrize("name", ALL)
def test_asking_changes_nothing(name):
    generator = ALL[name].build()
    for step in range(20):
        generator.on_event(1_000 * (step % 7), step, b"%d" % step)
        before = generator.snapshot()
        generator.watermark(), generator.percentiles(), generator.idle, generator.punctual
        assert generator.snapshot() == before


@pytest.mark.parametrize("name", ALL)
def test_idleness_changes_nothing_else_of_any_strategy(name):
    bare, wrapped, twice = ALL[name], with_idleness(ALL[name], SECOND), with_idleness(ALL[name], SECOND)
    assert use(bare.build()) == use(wrapped.build()) == use(with_idleness(twice, SECOND).build())


@pytest.mark.parametrize("name", ALL)
def test_any_strategy_falls_idle_and_wakes(name):
    generator = with_idleness(ALL[name], SECOND).build()
    generator.on_event(5, 0, b"5")
    idle = []
    for now in (1_000, 1_001):
        generator.on_tick(now, 10**12)
        idle.append(generator.idle)
    generator.on_event(6, 1_002, b"6")
    assert [*idle, generator.idle] == [False, True, False]


def test_who_promises_is_not_idle():
    generator = with_idleness(explicit(), SECOND).build()
    for now in range(0, 10_000, 900):
        generator.advance(now)
        generator.on_tick(now)
        assert not generator.idle


def test_silence_is_carried_to_the_next_process_without_its_clock():
    first, second = (with_idleness(ascending(), SECOND).build() for _ in range(2))
    first.on_event(5, now=7_000_000)
    first.on_tick(7_000_900)
    second.restore(first.snapshot())
    second.on_tick(50)
    assert not second.idle
    second.on_tick(151)
    assert second.idle


@pytest.mark.parametrize(
    ("timeout", "steps"),
    [
        (10, [("tick", 0, False), ("tick", 11, True), ("event", 12, False)]),
        (
            122,
            [("event", 0, False), ("tick", 123, True), ("tick", 223, True), ("event", 224, False), ("tick", 347, True)],
        ),
    ],
    ids=["Flink G6 short", "Flink G6 long"],
)
def test_a_source_is_idle_after_its_timeout_and_active_with_its_next_event(timeout, steps):
    generator = with_idleness(ascending(), timeout * MS).build()
    for kind, now, idle in steps:
        (generator.on_tick if kind == "tick" else lambda now: generator.on_event(1, now))(now)
        assert generator.idle == idle


def test_an_idle_source_says_so_and_comes_back_with_its_next_event():
    emitter = Emitter(Identity("a", 1), with_idleness(ascending(), 10 * MS).build(), partitions=1)
    emitter.send(0, 5, now=0).ack()
    assert [emitter.marks(now)[0][1].status for now in (5, 16)] == [Status.ACTIVE, Status.IDLE]
    emitter.mark_active()
    assert emitter.marks(17)[0][1].status is Status.ACTIVE, "it is about to send"
    emitter.send(0, 6, now=17).ack()
    assert emitter.marks(18)[0][1].status is Status.ACTIVE


def test_an_idle_source_that_advances_is_waited_for():
    emitter = Emitter(Identity("a", 1), with_idleness(explicit(), 10 * MS).build(), partitions=1)
    assert [emitter.marks(now)[0][1].status for now in (0, 11)] == [Status.ACTIVE, Status.IDLE]
    emitter.advance(5)
    assert [emitter.marks(now)[0][1].status for now in (12, 13, 24)] == [Status.ACTIVE, Status.ACTIVE, Status.IDLE]


def test_a_source_that_is_held_or_under_way_is_not_idle():
    emitter = Emitter(Identity("a", 1), with_idleness(ascending(), 10 * MS).build(), partitions=1)
    in_flight = emitter.send(0, 5, now=0)
    assert emitter.marks(99)[0][1].status is Status.ACTIVE, "its record is not acknowledged"
    in_flight.ack()
    emitter.pause(100)
    assert emitter.marks(199)[0][1].status is Status.ACTIVE, "alignment holds it"
    emitter.unpause(200)
    assert [emitter.marks(299)[0][1].status for _ in range(2)] == [Status.ACTIVE, Status.IDLE], "it is about to send"


@given(
    before=st.integers(0, 10),
    waits=st.lists(st.tuples(st.integers(1, 99), st.integers(0, 20)), min_size=1, max_size=4),
    many=st.booleans(),
)
def test_the_time_in_which_alignment_makes_a_source_wait_is_no_silence(before, waits, many):
    """Outside the waits, and not as it resumes, the source is idle exactly if its silence is above the timeout."""
    emitter = Emitter(Identity("a", 1), with_idleness(ascending(), 10 * MS).build(), partitions=1)
    (emitter.send_many([0], [5], 0) if many else emitter.send(0, 5, now=0)).ack()
    if many:
        emitter.observe([5], [None], 0)
    now = silent = before
    for wait, after in waits:
        emitter.pause(now)
        now += wait
        assert emitter.marks(now - 1)[0][1].status is Status.ACTIVE
        emitter.unpause(now)
        assert emitter.marks(now)[0][1].status is Status.ACTIVE, "it is about to send"
        now, silent = now + after, silent + after
        if silent > 10:
            break
        assert emitter.marks(now)[0][1].status is Status.ACTIVE
    assert (emitter.marks(now)[0][1].status is Status.IDLE) == (silent > 10)
