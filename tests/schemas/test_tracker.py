"""The rules of the tracker as a table: each row a short story, with numbers that one can check by eye."""

import json

import pytest
from floodmark.producers.testing import mark
from floodmark.schemas import END_OF_TIME, Status, Tracker, Verdict
from floodmark.schemas.errors import CorruptSnapshotError
from floodmark.schemas.tracker import UNMARKED

IDLE, ENDED = Status.IDLE, Status.ENDED


def play(*steps, topics=("t",)):
    """Apply (record, partition[, topic][, log_time]) one by one; returns what `advance` said after each."""
    tracker = Tracker(topics)
    said = []
    for step in steps:
        record, partition = step[0], step[1]
        topic = step[2] if len(step) > 2 else "t"
        log_time = step[3] if len(step) > 3 else 0
        tracker.apply(record, topic=topic, partition=partition, log_time=log_time)
        said.append(tracker.advance())
    return tracker, said


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param([(mark("a", 10), 0), (mark("a", 25, 1), 0)], [10, 25], id="one source speaks for the topic"),
        pytest.param(
            [(mark("a", 25), 0), (mark("a", 18, 1), 0), (mark("a", 42, 2), 0)], [25, None, 42], id="no way back"
        ),
        pytest.param(
            [(mark("a", 30, size=2), 0), (mark("b", 12, size=2), 0)], [None, 12], id="unknown until all members spoke"
        ),
        pytest.param(
            [(mark("a", 30, partitions=2), 0), (mark("a", 12, partitions=2), 1)],
            [None, 12],
            id="unknown until all partitions spoke",
        ),
        pytest.param([(mark("a", None), 0), (mark("a", 5, 1), 0)], [None, 5], id="nothing promised is not a promise"),
        pytest.param(
            [(mark("a", 30, size=2), 0), (mark("b", 12, size=2), 0), (mark("b", 12, 1, size=2, status=IDLE), 0)],
            [None, 12, 30],
            id="an idle source leaves the minimum",
        ),
        pytest.param(
            [
                (mark("a", 30, size=2), 0),
                (mark("b", 12, size=2, status=IDLE), 0),
                (mark("b", 13, 1, size=2), 0),
                (mark("a", 40, 1, size=2), 0),
                (mark("b", 35, 2, size=2), 0),
            ],
            [None, 30, None, None, 35],
            id="a laggard that returns holds, and never moves it back",
        ),
        pytest.param(
            [
                (mark("a", 20, 0, partitions=2), 0),
                (mark("a", 20, 0, partitions=2), 1),
                (mark("a", 20, 1, partitions=2, status=IDLE), 0),
                (mark("a", 20, 1, partitions=2, status=IDLE), 1),
                (mark("a", 50, 2, partitions=2), 0),
                (mark("a", 50, 2, partitions=2), 1),
            ],
            [None, 20, None, None, None, 50],
            id="a partition read late is not left out when its idle source is back elsewhere",
        ),
        pytest.param(
            [
                (mark("a", 20, 0, partitions=2, status=ENDED), 0),
                (mark("a", 20, 0, partitions=2), 1),
                (mark("a", 90, 0, partitions=2, epoch=2), 0),
                (mark("a", 20, 1, partitions=2, status=ENDED), 1),
                (mark("a", 90, 0, partitions=2, epoch=2), 1),
            ],
            [None, 20, None, None, 90],
            id="nor when its ended source has begun a new epoch elsewhere",
        ),
        pytest.param(
            [(mark("a", 30), 0), (mark("a", 40, 1, status=IDLE), 0), (mark("a", 41, 2), 0)],
            [30, None, 41],
            id="all idle: it holds",
        ),
        pytest.param(
            [(mark("a", 30, size=2), 0), (mark("b", 12, size=2), 0), (mark("b", 12, 1, size=2, status=ENDED), 0)],
            [None, 12, 30],
            id="an ended source leaves for good",
        ),
        pytest.param(
            [(mark("a", 30, 0), 0), (mark("a", 30, 1, status=ENDED), 0)], [30, END_OF_TIME], id="all ended: end of time"
        ),
        pytest.param(
            [(mark("a", 30, size=2, status=ENDED), 0), (mark("b", 12, size=2, status=IDLE), 0)],
            [None, None],
            id="ended and idle together: it holds",
        ),
        pytest.param(
            [
                (mark("a", 30), 0),
                (mark("a", 30, 1, version=2, size=2), 0),
                (mark("b", 20, version=2, size=2), 0),
                (mark("a", 40, 2, version=2, size=2), 0),
                (mark("b", 35, 1, version=2, size=2), 0),
            ],
            [30, None, None, None, 35],
            id="scaling out re-opens the hold",
        ),
        pytest.param(
            [
                (mark("a", 30, size=2), 0),
                (mark("b", 12, size=2), 0),
                (mark("a", 31, 1, version=2, size=1), 0),
            ],
            [None, 12, 31],
            id="scaling in retires who is not in the new version",
        ),
        pytest.param(
            [
                (mark("a", 30, partitions=1), 0),
                (mark("a", 40, 1, partitions=2), 0),
                (mark("a", 40, 0, partitions=2), 1),
                (mark("a", 50, 2, partitions=2), 0),
                (mark("a", 45, 1, partitions=2), 1),
            ],
            [30, None, 40, None, 45],
            id="a new partition holds until its first marks",
        ),
        pytest.param(
            [(mark("a", 30, epoch=2), 0), (mark("a", 99, 9, epoch=1), 0), (mark("a", 31, 1, epoch=2), 0)],
            [30, None, 31],
            id="a zombie of an older epoch is fenced",
        ),
        pytest.param(
            [(mark("a", 30, 9), 0), (mark("a", 20, 0, epoch=2), 0), (mark("a", 35, 1, epoch=2), 0)],
            [30, None, 35],
            id="a restarted source that knows less holds",
        ),
    ],
)
def test_each_statement_moves_the_watermark_as_the_contract_says(steps, expected):
    assert play(*steps)[1] == expected


