"""Processing time over a chain of stages: nothing is worked off of which a mark says so, and it never goes back."""

import json
from dataclasses import replace

from floodmark.producers.testing import mark
from floodmark.schemas import Tracker
from floodmark.schemas.classify import Mark
from floodmark.schemas.records import Holder, Status
from floodmark.spark_jobs.progress.progress import Progress
from hypothesis import given, settings
from hypothesis import strategies as st

SOURCES = "ab"


class Stage:
    """A job that reads one topic in batches, and passes on what it reads: arrival times, and a mark behind them."""

    def __init__(self, reads, writes):
        self.reads, self.writes = reads, writes
        self.progress = Progress(Tracker({reads}))
        self.read = self.batches = 0

    def batch(self, logs, records):
        taken = logs[self.reads][self.read : self.read + records]
        self.read += len(taken)
        before = self.progress.processing_time
        self.progress.apply([Mark(self.reads, 0, n, 0, one) for n, one in enumerate(taken) if not isinstance(one, int)])
        self.progress.finish_batch(self.progress.next_watermark)
        worked_off = self.progress.processing_time
        assert before is None or worked_off >= before
        logs[self.writes] += [one for one in taken if isinstance(one, int)]
        said = replace(mark(self.writes, self.batches, self.batches), processing_time_watermark=worked_off)
        logs[self.writes].append(replace(said, holder=Holder(self.reads)))
        self.batches += 1
        return worked_off

    def restart(self):
        self.progress = Progress.restore(json.loads(json.dumps(self.progress.snapshot())), "here")


class World:
    """Records arrive at two sources, wait there, are sent, and pass two stages."""

    def __init__(self):
        self.clock, self.sequence = 0, 0
        self.waiting = {name: [] for name in SOURCES}
        self.sent = dict.fromkeys(SOURCES, 0)
        self.idle = set()
        self.logs = {"given": [], "middle": [], "last": []}
        self.stages = [Stage("given", "middle"), Stage("middle", "last")]
        self.arrived = []

    def arrive(self, name, _):
        if name in self.idle:
            self.idle.discard(name)
            self.mark(name, 0)
        self.waiting[name].append(self.clock)
        self.arrived.append(self.clock)

    def send(self, name, _):
        if self.waiting[name]:
            self.logs["given"].append(self.waiting[name].pop(0))

    def mark(self, name, _):
        status = Status.IDLE if name in self.idle else Status.ACTIVE
        said = mark(name, self.sent[name], self.sent[name], size=2, status=status, emitted_at=self.clock)
        self.sent[name] += 1
        self.logs["given"].append(replace(said, processing_time_watermark=min(self.waiting[name], default=None)))

    def rest(self, name, _):
        if not self.waiting[name] and self.sent[name]:
            self.idle.add(name)
            self.mark(name, 0)

    def batch(self, name, records):
        stage = self.stages[SOURCES.index(name)]
        worked_off = stage.batch(self.logs, records)
        if worked_off is not None:
            behind = [time for time in self.arrived if time < worked_off]
            there = [one for one in self.logs[stage.writes] if isinstance(one, int) and one < worked_off]
            assert sorted(there) == behind, "each record that came before is through this stage"

    def restart(self, name, _):
        self.stages[SOURCES.index(name)].restart()


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["arrive", "arrive", "send", "mark", "mark", "rest", "batch", "batch", "restart"]),
            st.sampled_from(SOURCES),
            st.integers(0, 9),
        ),
        max_size=80,
    )
)
def test_what_is_said_to_be_worked_off_is_through_each_stage(happenings):
    world = World()
    for what, name, records in happenings:
        world.clock += 1
        getattr(world, what)(name, records)


def test_the_last_stage_follows_the_clock_where_all_is_worked_off():
    world, last = World(), None
    for second in range(20):
        world.clock = second
        for name in SOURCES:
            world.arrive(name, 0)
            world.send(name, 0)
            world.mark(name, 0)
        for stage in world.stages:
            last = stage.batch(world.logs, 100)
    assert last == 19


def test_a_stage_of_an_older_version_says_nothing():
    progress = Progress(Tracker({"middle"}))
    progress.apply([Mark("middle", 0, 0, 0, replace(mark("job", 5, emitted_at=90), holder=Holder("given")))])
    progress.finish_batch(5)
    assert progress.processing_time is None
