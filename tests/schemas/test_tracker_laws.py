"""The laws of the tracker over any history, against a model that is too simple to be wrong."""

import json
from itertools import combinations

import pytest
from floodmark.schemas import END_OF_TIME, Status, Tracker
from harness import mark
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

TOPICS = ("t", "u")
sources = st.sampled_from("abc")
statuses = st.sampled_from([Status.ACTIVE, Status.ACTIVE, Status.ACTIVE, Status.IDLE, Status.ENDED])


class Model:
    """Keeps every statement ever made, and works the minimum out from all of them, each time anew."""

    def __init__(self):
        self.log = {topic: [] for topic in TOPICS}
        self.highest = None

    def add(self, topic, partition, record):
        self.log[topic].append((partition, record))

    def topic(self, topic):
        log = self.log[topic]
        if not log:
            return "unknown"
        version = max(record.membership.version for _, record in log)
        size = max(r.membership.size for _, r in log if r.membership.version == version)
        # A statement counts if its version was not below the newest one at the time it was read.
        counted, newest = [], 0
        for partition, record in log:
            newest = max(newest, record.membership.version)
            if record.membership.version == newest:
                counted.append((partition, record))
        partitions = max([r.partitions for _, r in counted] + [p + 1 for p, _ in counted])
        states = [self.states(counted, number) for number in range(partitions)]
        awake = {name for state in states for name, (last, _) in state.items() if last.status is Status.ACTIVE}
        return self.least([self.partition(state, awake, version, size) for state in states])

    @staticmethod
    def states(counted, number):
        here = [record for partition, record in counted if partition == number]
        states = {}
        for name in {record.source for record in here}:
            mine = [record for record in here if record.source == name]
            epoch = max(record.epoch for record in mine)
            last, watermark = None, None
            for record in (record for record in mine if record.epoch == epoch):
                if last is not None and (record.sequence <= last.sequence or last.status is Status.ENDED):
                    continue
                last = record
                watermark = max([w for w in (watermark, record.watermark) if w is not None], default=None)
            states[name] = (last, watermark)
        return states

    @staticmethod
    def partition(states, awake, version, size):
        members = {n: (last.status, w) for n, (last, w) in states.items() if last.membership.version == version}
        if len(members) < size:
            return "unknown"
        active = [watermark for name, (_, watermark) in members.items() if name in awake]
        if not active:
            return "ended" if all(status is Status.ENDED for status, _ in members.values()) else "idle"
        return "unknown" if None in active else min(active)

    @staticmethod
    def least(parts):
        if "unknown" in parts:
            return "unknown"
        numbers = [part for part in parts if isinstance(part, int)]
        return min(numbers) if numbers else "idle" if "idle" in parts else "ended"

    def advance(self):
        now = self.least([self.topic(topic) for topic in TOPICS])
        number = END_OF_TIME if now == "ended" else now if isinstance(now, int) else None
        if number is not None and (self.highest is None or number > self.highest):
            self.highest = number
        return now


class TrackerMachine(RuleBasedStateMachine):
    """Sources that write, fall idle, end, restart, replay, regress; members and partitions that come and go."""

    def __init__(self):
        super().__init__()
        self.tracker = Tracker(TOPICS)
        self.model = Model()
        self.next = {}
        self.epochs = {}
        self.memberships = dict.fromkeys(TOPICS, (1, 2))
        self.partitions = dict.fromkeys(TOPICS, 1)
        self.history = []
        self.before = None

    def write(self, topic, partition, record):
        self.before = self.tracker.watermark
        self.history.append((topic, partition, record))
        self.tracker.apply(record, topic=topic, partition=partition, log_time=len(self.history))
        self.model.add(topic, partition, record)
        self.tracker.advance()
        self.model.advance()

    @rule(
        topic=st.sampled_from(TOPICS),
        source=sources,
        data=st.data(),
        watermark=st.none() | st.integers(0, 50),
        status=statuses,
    )
    def statement(self, topic, source, data, watermark, status):
        partition = data.draw(st.integers(0, self.partitions[topic] - 1))
        epoch = self.epochs.get(source, 1)
        place = (topic, partition, source, epoch)
        sequence = self.next.get(place, 0)
        self.next[place] = sequence + data.draw(st.sampled_from([1, 1, 1, 3]))
        version, size = self.memberships[topic]
        record = mark(
            source,
            watermark,
            sequence,
            epoch=epoch,
            status=status,
            version=version,
            size=size,
            partitions=self.partitions[topic],
        )
        self.write(topic, partition, record)

    @rule(source=sources)
    def restart(self, source):
        self.epochs[source] = self.epochs.get(source, 1) + 1

    @rule(source=sources, topic=st.sampled_from(TOPICS), watermark=st.integers(0, 99))
    def zombie(self, source, topic, watermark):
        if self.epochs.get(source, 1) > 1:
            version, size = self.memberships[topic]
            self.write(topic, 0, mark(source, watermark, 999, epoch=1, version=version, size=size))

    @rule(topic=st.sampled_from(TOPICS), size=st.integers(1, 3))
    def change_membership(self, topic, size):
        self.memberships[topic] = (self.memberships[topic][0] + 1, size)

    @rule(topic=st.sampled_from(TOPICS))
    def grow(self, topic):
        self.partitions[topic] = min(3, self.partitions[topic] + 1)

    @rule(data=st.data())
    def replay(self, data):
        """Read a stretch of the past again: nothing may change."""
        before = (self.tracker.watermark, json.dumps(self.tracker.snapshot()["topics"], sort_keys=True))
        end = data.draw(st.integers(0, len(self.history)))
        for topic, partition, record in self.history[:end]:
            self.tracker.apply(record, topic=topic, partition=partition, log_time=0)
            self.tracker.advance()
        after = (self.tracker.watermark, json.dumps(self.tracker.snapshot()["topics"], sort_keys=True))
        assert after == before

    @rule()
    def crash_and_restore(self):
        self.tracker = Tracker.restore(json.loads(json.dumps(self.tracker.snapshot())))
        self.tracker.advance()

    @invariant()
    def equals_the_model(self):
        assert self.tracker.watermark == self.model.highest

    @invariant()
    def never_goes_back(self):
        if self.before is not None:
            assert self.tracker.watermark >= self.before

    @invariant()
    def every_stuck_state_has_a_named_holder(self):
        assert self.tracker.holds() or self.model.advance() == "ended"


TestTracker = TrackerMachine.TestCase
TestTracker.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)


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
