"""What a job knows of its progress: the laws of its watermarks, and that its snapshots are taken up."""

import ast
import json
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from floodmark.producers.testing import mark
from floodmark.schemas import END_OF_TIME, Tracker, is_late
from floodmark.schemas.classify import Mark
from floodmark.schemas.errors import CorruptSnapshotError
from floodmark.schemas.tracker import MarkPolicy
from floodmark.spark_jobs.lookahead.marks_ahead import Ahead
from floodmark.spark_jobs.progress.ignored import Ignored
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.unusable import Skipped
from floodmark.spark_jobs.progress.watermarks import Stamp, spark_watermark
from hypothesis import given, settings
from hypothesis import strategies as st

SPARK_JOBS = Path(__file__).parents[3] / "spark_jobs"


def marked(watermark, sequence=0, *, partition=0, percentiles=None, **more):
    record = replace(mark("a", watermark, sequence, **more), percentiles=percentiles)
    return Mark("t", partition, sequence, 0, record)


def test_the_marks_of_a_batch_give_the_watermark_of_the_next():
    progress = Progress(Tracker({"t"}))
    progress.apply([marked(30)])
    assert progress.next_watermark == progress.watermark == 30
    assert progress.output is None


def test_a_hold_keeps_the_output_back_and_the_end_releases_it():
    progress, stamp = Progress(Tracker({"t"})), Stamp.held(timedelta(milliseconds=10))
    assert progress.finish_batch(stamp.output(None, "after")) is None
    assert progress.finish_batch(stamp.output(30, "after")) == 20
    assert not progress.ended
    assert progress.finish_batch(stamp.output(END_OF_TIME, "after")) == END_OF_TIME
    assert progress.ended


batches = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 1), st.integers(0, 100), st.integers(0, 50))),
        st.booleans(),
        st.integers(0, 20),
        st.sampled_from(["go on", "restart", "lose the snapshot"]),
    )
)


@settings(deadline=None)
@given(batches, st.booleans())
def test_watermarks_keep_their_order_over_batches_and_restarts(history, percentile):
    """All events together never allow more than what drives; the output never goes back, nor ahead of what is known."""
    progress, sequences, output = Progress(Tracker({"t"})), [0, 0], None
    progress.resume(now=0, percentile=percentile)
    for marks, stateful, hold, then in history:
        batch_watermark = progress.next_watermark
        batch = []
        for partition, watermark, more in marks:
            percentiles = {50: watermark + more, 100: watermark}
            options = {"partition": partition, "partitions": 2}
            batch.append(marked(watermark, sequences[partition], percentiles=percentiles, **options))
            sequences[partition] += 1
        progress.apply(batch, {"t": MarkPolicy(50 if percentile else None)})
        complete = batch_watermark if stateful else progress.next_watermark
        stamp = Stamp.held(timedelta(milliseconds=hold))
        before, output = output, progress.finish_batch(stamp.output(complete, "after"))
        assert before is None or (output is not None and not is_late(output, before))
        assert output is None or output <= progress.next_watermark
        if progress.promised is not None:
            assert progress.promised <= progress.next_watermark
        if not percentile:
            assert progress.promised == progress.watermark
        if then != "go on":
            epoch = progress.epoch
            progress = Progress.restore(json.loads(json.dumps(progress.snapshot())), "here")
            progress.resume(now=0, percentile=percentile)
            assert progress.epoch > epoch
        if then == "lose the snapshot":
            complete = progress.complete_after_rebuild(progress.next_watermark, stateful=stateful)
            output = progress.finish_batch(stamp.output(complete, "after"))


@pytest.mark.parametrize(
    ("batch_watermark", "stateful", "output"),
    [(30, False, 30), (30, True, None), (END_OF_TIME, True, None), (None, False, 30)],
)
def test_a_rebuilt_job_hands_on_only_what_is_certainly_complete(batch_watermark, stateful, output):
    progress = Progress(Tracker({"t"}), next_watermark=30)
    assert progress.finish_batch(progress.complete_after_rebuild(batch_watermark, stateful=stateful)) == output


def test_a_rebuilt_job_that_had_ended_has_ended():
    progress = Progress(Tracker({"t"}), next_watermark=END_OF_TIME)
    progress.finish_batch(progress.complete_after_rebuild(END_OF_TIME, stateful=True))
    assert progress.ended


@pytest.mark.parametrize(("watermark", "after", "at"), [(12, 11, 12), (END_OF_TIME, END_OF_TIME, END_OF_TIME)])
def test_spark_is_driven_one_millisecond_below_unless_told_otherwise(watermark, after, at):
    assert (spark_watermark(watermark, "after"), spark_watermark(watermark, "at")) == (after, at)


