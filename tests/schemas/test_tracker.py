"""The rules of the tracker as a table: each row a short story, with numbers that one can check by eye."""

import pytest
from floodmark.schemas import END_OF_TIME, Status, Tracker, Verdict
from floodmark.schemas.errors import CorruptSnapshotError
from harness import mark

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
def test_rule(steps, expected):
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


def test_a_lease_is_decided_by_the_log_time_of_the_other_sources():
    tracker, said = play(
        (mark("a", 30, size=2, lease=100), 0, "t", 1_000),
        (mark("b", 40, size=2), 0, "t", 1_050),
        (mark("b", 50, 1, size=2), 0, "t", 1_101),
        (mark("a", 31, 1, size=2, lease=100), 0, "t", 1_102),
        (mark("b", 60, 2, size=2), 0, "t", 1_103),
    )
    assert said == [None, 30, 50, None, None]
    assert tracker.holds()[0].holder.source == "a"


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


def test_a_gap_in_the_sequence_is_counted():
    tracker, _ = play((mark("a", 30, 0), 0), (mark("a", 31, 2), 0))
    assert tracker.counts["sequence_gaps"] == 1


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([], "t: no watermark record was read yet"),
        ([(mark("a", 1, partitions=2), 0)], "t/1: 0 of 1 sources of membership 1 have reported"),
        ([(mark("a", 1, size=2), 0)], "t/0: 1 of 2 sources of membership 1 have reported (a)"),
        ([(mark("a", None), 0)], "t/0/a: has promised nothing yet"),
        ([(mark("a", 9, size=2), 0), (mark("b", 5, size=2), 0)], "t/0/b: lowest watermark"),
        ([(mark("a", 9, status=IDLE), 0)], "t: all sources are idle"),
        (
            [(mark("b", 9), 0), (mark("a", 9, version=2), 0), (mark("a", 9, 1, version=3, size=2), 0)],
            "t/0: 1 of 2 sources of membership 3 have reported (a); only in an older membership: b",
        ),
    ],
)
def test_every_stuck_state_has_a_named_holder(steps, said):
    assert said in map(str, play(*steps)[0].holds())


def test_who_holds_the_minimum_and_since_when():
    tracker, _ = play((mark("a", 9), 0, "t", 1_000), (mark("a", 9, 1), 0, "t", 2_000))
    (hold,) = tracker.holds()
    assert (hold.holder.source, hold.watermark, hold.since) == ("a", 9, 1_000)


@pytest.mark.parametrize("damage", [{"format": 99}, {"topics": None}, {"topics": {"t": {}}}])
def test_a_damaged_snapshot_is_refused(damage):
    with pytest.raises(CorruptSnapshotError):
        Tracker.restore({**Tracker({"t"}).snapshot(), **damage})
