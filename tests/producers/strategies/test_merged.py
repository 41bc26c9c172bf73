"""The one source of a pool never promises more than each source that has joined, and waits for no other."""

from datetime import timedelta

import pytest
from floodmark.producers import ascending, explicit, percentile, with_idleness
from floodmark.producers.strategies.merged import JoinedEmitter, MergedEmitter
from floodmark.producers.strategies.numbering import Identity
from floodmark.schemas import Status
from floodmark.schemas.counts import Mismatch, RecordCounts
from floodmark.schemas.errors import EndedError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

IDLE_AFTER = 50
EXPLICIT = explicit()


def pool(*names, strategy=EXPLICIT, partitions=1):
    merged = MergedEmitter(Identity("pool", epoch=1), partitions)
    return merged, *join(merged, *names, strategy=strategy)


def join(merged, *names, strategy=EXPLICIT):
    joined = [JoinedEmitter(Identity(name, epoch=1), strategy.build(), merged) for name in names]
    merged.join(joined)
    return joined


def said(merged, now=0):
    marks = list(merged.marks(now))
    assert {mark.source for _, mark in marks} <= {"pool"}
    return marks[0][1].status, marks[0][1].watermark


def test_readers_wait_for_a_pool_that_no_source_has_joined_and_not_for_one_that_all_have_left():
    merged, *_ = pool()
    assert [said(merged) for _ in range(2)] == [(Status.ACTIVE, None)] * 2
    one, two = join(merged, "one", "two")
    one.advance(7)
    assert said(merged) == (Status.ACTIVE, None), "of two, nothing is known yet"
    two.advance(5)
    assert said(merged) == (Status.ACTIVE, 5)
    two.mark_idle()
    assert said(merged) == (Status.ACTIVE, 7)
    one.end()
    assert (said(merged), one.registered, two.registered) == ((Status.IDLE, 7), False, False)
    two.mark_active()
    assert not two.registered, "its records come after marks that say so"
    assert (said(merged), two.registered) == ((Status.ACTIVE, 7), True)
    two.end()
    assert said(merged) == (Status.IDLE, 7)
    [three] = join(merged, "three")
    assert (said(merged), three.registered) == ((Status.ACTIVE, 7), True)
    merged.end()
    assert (said(merged), three.ended) == ((Status.ENDED, 7), True)
    with pytest.raises(EndedError):
        join(merged, "four")


def test_what_a_source_that_joins_late_sends_below_the_watermark_is_late_and_pulls_nothing_back():
    merged, one = pool("one", strategy=ascending())
    one.send(0, 100).ack()
    assert said(merged) == (Status.ACTIVE, 100)
    [two] = join(merged, "two", strategy=ascending())
    one.send(0, 300).ack()
    assert (said(merged), two.next_watermark(0)) == ((Status.ACTIVE, 100), 100)
    two.send(0, 99).ack()
    two.send(0, 150).ack()
    assert (said(merged), one.late, two.late) == ((Status.ACTIVE, 150), 0, 1)
    one.send(0, 200).ack()
    two.send(0, 149).ack()
    assert (one.late, two.late, two.watermark) == (0, 2, 150), "late is what is below the marks, not what one expected"


def test_no_source_writes_to_a_new_partition_before_the_marks_do():
    merged, one, two = pool("one", "two")
    said(merged)
    assert (one.registered, one.grow(3), one.partitions, two.partitions) == (True, True, 3, 3)
    assert not one.registered
    assert not two.registered
    assert len(list(merged.marks(0))) == 3
    assert one.registered
    assert merged.fence(Identity(merged.identity.source, 5).mark(partitions=3, now=0))
    assert not two.registered


