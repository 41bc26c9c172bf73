"""The emitter never promises what a record under way, or a failed one, could still break."""

import pytest
from floodmark.producers.emitter import SHIPMENT_SIZE, Emitter, Identity
from floodmark.producers.strategies import Explicit, ascending
from floodmark.schemas import Membership, Status
from floodmark.schemas.errors import EndedError, IdleError
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
    first.land()
    first.land()
    assert ours.marks(now=0)[0][1].watermark == 30


def test_a_failed_record_holds_for_good():
    ours = emitter()
    ours.send(0, 12).land(failed=True)
    ours.send(0, 30).land()
    ours.marks(now=0)
    ours.send(0, 40).land()
    assert ours.marks(now=0)[0][1].watermark == 12


def test_marks_go_to_every_partition_with_its_own_sequence_and_count():
    ours = emitter(partitions=3)
    for partition in (0, 0, 2):
        ours.send(partition, 12).land()
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


def test_a_record_never_handed_over_is_not_counted():
    ours = emitter()
    ours.send(0, 12)
    ours.unsend(0)
    assert ours.marks(now=0)[0][1].records == 0
    assert ours.held_at() is None


class EmitterMachine(RuleBasedStateMachine):
    """Send, acknowledge, fail and mark in any order, with an explicit watermark that only says what is true."""

    def __init__(self):
        super().__init__()
        self.generator = Explicit()
        self.emitter = Emitter(Identity("a", epoch=1), self.generator, 2)
        self.floor = 0
        self.open = []
        self.failed = []
        self.promised = None

    @rule(ahead=st.integers(0, 20), partition=st.integers(0, 1), many=st.sampled_from([1, 1, SHIPMENT_SIZE]))
    def send(self, ahead, partition, many):
        event_time = self.floor + ahead
        for _ in range(many):
            self.open.append((event_time, self.emitter.send(partition, event_time)))

    @rule(step=st.integers(0, 10))
    def advance(self, step):
        self.floor += step
        self.generator.advance(self.floor)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), failed=st.booleans())
    def report(self, data, failed):
        event_time, shipment = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        shipment.land(failed=failed)
        if failed:
            self.failed.append(event_time)

    @rule()
    def mark(self):
        watermarks = {mark.watermark for _, mark in self.emitter.marks(now=0)}
        assert len(watermarks) == 1
        (watermark,) = watermarks
        if watermark is not None:
            assert self.promised is None or watermark >= self.promised
            assert watermark <= self.floor
            unsafe = [time for time, _ in self.open] + self.failed
            # What was promised before a record was sent cannot be unsaid; nothing beyond that may be.
            assert watermark == self.promised or all(watermark <= time for time in unsafe)
        self.promised = watermark

    @invariant()
    def holds_exactly_while_something_is_open_or_failed(self):
        assert (self.emitter.held_at() is None) == (not self.open and not self.failed)


TestEmitter = EmitterMachine.TestCase
TestEmitter.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
