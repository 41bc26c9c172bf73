from collections import Counter

import pytest
from floodmark.producers.testing import mark
from floodmark.schemas import END_OF_TIME, Tracker
from floodmark.schemas.errors import CorruptSnapshotError
from floodmark.spark_jobs.progress.progress import Progress, spark_watermark


def told(progress, watermark, sequence=0, **more):
    progress.tracker.apply(mark("a", watermark, sequence, **more), topic="t", partition=0, log_time=0)


def test_what_a_batch_learns_drives_the_next():
    progress = Progress(Tracker({"t"}))
    told(progress, 30)
    assert progress.advance() == progress.applied == 30
    assert progress.output is None


def test_a_hold_keeps_the_output_back_and_the_end_releases_it():
    progress = Progress(Tracker({"t"}))
    assert progress.hand_on(None, 10) is None
    assert progress.hand_on(30, 10) == 20
    assert not progress.ended
    assert progress.hand_on(END_OF_TIME, 10) == END_OF_TIME
    assert progress.ended


def test_the_output_never_goes_back():
    progress = Progress(Tracker({"t"}), applied=30, output=30)
    assert progress.hand_on(30, 10) == progress.hand_on(None, 0) == 30


@pytest.mark.parametrize(("watermark", "after", "at"), [(12, 11, 12), (END_OF_TIME, END_OF_TIME, END_OF_TIME)])
def test_spark_is_driven_one_millisecond_below_unless_told_otherwise(watermark, after, at):
    assert (spark_watermark(watermark, "after"), spark_watermark(watermark, "at")) == (after, at)


def test_a_snapshot_is_the_whole_state():
    progress = Progress(Tracker({"t"}), counts=Counter(late=2), epoch=7)
    told(progress, 30)
    progress.hand_on(progress.advance(), 0)
    again = Progress.restore(progress.snapshot(), "here")
    assert again.snapshot() == progress.snapshot()
    told(again, 40, 1)
    assert again.hand_on(again.advance(), 0) == 40


@pytest.mark.parametrize("damage", [{"format": 99}, {"tracker": None}, {"counts": 3}])
def test_a_damaged_snapshot_is_refused(damage):
    good = Progress(Tracker({"t"})).snapshot()
    with pytest.raises(CorruptSnapshotError):
        Progress.restore({**good, **damage}, "here")
