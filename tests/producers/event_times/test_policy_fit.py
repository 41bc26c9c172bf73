"""A policy that takes most events their times is noticed, and the advice fits."""

import re
from datetime import timedelta

import pytest
from floodmark.producers.event_times.formats import JsonField, substream_json, substream_key
from floodmark.producers.event_times.input_partition import InputPartition
from floodmark.producers.event_times.policy_fit import PolicyFit
from floodmark.producers.event_times.time_policy import Outcome, TimePolicy
from hypothesis import given
from hypothesis import strategies as st

NOW = 1_767_225_600_000
SECOND = timedelta(seconds=1)


def run(policy, delays, *, placed=False, share=0.5):
    """Judge one event after the other, a millisecond apart; return how many kept their times, and the advice.

    ``placed``: whether each is told how far it is below the largest so far, as an injector does.
    """
    state, fit, largest = policy.build(), PolicyFit(policy, share=share), NOW - 10**12
    for number, delay in enumerate(delays):
        arrival = NOW + number
        outcome, _ = state.decide(arrival - delay, arrival)
        largest = max(largest, arrival - delay)
        fit.add(outcome, arrival - delay, arrival, behind=(largest - arrival + delay) * placed)
    fit.judge()
    return state.counts[Outcome.ON_TIME], fit.pop_advice()


@given(
    st.lists(st.integers(0, 100_000), min_size=1, max_size=999),
    st.sampled_from(["adjust", "drop"]),
    st.sampled_from([None, 5 * SECOND, 60 * SECOND]),
    st.sampled_from([0.01, 0.5]),
)
def test_advice_is_given_where_more_lose_their_times_and_keeps_those_of_99_percent(delays, action, tolerance, share):
    kept, advice = run(TimePolicy(on_late=action, out_of_order=tolerance), delays, placed=True, share=share)
    assert (advice is not None) == (len(delays) - kept > share * len(delays))
    if advice is not None:
        assert f"{len(delays) - kept:,} of {len(delays):,} events" in advice
        late = timedelta(seconds=int(re.search(r"--late (\d+) ", advice)[1]))
        if order := re.search(r"--out-of-order (\d+) ", advice):
            tolerance = timedelta(seconds=int(order[1]))
        advised = TimePolicy(late=late, out_of_order=tolerance, on_late=action)
        assert run(advised, delays)[0] >= 0.99 * len(delays)


@pytest.mark.parametrize("order", [None, 60 * SECOND])
def test_where_arrivals_go_back_the_first_advice_names_the_order_too(order):
    """As in a topic to which an older day was added."""
    arrivals = [NOW + number * 1_000 for number in (*range(3_000, 3_100), *range(800))]

    def kept(policy):
        fit = PolicyFit(policy)
        partition = InputPartition(JsonField("at"), policy, fit=fit)
        for number, arrival in enumerate(arrivals):
            late = number % 7 * 1_000 + (number % 50 == 0) * 400_000
            partition.take(None, b'{"at": %d}' % (arrival - late), arrival)
        fit.judge()
        return partition.outcomes[Outcome.ON_TIME], fit.pop_advice()

    _, advice = kept(TimePolicy(late=5 * SECOND, out_of_order=order))
    late, order = map(int, re.search(r"--late (\d+) --out-of-order (\d+) keeps the times of 99 %", advice).groups())
    on_time, advice = kept(TimePolicy(late=late * SECOND, out_of_order=order * SECOND))
    assert on_time >= 0.99 * len(arrivals)
    assert advice is None


@pytest.mark.parametrize(
    ("ahead", "later", "advice"),
    [
        pytest.param(0, 0, "--out-of-order 2967 keeps the times of 99 %", id="records that are written again"),
        pytest.param(10**12, 3_600_000, "an event ahead of its arrival. To start over, add", id="an event ahead"),
    ],
)
def test_the_advice_after_a_restart_counts_from_the_records_before(ahead, later, advice):
    policy, fmt = TimePolicy(early=None, late=300 * SECOND, out_of_order=60 * SECOND), JsonField("at")
    first, fit = InputPartition(fmt, policy, fit=PolicyFit(policy)), PolicyFit(policy)
    arrivals = [NOW + 3_000 * number for number in range(1_000)]
    for at in arrivals:
        first.take(None, b'{"at": %d}' % at, at)
    first.take(None, b'{"at": %d}' % (arrivals[-1] + ahead), arrivals[-1])
    resumed = InputPartition(fmt, policy, fit=fit)
    resumed.restore(first.snapshot())
    for at in (arrival + later for arrival in arrivals):
        resumed.take(None, b'{"at": %d}' % at, at)
    assert advice in fit.pop_advice()


