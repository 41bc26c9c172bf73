"""The watermarks of partitions without new records, over restarts and by any clock."""

from datetime import timedelta

from floodmark.producers import TimePolicy
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.event_times.injection import Injection, InjectorState
from floodmark.producers.injector.partitions import InjectedPartitions
from floodmark.producers.testing import ManualClock
from hypothesis import given
from hypothesis import strategies as st

NOW = 1_763_712_000_000
DAY = 86_400_000
POLICY = TimePolicy(late=timedelta(seconds=5), out_of_order=timedelta(days=9))  # only estimates move its watermark
INJECTION = Injection("raw", "marked", JsonField("at"), POLICY)
spans = st.integers(0, 3 * DAY)
runs = st.lists(st.tuples(spans, st.lists(st.tuples(spans, st.booleans()), max_size=4), st.integers(0, 2 * NOW)))


def started(clock, state=None, partitions=1):
    states = {} if state is None else {0: InjectorState.unpack(state.pack("i", 0))}
    return InjectedPartitions(INJECTION, 1, dict.fromkeys(range(partitions), 0), states, clock)


def wait(partitions, clock, number, milliseconds):
    """Let time pass in a partition that is read to its end; return its watermark."""
    clock.advance(timedelta(milliseconds=milliseconds))
    partitions[number].reach_end(clock.wall(), clock.steady())
    partitions.estimate()
    return partitions[number].input.watermark


@given(runs)
def test_a_quiet_partition_counts_all_time_in_which_an_injector_ran_and_no_more(runs):
    """Whatever wall clocks say: each run has its own, and no watermark is above the true time minus --late."""
    now = arrived = NOW
    ran, state = 0, None
    for stopped, waits, wall in [(0, [(0, True)], NOW), *runs, (0, [(0, False)], 0)]:
        now += stopped
        clock = ManualClock(wall=wall, steady=wall // 7)
        partitions = started(clock, state)
        for milliseconds, has_record in waits:
            if has_record:
                now, arrived, ran = now + milliseconds, now + milliseconds, 0
                clock.advance(timedelta(milliseconds=milliseconds))
                value = b'{"at": %d}' % now
                partitions[0].take(None, value, 7, now, taken=now, seen=clock.steady())
            else:
                now, ran = now + milliseconds, ran + milliseconds
                assert wait(partitions, clock, 0, milliseconds) >= arrived + ran - 5_000
            assert (partitions[0].input.watermark or 0) <= now - 5_000
        state = InjectorState(7, 1, "at", partitions[0].input.snapshot(), {})
    assert partitions[0].input.watermark >= arrived + ran - 5_000


def test_a_partition_that_the_input_gets_later_begins_at_the_clock():
    clock = ManualClock(wall=NOW)
    partitions = started(clock, partitions=2)
    clock.advance(timedelta(days=1))
    assert list(partitions.grow(2, 2)) == [(1, 0)]
    assert wait(partitions, clock, 1, 0) == NOW + DAY - 5_000, "not a day ahead of it"
    assert wait(partitions, clock, 1, 1_000) == NOW + DAY - 4_000