def test_a_snapshot_is_the_whole_state():
    progress = Progress(Tracker({"t"}), counts={"late": 2}, epoch=7)
    progress.apply([marked(30)])
    progress.finish_batch(30)
    progress.look_ahead(Ahead(35, {("t", 0): 3}))
    progress.topic_ids["t"] = "Xq3"
    again = Progress.restore(progress.snapshot(), "here")
    assert again.snapshot() == progress.snapshot()
    assert again.topic_ids == {"t": "Xq3"}
    again.apply([marked(40, 1)])
    assert again.finish_batch(again.next_watermark) == 40


def test_a_watermark_ahead_drives_the_next_batch_alone():
    progress = Progress(Tracker({"t"}))
    progress.apply([marked(30)])
    progress.look_ahead(Ahead(40, {("t", 0): 2}))
    assert (progress.watermark, progress.next_watermark) == (30, 40)
    progress.apply([marked(40, 1), marked(45, 2)])
    assert (progress.watermark, progress.next_watermark, progress.ahead) == (45, 45, None)


def test_a_watermark_ahead_holds_as_soon_as_its_marks_are_read():
    """A source that comes back with less, behind those marks, does not take it back."""
    progress = Progress(Tracker({"t"}))
    progress.look_ahead(Ahead(40, {("t", 0): 1}))
    back = replace(marked(10, epoch=2), offset=1)
    progress.apply([marked(40), back])
    assert progress.is_at_least(40)


@pytest.mark.parametrize(
    ("planned", "forgotten"), [(None, True), ({("t", 0): 2}, True), ({("t", 0): 3}, False), ({}, True)]
)
def test_at_a_start_it_stays_only_where_the_planned_batch_reads_it(planned, forgotten):
    progress = Progress(Tracker({"t"}), next_watermark=30)
    progress.look_ahead(Ahead(40, {("t", 0): 3}))
    assert progress.withdraw_ahead(planned) is forgotten
    assert progress.next_watermark == (30 if forgotten else 40)
    assert progress.withdraw_ahead(planned) is False


def test_counts_and_what_each_topic_brought_are_kept_apart():
    progress = Progress(Tracker({"t"}))
    progress.tally("t", 0, {"unreadable": Skipped(1, "t", 1, 9), "missing_event_time": Skipped(3, "t", 1, 7)})
    progress.finish_batch(None, {"late": 1, "missing_event_time": 3})
    again = Progress.restore(json.loads(json.dumps(progress.snapshot())), "here")
    assert again.counts == {"late": 1, "missing_event_time": 3}
    error = again.nothing_usable(["t"])
    assert (error.count, error.partition, error.offset) == (4, 1, 7), "the first of all kinds"
    again.tally("t", 2, {})
    assert again.nothing_usable(["t"]) is None


@pytest.mark.parametrize("damage", [{"format": 2}, {"tracker": None}, {"counts": 3}, {"records_by_topic": {"t": [1]}}])
def test_a_damaged_snapshot_is_refused(damage):
    good = Progress(Tracker({"t"})).snapshot()
    with pytest.raises(CorruptSnapshotError):
        Progress.restore({**good, **damage}, "here")


def test_only_its_own_methods_change_it():
    progress = Progress(Tracker({"t"}))
    for name in ("watermark", "next_watermark", "promised", "output", "epoch", "ended", "anything"):
        with pytest.raises(AttributeError):
            setattr(progress, name, 1)
    progress.counts["late"] = 5
    assert "late" not in progress.counts


def test_no_module_assigns_to_what_a_progress_holds():
    for path in SPARK_JOBS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                owner = target.value if isinstance(target, ast.Attribute) else None
                name = getattr(owner, "attr", getattr(owner, "id", ""))
                assert not name.endswith("progress"), f"{path}:{node.lineno}"


def test_marks_of_a_backlog_from_before_a_membership_change_are_of_no_process_that_writes():
    """One partition of a backlog may be read past the change before another."""
    tracker, ignored = Tracker({"t"}), Ignored()

    def read(partition, versions):
        for version in versions:
            found = Mark("t", partition, 0, 0, mark("web", 5, next(sequence), version=version, epoch=version))
            ignored.take(found, tracker.apply(found.record, topic="t", partition=partition, log_time=0), tracker)
        return [str(process) for process in ignored.news()]

    sequence = count()
    assert read(0, [1, 1, 2]) == read(1, [1, 1, 1]) == []
    assert len(read(1, [2, 1, 1])) == 1
