"""The batches of a replay, as a law; and what a checkpoint keeps of a start_point."""

from types import SimpleNamespace

import pytest
from floodmark.producers.testing import mark
from floodmark.schemas.classify import Mark
from floodmark.schemas.errors import CorruptSnapshotError, UsageError
from floodmark.schemas.records import Status
from floodmark.schemas.tracker import MarkPolicy, Tracker
from floodmark.spark_jobs.internals.files import LocalFiles
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.unusable import Skipped
from floodmark.spark_jobs.progress.watermarks import spark_watermark
from floodmark.spark_jobs.queries.plan import Operator
from floodmark.spark_jobs.start import prepare_checkpoint, progress_from_topics
from floodmark.spark_jobs.start.job_start import JobStart
from floodmark.spark_jobs.start.progress_from_topics import ProgressFromTopics
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


def test_a_replay_in_steps_takes_the_watermark_of_its_end_alone(tmp_path, monkeypatch):
    """A step ends at a share of each topic's offsets: where `b` is still idle, `a` may be hours ahead."""
    log = {
        "a": [mark("a", 900, 0), *[mark("a", 900 + at, at) for at in range(1, 9)], mark("a", 1_000, 9)],
        "b": [mark("b", 0, at, status=Status.IDLE) for at in range(8)] + [mark("b", 0, 8), mark("b", 800, 9)],
    }
    seen = []

    class Topics(ProgressFromTopics):
        def __init__(self, *_arguments):
            self._specs = [
                SimpleNamespace(topics=[name], mark_policy=MarkPolicy(), connection=SimpleNamespace(config=dict))
                for name in log
            ]
            self._read, self.has_records, self._has_read = dict.fromkeys(ends, 0), True, True
            self._tracker = Tracker(list(log))
            self.progress = Progress(self._tracker)

        def _marks(self, _spec, end):
            for (name, number), at in end.items():
                for offset in range(self._read[name, number], at):
                    yield Mark(name, number, offset, 0, log[name][offset])

    ends = {(name, 0): len(entries) for name, entries in log.items()}
    files = LocalFiles(tmp_path)
    checkpoint = SimpleNamespace(
        files=files,
        last_committed=None,
        is_planned=True,
        begin_at=lambda _: None,
        plan=lambda *_: None,
        raise_watermark=lambda _, watermark: seen.append(watermark),
    )
    snapshots = SimpleNamespace(checkpoint=checkpoint, store=lambda _, found: seen.append(found["next_watermark"]))
    monkeypatch.setattr(prepare_checkpoint, "ProgressFromTopics", Topics)
    monkeypatch.setattr(prepare_checkpoint, "_run", lambda *_: None)
    monkeypatch.setattr(progress_from_topics, "is_to_end", lambda *_: True)
    start_point = StartPoint(dict.fromkeys(ends, 0), ends, ran=70, epoch=3, most=5)
    prepare_checkpoint.prepare_checkpoint(start_point, None, [], snapshots, None, job="job", windows_close="after")
    assert seen == [spark_watermark(800, "after"), 800]


@pytest.mark.parametrize("continues", [False, True])
def test_only_records_that_an_earlier_checkpoint_has_read_count_as_usable(continues):
    """Else a wrong format of a job that starts at a time would never be an error."""
    topics = object.__new__(ProgressFromTopics)
    spec = SimpleNamespace(topics=["t"], mark_policy=MarkPolicy())
    topics._specs, topics._read, topics._has_read = [spec], {}, continues
    topics._tracker = Tracker(["t"])
    topics._marks = lambda *_: iter([])
    topics.progress = Progress(topics._tracker)
    topics.read_to({("t", 0): 9})
    topics.progress.tally("t", 0, {"unreadable": Skipped(5, "t", 0, 7)})
    assert (topics.progress.nothing_usable(["t"]) is None) is continues


@pytest.mark.parametrize("continued", [{"epoch": 7}, {"follows": ("old", 3)}])
def test_a_job_that_continues_may_keep_its_output_at(continued):
    """Marks that are written at least once have no number of a batch."""
    given = {"output_at": 60, **continued}
    prepare_checkpoint._require_below(StartPoint({("t", 0): 5}, {("t", 0): 9}, **given), 100)  # noqa: SLF001  # Spark
    with pytest.raises(UsageError, match=r"output_at is .* so it would drop rows"):
        prepare_checkpoint._require_below(StartPoint({("t", 0): 5}, output_at=60), 100)  # noqa: SLF001  # the same


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
