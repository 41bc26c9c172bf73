"""The watermarks of partitions without new records, over restarts and pauses and by any clock."""

from datetime import timedelta

from floodmark.producers import TimePolicy
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.event_times.injection import Injection, InjectorState
from floodmark.producers.injector.partitions import InjectedPartitions
from floodmark.producers.testing import ManualClock
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

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
    partitions[number].reach_end(8)
    partitions.estimate(lambda numbers: dict.fromkeys(numbers, 8))
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
        state = InjectorState(7, 1, "at", partitions[0].input.snapshot(), {}, 1)
    assert partitions[0].input.watermark >= arrived + ran - 5_000


def test_a_partition_that_the_input_gets_later_begins_at_the_clock():
    clock = ManualClock(wall=NOW)
    partitions = started(clock, partitions=2)
    clock.advance(timedelta(days=1))
    assert list(partitions.grow(2, 2)) == [(1, 0)]
    assert wait(partitions, clock, 1, 0) == NOW + DAY - 5_000, "not a day ahead of it"
    assert wait(partitions, clock, 1, 1_000) == NOW + DAY - 4_000


class Lagging(RuleBasedStateMachine):
    """An injector that is suspended, lags and does not reach Kafka, while records arrive, also in transactions.

    No record that is still to be copied is below the watermark, so none that is on time is changed or dropped.
    """

    def __init__(self):
        super().__init__()
        self.clock = ManualClock(wall=NOW)
        self.partitions = started(self.clock)
        self.log = []  # timestamps and event times; ``None``: the marker of a transaction
        self.open_from = None  # the offset of the first record of the open transaction
        self.queue = []  # in the client: offsets of records, and of ends
        self.fetched = self.copied = 0
        self.last_end = None

    @rule(milliseconds=st.integers(0, 60_000))
    def stand_still(self, milliseconds):
        self.clock.advance(timedelta(milliseconds=milliseconds))

    @rule(delay=st.integers(0, 5_000), transaction=st.booleans())
    def arrive(self, delay, transaction):
        if transaction and self.open_from is None:
            self.open_from = len(self.log)
        self.log.append((self.clock.wall(), self.clock.wall() - delay))

    @rule()
    def commit_transaction(self):
        if self.open_from is not None:
            self.open_from = None
            self.log.append(None)

    @rule(fetch=st.integers(0, 9), take=st.integers(0, 9))
    def read(self, fetch, take):
        end = len(self.log) if self.open_from is None else self.open_from
        begin, self.fetched = self.fetched, min(end, self.fetched + fetch)
        self.queue += [(offset, False) for offset in range(begin, self.fetched) if self.log[offset] is not None]
        if self.fetched == end != self.last_end:
            self.last_end = end
            self.queue.append((end, True))
        taken, self.queue = self.queue[:take], self.queue[take:]
        for offset, is_end in taken:
            if is_end:
                self.partitions[0].reach_end(offset)
            else:
                (log_time, time), now, seen = self.log[offset], self.clock.wall(), self.clock.steady()
                self.partitions[0].take(None, b'{"at": %d}' % time, offset, log_time, taken=now, seen=seen)
                self.copied = offset + 1

    @rule(before=st.integers(0, 1), after=st.integers(0, 1), slow=st.integers(0, 60_000), answers=st.booleans())
    def commit(self, *, before=0, after=0, slow=0, answers=True):
        def ends(numbers):
            for _ in range(before):
                self.arrive(5_000, transaction=False)
            found = dict.fromkeys(numbers, len(self.log)) if answers else {}
            for _ in range(after):
                self.arrive(5_000, transaction=False)
            self.stand_still(slow)
            return found

        self.partitions.estimate(ends)

    @invariant()
    def every_record_keeps_its_time(self):
        times = [entry[1] for entry in self.log[self.copied :] if entry is not None]
        assert min(times, default=NOW * 2) >= (self.partitions[0].input.watermark or 0)
        assert set(self.partitions.outcomes) <= {"on_time"}
        unread = [entry[0] for entry in self.log[self.copied :] if entry is not None]
        assert min(unread, default=NOW * 2) >= (self.partitions[0].processing_time or 0)

    def teardown(self):
        """Once it is read to its end, its watermark follows the clock."""
        self.commit_transaction()
        self.read(len(self.log), 2 * len(self.log) + 9)
        self.stand_still(7_000)
        self.commit()
        self.stand_still(1_000)
        self.commit()
        last = max((entry[0] for entry in self.log if entry is not None), default=NOW)
        assert self.partitions[0].input.watermark >= last + 1_000 - 5_000
        assert self.partitions[0].processing_time == self.clock.wall()


TestLagging = Lagging.TestCase
TestLagging.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


def test_an_estimate_is_for_the_moment_of_the_question():
    machine = Lagging()
    machine.read(0, 1)
    machine.commit(after=1, slow=1_000)
    machine.every_record_keeps_its_time()
    machine.teardown()
