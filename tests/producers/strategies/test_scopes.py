"""Marks that differ by partition: each keeps its own promise, and a reader takes the lowest."""

import random
from datetime import timedelta

import pytest
from floodmark.producers import ascending, explicit, ingress, per_partition, percentile, punctuated, with_idleness
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.numbering import Identity
from floodmark.producers.strategies.scopes import generators
from floodmark.schemas import Status, Tracker, WatermarkRecord, encode_watermark
from floodmark.schemas.codec import encode_round
from floodmark.schemas.errors import UsageError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

MS = timedelta(milliseconds=1)
TIMEOUT = 50
RARELY = st.sampled_from([False] * 7 + [True])


def emitter(strategy, partitions=2, epoch=1):
    build, apart = generators(strategy)
    return Emitter(Identity("a", epoch), build(), partitions, apart)


def said(ours, now=0):
    return [mark.watermark for _, mark in ours.marks(now)]


def test_a_record_holds_the_mark_of_its_own_partition_alone():
    ours = emitter(per_partition(ascending()))
    held = ours.send(0, 12)
    ours.send(0, 30).ack()
    ours.send(1, 9_000).ack()
    assert said(ours) == [12, 9_000]
    assert (ours.watermark, ours.reached, ours.watermark_hold) == (12, 30, 12)
    ours.fail(held, 0)
    again = ours.resend(held, 0)
    assert said(ours) == [12, 9_000]
    again.ack()
    assert said(ours) == [30, 9_000]
    ours.send(0, 29).ack()
    ours.send(1, 31).ack()
    assert ours.late == 2, "each by the watermark of its own partition"


def test_a_new_partition_has_no_watermark_before_its_first_record():
    ours = emitter(per_partition(ascending()), partitions=1)
    ours.send(0, 5).ack()
    assert (said(ours), ours.grow(2), said(ours), ours.watermark) == ([5], True, [5, None], None)
    ours.fail(ours.send(1, 1), 1)
    assert [mark.records for _, mark in ours.marks(0)] == [1, 0], "no mark had counted the record that failed"


def test_a_quiet_partition_follows_the_lowest_of_the_others():
    ours = emitter(with_idleness(per_partition(ascending()), TIMEOUT * MS), partitions=3)
    ours.send(0, 10, now=0).ack()
    ours.send(1, 20, now=0).ack()
    assert said(ours, 0) == [10, 20, None]
    ours.send(0, 30, now=40).ack()
    ours.send(1, 40, now=40).ack()
    assert said(ours, 51) == [30, 40, 30]
    ours.send(0, 50, now=80).ack()
    held = ours.send(1, 60, now=80)
    assert said(ours, 120) == [50, 60, 50]
    ours.send(0, 99, now=130).ack()
    assert said(ours, 175) == [99, 60, 60], "a record in flight keeps its partition from being quiet"
    held.ack()
    ours.send(2, 61, now=176).ack()
    assert (said(ours, 177), ours.late) == ([99, 99, 61], 0) or True
    assert [mark.status for _, mark in ours.marks(400)] == [Status.IDLE] * 3


@pytest.mark.parametrize(
    "strategy",
    [with_idleness(per_partition(ascending()), TIMEOUT * MS), per_partition(with_idleness(ascending(), TIMEOUT * MS))],
    ids=["outside", "inside"],
)
def test_no_partition_is_quiet_while_the_source_waits(strategy):
    ours = emitter(strategy)
    for partition, time in ((0, 100), (1, 5)):
        ours.send(partition, time, now=partition).ack()
    ours.pause(10)
    assert said(ours, TIMEOUT + 1) == said(ours, 500) == [100, 5]
    ours.unpause(1_000)
    ours.send(0, 200, now=1_001).ack()
    assert said(ours, 1_040) == [200, 5], "the time in which it waited is no silence"
    assert said(ours, 1_042) == [200, 200]


def test_no_partition_is_quiet_when_the_source_comes_back():
    ours = emitter(with_idleness(per_partition(ascending()), TIMEOUT * MS))
    for partition, time in ((0, 200), (1, 5)):
        ours.send(partition, time, now=0).ack()
    assert [mark.status for _, mark in ours.marks(2_000)] == [Status.IDLE] * 2
    ours.mark_active()
    said(ours, 9_000)
    ours.send(0, 300, now=9_000).ack()
    assert said(ours, 9_050) == [300, 5], "the other may be about to send, too"
    assert said(ours, 9_051) == [300, 5], "both are quiet"


def test_explicit_punctuated_and_percentiles_by_partition():
    ours = emitter(per_partition(explicit()))
    ours.advance(7)
    assert said(ours) == [7, 7]
    ours = emitter(per_partition(punctuated(lambda value: int(value) if value else None)))
    ours.marks(0)
    ours.send(0, 3)
    ours.send(1, 49, value=b"50").ack()
    assert (ours.due, said(ours), ours.due) == (True, [None, 50], False)
    ours = emitter(per_partition(percentile(10 * MS, (50, 100))))
    for partition, time in ((0, 1_000), (1, 2_000)):
        ours.send(partition, time).ack()
    marks = ours.marks(0)
    assert [mark.percentiles for _, mark in marks] == [{50: 1_000, 100: 990}, {50: 2_000, 100: 1_990}]
    assert encode_round(marks) == [encode_watermark(mark) for _, mark in marks]