def test_samzas_table_of_two_producers_and_two_partitions():
    """Samza's TestWatermarkStates: the stream is known when both partitions know both tasks."""

    def said(task, watermark, partition, sequence=0):
        return (mark(task, watermark, sequence, size=2, partitions=2), partition)

    steps = [
        said("0", 6, 0),
        said("1", 3, 0),
        said("0", 10, 1),
        said("1", 4, 1),
        said("1", 8, 0, 1),
        said("1", 7, 1, 1),
    ]
    assert play(*steps)[1] == [None, None, None, 3, 4, 6]


def test_a_stage_is_the_minimum_of_its_topics():
    _, said = play((mark("a", 30), 0, "t"), (mark("b", 12), 0, "u"), (mark("b", 40, 1), 0, "u"), topics=("t", "u"))
    assert said == [None, 12, 30]


def test_no_topic_no_partition_and_no_source_are_unknown_and_never_the_maximum():
    assert Tracker(()).advance() is None
    assert Tracker({"t"}).advance() is None


def test_a_lease_runs_out_by_the_clock_of_another_source_and_by_its_next_record_it_counts_again():
    steps = [(mark("a", 30, size=2, lease=100), 0, "t", 1_000), (mark("b", 40, size=2), 0, "t", 61_000)]
    steps += [(mark("b", 40 + n, n, size=2), 0, "t", 61_000 + n * 50) for n in range(1, 6)]
    tracker, said = play(*steps, (mark("a", 31, 1, size=2, lease=100), 0, "t", 1_400))
    assert said == [None, 30, None, None, None, None, 45, None]
    assert tracker.holders()[0].holder.source == "a"


def test_a_lease_does_not_leave_out_a_source_that_speaks_however_far_the_clocks_are_apart():
    steps = []
    for n in range(10):
        steps.append((mark("a", 100 + n, n, size=2, lease=60_000), 0, "t", n * 1000))
        steps.append((mark("b", 9_000 + n, n, size=2, lease=60_000), 0, "t", n * 1000 + 61_000))
    assert play(*steps)[0].watermark == 109


@pytest.mark.parametrize("wrong", [0, 2_000, 4_102_444_800_000])
@pytest.mark.parametrize("at", range(8))
def test_one_wrong_log_time_lets_no_lease_run_out(wrong, at):
    steps = []
    for n in range(8):
        log_time = wrong if n == at else 1_700_000_000_000 + n * 100
        steps.append((mark("b", 9_000 + n, n, size=2), 0, "t", log_time))
        steps.append((mark("a", 100 + n, n, size=2, lease=1_000), 0, "t", 1_700_000_000_000 + n * 100))
        assert play(*steps)[0].watermark == 100 + n


