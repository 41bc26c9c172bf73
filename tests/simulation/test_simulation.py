"""Thousands of seeded histories with crashes: zero late rows, exact results, every time.

``FLOODMARK_HISTORIES=100000 pytest tests/simulation`` runs more; a failing seed is named and repeats exactly.
"""

import os
from collections import Counter

import pytest
from floodmark.schemas.checker import Checker, Fault
from floodmark.schemas.classify import Data, classify
from support.world import HAPPENINGS, STEPS, World, row_of

HISTORIES = int(os.environ.get("FLOODMARK_HISTORIES", "1000"))
CHUNKS = 10
# What the world itself sows: a zombie's word, and counts that a lost acknowledgement makes unsure.
SOWN = {Fault.ZOMBIE}


def check(topic):
    """Hold a log of the world against the specification."""
    checker, found = Checker(), []
    for number, log in enumerate(topic.partitions):
        for record in (classify(*entry) for entry in log):
            if isinstance(record, Data):
                found += checker.data(number, record.offset, row_of(record.value).event_time)
            else:
                found += checker.mark(record)
    return [finding for finding in found if finding.fault not in SOWN]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_history_equals_its_batch_computation(chunk):
    happened = Counter()
    for seed in range(chunk, HISTORIES, CHUNKS):
        world = World(seed)
        world.run()
        first, second = world.stages
        assert (first.late, second.late) == (0, 0), f"seed {seed}: late rows"
        assert first.results == world.truth(), f"seed {seed}: the first stage lost or doubled rows"
        assert second.results == world.truth(), f"seed {seed}: the second stage lost or doubled rows"
        assert world.follower.results == world.truth(), f"seed {seed}: the consumer lost or doubled rows"
        assert check(world.topics[1]) == [], f"seed {seed}: the first stage broke the specification"
        happened.update(world.faults)
        happened["kills"] += first.kills + second.kills
        happened["foresights"] += first.foresaw + second.foresaw
        happened["settled"] += first.settled + second.settled
        happened["stops"] += world.follower.stops
    assert set(happened) == {*HAPPENINGS, "lower", "kills", "stops", "foresights", "settled"}
    assert min(happened.values()) > 0


def test_the_simulation_can_fail():
    """A world whose source promises too much is found out: the judge is awake."""
    found = 0
    for seed in range(80):
        world = World(seed)
        for source in world.sources:
            original = source.generator.watermark
            source.generator.watermark = lambda original=original: (original() or 0) + 60
        world.run()
        found += sum(stage.late for stage in world.stages) > 0 or world.stages[0].results != world.truth()
    assert found > 30


def test_a_batch_that_does_not_read_what_its_watermark_rests_on_loses_rows():
    """So what makes sure of it is needed, and the judge sees it."""
    found = 0
    for seed in range(80):
        world = World(seed)
        for stage in world.stages:
            stage.careless = stage.looks_ahead = True
        try:
            world.run()
        except AssertionError:
            found += 1
        else:
            found += any(stage.results != world.truth() for stage in world.stages)
    assert found > 4


def test_every_step_of_a_batch_is_a_place_to_be_killed():
    assert len(STEPS) == 7
