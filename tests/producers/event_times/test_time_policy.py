"""The time policy: the golden table, its laws against a model, replays, and bounded memory."""

import json
import pickle
from datetime import timedelta

import pytest
from conformance.golden import POLICIES, clock, golden
from floodmark.producers.event_times.time_policy import Outcome, TimePolicy
from floodmark.schemas.errors import CorruptSnapshotError, UsageError
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME
from hypothesis import example, given
from hypothesis import strategies as st

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("variant", POLICIES)
def test_the_golden_table(variant):
    decider = POLICIES[variant].build()
    key = (lambda event: event.device.encode()) if variant == "substreams" else (lambda _: None)
    decided = {event.n: decider.decide(event.time, event.arrival, key(event)) for event in golden(variant)}
    assert {n: time for n, (_, time) in decided.items()} == {event.n: event.expected for event in golden(variant)}
    adjusted = {n for n, (outcome, _) in decided.items() if outcome.endswith("adjusted")}
    assert adjusted == {"policy": {6, 9, 12}, "without_early": {4, 6, 9, 12}, "substreams": {12}}[variant]


def test_what_the_table_says_of_the_watermark():
    decider = POLICIES["policy"].build()
    after = {}
    for event in golden("policy"):
        decider.decide(event.time, event.arrival)
        after[event.n] = decider.watermark
    assert after[3] == after[2], "an early event does not move the watermark"
    assert after[5] == clock("12:17")
    assert after[11] == clock("12:21")
    decider = POLICIES["without_early"].build()
    for event in golden("policy")[:3]:
        decider.decide(event.time, event.arrival)
    assert decider.watermark == clock("12:15")


def test_drop_instead_of_adjust():
    policy = TimePolicy(late=5 * SECOND, out_of_order=2 * SECOND, on_late="drop", on_out_of_order="drop")
    decider = policy.build()
    assert decider.decide(10_000, 10_000) == (Outcome.ON_TIME, 10_000)
    assert decider.decide(7_999, 10_500) == (Outcome.OUT_OF_ORDER_DROPPED, None)
    assert decider.decide(4_999, 10_000) == (Outcome.LATE_DROPPED, None)
    assert decider.watermark == 8_000
    assert decider.counts == {"on_time": 1, "out_of_order_dropped": 1, "late_dropped": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"late": -SECOND},
        {"early": -SECOND},
        {"out_of_order": -SECOND},
        {"on_late": "ignore"},
        {"on_out_of_order": ""},
        {"max_keys": 0},
    ],
)
def test_a_policy_that_no_event_can_obey_is_refused(wrong):
    with pytest.raises(UsageError, match="time policy"):
        TimePolicy(**wrong)


events = st.lists(st.tuples(st.integers(-40, 40), st.integers(0, 9), st.sampled_from([None, 3, 30])), max_size=60)
policies = st.builds(
    TimePolicy,
    early=st.sampled_from([None, 0 * SECOND, 10 * SECOND]),
    late=st.integers(0, 20).map(lambda n: n * SECOND),
    out_of_order=st.integers(0, 20).map(lambda n: n * SECOND),
    on_late=st.sampled_from(["adjust", "drop"]),
    on_out_of_order=st.sampled_from(["adjust", "drop"]),
    max_keys=st.integers(1, 5),
)


@example(  # keys at the floor are not in a snapshot: what is forgotten after a restart may not hang on them
    policy=TimePolicy(early=None, late=8 * SECOND, max_keys=2),
    steps=[(0, 0, None), (23, 0, 30), (24, 0, None), (0, 0, None)],
    substreams=True,
)
@given(policy=policies, steps=events, substreams=st.booleans())
def test_times_stay_at_or_above_the_watermark_and_a_replay_decides_the_same(policy, steps, substreams):
    """The watermark never goes back, no event gets a time below it, and a replay of the log decides the same."""
    decider, resumed, arrival, decided, log = policy.build(), policy.build(), 1_000_000, [], []
    given = []
    for offset, step, elapsed in steps:
        arrival += step * 1_000
        key = b"%d" % (offset % 7) if substreams else None
        before, floor = decider.watermark_of(key), decider.watermark
        outcome, time = decider.decide(arrival + offset * 1_000, arrival, key)
        assert (outcome, time) == resumed.decide(arrival + offset * 1_000, arrival, key)
        if time is not None:
            assert before is None or time >= before
            assert decider.watermark_of(key) >= time - 20_000
        assert floor is None or decider.watermark >= floor
        assert before is None or decider.watermark_of(key) >= before
        assert len(decider.snapshot()["keys"]) <= policy.max_keys
        if elapsed is not None:
            estimated = decider.estimate(elapsed * 1_000)
            log += [] if estimated is None else [(len(given) + 1, estimated)]
            resumed.estimate(elapsed * 1_000)
        decided.append((outcome, time))
        given.append((arrival + offset * 1_000, arrival, key))
        state = json.loads(json.dumps(resumed.snapshot()))
        resumed = policy.build()
        resumed.restore(state)
    replayed, again = policy.build(), []
    for number, event in enumerate(given, start=1):
        again.append(replayed.decide(*event))
        for seen, watermark in log:
            if seen == number:
                replayed.advance(watermark)
    assert again == decided
    assert replayed.watermark == decider.watermark