def test_a_source_with_a_lease_that_dies_between_two_idle_marks_holds_nothing():
    lease = {"size": 2, "partitions": 2, "lease": 100}
    steps = [(mark("a", 10, **lease), 0), (mark("a", 10, **lease), 1), (mark("a", 10, 1, status=IDLE, **lease), 0)]
    for n in range(10):
        steps += [(mark("b", 10 + n, n, size=2, partitions=2), part, "t", n * 50) for part in (0, 1)]
    assert play(*steps)[0].watermark == 19


def test_a_source_is_taken_for_dead_in_all_partitions_or_in_none():
    """P0 is read late: what moves there must not pass the source, which is back in P1."""
    lease = {"size": 2, "partitions": 2, "lease": 100}
    steps = [(mark("a", 10, **lease), 0), (mark("a", 10, **lease), 1), (mark("a", 10, 1, **lease), 1, "t", 1_000)]
    steps += [(mark("b", 500, size=2, partitions=2), 1, "t", 1_000)]
    steps += [(mark("b", 10 + n, n, size=2, partitions=2), 0, "t", n * 50) for n in range(10)]
    assert play(*steps)[0].watermark == 10


@pytest.mark.parametrize("how", [{"status": ENDED}, {"status": IDLE}, {"lease": 100}])
def test_a_partition_added_when_a_source_was_gone_does_not_wait_for_it(how):
    steps = [(mark("a", 10, size=2, **how), 0)]
    for n in range(10):
        steps += [(mark("b", n, n, size=2, partitions=2), part, "t", n * 50) for part in (0, 1)]
    assert play(*steps)[0].watermark == 9


@pytest.mark.parametrize("status", [ENDED, IDLE])
def test_a_partition_that_the_source_knew_is_waited_for(status):
    tracker, said = play(
        (mark("a", 10, size=2, status=status, partitions=2), 0),
        (mark("b", 5, size=2, partitions=2), 0),
        (mark("b", 5, size=2, partitions=2), 1),
    )
    assert said == [None, None, None]
    assert "t/1: 1 of 2 sources of membership 1 have not reported; reported: b; not here: a" in map(
        str, tracker.holders()
    )


def test_a_topic_ends_though_it_grew_behind_the_end_of_a_source():
    said = play(
        (mark("a", 10, size=2, status=ENDED), 0),
        (mark("b", 5, size=2, partitions=2, status=ENDED), 1),
        (mark("b", 5, size=2, partitions=2, status=ENDED), 0),
    )[1]
    assert said == [None, None, END_OF_TIME]


def test_an_active_source_never_reaches_the_end_of_time():
    tracker, said = play((mark("a", END_OF_TIME), 0))
    assert said == [END_OF_TIME - 1]
    assert not tracker.ended
    tracker.apply(mark("a", END_OF_TIME, 1, status=ENDED), topic="t", partition=0, log_time=0)
    assert tracker.advance() == END_OF_TIME
    assert tracker.ended


@pytest.mark.parametrize("ignored", [{"epoch": 1}, {"sequence": 5}, {"sequence": 7, "epoch": 2, "status": ENDED}])
def test_a_record_that_is_ignored_changes_nothing(ignored):
    tracker, _ = play((mark("a", 30, 5, epoch=2), 0), (mark("a", 30, 6, epoch=2, status=ENDED), 0))
    before = tracker.snapshot()["topics"]
    record = mark("a", 40, **{"sequence": 9, "epoch": 2, **ignored}, version=9, size=7, partitions=3)
    tracker.apply(record, topic="t", partition=0, log_time=99)
    assert tracker.snapshot()["topics"] == before


@pytest.mark.parametrize("status", Status)
def test_an_unreadable_mark_of_a_known_source_holds_until_its_next_record(status):
    tracker, _ = play((mark("a", 10, size=2, status=status), 0), (mark("b", 10, size=2), 0))
    assert tracker.apply_unreadable("a", topic="t", partition=0, offset=7, log_time=5)
    for n in range(1, 4):
        tracker = Tracker.restore(tracker.snapshot())
        tracker.apply(mark("b", 1_000, n, size=2), topic="t", partition=0, log_time=n)
        assert tracker.advance() is None
        assert [str(hold) for hold in tracker.holders()] == ["t/0/a: unreadable mark of a at t/0@7"]
    tracker.apply(mark("a", 500, 0, epoch=2, size=2), topic="t", partition=0, log_time=9)
    assert tracker.advance() == 500