@pytest.mark.parametrize(
    ("policy", "delays", "said"),
    [
        (
            TimePolicy(),
            [-7_200_000] * 10,
            "(10 early dropped). In the median, they arrive 7,200.0 s before their event time. --early 7200",
        ),
        (TimePolicy(out_of_order=0 * SECOND), [n % 2 * 900 for n in range(99)] + [900] * 2, "A larger --out-of-order"),
        (
            TimePolicy(out_of_order=SECOND),
            [-200_000] + [0] * 9,
            "moved too far by an earlier start with other options, or an event ahead of its arrival (here up to 200",
        ),
        (TimePolicy(), [NOW - NOW // 10**6] * 5, "distance to the arrival is 56 years. Check --json-field or"),
        (TimePolicy(late=SECOND, out_of_order=5 * SECOND), [20_000] * 9, "--late 20 --out-of-order 20 keeps"),
        (TimePolicy(late=SECOND, out_of_order=60 * SECOND), [20_000] * 9, "--late 20 keeps"),
        (
            TimePolicy(early=None),
            [1_000] * 9 + [-3_600_000] + [1_000] * 20,
            "event ahead of its arrival (here up to 3,600.0 s: pass a smaller --early). To start over, add --reset",
        ),
        (TimePolicy(early=None), [0, 4_000, 4_999], None),
    ],
)
def test_each_cause_has_its_advice(policy, delays, said):
    _, advice = run(policy, delays)
    assert (advice is None) if said is None else (said in advice)


def test_a_topic_that_was_filled_later_gets_an_order_of_its_own_which_does_not_hold_the_watermark_by_days():
    _, advice = run(TimePolicy(), [6 * 86_400_000 + n % 2 * 900 for n in range(99)], placed=True)
    assert "--late 518401 --out-of-order 1 keeps the times of 99 %" in advice
    assert advice.endswith("; if only old records are so late, restart with a smaller one after them")


def test_late_and_disordered_events_that_are_not_the_same_ones_leave_99_percent():
    delays = [100_000] * 3 + [50_000] * 293 + [0] + [50_000] * 3
    _, advice = run(TimePolicy(), delays, placed=True)
    assert "--late 50 keeps the times of 99 %" in advice
    assert run(TimePolicy(late=50 * SECOND), delays)[0] >= 0.99 * len(delays)


def test_where_times_are_out_of_order_and_not_late_the_advice_names_an_order_that_keeps_them():
    """A topic that was written three times: its arrivals are as much out of order as its event times."""
    times = [NOW + number * 1_000 for number in range(200)] * 3

    def kept(order):
        policy = TimePolicy(late=300 * SECOND, out_of_order=timedelta(seconds=order))
        fit = PolicyFit(policy)
        partition = InputPartition(JsonField("at"), policy, fit=fit)
        for time in times:
            partition.take(None, b'{"at": %d}' % time, time)
        fit.judge()
        return partition.outcomes[Outcome.ON_TIME], fit.pop_advice()

    on_time, advice = kept(5)
    assert on_time < 0.5 * len(times)
    order = int(re.search(r" --out-of-order (\d+) keeps the times of 99 %", advice)[1])
    on_time, advice = kept(order)
    assert on_time >= 0.99 * len(times)
    assert advice is None


@pytest.mark.parametrize(
    ("by", "key", "missed"),
    [
        (substream_json("devv"), b"d1", True),
        (substream_json("dev"), None, False),
        (substream_key, None, True),
        (substream_key, b"d1", False),
        (None, None, False),
    ],
)
def test_substreams_that_no_event_belongs_to_are_told_also_where_all_are_on_time(by, key, missed):
    fit = PolicyFit(TimePolicy())
    partition = InputPartition(JsonField("at"), TimePolicy(), by, fit)
    for number in range(5):
        partition.take(key if number == 3 else None, b'{"at": %d, "dev": "d1"}' % (NOW + number), NOW + number)
    fit.judge()
    assert ("None of 5 events has the key or the JSON field" in (fit.pop_advice() or "")) is missed


def test_every_thousand_events_are_judged_and_a_change_is_told_once():
    fit, told = PolicyFit(TimePolicy()), []
    for window in (True, True, False, True):
        for number in range(1_000):
            is_late = window and number < 501
            fit.add(Outcome.LATE_DROPPED if is_late else Outcome.ON_TIME, NOW - 9_000 * is_late, NOW)
        told.append(fit.pop_advice() is not None)
    assert told == [True, False, False, True]
    fit.add(Outcome.LATE_DROPPED, NOW - 9_000, NOW)
    fit.judge()
    assert fit.pop_advice() is None, "the end of a long run says nothing of its last few events"


@pytest.mark.parametrize(
    ("times", "doubtful"),
    [([NOW // 1000] * 3, True), ([NOW // 1000, NOW], False), ([5_000], False), ([], False), ([NOW // 10**6], False)],
)
def test_times_are_doubted_only_while_all_look_like_seconds(times, doubtful):
    fit = PolicyFit(TimePolicy())
    for time in times:
        fit.add(Outcome.ON_TIME, time, NOW)
    assert fit.looks_like_seconds is doubtful


@pytest.mark.parametrize(
    ("unit", "number", "factor"),
    [
        ("ms", NOW // 1_000, "1,000"),
        ("us", NOW, "1,000"),
        ("us", NOW // 1_000, "1,000,000"),
        ("ns", NOW * 1_000, "1,000"),
        ("ns", NOW, "1,000,000"),
        ("ns", NOW // 1_000, "1,000,000,000"),
        ("ms", NOW // 10**6, None),
        ("us", NOW * 1_000, None),
        ("ns", 5 * 10**9, None),
    ],
)
def test_each_unit_that_is_too_short_is_noticed(unit, number, factor):
    fit = PolicyFit(TimePolicy())
    InputPartition(JsonField("at", unit), fit=fit).take(None, b'{"at": %d}' % number, NOW)
    assert fit.looks_like_seconds is (factor is not None)
    if factor is not None:
        assert f"and {factor} times that is 202" in fit.doubt("")