def test_without_an_event_the_time_between_two_runs_counts():
    """Or a partition that never gets an event would be behind by each pause, for ever."""
    policy = TimePolicy(late=timedelta(milliseconds=50))
    first, again = policy.build(), policy.build()
    assert first.expect(1_000)
    assert first.estimate(100) == 1_050
    again.restore(first.snapshot())
    assert again.watermark == 1_050
    assert again.expect(9_000)
    assert again.estimate(0) == 8_950
    again.decide(9_000, 9_010)
    first.restore(again.snapshot())
    assert not first.expect(20_000)


def test_the_estimate_is_last_arrival_and_elapsed_less_the_late_tolerance():
    decider = TimePolicy(late=5 * SECOND, out_of_order=0 * SECOND).build()
    assert decider.estimate(99_000) is None  # nothing has ever arrived
    decider.decide(1_000, 2_000)
    assert decider.estimate(3_000) is None
    assert decider.estimate(4_500) == 1_500
    assert decider.watermark == 1_500


def test_events_a_little_out_of_order_keep_their_times_by_default():
    """What is 0 to 2 s old when it arrives is neither late nor out of order; it was adjusted 1,870 times of 2,000."""
    decider, strict = TimePolicy().build(), TimePolicy(out_of_order=timedelta(0)).build()
    for number in range(2_000):
        arrival, age = 1_000_000 + number * 10, number * 7_919 % 2_000
        decider.decide(arrival - age, arrival)
        strict.decide(arrival - age, arrival)
    assert decider.counts == {"on_time": 2_000}
    assert strict.counts["out_of_order_adjusted"] > 1_600
    assert 1_000_000 + 20_000 - 7_000 < decider.watermark <= 1_000_000 + 20_000 - 5_000


def test_a_quiet_policy_keeps_nothing():
    """A day of silence with a commit a second: the state is as small as it was."""
    decider = TimePolicy().build()
    decider.decide(1_763_712_000_000, 1_763_712_000_000, None)
    before = len(pickle.dumps(decider))
    for second in range(86_400):
        assert decider.estimate(5_000 + second * 1_000 + 1) is not None
    assert len(pickle.dumps(decider)) <= before + 8


extremes = st.sampled_from([EARLIEST, EARLIEST + 1, -1, 0, 1_763_712_000_000, END_OF_TIME - 1, END_OF_TIME])
any_times = extremes | st.integers(EARLIEST, END_OF_TIME)
any_tolerance = st.sampled_from([timedelta(0), SECOND, timedelta(days=1_000_000), timedelta.max])


@given(
    policy=st.builds(
        TimePolicy, early=st.none() | any_tolerance, late=any_tolerance, out_of_order=st.none() | any_tolerance
    ),
    steps=st.lists(st.tuples(any_times, st.none() | any_times, st.integers(0, 10**15)), max_size=20),
    substreams=st.booleans(),
)
def test_no_time_and_no_tolerance_leads_out_of_the_calendar(policy, steps, substreams):
    decider, before = policy.build(), EARLIEST
    for event_time, arrival, elapsed in steps:
        known = decider.watermark
        _, time = decider.decide(event_time, arrival, b"%d" % (event_time % 3) if substreams else None)
        assert time is None or EARLIEST <= time <= END_OF_TIME
        if arrival is None:
            assert decider.watermark == known, "what has no place in time moves nothing"
            assert time is None or time >= (known or EARLIEST) or event_time >= time
        decider.estimate(elapsed)
        assert decider.watermark is None or before <= decider.watermark <= END_OF_TIME
        before = decider.watermark if decider.watermark is not None else before
        restored = policy.build()
        restored.restore(json.loads(json.dumps(decider.snapshot())))
        assert restored.watermark == decider.watermark


def test_more_keys_than_are_kept_raise_the_floor_and_are_counted():
    decider = TimePolicy(late=3600 * SECOND, max_keys=10).build()
    for number in range(100):
        decider.decide(1_000_000 + number, 1_000_000, b"%d" % number)
    assert len(decider.snapshot()["keys"]) <= 10
    assert decider.counts["keys_evicted"] == 90
    assert decider.watermark == 1_000_089, "of the last one that was forgotten, no higher"


@pytest.mark.parametrize(
    "wrong",
    [
        {"watermark": 1},
        {"watermark": "1", "arrival": 1, "keys": {}, "counts": {}},
        {"watermark": 10**18, "arrival": 1, "keys": {}, "counts": {}},
        {"watermark": 1, "arrival": "1", "keys": {}, "counts": {}},
        {"watermark": 1, "arrival": 1_763_712_000_000_000, "keys": {}, "counts": {}},
        {"watermark": 1, "arrival": 1, "keys": {"zz": 1}, "counts": {}},
        {"watermark": 1, "arrival": 1, "keys": {"6b": None}, "counts": {}},
        {"watermark": 1, "arrival": 1, "keys": {}, "counts": {"on_time": "x"}},
    ],
)
def test_a_snapshot_of_something_else_is_an_error(wrong):
    with pytest.raises(CorruptSnapshotError, match="time policy"):
        TimePolicy().build().restore(wrong)
