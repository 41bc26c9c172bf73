"""The batches of a replay, as a law; and what a checkpoint keeps of a start_point."""

from types import SimpleNamespace

import pytest
from floodmark.schemas.errors import CorruptSnapshotError
from floodmark.spark_jobs.internals.files import LocalFiles
from floodmark.spark_jobs.queries.plan import Operator
from floodmark.spark_jobs.start.job_start import JobStart
from floodmark.spark_jobs.start.start_options import Start
from floodmark.spark_jobs.start.start_point import StartPoint, store, stored
from hypothesis import given
from hypothesis import strategies as st

ranges = st.dictionaries(
    st.sampled_from([("t", 0), ("t", 1), ("t", 2)]), st.tuples(st.integers(0, 50), st.integers(0, 500)), min_size=1
)


@given(ranges, st.none() | st.integers(1, 300), st.sampled_from([0, 70]))
def test_the_batches_of_a_replay_read_all_once_and_only_the_last_one_has_a_watermark(parts, most, ran):
    begins = {part: begin for part, (begin, _) in parts.items()}
    ends = {part: begin + size for part, (begin, size) in parts.items()}
    start_point = StartPoint(begins, ends, ran=ran, most=most)
    steps = list(start_point.steps())
    if ran:
        assert steps.pop() == (ends, ran)
    at = begins
    for end, watermark in steps:
        assert watermark == 0
        read = {part: end[part] - at[part] for part in parts}
        assert min(read.values()) >= 0
        assert most is None or sum(read.values()) <= most + len(parts)  # a share is rounded in each partition
        at = end
    assert at == ends


def test_a_checkpoint_keeps_it(tmp_path):
    files = LocalFiles(tmp_path)
    assert stored(files) is None
    start_point = StartPoint(
        {("t", 0): 5}, {("t", 0): 11}, 70, 60, 3, most=9, output_at=12, follows=("old", 8), ids={"t": "Xq3"}
    )
    store(files, start_point)
    assert stored(files) == start_point
    files.write("floodmark/start.json", '{"begins": ')
    with pytest.raises(CorruptSnapshotError, match="new checkpoint_location"):
        stored(files)


@pytest.mark.parametrize("published", ["refuse", "continue", "repeat"])
@pytest.mark.parametrize("follows", [None, ("old", 8), ("old", 9)])
def test_the_first_batch_comes_after_the_one_that_the_checkpoint_continues_after(tmp_path, published, follows):
    files = LocalFiles(tmp_path)
    if follows is not None:
        store(files, StartPoint({("t", 0): 5}, follows=follows))
    snapshots = SimpleNamespace(checkpoint=SimpleNamespace(files=files, is_planned=True))
    start = JobStart("job", None, [], snapshots, Start(published=published), Operator("Project"), "after")
    assert start.may_follow(("old", 9)) is (published == "repeat" or follows == ("old", 9))
    assert start.may_follow(None) is (follows is None)
