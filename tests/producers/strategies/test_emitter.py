"""The emitter never promises what a record under way, or a failed one, could still break."""

from datetime import timedelta
from itertools import pairwise

import pytest
from floodmark.producers import (
    ascending,
    bounded_out_of_orderness,
    explicit,
    per_partition,
    percentile,
    punctuated,
    with_idleness,
)
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.in_flight import IN_FLIGHT_SIZE
from floodmark.producers.strategies.numbering import Identity
from floodmark.producers.strategies.scopes import generators
from floodmark.schemas import END_OF_TIME, Membership, Status, Tracker
from floodmark.schemas.codec import encode_watermark
from floodmark.schemas.counts import Mismatch, RecordCounts
from floodmark.schemas.errors import EndedError, IdleError, UsageError, WatermarkRegressionError
from floodmark.schemas.records import MAX_PERCENTS, WatermarkRecord
from floodmark.schemas.timestamps import EARLIEST
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule


def emitter(partitions=1):
    return Emitter(Identity("a", epoch=1), ascending().build(), partitions)


def test_a_mark_is_held_below_a_record_under_way():
    ours = emitter()
    first = ours.send(0, 12)
    ours.send(0, 30)
    assert ours.marks(now=0)[0][1].watermark == 12
    first.ack()
    first.ack()
    assert ours.marks(now=0)[0][1].watermark == 30


def test_a_failed_record_holds_for_good():
    ours = emitter()
    ours.send(0, 12).ack(failed=True)
    ours.send(0, 30).ack()
    ours.marks(now=0)
    ours.send(0, 40).ack()
    assert ours.marks(now=0)[0][1].watermark == 12


def test_marks_go_to_every_partition_with_its_own_sequence_and_count():
    ours = emitter(partitions=3)
    for partition in (0, 0, 2):
        ours.send(partition, 12).ack()
    ours.marks(now=0)
    assert [(p, m.sequence, m.records) for p, m in ours.marks(now=0)] == [(0, 1, 2), (1, 1, 0), (2, 1, 1)]


def test_a_new_partition_is_marked_from_its_first_sequence():
    ours = emitter(partitions=1)
    ours.marks(now=0)
    assert ours.grow(3)
    assert not ours.grow(2)
    assert [(p, m.sequence, m.partitions) for p, m in ours.marks(now=0)] == [(0, 1, 3), (1, 0, 3), (2, 0, 3)]


def test_an_idle_source_says_that_it_is_back_before_its_next_record():
    ours = emitter()
    ours.mark_idle()
    assert ours.marks(now=0)[0][1].status is Status.IDLE
    with pytest.raises(IdleError):
        ours.send(0, 12)
    ours.mark_active()
    assert ours.marks(now=0)[0][1].status is Status.ACTIVE
    ours.send(0, 12)


def test_a_source_that_ended_sends_nothing_more():
    ours = emitter()
    ours.end()
    with pytest.raises(EndedError):
        ours.send(0, 12)
    with pytest.raises(EndedError):
        ours.end()


def test_a_new_membership_speaks_in_the_next_marks():
    ours = emitter()
    ours.change_membership(Membership(version=2, size=5))
    assert ours.marks(now=0)[0][1].membership == Membership(version=2, size=5)


@pytest.mark.parametrize(
    "strategy", [ascending(), per_partition(ascending()), punctuated(lambda value: 99 if value else None)]
)
def test_a_record_that_the_client_did_not_take_changes_nothing(strategy):
    build, apart = generators(strategy)
    ours = Emitter(Identity("a", 1), build(), 1, apart)
    ours.send(0, 12).ack()
    before = ours.watermark
    ours.unsend(0, ours.begin(0, 99, None, b"99"))
    mark = ours.marks(now=0)[0][1]
    assert (mark.records, mark.watermark, ours.watermark_hold) == (1, before, None)


