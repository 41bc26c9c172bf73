from datetime import timedelta

import pytest
from floodmark.producers import (
    adaptive,
    ascending,
    bounded_out_of_orderness,
    explicit,
    ingress,
    percentile,
    punctuated,
    with_idleness,
)
from floodmark.producers.strategies.generator import strategy_of
from floodmark.schemas.errors import InvalidEventTimeError, UsageError, WatermarkRegressionError

SECOND = timedelta(seconds=1)
ALL = {
    "ascending": ascending(),
    "bounded": bounded_out_of_orderness(SECOND),
    "explicit": explicit(),
    "ingress": ingress(),
    "punctuated": punctuated(lambda value: int(value) if value else None),
    "percentile": percentile(SECOND),
    "adaptive": adaptive(),
}


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


@pytest.mark.parametrize("name", ALL)
def test_asking_changes_nothing(name):
    generator = ALL[name].build()
    for step in range(20):
        generator.on_event(1_000 * (step % 7), step, b"%d" % step)
        before = generator.snapshot()
        generator.watermark(), generator.percentiles(), generator.idle, generator.punctual
        assert generator.snapshot() == before


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
