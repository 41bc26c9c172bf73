"""Strategies against plain computations, and what cannot be one."""

from datetime import timedelta

import pytest
from floodmark.producers import (
    adaptive,
    ascending,
    bounded_out_of_orderness,
    explicit,
    percentile,
    punctuated,
    with_idleness,
)
from floodmark.producers.strategies.interface import strategy_of
from floodmark.schemas.errors import InvalidEventTimeError, UsageError, WatermarkRegressionError

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("bound", "event_times", "expected"),
    [
        pytest.param(10, [], None, id="G1: no event, no promise"),
        pytest.param(10, [1337], 1327, id="G2: the largest less the bound; Flink's 1326 plus one, ours is strict"),
        pytest.param(10, [12345, 12300, 12340, 12280], 12335, id="G3: only the largest counts"),
        pytest.param(10, [723456], 723446, id="G4: asked twice, the same"),
    ],
)
def test_flinks_cases_of_bounded_out_of_orderness(bound, event_times, expected):
    generator = bounded_out_of_orderness(timedelta(milliseconds=bound)).build()
    for event_time in event_times:
        generator.on_event(event_time)
    assert (generator.watermark(), generator.watermark()) == (expected, expected)


def test_ascending_promises_each_events_own_time():
    generator = ascending().build()
    generator.on_event(12)
    assert generator.watermark() == 12


def test_a_negative_bound_is_refused():
    with pytest.raises(UsageError, match="expected 0 or more"):
        bounded_out_of_orderness(timedelta(milliseconds=-1))


def test_a_promise_cannot_be_taken_back():
    generator = explicit().build()
    generator.advance(12)
    with pytest.raises(WatermarkRegressionError) as caught:
        generator.advance(9)
    assert (caught.value.last, caught.value.received) == (12, 9)
    assert generator.watermark() == 12


def test_a_strategy_is_shared_and_its_generators_are_not():
    strategy = ascending()
    first, second = strategy.build(), strategy.build()
    first.on_event(12)
    assert (first.watermark(), second.watermark()) == (12, None)


def test_a_punctuation_that_is_no_time_is_refused():
    generator = punctuated(lambda _: 10**18).build()
    with pytest.raises(InvalidEventTimeError):
        generator.on_event(5, value=b"x")
    assert generator.watermark() is None


@pytest.mark.parametrize(
    ("slip", "hint"),
    [
        (lambda: strategy_of(ascending), r"ascending\(\)"),
        (lambda: strategy_of(ascending().build()), r"leave out \.build"),
        (lambda: strategy_of("ascending"), r"ascending\(\)"),
        (lambda: with_idleness(explicit, SECOND), r"explicit\(\)"),
        (lambda: with_idleness(explicit(), 5), r"timedelta\(seconds"),
        (lambda: bounded_out_of_orderness(5), r"timedelta\(seconds"),
        (lambda: percentile(5.0), r"timedelta\(seconds"),
        (lambda: adaptive(least=5), r"timedelta\(seconds"),
    ],
)
def test_a_slip_is_told_what_to_write(slip, hint):
    with pytest.raises(UsageError, match=hint):
        slip()