def test_a_failed_record_that_is_sent_again_is_held_for_until_it_lands():
    ours = emitter()
    in_flight = ours.send(0, 12)
    ours.fail(in_flight, 0)
    ours.send(0, 50).ack()
    assert (ours.marks(now=0)[0][1].watermark, ours.failed) == (12, 1)
    again = ours.resend(in_flight, 0)
    assert (ours.marks(now=0)[0][1].watermark, ours.failed) == (12, 0)
    again.ack()
    assert ours.watermark_hold is None
    assert ours.marks(now=0)[0][1].watermark == 50


def test_of_several_failed_records_the_last_one_sent_again_lets_go():
    ours = emitter()
    in_flight = ours.send(0, 12)
    assert ours.send(0, 13) is in_flight
    for _ in range(2):
        ours.fail(in_flight, 0)
    ours.resend(in_flight, 0).ack()
    assert ours.watermark_hold == 12, "which of the two it was is not known"
    ours.resend(in_flight, 0).ack()
    assert ours.watermark_hold is None


def test_a_record_that_failed_is_counted_only_where_a_mark_has_done_so():
    ours = emitter()
    ours.fail(ours.send(0, 12), 0)
    assert ours.marks(now=0)[0][1].records == 0
    in_flight = ours.send(0, 12)
    assert ours.marks(now=0)[0][1].records == 1
    ours.fail(in_flight, 0)
    assert ours.marks(now=0)[0][1].records == 1, "readers miss it, and say so"
    ours.resend(in_flight, 0).ack()
    assert ours.marks(now=0)[0][1].records == 2
    assert ours.records == 2


@pytest.mark.parametrize("last_fails", [True, False])
def test_a_record_that_failed_is_not_counted_twice_if_no_mark_with_it_is_in_the_topic(last_fails):
    ours = emitter()
    assert ours.marks(now=0)[0][1].records == 0
    ours.mark_delivered(0, failed=False)
    in_flight = ours.send(0, 12)
    assert [ours.marks(now=0)[0][1].records for _ in range(2)] == [1, 1], "marks in flight"
    ours.fail(in_flight, 0)
    for failed in (True, last_fails):
        ours.mark_delivered(0, failed=failed)
    seen = 0 if last_fails else 1
    assert ours.marks(now=0)[0][1].records == seen
    ours.resend(in_flight, 0).ack()
    assert ours.marks(now=0)[0][1].records == seen + 1
    assert ours.records == 1


def test_a_record_that_failed_is_not_counted_if_the_client_did_not_take_the_mark_behind_it():
    ours = emitter()
    in_flight = ours.send(0, 12)
    ours.marks(now=0)
    ours.unmark(0)
    ours.fail(in_flight, 0)
    assert ours.marks(now=0)[0][1].records == 0


def test_what_landed_behind_a_record_that_holds_is_forgotten():
    ours = emitter()
    ours.send(0, 0)
    for event_time in range(1, 10_000):
        ours.marks(now=0)
        ours.send(0, event_time).ack()
    assert ours.watermark_hold == 0
    assert len(list(ours.groups())) < 200  # memory has no other face


def test_the_first_event_time_can_be_marked_and_the_last_does_not_end():
    early = Emitter(Identity("a", 1), bounded_out_of_orderness(timedelta(days=1)).build(), 1)
    early.send(0, EARLIEST).ack()
    assert early.marks(now=0)[0][1].watermark == EARLIEST
    late = emitter()
    late.send(0, END_OF_TIME).ack()
    assert late.marks(now=0)[0][1].watermark == END_OF_TIME - 1
    tracker = Tracker({"t"})
    tracker.apply(late.marks(0)[0][1], topic="t", partition=0, log_time=0)
    tracker.advance()
    assert not tracker.ended


def test_the_largest_mark_that_can_be_configured_can_be_encoded():
    generator = percentile(timedelta(seconds=1), tuple(range(100 - MAX_PERCENTS + 1, 101))).build()
    ours = Emitter(Identity("s" * 200, 2**62, Membership(2**31 - 1, 2**31 - 1), lease=2**40), generator, 1)
    ours.send(0, END_OF_TIME).ack()
    assert len(encode_watermark(ours.marks(END_OF_TIME)[0][1])) <= 1024