def test_an_unreadable_mark_of_an_unknown_source_or_one_read_again_does_nothing():
    tracker, _ = play((mark("a", 10), 0))
    assert not tracker.apply_unreadable("b", topic="t", partition=0, offset=1, log_time=0)
    assert tracker.apply_unreadable("a", topic="t", partition=0, offset=2, log_time=0)
    tracker.apply(mark("a", 20, 1, status=ENDED), topic="t", partition=0, log_time=0)
    assert not tracker.apply_unreadable("a", topic="t", partition=0, offset=2, log_time=0)
    assert tracker.advance() == END_OF_TIME


def test_an_unreadable_mark_in_a_new_partition_holds_the_topic():
    tracker, _ = play((mark("a", 10, status=ENDED, size=2), 0), (mark("b", 10, size=2, partitions=2), 0))
    tracker.apply(mark("b", 10, size=2, partitions=2), topic="t", partition=1, log_time=0)
    tracker.apply_unreadable("a", topic="t", partition=1, offset=3, log_time=0)
    tracker.apply(mark("b", 99, 1, size=2, partitions=2), topic="t", partition=1, log_time=0)
    assert tracker.advance() is None
    assert "t/1/a: unreadable mark of a at t/1@3" in map(str, tracker.holders())


def test_an_unreadable_mark_holds_where_the_source_is_not_known_and_the_others_suffice():
    tracker, _ = play((mark("a", 10, partitions=2), 0), (mark("b", 20, partitions=2), 1))
    assert tracker.watermark == 10
    tracker.apply_unreadable("a", topic="t", partition=1, offset=3, log_time=0)
    tracker.apply(mark("a", 20, 1, partitions=2), topic="t", partition=0, log_time=0)
    assert tracker.advance() is None
    assert [str(hold) for hold in tracker.holders()] == ["t/1/a: unreadable mark of a at t/1@3"]


def test_a_zombie_of_a_forgotten_epoch_does_not_end_the_wait_that_an_unreadable_mark_began():
    """Its version is old, too, but not that alone: it is not the next statement of its source."""
    forgotten = [(mark("a", 5, epoch=5), 0), (mark("b", 5, version=2), 0)]
    back = [(mark("a", 6, epoch=6, status=IDLE, version=3, size=2), 0), (mark("b", 6, 1, version=3, size=2), 0)]
    grown = [(mark("b", 20 + number, 2, version=3, size=2, partitions=2), number) for number in (0, 1)]
    tracker, said = play(*forgotten, *back, *grown)
    assert said[-1] == 20, "the one that is idle does not know the second partition"
    assert tracker.apply_unreadable("a", topic="t", partition=1, offset=9, log_time=0)
    tracker.apply(mark("a", 99, 7, epoch=4), topic="t", partition=1, log_time=0)
    for number in (0, 1):
        tracker.apply(mark("b", 50, 3, version=3, size=2, partitions=2), topic="t", partition=number, log_time=0)
    assert tracker.advance() is None
    tracker.apply(mark("a", 99, 7, epoch=5), topic="t", partition=1, log_time=0)
    assert tracker.advance() == 50, "this one may be its next statement, but for its version"


def test_a_source_that_an_unreadable_mark_kept_is_forgotten_once_nobody_waits_for_it():
    tracker, _ = play((mark("a", 5, size=2), 0), (mark("b", 5, size=2), 0))
    assert tracker.apply_unreadable("a", topic="t", partition=0, offset=2, log_time=0)
    tracker.apply(mark("b", 10, 1, version=2), topic="t", partition=0, log_time=0)
    assert tracker.advance() is None, "the unreadable mark may be of the new version"
    tracker.apply(mark("a", 6, 1, size=2), topic="t", partition=0, log_time=0)
    assert tracker.advance() == 10, "it was not"
    tracker.apply(mark("b", 20, 2, version=2), topic="t", partition=0, log_time=0)
    assert not tracker.apply_unreadable("a", topic="t", partition=0, offset=6, log_time=0)
    assert tracker.advance() == 20


