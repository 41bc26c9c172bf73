"""Laws of a trigger over made-up histories: marks, late rows, a clock that runs, and kills at every step.

The loop is the real one.  What it reads, where it stores and what it fires are in memory, so that a kill can come
between any two of its steps.
"""

import json
import random
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from floodmark.producers.clients.clock import Clock
from floodmark.producers.trigger.plan.schedule import Rules
from floodmark.producers.trigger.plan.trigger_event import TriggerEvent
from floodmark.producers.trigger.target import Delivery, RefusedError
from floodmark.producers.trigger.trigger_loop import TriggerLoop
from floodmark.schemas.errors import TriggerError
from floodmark.schemas.records import Holder
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.schemas.tracker import Hold
from hypothesis import given
from hypothesis import strategies as st

EVERY, DEADLINE = 100, 250
RULES = Rules("hourly", ("flights",), EVERY, DEADLINE)
COMMIT = "commit", None


class KilledError(Exception):
    """The process was killed here."""


class World:
    """A log of rows ("row", time), marks ("mark", watermark) and commits, a clock, and what survives a kill."""

    def __init__(self, log, chance, *, kills=0.0):
        self.log, self.chance, self.kills = log, chance, kills
        self.visible = 0
        self.now = 0
        self.stored = None
        self.fired = []
        """Each event that reached the target: the event, the watermark of the log as it was then, and the time."""
        self.revived = Counter()
        """Events that were stored and may have been fired when the process was killed."""

    def step(self):
        """Let something happen elsewhere, and perhaps end the process."""
        self.now += self.chance.randrange(40)
        self.visible = min(len(self.log), self.visible + self.chance.randrange(4))
        if self.chance.random() < self.kills:
            if self.stored is not None and json.loads(self.stored)["fired"]["firing"]:
                self.revived[json.loads(self.stored)["fired"]["firing"]["key"]] += 1
            raise KilledError

    @property
    def truth(self):
        """The watermark of all that is in the log."""
        return max((value for kind, value in self.log[: self.visible] if kind == "mark"), default=None)


class LogInput:
    """Reads the log of a world from an offset, a few records at a time; a commit is passed in the poll after it."""

    def __init__(self, world, stored):
        self.world = world
        self.offset, self.watermark, self.lowest, self.highest = (0, None, None, None) if stored is None else stored

    @property
    def ended(self):
        return self.watermark == END_OF_TIME

    def holders(self, below=None):
        return [Hold(Holder("flights", 0, "JFK"), self.watermark, f"below {below}")]

    def poll(self, _seconds, row):
        self.world.step()
        end = min(self.world.visible, self.offset + self.world.chance.choice([1, 5, 200]))
        while end - self.offset > 1 and self.world.log[end - 1] == COMMIT:
            end -= 1
        for kind, value in self.world.log[self.offset : end]:
            if kind == "row":
                row(value, self.watermark)
                self._extend(value)
            elif kind == "mark" and (self.watermark is None or value > self.watermark):
                self.watermark = value
                self._extend(value - 1)
        self.offset = end

    def _extend(self, time):
        if time < END_OF_TIME - 1:
            self.lowest = time if self.lowest is None else min(time, self.lowest)
            self.highest = time if self.highest is None else max(time, self.highest)

    def end(self):
        return {("flights", 0): self.world.visible}

    def has_read(self, ends):
        return self.offset >= ends["flights", 0] if ends else True

    def state(self):
        return [self.offset, self.watermark, self.lowest, self.highest]


class MemoryPosition:
    """Stores in a world; a kill may come before or after it."""

    def __init__(self, world):
        self._world = world
        self.state = None if world.stored is None else json.loads(world.stored)

    def store(self, state):
        self._world.step()
        self._world.stored = json.dumps(state)
        self._world.step()


class MemoryTarget:
    """Takes events; a kill may come before or after it."""

    about = "memory"

    def __init__(self, world):
        self._world = world

    def fire(self, event):
        self._world.step()
        self._world.fired.append((event, self._world.truth, self._world.now))
        self._world.step()
        return "taken"


def run(world, begin="earliest"):
    """Run the trigger until the log ends, and again after each kill."""
    while True:
        try:
            position = MemoryPosition(world)
            source = LogInput(world, None if position.state is None else position.state["input"])
            delivery = Delivery(MemoryTarget(world), 60, lambda *_: None)
            clock = Clock(lambda: world.now, lambda: world.now)
            loop = TriggerLoop(RULES, source, delivery, position, begin=begin, collect=30, clock=clock)
            loop.run(stop=lambda: False)
        except KilledError:
            continue
        return


