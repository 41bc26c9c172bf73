"""Strategies that learn, wait, stamp and listen: each against a plain computation, each restored from a snapshot."""

import json
import random

import pytest
from floodmark.producers import (
    adaptive,
    ascending,
    bounded_out_of_orderness,
    explicit,
    ingress,
    percentile,
    with_idleness,
)
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.learned import Delays
from floodmark.producers.strategies.numbering import Identity
from floodmark.schemas.errors import CorruptSnapshotError, UsageError
from floodmark.schemas.records import Membership
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import MS, one_of_each

STRATEGIES = one_of_each(5 * MS) | {
    "adaptive": adaptive(0.9),
    "percentile": percentile(20 * MS),
    "idle": with_idleness(percentile(20 * MS), 10 * MS),
}
del STRATEGIES["explicit"]  # events do not move it


def feed(generator, seed, count=200):
    chance = random.Random(seed)  # noqa: S311  # repeatable
    for number in range(count):
        event_time = number * 3 - chance.randrange(15)
        generator.on_event(event_time, now=number * 4, value=b"%d" % (number * 3 - 20) if number % 7 == 0 else None)
        generator.on_tick(number * 4 + chance.randrange(30))
        yield generator.watermark(), generator.percentiles(), generator.idle


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_watermark_ever_goes_back(name):
    said = [watermark for watermark, _, _ in feed(STRATEGIES[name].build(), 1) if watermark is not None]
    assert said == sorted(said)
    assert said


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_snapshot_at_any_point_changes_nothing(name):
    whole = STRATEGIES[name].build()
    half = STRATEGIES[name].build()
    list(feed(whole, 2))
    list(feed(half, 2))
    resumed = STRATEGIES[name].build()
    resumed.restore(json.loads(json.dumps(half.snapshot())))
    assert list(feed(whole, 3)) == list(feed(resumed, 3))


def test_a_snapshot_of_another_strategy_is_an_error():
    with pytest.raises(CorruptSnapshotError, match="expected"):
        ascending().build().restore(explicit().build().snapshot())


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_snapshot_of_another_format_is_an_error(name):
    generator = STRATEGIES[name].build()
    with pytest.raises(CorruptSnapshotError, match="its format is 2, expected 1"):
        generator.restore({**generator.snapshot(), "format": 2})


def test_the_oldest_record_under_way_is_the_processing_time_watermark():
    emitter = Emitter(Identity("a", 1), ascending().build(), partitions=1)
    first = emitter.send(0, 500, now=70)
    assert emitter.marks(80)[0][1].processing_time_watermark == 70
    second = emitter.send(0, 600, now=90)
    first.ack()
    assert emitter.marks(100)[0][1].processing_time_watermark == 90
    second.ack()
    assert emitter.marks(110)[0][1].processing_time_watermark is None


@given(st.lists(st.integers(0, 2**50) | st.integers(0, 1_000), min_size=1), st.integers(1, 100))
def test_a_share_of_the_events_is_never_above_its_delay_which_is_less_than_1_percent_too_long(seen, percent):
    delays, resumed = Delays(), Delays()
    for delay in seen:
        delays.add(delay)
    resumed.restore(json.loads(json.dumps(delays.snapshot())))
    shortest = min(delay for delay in seen if sum(one <= delay for one in seen) / len(seen) >= percent / 100)
    assert shortest <= delays.at_most(percent / 100) == resumed.at_most(percent / 100) <= shortest * (1 + 1 / 128)
    assert delays.at_most(1) == max(seen)


def test_percentiles_are_what_the_delays_say_and_stand_in_the_marks():
    """Of ten events five are in order, three 10 behind, two 100 behind."""
    emitter = Emitter(Identity("a", 1), percentile(200 * MS, (33.0, 66, 99, 100)).build(), partitions=1)
    for number in range(3_000):
        for behind in (0, 0, 0, 0, 0, 10, 10, 10, 100, 100):
            emitter.send(0, number * 1_000 - behind).ack()
    record = emitter.marks(0)[0][1]
    largest = 2_999_000
    behind = {percent: largest - time for percent, time in record.percentiles.items()}
    assert behind == {33: 0, 66: 10, 99: 100, 100: 200}
    assert record.watermark == largest - 200


def test_the_adaptive_bound_follows_the_delays():
    chance = random.Random(5)  # noqa: S311  # repeatable
    generator = adaptive(0.99, margin=1.2, least=MS, most=5_000 * MS).build()
    late = 0
    for number in range(20_000):
        event_time = number * 10 - int(chance.expovariate(1 / 300))
        promised = generator.watermark() if number % 100 == 0 else promised  # noqa: F821  # of the round before
        late += promised is not None and event_time < promised
        generator.on_event(event_time)
    bound = 199_990 - generator.watermark()
    assert 1_200 < bound < 2_500, "the 99th percentile of these delays is near 1,400"
    assert late < 20_000 * 0.01


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: adaptive(0),
        lambda: adaptive(1.1),
        lambda: adaptive(margin=0),
        lambda: adaptive(margin=MS),
        lambda: adaptive(margin=float("inf")),
        lambda: adaptive("0.9"),
        lambda: adaptive(least=2 * MS, most=MS),
        lambda: percentile(-MS),
        lambda: percentile(MS, ()),
        lambda: percentile(MS, 33),
        lambda: percentile(MS, (percent for percent in (33, 66))),
        lambda: percentile(MS, (33.5,)),
        lambda: percentile(MS, (0,)),
        lambda: percentile(MS, (101,)),
        lambda: percentile(MS, tuple(range(1, 66))),
        lambda: Identity("a" * 201, 1),
        lambda: Identity("a", -1),
        lambda: Identity("a", 1_760_000_000.9),
        lambda: Membership(version=1.5),
        lambda: Membership(size=True),
        lambda: Identity("a", 1, lease=0),
        lambda: with_idleness(ascending(), 0 * MS),
        lambda: with_idleness(ascending(), -MS),
        lambda: bounded_out_of_orderness(-MS),
    ],
)
def test_a_strategy_or_identity_out_of_range_is_refused(wrong):
    with pytest.raises(UsageError, match="expected"):
        wrong()


def test_ingress_time_never_goes_back_and_time_alone_moves_it():
    generator = ingress().build()
    assert generator.watermark() is None
    assert [generator.stamp(now) for now in (100, 90, 101)] == [100, 100, 101]
    generator.on_tick(500)
    assert generator.watermark() == 500
    assert generator.stamp(450) == 500, "no event gets a time below what was promised"
