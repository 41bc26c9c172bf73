"""Queries change nothing: whoever asks, however often and wherever in between, every mark is the same."""

import json
import random

import pytest
from floodmark.producers import adaptive, percentile, with_idleness
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.numbering import Identity
from floodmark.schemas import Status
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import MS, one_of_each

STRATEGIES = one_of_each(5 * MS) | {
    "percentile": percentile(5_000 * MS, (10, 33, 66, 100)),
    "adaptive": adaptive(0.9, margin=1),
}
STRATEGIES |= {f"idle {name}": with_idleness(inner, 20 * MS) for name, inner in STRATEGIES.items()}
COMMANDS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 60), st.sampled_from([1, 1, 40, 300])),
    st.tuples(st.just("acknowledge"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("tick"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("advance"), st.integers(0, 20), st.just(0)),
)


def ask_everything(emitter):
    generator = emitter.generator
    return [
        *(emitter.watermark, emitter.scope(0).promised, emitter.due, emitter.ended, emitter.records),
        *(emitter.watermark_hold, emitter.oldest_arrival()),
        *(generator.watermark(), generator.percentiles(), generator.idle, generator.punctual, generator.snapshot()),
    ]


class Source:
    """An emitter, what it has in flight, and all marks that it made."""

    def __init__(self, strategy):
        self.emitter = Emitter(Identity("a", 1), strategy.build(), 2)
        self.is_explicit = strategy in (STRATEGIES["explicit"], STRATEGIES["idle explicit"])
        self.open, self.marks, self.floor, self.now = [], [], 0, 0

    def send(self, amount, count):
        emitter = self.emitter
        if emitter.status is Status.IDLE:
            emitter.mark_active()
            self.tick(0, 0)
        for number in range(count):
            stamps = emitter.generator.stamps
            time = emitter.generator.stamp(self.now) if stamps else self.floor + (amount * 7 + number * 13) % 61
            value = b"%d" % self.floor if time % 3 == 0 else None
            self.open.append((number % 2, emitter.send(number % 2, time, self.now, value)))

    def acknowledge(self, amount, many):
        for _ in range(len(self.open) // 2 if many else min(len(self.open), 1)):
            partition, in_flight = self.open.pop(amount % len(self.open))
            if amount == 3 and not many:
                self.emitter.fail(in_flight, partition)
            else:
                in_flight.ack()

    def advance(self, amount, _):
        self.floor += amount
        if self.is_explicit:
            self.emitter.generator.advance(self.floor)

    def tick(self, amount, _):
        self.now += amount
        self.marks += self.emitter.marks(self.now)


def run(strategy, commands, ask):
    """Return all marks of a history; ``ask``: before which commands everything is asked."""
    source = Source(strategy)
    for number, (name, *arguments) in enumerate([*commands, ("tick", 1, 0)]):
        if number in ask:
            assert ask_everything(source.emitter) == ask_everything(source.emitter)
        getattr(source, name)(*arguments)
    return source.marks


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=40, deadline=None)
@given(commands=st.lists(COMMANDS, max_size=40), ask=st.sets(st.integers(0, 40)))
def test_no_interleaving_of_queries_changes_a_mark(name, commands, ask):
    assert run(STRATEGIES[name], commands, ask) == run(STRATEGIES[name], commands, set())


@pytest.mark.parametrize("name", STRATEGIES)
def test_idleness_wraps_any_strategy_and_forwards_what_it_is_asked_and_told(name):
    inner, outer = STRATEGIES[name].build(), with_idleness(STRATEGIES[name], 10 * MS).build()
    assert (outer.stamps, outer.punctual) == (inner.stamps, inner.punctual)
    for now in range(0, 100, 3):
        for generator in (inner, outer):
            generator.on_event(generator.stamp(now) if inner.stamps else now, now, b"%d" % now)
            if "explicit" in name:
                generator.advance(now - 1)
            generator.on_tick(now + 1)
        assert (outer.watermark(), outer.percentiles(), outer.idle) == (inner.watermark(), inner.percentiles(), False)
    assert outer.watermark() is not None
    outer.on_tick(200)
    assert outer.idle


@pytest.mark.parametrize("name", ["percentile", "adaptive"])
def test_reading_many_delays_does_not_rearrange_them(name):
    """A digest of delays is rearranged by reading it, which shows only after thousands of events."""
    chance = random.Random(3)  # noqa: S311  # repeatable
    times = [number * 10 - int(chance.expovariate(1 / 300)) for number in range(20_000)]
    left_alone, asked = STRATEGIES[name].build(), STRATEGIES[name].build()
    for number, time in enumerate(times):
        left_alone.on_event(time)
        asked.on_event(time)
        if number % 37 == 0:
            assert (asked.watermark(), asked.percentiles(), asked.snapshot()) is not None
    assert asked.watermark() == left_alone.watermark()
    assert asked.percentiles() == left_alone.percentiles()
    assert asked.snapshot() == left_alone.snapshot()
    resumed = STRATEGIES[name].build()
    resumed.restore(json.loads(json.dumps(asked.snapshot())))
    for time in times:
        for generator in (left_alone, resumed):
            generator.on_event(time + 200_000)
    assert (resumed.watermark(), resumed.snapshot()) == (left_alone.watermark(), left_alone.snapshot())
