"""Jobs take turns: never too many at once, the lowest watermark first, and each wait has an end."""

from floodmark.spark_jobs.batch.turns import Turns
from hypothesis import given, settings
from hypothesis import strategies as st

_STEP = 0.02  # seconds between two questions of a job
_BATCH = 5.0
_WAIT = 10.0


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def crowd(jobs):
    clock = Clock()
    turns = Turns(clock)
    for job in range(jobs):
        turns.end(job)
    clock.now += 1
    return clock, turns


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.lists(st.floats(0.02, 8), min_size=2, max_size=8), st.data())
def test_no_more_run_at_once_than_may_and_every_job_gets_its_turn(most, lengths, data):
    """A batch that is longer than a turn, or a job that has waited for long, may be one more."""
    clock, turns = crowd(len(lengths))
    running, waits, behind = {}, {}, dict.fromkeys(range(len(lengths)), 0)
    for _ in range(1_500):
        clock.now += _STEP
        for job, began in list(running.items()):
            if clock.now - began >= lengths[job]:
                del running[job]
                behind[job] += data.draw(st.integers(0, 3)) if clock.now < 110 else 1
                turns.end(job)
        for job in behind.keys() - running.keys():
            since = waits.setdefault(job, clock.now)
            if turns.take(job, (False, behind[job]), most):
                short = [began for began in running.values() if clock.now < began + _BATCH]
                assert len(short) < most or len(lengths) <= most or clock.now - since > _WAIT - _STEP / 2
                running[job] = clock.now
                del waits[job]
            else:
                assert clock.now - since < _WAIT, "no wait is longer"


def test_a_window_passes_a_chain_before_the_first_job_takes_the_next_one():
    """Each job reads what the one before has written, which it finds some milliseconds after that has ended."""
    clock, turns = crowd(4)
    order, watermarks, running, until = [], [10, 0, 0, 0], None, 0.0
    while len(order) < 8:
        clock.now += _STEP
        if running is not None and clock.now >= until:
            watermarks[running] = 100 + len(order) if running == 0 else watermarks[running - 1]
            turns.end(running)
            running = None
        for job in range(4):
            decides = job == 0 or (job - 1 != running and watermarks[job - 1] > watermarks[job])
            if running is None and decides and turns.take(job, (False, watermarks[job]), 1):
                running, until = job, clock.now + 0.5
                order.append(job)
    assert order[-4:] in ([0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2])


def test_one_whose_batch_closes_nothing_waits_for_the_others():
    clock, turns = crowd(3)
    assert turns.take(0, (False, 5), 1)
    assert not turns.take(1, (True, 1), 1)
    assert not turns.take(2, (False, 9), 1)
    turns.end(0)
    clock.now += 0.1
    assert not turns.take(1, (True, 1), 1)
    assert turns.take(2, (False, 9), 1)


def test_a_job_that_has_stopped_asking_delays_no_other():
    clock, turns = crowd(3)
    assert turns.take(0, (False, 5), 1)
    assert not turns.take(1, (False, 1), 1)
    turns.end(0)
    clock.now += 0.5
    assert not turns.take(2, (False, 9), 1), "the other may ask again"
    clock.now += 0.6
    assert turns.take(2, (False, 9), 1)


def test_who_has_left_counts_no_more():
    _, turns = crowd(3)
    assert turns.take(0, (False, 5), 1)
    assert not turns.take(1, (False, 1), 1)
    for job in (0, 1):
        turns.leave(job)
    assert not turns.is_crowded(1)
    assert turns.take(2, (False, 9), 1)


def test_if_all_have_a_core_none_waits():
    _, turns = crowd(2)
    assert not turns.is_crowded(2)
    assert all(turns.take(job, (False, job), 2) for job in (1, 0))
    clock, turns = crowd(3)
    assert turns.is_crowded(2)
    clock.now += _WAIT
    assert not turns.is_crowded(2), "jobs that have ended are forgotten"