def test_a_membership_never_goes_back():
    ours = Emitter(Identity("a", 1, Membership(3, 2)), ascending().build(), 1)
    for wrong in (Membership(2, 5), Membership(3, 5)):
        with pytest.raises(UsageError, match="expected a version of at least 4"):
            ours.change_membership(wrong)
    ours.change_membership(Membership(3, 2))
    ours.change_membership(Membership(4, 1))
    assert ours.identity.membership == Membership(4, 1)


def test_a_punctuation_is_due_as_soon_as_nothing_is_under_way_below_it():
    ours = Emitter(Identity("a", 1), punctuated(lambda value: int(value) if value else None).build(), 1)
    ours.marks(now=0)
    before = ours.send(0, 30)
    ours.send(0, 49, value=b"50")
    in_flight = [before, *(ours.send(0, event_time) for event_time in range(60, 70))]
    assert not ours.due, "it would be held below the records under way"
    assert ours.marks(now=0)[0][1].watermark == 30
    in_flight[0].ack()
    assert not ours.due, "the punctuating record itself is under way"
    before.ack()
    assert [(ours.due, ours.watermark) for _ in range(3)] == [(True, 50)] * 3, "asking changes nothing"
    assert ours.marks(now=0)[0][1].watermark == 50
    assert not ours.due


def test_idleness_goes_by_a_clock_that_is_never_set():
    ours = Emitter(Identity("a", 1), with_idleness(ascending(), timedelta(seconds=60)).build(), 1)
    ours.send(0, 1, now=1_000_000).ack()
    assert ours.marks(1_120_010, steady=1_000_010)[0][1].status is Status.ACTIVE, "the wall clock was set"
    assert ours.marks(0, steady=1_060_001)[0][1].status is Status.IDLE


def test_a_watermark_that_goes_back_names_its_source():
    ours = Emitter(Identity("web-7", 1), explicit().build(), 1)
    ours.advance(12)
    with pytest.raises(WatermarkRegressionError, match="source 'web-7': the watermark went back"):
        ours.advance(9)


def test_a_source_that_woke_without_a_record_falls_asleep_again():
    ours = Emitter(Identity("a", 1), with_idleness(ascending(), timedelta(seconds=1)).build(), 1)
    ours.send(0, 1, now=0).ack()
    said = [ours.marks(1_001)[0][1].status]
    ours.mark_active()
    said += [ours.marks(now)[0][1].status for now in (2_000, 2_001)]
    assert said == [Status.IDLE, Status.ACTIVE, Status.IDLE]


def test_nothing_is_said_after_the_end():
    ours = emitter(partitions=2)
    ours.marks(now=0)
    ours.end()
    assert [partition for partition, _ in ours.marks(now=0)] == [0, 1]
    ours.unmark(1)
    assert [(partition, one.sequence) for partition, one in ours.marks(now=0)] == [(1, 1)], "it was never handed over"
    assert not ours.grow(3)
    assert list(ours.marks(now=0)) == []


@pytest.mark.parametrize(("epoch", "sequence", "fenced"), [(2, 0, True), (1, 50, True), (1, 3, False), (0, 50, False)])
def test_a_mark_of_another_run_fences_a_source_that_has_not_passed_it(epoch, sequence, fenced):
    ours = emitter()
    for _ in range(3):
        ours.marks(now=0)
    mark = Identity("a", epoch).mark(partitions=1, now=0, sequence=sequence)
    assert ours.fence(mark) == fenced
    assert ours.fenced_by == (epoch if fenced else None)
    assert not ours.fence(mark), "it is told once"