def made_up(chance, *, steps=40):
    """Make up a log: rows around the watermark, some late, marks that advance or wait, and the end."""
    log, watermark = [], 1_000 + chance.randrange(EVERY)
    for _ in range(steps):
        log += [("row", watermark + chance.randrange(-200 if chance.random() < 0.2 else 0, 150)) for _ in range(2)]
        watermark += chance.choice([0, 10, 60, 130, 400])
        log.append(("mark", watermark))
    return [*log, ("mark", END_OF_TIME)]


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.02, 0.1]))
def test_no_period_is_missed_or_early_and_a_kill_repeats_only_the_event_that_was_being_fired(seed, kills):
    chance = random.Random(seed)  # noqa: S311  # a repeatable history
    world = World(made_up(chance), chance, kills=kills)
    run(world)
    by_key = defaultdict(list)
    for event, truth, now in world.fired:
        by_key[event.key].append(event)
        if event.kind == "complete":
            assert truth >= event.end, "fired before the watermark had passed the end of the period"
        elif event.kind == "incomplete":
            assert now >= event.end + DEADLINE
            assert (event.missing[0]["source"], event.missing[0]["reason"]) == ("JFK", f"below {event.end}")
        assert event.watermark is None or event.watermark <= truth
    firsts = [events[0] for events in by_key.values()]

    complete = [event.start for event in firsts if event.kind == "complete"]
    seen = [time for kind, time in world.log if kind == "row"]
    assert complete == list(range(complete[0], complete[-1] + 1, EVERY)), "each period once, in order"
    assert complete[0] <= RULES.floor(world.log[2][1]), "it holds the first watermark, or an earlier row"
    assert complete[-1] >= RULES.floor(max(seen)), "the last one holds the last row"

    for key, events in by_key.items():
        assert all(event == events[0] for event in events), "the same key is the same event"
        assert len(events) <= 1 + world.revived[key], "fired again only where a kill came while it was being fired"

    order = [event.key for event in firsts]
    for event in firsts:
        if event.kind == "incomplete":
            later = f"{event.trigger}/{event.key.split('/')[1]}/complete"
            assert order.index(event.key) < order.index(later), "complete follows incomplete"
        if event.kind == "repair":
            assert order.index(event.key) > order.index(f"{event.trigger}/{event.key.split('/')[1]}/complete")


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.1]), st.sampled_from([0.0, 0.3, 1.0]))
def test_each_period_with_rows_of_a_topic_that_has_ended_is_fired_once(seed, kills, commits):
    chance = random.Random(seed)  # noqa: S311  # a repeatable history
    log = [one for record in made_up(chance) for one in [record, COMMIT][: 1 + (chance.random() < commits)]]
    world = World(log, chance, kills=kills)
    world.visible = len(log)
    run(world)
    complete = list(dict.fromkeys(event.start for event, _, _ in world.fired if event.kind == "complete"))
    periods = {RULES.floor(time) for kind, time in log if kind == "row"}
    assert periods <= set(complete)
    assert complete == list(range(complete[0], complete[-1] + 1, EVERY)), "each period once, in order"
    assert all(event.kind == "complete" for event, _, _ in world.fired), "all rows were read before the first event"


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.05]))
def test_each_late_row_of_a_complete_period_is_in_one_repair(seed, kills):
    chance = random.Random(seed)  # noqa: S311  # a repeatable history
    world = World(made_up(chance), chance, kills=kills)
    run(world, begin=1_000)  # known before the first record is read
    late, watermark = Counter(), None
    for kind, value in world.log:
        if kind == "mark":
            watermark = value if watermark is None else max(watermark, value)
        elif watermark is not None and value < watermark and value >= 1_000 and RULES.floor(value) + EVERY <= watermark:
            late[RULES.floor(value)] += 1
    events = {event.key: event for event, _, _ in world.fired if event.kind == "repair"}
    repaired = Counter()
    for event in events.values():
        repaired[event.start] += event.late_rows
    # A kill before the first position leaves the rows that were read out: no period was fired then.
    assert all(rows <= late[start] for start, rows in repaired.items())
    assert sorted(event.repair for event in events.values()) == list(range(1, len(events) + 1))
    assert kills or late == repaired


def test_a_trigger_that_begins_now_fires_no_period_that_was_complete():
    chance = random.Random(1)  # noqa: S311  # a repeatable history
    world = World([("mark", 1_000), ("mark", 5_050), ("row", 5_060), ("mark", 5_200), ("mark", END_OF_TIME)], chance)
    world.visible = 2
    run(world, begin="now")
    assert [event.start for event, _, _ in world.fired if event.kind == "complete"] == [5_000, 5_100]


def test_progress_shows_the_first_period_before_it_is_fired_and_a_target_that_fails(monkeypatch):
    world = World([("mark", 1_000), ("mark", END_OF_TIME)], random.Random(4))  # noqa: S311  # a repeatable history
    world.visible, shown, answers = 2, [], iter([RefusedError("busy")])
    target, begun = MemoryTarget(world), []

    def fire(event):
        begun.append(event.start)
        for error in answers:
            raise error
        return MemoryTarget.fire(target, event)

    monkeypatch.setattr(target, "fire", fire)
    monkeypatch.setattr("floodmark.producers.trigger.target._FIRST_PAUSE", 0.01)
    delivery = Delivery(target, 60, lambda *_: None)
    loop = TriggerLoop(RULES, LogInput(world, None), delivery, MemoryPosition(world), begin=800)
    loop.run(
        stop=lambda: False,
        progress=lambda: shown.append((loop.schedule is not None, len(begun), loop.metrics().failed)),
    )
    assert (True, 0, 0) in shown
    assert (True, 1, 1) in shown
    assert begun[:3] == [800, 800, 900]
    assert shown[-1][2] == 0