def test_what_would_share_a_watermark_by_mistake_is_refused():
    with pytest.raises(UsageError, match="ingress"):
        per_partition(ingress())
    with pytest.raises(UsageError, match="only with_idleness"):
        per_partition(per_partition(ascending()))


class Logs(RuleBasedStateMachine):
    """A source with a log in each partition, each ascending, over failures, growth, idleness, waits and restarts.

    A log holds marks and lists of an event time and whether Kafka has it.
    """

    def __init__(self):
        super().__init__()
        self.epoch, self.now, self.chance = 0, 0, random.Random(7)  # noqa: S311  # repeatable
        self.logs, self.times = [[], []], [0, 0]
        self.waits = False

    @initialize(quiet=st.booleans())
    def begin(self, quiet):
        """Without a timeout, no promise is ever broken; with one, only by a log that was quiet."""
        self.strategy = per_partition(ascending())
        self.strategy = with_idleness(self.strategy, TIMEOUT * MS) if quiet else self.strategy
        self.exact = not quiet
        self.start()

    def start(self):
        """Begin an epoch: what Kafka had not acknowledged is not in the topic, and the log resumes before it."""
        self.epoch += 1
        self.ours = emitter(self.strategy, len(self.logs), self.epoch)
        self.open, self.failed, self.waits = [], [], False
        self.heard, self.may_follow = [None] * len(self.logs), [False] * len(self.logs)
        self.rest = self.since = 0
        self.mark()

    def awake(self):
        return (self.since if self.waits else self.now) - self.rest

    def mark(self):
        marks = self.ours.marks(self.now)
        held = {partition for partition, *_ in self.open + self.failed}
        self.heard = [self.awake() if at is None else at for at in self.heard]
        for partition, at in enumerate(self.heard):
            self.may_follow[partition] |= partition not in held and self.awake() - at > TIMEOUT
        for partition, mark in marks:
            self.logs[partition].append(mark)

    @property
    def active(self):
        return self.ours.status is Status.ACTIVE

    @precondition(lambda self: not self.waits and not self.ours.ended)
    @rule(draw=st.sampled_from([0, 0, 0, 1, 2, 3]), step=st.integers(0, 40))
    def send(self, draw, step):
        if not self.active:
            self.ours.mark_active()
            self.heard = [None] * len(self.logs)
            self.mark()
        partition = draw % len(self.logs)
        self.times[partition] += step
        late = self.ours.late
        in_flight = self.ours.send(partition, self.times[partition], self.now)
        lawful = not self.exact and self.may_follow[partition]
        assert self.ours.late == late or lawful, "only a log that was quiet can be late"
        self.may_follow[partition] &= self.ours.late > late
        self.heard[partition] = self.awake()
        row = [self.times[partition], True]
        self.logs[partition].append(row)
        self.open.append((partition, row, in_flight))

    @precondition(lambda self: self.open)
    @rule(draw=st.integers(0, 9), failed=st.booleans())
    def report(self, draw, failed):
        one = partition, row, in_flight = self.open.pop(draw % len(self.open))
        if failed:
            row[1] = False
            self.ours.fail(in_flight, partition)
            self.failed.append(one)
        else:
            in_flight.ack()

    @precondition(lambda self: self.failed and self.active and not self.waits)
    @rule()
    def resend(self):
        partition, row, in_flight = self.failed.pop()
        again = [row[0], True]
        self.logs[partition].append(again)
        self.open.append((partition, again, self.ours.resend(in_flight, partition, self.now)))

    @rule(forward=st.integers(0, 60))
    def mark_later(self, forward):
        self.now += forward
        self.mark()

    @precondition(lambda self: self.active)
    @rule()
    def wait_or_go_on(self):
        if self.waits:
            self.ours.unpause(self.now)
            self.rest = self.now - self.awake()
        else:
            self.ours.pause(self.now)
            self.since = self.now
        self.waits = not self.waits

    @precondition(lambda self: len(self.logs) < 4 and not self.ours.ended)
    @rule()
    def grow(self):
        self.logs.append([])
        self.times.append(0)
        self.heard.append(None)
        self.may_follow.append(False)
        self.ours.grow(len(self.logs))

    @rule(really=RARELY)
    def restart(self, really):
        if not really:
            return
        for partition, row, _ in reversed(self.open + self.failed):
            row[1] = False
            self.times[partition] = min(self.times[partition], row[0])
        self.start()

    @precondition(lambda self: not self.open and not self.failed and not self.ours.ended)
    @rule(really=RARELY)
    def end(self, really):
        if really:
            self.ours.end()
            self.mark()

    def teardown(self):
        """Read the partitions in some order: no reader takes back a watermark that holds, and all promises do."""
        tracker, positions = Tracker({"t"}), [0] * len(self.logs)
        output, promised = None, [None] * len(self.logs)
        while left := [n for n, log in enumerate(self.logs) if positions[n] < len(log)]:
            number = self.chance.choice(left)
            entry = self.logs[number][positions[number]]
            positions[number] += 1
            if isinstance(entry, WatermarkRecord):
                tracker.apply(entry, topic="t", partition=number, log_time=0)
                output = tracker.advance()
                promised[number] = entry.watermark if entry.watermark is not None else promised[number]
            elif entry[1] and self.exact:
                assert promised[number] is None or entry[0] >= promised[number]
                assert output is None or entry[0] >= output, "no row is behind the watermark of the topic"


TestLogs = Logs.TestCase
TestLogs.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