def test_percentiles_are_the_lowest_of_those_that_all_have():
    merged, one = pool("one", strategy=percentile(timedelta(milliseconds=10), (50, 100)))
    [two] = join(merged, "two", strategy=percentile(timedelta(milliseconds=10), (90, 100)))
    one.send(0, 1_000).ack()
    two.send(0, 2_000).ack()
    assert merged.marks(0)[0][1].percentiles == {100: 990}
    join(merged, "three", strategy=ascending())
    assert merged.marks(0)[0][1].percentiles is None


def test_the_marks_say_what_alignment_makes_the_slowest_wait_for():
    merged, one, two = pool("one", "two")
    for source, watermark, held in ((one, 5, "held"), (two, 9, None)):
        source.advance(watermark)
        source.pause(0, held)
    assert (said(merged), merged.held) == ((Status.ACTIVE, 5), "held")
    one.advance(10)
    assert (said(merged), merged.held) == ((Status.ACTIVE, 9), None)


class Pool(RuleBasedStateMachine):
    """Sources that join, write, fail, fall asleep and leave in any order, beside a model of what they have promised.

    As a producer does, each lets marks be sent before a record if its emitter is not registered.
    """

    def __init__(self):
        super().__init__()
        self.merged = MergedEmitter(Identity("pool", epoch=1), 2)
        self.joined = {}  # by emitter: what it has advanced to, ``None``: nothing
        self.reports = []  # of records that are in flight or failed: emitter, partition, row, group
        self.logs = [[], []]
        self.promised = None
        self.late = self.late_of_gone = self.uncounted = self.now = self.names = 0
        self.used = self.asleep = False

    def active(self):
        return [one for one in self.joined if one.status is Status.ACTIVE]

    def pick(self, draw, among):
        return among[draw % len(among)]

    @rule(count=st.integers(1, 3))
    def join(self, count):
        strategy = with_idleness(explicit(), timedelta(milliseconds=IDLE_AFTER))
        names = [f"s{self.names + number}" for number in range(count)]
        self.joined |= dict.fromkeys(join(self.merged, *names, strategy=strategy))
        self.names += count
        self.used = True

    @precondition(lambda self: self.active())
    @rule(draw=st.integers(0, 9), step=st.integers(0, 20))
    def advance(self, draw, step):
        one = self.pick(draw, self.active())
        self.joined[one] = (self.joined[one] or 0) + step
        one.advance(self.joined[one])

    @precondition(lambda self: self.joined)
    @rule(draw=st.integers(0, 9), offset=st.integers(-10, 20), partition=st.integers(0, 3), taken=st.booleans())
    def send(self, draw, offset, partition, taken):
        one = self.pick(draw, list(self.joined))
        if not one.registered:
            one.mark_active()
            self.mark()
        time, partition = (self.joined[one] or 0) + offset, partition % one.partitions
        late = self.promised is not None and time < self.promised
        assert (one.next_watermark(partition) is not None and time < one.next_watermark(partition)) >= late
        if not taken:
            one.unsend(partition, one.begin(partition, time, self.now, None))
            return
        group = one.send(partition, time, self.now)
        self.late += late
        row = {"time": time, "is": "open", "since": self.now, "marked": False}
        self.logs[partition].append(row)
        self.reports.append((one, partition, row, group))

    @precondition(lambda self: any(row["is"] == "open" for _, _, row, _ in self.reports))
    @rule(draw=st.integers(0, 99), failed=st.booleans())
    def report(self, draw, failed):
        entry = self.pick(draw, [entry for entry in self.reports if entry[2]["is"] == "open"])
        one, partition, row, group = entry
        row["is"] = "failed" if failed else "there"
        if failed:
            self.uncounted += row["marked"]
            one.fail(group, partition)
        else:
            group.ack()
            self.reports.remove(entry)

    @precondition(lambda self: any(row["is"] == "failed" for *_, row, _ in self.reports))
    @rule(draw=st.integers(0, 99))
    def resend(self, draw):
        entry = self.pick(draw, [entry for entry in self.reports if entry[2]["is"] == "failed"])
        one, partition, row, group = entry
        self.reports.remove(entry)
        again = {**row, "is": "open", "marked": False}
        self.logs[partition].append(again)
        self.reports.append((one, partition, again, one.resend(group, partition, self.now)))

    def quiet(self):
        busy = {one for one, *_ in self.reports}
        return [one for one in self.joined if one not in busy]

    @precondition(lambda self: set(self.quiet()) & set(self.active()))
    @rule(draw=st.integers(0, 9))
    def fall_asleep(self, draw):
        self.pick(draw, [one for one in self.quiet() if one.status is Status.ACTIVE]).mark_idle()

    @precondition(lambda self: self.quiet())
    @rule(draw=st.integers(0, 9))
    def leave(self, draw):
        one = self.pick(draw, self.quiet())
        one.end()
        self.late_of_gone += one.late
        del self.joined[one]

    @rule(forward=st.integers(0, 60))
    def time_passes(self, forward):
        self.now += forward

    @precondition(lambda self: len(self.logs) < 4)
    @rule()
    def grow(self):
        self.logs.append([])
        assert self.merged.grow(len(self.logs))

    @rule(full=st.booleans())
    def mark(self, *, full=False):
        woken = self.asleep and self.merged.status is Status.ACTIVE  # and says so once, whatever comes after
        marks = list(self.merged.marks(self.now))
        busy = {id(one) for one, *_ in self.reports}
        active = self.active()  # after the marks, which let those that are silent fall asleep
        assert busy <= {id(one) for one in active}, "one with a record that Kafka may not have is not asleep"
        assert all(group.earliest <= row["time"] for *_, row, group in self.reports), "records in a group hold as one"
        known = []
        for one in active:
            mine = [group.earliest for which, *_, group in self.reports if which is one]
            known.append(None if self.joined[one] is None else min([self.joined[one], *mine]))
        expected = None if not known or None in known else min(known)
        if self.promised is not None:
            expected = self.promised if expected is None else max(self.promised, expected)
        asleep = self.used and not active and not woken
        status = Status.IDLE if asleep else Status.ACTIVE
        assert {(mark.status, mark.watermark) for _, mark in marks} == {(status, expected)}
        for _, mark in marks:
            waiting = [row["since"] for *_, row, _ in self.reports]
            assert (mark.processing_time_watermark is None) == (not waiting)
            assert not waiting or mark.processing_time_watermark <= min(waiting)
        self.promised, self.asleep = expected, asleep
        for partition, mark in marks:
            for row in self.logs[partition]:
                if isinstance(row, dict):
                    row["marked"] = True
            if full and partition == len(self.logs) - 1:
                self.merged.unmark(partition)
            else:
                self.logs[partition].append(mark)

    @invariant()
    def what_is_late_is_counted(self):
        assert sum(one.late for one in self.joined) + self.late_of_gone == self.late
        assert self.merged.partitions == len(self.logs)

    @invariant()
    def each_record_stands_behind_an_active_mark_of_its_partition(self):
        for log in self.logs:
            marked = False
            for entry in log:
                if isinstance(entry, dict):
                    assert marked
                else:
                    marked = entry.status is Status.ACTIVE

    def teardown(self):
        """Readers miss only records that a mark had counted when they failed."""
        lost = 0
        for partition, log in enumerate(self.logs):
            counts = RecordCounts()
            marks = [entry for entry in log if not isinstance(entry, dict)]
            assert [mark.sequence for mark in marks] == list(range(len(marks)))
            for offset, entry in enumerate(log):
                if isinstance(entry, dict):
                    counts.on_rows("t", partition, entry["is"] != "failed")
                else:
                    for found in counts.on_mark(entry, topic="t", partition=partition, offset=offset, rows=0):
                        assert found.kind is Mismatch.LOST
                        lost += found.records
        assert lost <= self.uncounted


Pool.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestPool = Pool.TestCase