def test_a_process_that_can_store_no_longer_does_not_try_an_event_again(monkeypatch):
    world = World([("mark", 1_000), ("mark", END_OF_TIME)], random.Random(7))  # noqa: S311  # a repeatable history
    world.visible = 2
    target, position, tried = MemoryTarget(world), MemoryPosition(world), []

    def store(_state):
        raise KilledError  # another process has taken over

    def fire(event):
        tried.append(event.start)
        monkeypatch.setattr(position, "store", store)
        raise RefusedError("busy")

    monkeypatch.setattr(target, "fire", fire)
    monkeypatch.setattr("floodmark.producers.trigger.target._FIRST_PAUSE", 0)
    loop = TriggerLoop(RULES, LogInput(world, None), Delivery(target, 1, lambda *_: None), position, begin=800)
    with pytest.raises(KilledError):
        loop.run(stop=lambda: False)
    assert tried == [800]


def test_a_deadline_that_passed_before_the_first_start_fires_nothing():
    """A topic with events of 2013 has missed each deadline: the trigger must not fire a period for every hour since."""
    chance = random.Random(2)  # noqa: S311  # a repeatable history
    world = World([("mark", 1_000), ("mark", 1_200), ("mark", END_OF_TIME)], chance)
    world.now = 10**9
    world.visible = 1
    run(world)
    incomplete = [event for event, _, _ in world.fired if event.kind == "incomplete"]
    assert all(event.end + DEADLINE > 10**9 for event in incomplete)
    assert [event.start for event, _, _ in world.fired if event.kind == "complete"] == [900, 1_000, 1_100]


def test_until_end_fires_an_incomplete_period_of_a_topic_that_grows_between_two_looks_at_its_end(monkeypatch):
    world = World([("mark", 1_000), *[("row", 1_050)] * 99], random.Random(6))  # noqa: S311  # a repeatable history
    world.visible, world.now = 1, 1_000
    rules = replace(RULES, deadline=10)

    def start():
        position = MemoryPosition(world)
        source = LogInput(world, None if position.state is None else position.state["input"])
        delivery = Delivery(MemoryTarget(world), 1, lambda *_: None)
        clock = Clock(lambda: world.now, lambda: world.now)
        return source, TriggerLoop(rules, source, delivery, position, begin=1_000, clock=clock)

    _, first = start()
    first.run(stop=lambda: False, until_end=True)
    assert world.fired == []
    world.now = 2_000
    source, second = start()

    def end():
        world.visible += 1
        return {("flights", 0): world.visible}

    def poll(_seconds, _row):
        source.offset += 1

    monkeypatch.setattr(source, "end", end)
    monkeypatch.setattr(source, "poll", poll)
    second.run(stop=lambda: False, until_end=True)
    event, _, _ = world.fired[0]
    assert (event.kind, event.start) == ("incomplete", 1_000)


def test_a_trigger_that_has_ended_reads_what_has_come_since_before_it_ends_again():
    world = World([("mark", 1_000), ("mark", END_OF_TIME)], random.Random(5))  # noqa: S311  # a repeatable history
    run(world)
    world.log += [("row", 1_050), COMMIT]
    world.visible = len(world.log)
    position, seen = MemoryPosition(world), []
    source = LogInput(world, position.state["input"])
    delivery = Delivery(MemoryTarget(world), 1, lambda *_: None)
    loop = TriggerLoop(RULES, source, delivery, position, clock=Clock(lambda: world.now, lambda: world.now))
    polls = iter([lambda *_: None])  # the first answer is empty, as while a connection is opened
    poll = source.poll
    source.poll = lambda seconds, row: next(polls, poll)(seconds, lambda *found: seen.append(found) or row(*found))
    loop.run(stop=lambda: False)
    assert seen == [(1_050, END_OF_TIME)]


def test_a_position_of_another_trigger_is_refused():
    chance = random.Random(3)  # noqa: S311  # a repeatable history
    world = World([("mark", 1_000), ("mark", END_OF_TIME)], chance)
    run(world)
    position = MemoryPosition(world)
    for other, shown in (
        (replace(RULES, topics=("orders",)), "orders"),
        (replace(RULES, tables=True), "table flights"),
    ):
        with pytest.raises(TriggerError, match=f"and now it has --every 100ms of {shown}; choose another --name"):
            TriggerLoop(other, LogInput(world, None), Delivery(MemoryTarget(world), 1, lambda *_: None), position)


def test_an_event_is_what_its_json_says():
    event = TriggerEvent("a", ("t",), "repair", 0, 100, 150, late_rows=2, repair=7)
    assert TriggerEvent.of(json.loads(json.dumps(event.as_dict()))) == event
    assert event.key == "a/1970-01-01T00:00:00Z/repair-7"