def test_a_lease_that_runs_out_behind_an_unreadable_mark_changes_nothing():
    tracker, _ = play((mark("a", 10, size=2, lease=100), 0), (mark("b", 20, size=2), 0))
    tracker.apply_unreadable("a", topic="t", partition=0, offset=3, log_time=0)
    for n in range(1, 9):
        tracker.apply(mark("b", 20 + n, n, size=2), topic="t", partition=0, log_time=n * 50)
        assert tracker.advance() is None
    tracker.apply(mark("a", 10, 1, size=2, lease=100, status=IDLE), topic="t", partition=0, log_time=0)
    assert tracker.advance() == 28


def test_a_new_epoch_on_another_machine_moves_no_clock():
    tracker, _ = play((mark("a", 10, size=2, lease=100), 0), (mark("b", 20, size=2), 0))
    for n in range(1, 6):
        tracker.apply(mark("b", 20, 0, epoch=n + 1, size=2), topic="t", partition=0, log_time=n * 90)
        assert tracker.advance() is None


def test_sources_of_older_memberships_are_forgotten_and_their_epochs_still_fence():
    tracker = Tracker({"t"})
    for version in range(1, 50):
        tracker.apply(mark(f"pod-{version}", version, epoch=5, version=version), topic="t", partition=0, log_time=0)
        tracker.advance()
    sources = tracker.snapshot()["topics"]["t"]["partitions"]["0"]["sources"]
    assert list(sources) == ["pod-49"]
    zombie = mark("pod-1", 1_000, epoch=4, version=50)
    assert tracker.apply(zombie, topic="t", partition=0, log_time=0) is Verdict.FENCED
    assert tracker.apply(mark("pod-1", 60, epoch=6, version=50), topic="t", partition=0, log_time=0) is Verdict.ACCEPTED
    assert tracker.advance() == 60


def test_a_claim_of_millions_of_partitions_costs_nothing():
    tracker, said = play((mark("a", 10, partitions=2**31 - 1), 0))
    assert said == [None]
    assert len(tracker.holders()) == 100


@pytest.mark.parametrize(
    ("second", "verdict"),
    [
        (mark("a", 40, 5), Verdict.REPLAYED),
        (mark("a", 40, 4), Verdict.REPLAYED),
        (mark("a", 20, 6), Verdict.REGRESSED),
        (mark("a", 40, 6, epoch=0), Verdict.FENCED),
        (mark("a", 40, 6, version=2), Verdict.ACCEPTED),
    ],
)
def test_verdicts_are_told_and_counted(second, verdict):
    tracker = Tracker({"t"})
    tracker.apply(mark("a", 30, 5), topic="t", partition=0, log_time=0)
    assert tracker.apply(second, topic="t", partition=0, log_time=0) is verdict
    assert tracker.counts[verdict.value] >= 1


def test_a_source_that_ended_stays_ended_until_a_new_epoch():
    tracker, _ = play((mark("a", 30, 0, status=ENDED), 0))
    assert tracker.apply(mark("a", 40, 1), topic="t", partition=0, log_time=0) is Verdict.AFTER_END
    assert tracker.ended
    assert tracker.apply(mark("a", 40, 0, epoch=2), topic="t", partition=0, log_time=0) is Verdict.ACCEPTED


def test_a_record_of_an_older_membership_is_retired():
    tracker, _ = play((mark("a", 30, version=2), 0))
    assert tracker.apply(mark("b", 5, version=1), topic="t", partition=0, log_time=0) is Verdict.RETIRED


def test_two_sizes_under_one_version_take_the_larger_and_are_counted():
    tracker, said = play((mark("a", 30, size=1), 0), (mark("b", 20, size=2), 0), (mark("a", 31, 1, size=1), 0))
    assert said == [30, None, None]
    assert tracker.counts["membership_conflicts"] == 2


def test_marks_of_an_older_membership_that_are_read_late_make_no_gap():
    """One partition has the change of the membership when the other still has marks from before."""
    before = [mark("a", 30, number, partitions=2) for number in range(3)]
    after = [mark("a", 31, number, partitions=2, version=2) for number in range(3, 5)]
    tracker, _ = play((before[0], 1), *((one, 0) for one in before + after), *((one, 1) for one in before[1:] + after))
    assert (tracker.counts["retired"], tracker.counts["sequence_gaps"]) == (2, 0)
    tracker.apply(mark("a", 32, 6, partitions=2, version=2), topic="t", partition=1, log_time=0)
    assert tracker.counts["sequence_gaps"] == 1


