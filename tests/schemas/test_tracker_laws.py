"""The laws of the tracker over any history, against a model that is too simple to be wrong."""

import os
import random
from itertools import combinations

import pytest
from floodmark.producers.testing import mark
from floodmark.schemas import Status, Tracker
from hypothesis import given, settings
from hypothesis import strategies as st
from support.histories import History

HISTORIES = int(os.environ.get("FLOODMARK_HISTORIES", "2000"))


@pytest.mark.parametrize("chunk", range(4))
def test_every_history_is_what_the_specification_says(chunk):
    for seed in range(chunk, HISTORIES // 4, 4):
        try:
            History(seed).run()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_lease_leaves_out_no_source_that_speaks_and_every_one_that_is_dead():
    for seed in range(200):
        speak_until_one_dies(seed)


def speak_until_one_dies(seed):
    """Clocks are apart, one log time is wrong, and each source speaks at least twice a lease."""
    chance, lease = random.Random(seed), 100  # noqa: S311  # a repeatable history
    names = "abcd"[: chance.randint(2, 4)]
    skews = {name: chance.randint(-10_000, 10_000) for name in names}
    dies, dead, wrong = chance.randint(100, 1_000), chance.choice(names), chance.randint(0, 200)
    due, said, tracker = {name: chance.randint(0, 50) for name in names}, dict.fromkeys(names), Tracker({"t"})
    for number in range(300):
        name = min(due, key=due.get)
        now = due[name]
        due[name] += chance.randint(1, lease // 2)
        if name == dead and now >= dies:
            del due[name]
            continue
        log_time = 1_000_000 + now + skews[name]
        if number == wrong:
            log_time = chance.choice([0, 2**40, log_time + chance.randint(-2 * lease, 2 * lease)])
        said[name] = number
        record = mark(name, number, number, size=len(names), lease=lease)
        tracker.apply(record, topic="t", partition=0, log_time=log_time)
        tracker.advance()
        if None not in said.values() and now < dies:
            assert tracker.watermark == min(said.values()), f"seed {seed}"
    assert tracker.watermark == min(watermark for name, watermark in said.items() if name != dead), f"seed {seed}"


def interleavings(left, right):
    """Give every order of two sequences that keeps the order within each."""
    total = len(left) + len(right)
    for places in combinations(range(total), len(left)):
        ours, theirs = iter(left), iter(right)
        yield [next(ours) if place in places else next(theirs) for place in range(total)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_the_watermark_is_independent_of_how_partitions_interleave(first, second):
    left = [(0, mark("a", watermark, n, partitions=2)) for n, watermark in enumerate(first)]
    right = [(1, mark("a", watermark, n, partitions=2)) for n, watermark in enumerate(second)]
    ends = set()
    for order in interleavings(left, right):
        tracker = Tracker({"t"})
        for partition, record in order:
            tracker.apply(record, topic="t", partition=partition, log_time=0)
            tracker.advance()
        ends.add(tracker.watermark)
    assert ends == {min(max(first), max(second))}


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_asking_less_often_never_gives_more(batch):
    """A job asks once a batch: it may see less than one that asks after each record, never more."""
    history = [(0, mark("a", n * 3 % 17, n, status=Status.IDLE if n % 5 == 0 else Status.ACTIVE)) for n in range(40)]
    often, seldom = Tracker({"t"}), Tracker({"t"})
    for number, (partition, record) in enumerate(history):
        often.apply(record, topic="t", partition=partition, log_time=0)
        seldom.apply(record, topic="t", partition=partition, log_time=0)
        often.advance()
        if number % batch == batch - 1:
            seldom.advance()
            assert (seldom.watermark or 0) <= (often.watermark or 0)