class EmitterMachine(RuleBasedStateMachine):
    """Everything that can happen to a source, in any order; what it promises is true as far as records arrive.

    The logs hold what was sent in the order of sending: a mark, or a list of an event time and what became of it.
    """

    def __init__(self):
        super().__init__()
        self.generator = with_idleness(explicit(), timedelta(milliseconds=50)).build()
        self.emitter = Emitter(Identity("a", epoch=1), self.generator, 2)
        self.logs = [[], []]
        self.partitions = 2
        self.floor = 0
        self.steady = 0
        self.wall = 1_000_000
        self.open = []
        self.failed = []
        self.in_flight = [[], []]  # the marks of each partition that have no delivery report yet
        self.rejected = [set(), set()]  # the sequence numbers of those that failed
        self.told = None, set()
        self.mark()

    def note(self, partition, row, in_flight):
        self.logs[partition].append(row)
        self.open.append((partition, row, in_flight))

    @precondition(lambda self: self.emitter.status is Status.ACTIVE)
    @rule(ahead=st.integers(0, 20), draw=st.integers(0, 3), many=st.sampled_from([1, 1, IN_FLIGHT_SIZE]))
    def send(self, ahead, draw, many):
        partition = draw % self.emitter.partitions
        for _ in range(many):
            event_time = self.floor + ahead
            in_flight = self.emitter.send(partition, event_time, self.steady)
            row = {"time": event_time, "is": "open", "marks": [], "since": self.steady}
            self.note(partition, row, in_flight)

    @precondition(lambda self: self.emitter.status is Status.ACTIVE)
    @rule(ahead=st.integers(0, 20))
    def send_in_vain(self, ahead):
        self.emitter.unsend(0, self.emitter.begin(0, self.floor + ahead, self.steady, None))

    @precondition(lambda self: not self.emitter.ended)
    @rule(step=st.integers(0, 10))
    def advance(self, step):
        self.floor += step
        self.generator.advance(self.floor)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), failed=st.booleans(), many=st.sampled_from([1, 1, 1000]))
    def report(self, data, failed, many):
        for _ in range(min(many, len(self.open))):
            partition, row, in_flight = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)) if many == 1 else 0)
            row["is"] = "failed" if failed else "there"
            if failed:
                self.emitter.fail(in_flight, partition)
                self.failed.append((partition, row, in_flight))
            else:
                in_flight.ack()

    @rule(draw=st.integers(0, 3), failed=st.booleans())
    def report_all_of_a_partition(self, draw, failed):
        partition = draw % len(self.logs)
        for entry in [one for one in self.open if one[0] == partition]:
            self.open.remove(entry)
            _, row, in_flight = entry
            row["is"] = "failed" if failed else "there"
            if failed:
                self.emitter.fail(in_flight, partition)
                self.failed.append(entry)
            else:
                in_flight.ack()
        for mark in self.in_flight[partition]:
            self.emitter.mark_delivered(partition, failed=failed)
            if failed:
                self.logs[partition].remove(mark)
                self.rejected[partition].add(mark.sequence)
        self.in_flight[partition].clear()

    @precondition(lambda self: self.failed and self.emitter.status is Status.ACTIVE)
    @rule(many=st.sampled_from([1, 1000]))
    def resend(self, many):
        for _ in range(min(many, len(self.failed))):
            partition, row, in_flight = self.failed.pop()
            again = {"time": row["time"], "is": "open", "marks": [], "since": row["since"]}
            self.note(partition, again, self.emitter.resend(in_flight, partition, self.steady))

    @rule(forward=st.integers(0, 60), jump=st.sampled_from([0, 0, -500_000, 500_000]))
    def time_passes(self, forward, jump):
        self.steady += forward
        self.wall += forward + jump

    @precondition(lambda self: self.partitions < 4)
    @rule()
    def grow(self):
        self.partitions += 1
        if self.emitter.grow(self.partitions):
            for lists in (self.logs, self.in_flight):
                lists.append([])
            self.rejected.append(set())

    @precondition(lambda self: self.emitter.status is Status.ACTIVE and not self.open and not self.failed)
    @rule()
    def fall_asleep(self):
        self.emitter.mark_idle()
        self.mark()

    @precondition(lambda self: self.emitter.status is Status.IDLE)
    @rule()
    def wake(self):
        self.emitter.mark_active()
        self.mark()
        assert self.emitter.status is Status.ACTIVE

    @precondition(lambda self: not self.emitter.ended and not self.open and not self.failed)
    @rule(really=st.sampled_from([False, False, False, True]))
    def end(self, really):
        if really:
            self.emitter.end()
            self.mark()

    @rule(full=st.booleans())
    def mark_at_intervals(self, full):
        self.mark(full=full)

    def mark(self, *, full=False):
        marks = self.emitter.marks(self.wall, steady=self.steady)
        assert len({mark.watermark for _, mark in marks}) <= 1
        asleep = [mark for _, mark in marks if mark.status is Status.IDLE]
        assert not asleep or (not self.open and not self.failed), "nobody waits for a source that is asleep"
        said, oldest = {mark.processing_time_watermark for _, mark in marks}, self.emitter.oldest_arrival()
        before, self.told = self.told, (oldest, said)
        assert oldest is None or oldest != before[0] or said == before[1], "readers see whether a record still waits"
        for partition, mark in marks:
            for row in self.logs[partition]:
                if isinstance(row, dict) and (row["is"] != "failed" or self.in_flight[partition]):
                    row["marks"].append(mark)
            if full and partition == len(self.logs) - 1 and self.emitter.status is Status.ACTIVE:
                self.emitter.unmark(partition)
                continue
            self.logs[partition].append(mark)
            self.in_flight[partition].append(mark)

    @invariant()
    def no_record_has_waited_for_longer_than_the_marks_say(self):
        waiting = [row["since"] for _, row, _ in self.open + self.failed]
        oldest = self.emitter.oldest_arrival()
        assert (oldest is None) == (not waiting)
        assert oldest is None or oldest <= min(waiting)

    @invariant()
    def nothing_is_promised_that_a_record_can_break(self):
        for log in self.logs:
            lowest, unsafe = END_OF_TIME, END_OF_TIME  # of what stands behind, and of what is not acknowledged anywhere
            unsafe = min((row["time"] for _, row, _ in [*self.open, *self.failed]), default=END_OF_TIME)
            newest = True
            for entry in reversed(log):
                if isinstance(entry, dict):
                    lowest = min(lowest, entry["time"]) if entry["is"] != "failed" else lowest
                else:
                    assert entry.watermark is None or entry.watermark <= lowest
                    assert not newest or entry.watermark is None or entry.watermark <= unsafe
                    newest = False

    @invariant()
    def its_own_marks_never_fence_it(self):
        assert not any(self.emitter.fence(mark) for mark in self.logs[0] if isinstance(mark, WatermarkRecord))

    @invariant()
    def it_holds_exactly_while_something_is_open_or_failed(self):
        assert (self.emitter.watermark_hold is None) == (not self.open and not self.failed)
        assert self.emitter.failed == len(self.failed)

    def teardown(self):
        """What a reader sees: whole sequences, nothing after the end, and as many rows as the marks say."""
        while self.open:
            self.open.pop()[1]["is"] = "there"
        lost = counted = 0
        for partition, log in enumerate(self.logs):
            ledger = RecordCounts()
            marks = [entry for entry in log if not isinstance(entry, dict)]
            rejected = self.rejected[partition]
            numbers = sorted({mark.sequence for mark in marks} | rejected)
            assert numbers == list(range(len(marks) + len(rejected)))
            assert [mark.sequence for mark in marks] == [number for number in numbers if number not in rejected]
            failed = [row for row in log if isinstance(row, dict) and row["is"] == "failed"]
            counted += sum(any(mark in marks for mark in row["marks"]) for row in failed)
            assert Status.ENDED not in [mark.status for mark in marks[:-1]]
            for earlier, later in pairwise(marks):
                assert earlier.watermark is None or earlier.watermark <= later.watermark
            for offset, entry in enumerate(log):
                if isinstance(entry, dict):
                    ledger.on_rows("t", partition, entry["is"] != "failed")
                else:
                    for found in ledger.on_mark(entry, topic="t", partition=partition, offset=offset, rows=0):
                        if found.kind is not Mismatch.GAP:
                            assert found.kind is Mismatch.LOST
                            lost += found.records
        assert lost <= counted, "only records that a mark in the log has counted and that then failed, each once"


TestEmitter = EmitterMachine.TestCase
TestEmitter.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