def test_all_that_has_not_reached_a_time_is_named():
    tracker, _ = play(*((mark(name, time, size=4), 0) for name, time in (("a", 20), ("b", 10), ("c", 30))))
    assert [hold.holder.source for hold in tracker.holders(30)] == [None, "b", "a"]
    assert [hold.holder.source for hold in tracker.holders(10)] == [None]
    tracker.apply(mark("d", 40, size=4), topic="t", partition=0, log_time=0)
    found = [(hold.holder.source, hold.reason) for hold in tracker.holders(30)]
    assert found == [("b", "lowest watermark"), ("a", "low watermark")]
    assert [hold.holder.source for hold in tracker.holders()] == ["b"]
    tracker.apply_unreadable("b", topic="t", partition=0, offset=9, log_time=0)
    assert [hold.holder.source for hold in tracker.holders(30)] == ["b", "a"]


def test_a_gap_in_the_sequence_is_counted():
    tracker, _ = play((mark("a", 30, 0), 0), (mark("a", 31, 2), 0))
    assert tracker.counts["sequence_gaps"] == 1


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([], f"t: {UNMARKED}"),
        (
            [(mark("a", 1, partitions=2), 0)],
            "t/1: 1 of 1 sources of membership 1 have not reported; reported: none; not here: a",
        ),
        ([(mark("a", 1, size=2), 0)], "t/0: 1 of 2 sources of membership 1 have not reported; reported: a"),
        ([(mark("a", None), 0)], "t/0/a: has promised nothing yet"),
        ([(mark("a", 9, size=2), 0), (mark("b", 5, size=2), 0)], "t/0/b: lowest watermark"),
        ([(mark("a", 9, status=IDLE), 0)], "t: all sources are idle"),
        (
            [(mark("b", 9), 0), (mark("a", 9, version=2, size=2), 0)],
            "t/0: 1 of 2 sources of membership 2 have not reported; reported: a; only in an older membership: b",
        ),
    ],
)
def test_every_stuck_state_has_a_named_holder(steps, said):
    assert said in map(str, play(*steps)[0].holders())


@pytest.mark.parametrize(
    ("steps", "idle"),
    [
        ([], False),
        ([(mark("a", 9), 0)], False),
        ([(mark("a", 9, status=IDLE), 0)], True),
        ([(mark("a", 9, status=IDLE), 0), (mark("a", 9, 1), 0)], False),
        ([(mark("a", 9, size=2, status=IDLE), 0)], False),
        ([(mark("a", 9, size=2, status=IDLE), 0), (mark("b", 9, size=2, status=ENDED), 0)], True),
        ([(mark("a", 9, status=ENDED), 0)], False),
    ],
    ids=["nothing", "active", "idle", "back", "unknown", "idle and ended", "ended"],
)
def test_whether_all_are_idle_is_known_also_after_a_restart(steps, idle):
    tracker, _ = play(*steps)
    assert tracker.idle is idle
    assert Tracker.restore(tracker.snapshot()).idle is idle


def test_who_holds_the_minimum_and_since_when():
    tracker, _ = play((mark("a", 9), 0, "t", 1_000), (mark("a", 9, 1), 0, "t", 2_000))
    (hold,) = tracker.holders()
    assert (hold.holder.source, hold.watermark, hold.since) == ("a", 9, 1_000)


def test_a_snapshot_is_a_value_that_later_marks_do_not_change():
    tracker = Tracker({"t"})
    for number in range(1, 20):
        snapshot = tracker.snapshot()
        before = json.dumps(snapshot)
        record = mark(
            "ab"[number % 2], number, number, size=2 if number < 10 else 1, version=1 + number // 10, lease=100
        )
        tracker.apply(record, topic="t", partition=0, log_time=1_000 + 60 * number)
        tracker.advance()
        assert json.dumps(snapshot) == before


@pytest.mark.parametrize("damage", [{"format": 99}, {"topics": None}, {"topics": {"t": {}}}])
def test_a_damaged_snapshot_is_refused(damage):
    with pytest.raises(CorruptSnapshotError):
        Tracker.restore({**Tracker({"t"}).snapshot(), **damage})
