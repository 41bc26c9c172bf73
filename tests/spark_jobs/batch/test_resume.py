"""A start tells Spark no more than the records justify that the next batch reads, whatever was lost since."""

import json
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from floodmark.producers.tables.table_mark import TableMark
from floodmark.schemas import Membership, Tracker
from floodmark.schemas.classify import Data, Mark
from floodmark.schemas.errors import UnreadInputError
from floodmark.schemas.records import WatermarkRecord
from floodmark.schemas.tracker import MarkPolicy
from floodmark.spark_jobs.batch import lookahead, resume
from floodmark.spark_jobs.batch.handler import BatchHandler
from floodmark.spark_jobs.batch.handler_settings import Settings
from floodmark.spark_jobs.batch.snapshots import JobIdentity, Snapshots
from floodmark.spark_jobs.internals import checkpoint
from floodmark.spark_jobs.internals.checkpoint import Committed
from floodmark.spark_jobs.internals.files import LocalFiles
from floodmark.spark_jobs.lookahead.marks_ahead import MarksAhead
from floodmark.spark_jobs.progress.offsets import to_spark
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.published import Published, StoredPosition
from floodmark.spark_jobs.progress.watermarks import spark_watermark
from floodmark.spark_jobs.reading.source_spec import Connection, SourceSpec
from floodmark.spark_jobs.start.job_output import job_output
from hypothesis import given, settings
from hypothesis import strategies as st

SOURCES, PARTITIONS = ("a", "b"), 3  # the third partition is added between two starts
STEPS = st.tuples(st.sampled_from(SOURCES), st.integers(1, 9), st.integers(0, 9))


def marks_of(partition, entries):
    """Write the marks of a partition: each source advances, half of the events are expected to be later."""
    reached, found = dict.fromkeys(SOURCES, 0), []
    for place, (source, step, early) in enumerate(entries):
        reached[source] += step
        record = WatermarkRecord(
            source=source,
            epoch=1,
            sequence=place,
            watermark=reached[source],
            percentiles={50: reached[source] + early},
            partitions=2,
            emitted_at=0,
            membership=Membership(1, len(SOURCES)),
        )
        found.append(Mark("t", partition, offset=2 * place + 1, log_time=0, record=record))
    return found


def ends(cut):
    return {("t", number): 2 * marks for number, marks in enumerate(cut) if marks is not None}


def later(draw, log, cut):
    """Draw where more of each partition is read; the third one is not there."""
    return [*(draw(st.integers(at, len(part))) for at, part in zip(cut, log[:2], strict=False)), None]


@st.composite
def histories(draw):
    entries = draw(st.lists(st.lists(STEPS, min_size=4, max_size=9), min_size=PARTITIONS, max_size=PARTITIONS))
    told = [[(source, 2, 0) for source in SOURCES] * 2] * 2 + [[]]
    log = [marks_of(number, [*first, *more]) for number, (first, more) in enumerate(zip(told, entries, strict=True))]
    before = later(draw, log, draw(st.sampled_from([[0, 0], [4, 4]])))
    last = later(draw, log, before)
    planned = later(draw, log, last)
    return History(
        log=log,
        way=MarkPolicy(draw(st.sampled_from([None, 50]))),
        close=draw(st.sampled_from(["after", "at"])),
        before=before,
        last=last,
        had_looked_ahead=draw(st.booleans()),
        ahead=draw(st.sampled_from([later(draw, log, last), [*map(len, log[:2]), None]])),
        planned=draw(st.sampled_from([None, None, planned, [*planned[:2], len(log[2])]])),
        deleted=draw(st.sampled_from([[0, 0, 0], [*later(draw, log, [0, 0])[:2], 0], [*last[:2], 0]])),
        lost=draw(st.sampled_from([False, True, True])),
    )


@dataclass
class History:
    """A job's last batches; cuts are numbers of marks."""

    log: list
    way: MarkPolicy
    close: str
    before: list
    """Where the batch before the last one ended."""
    last: list
    had_looked_ahead: bool
    """Whether the last batch ran with what it read itself."""
    ahead: list
    """How far the job looks ahead after it."""
    planned: list | None
    deleted: list
    """What Kafka deletes then."""
    lost: bool
    """Whether the last snapshot is."""

    def marks(self, cut):
        return [mark for part, marks in zip(self.log, cut, strict=True) for mark in part[: marks or 0]]

    def known(self, *cuts):
        """Return what a job knows after batches that ended there."""
        promised = None if self.way.percentile is None else Tracker({"t"})
        progress, read = Progress(Tracker({"t"}), full_tracker=promised), []
        for cut in cuts:
            progress.apply([mark for mark in self.marks(cut) if mark not in read], {"t": self.way})
            read = self.marks(cut)
        return progress

    def told(self, progress):
        watermark = progress.next_watermark
        return 0 if watermark is None else spark_watermark(watermark, self.close)

    def foreseen(self):
        marks_ahead = MarksAhead({"t": self.way})
        marks_ahead.start_from(self.known(self.before, self.last).tracker_copy(), ends(self.last))
        for mark in self.marks(self.ahead):
            marks_ahead.add_mark(mark)
        return marks_ahead.ahead()

    def read_until_end(self, _config, _starts, stops):
        for gone, part in zip(self.deleted, self.log, strict=True):
            yield from (mark for mark in part[gone:] if mark.offset < stops.get(("t", mark.partition), 0))


def note(files, name, fields, offsets):
    files.write(name, "\n".join(["v1", json.dumps(fields), json.dumps(to_spark(offsets))]))


def started(history, ran, progress):
    """Write the checkpoint of a history and start the job; gives the watermarks in Spark's commit and plan."""
    spec = SourceSpec("read", Connection(("t",), "nowhere:1"), None, None, percentile=history.way.percentile)
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "files", lambda _spark, folder: LocalFiles(Path(folder)))
        patch.setattr(resume, "read_until_end", history.read_until_end)
        snapshots, after = Snapshots(None, place), max(ran, history.told(progress))
        files = snapshots.checkpoint.files
        Path(place, "state").mkdir()
        note(files, "offsets/7", {"batchWatermarkMs": ran}, ends(history.last))
        note(files, "commits/7", {"nextBatchWatermarkMs": after}, {})
        if history.planned is not None:
            note(files, "offsets/8", {"batchWatermarkMs": after}, ends(history.planned))
        if not history.lost:
            snapshots.store(7, progress.snapshot())
        lookahead.withdraw_at_start([spec], snapshots, Settings(rebuild=True, windows_close=history.close))
        snapshots.checkpoint.plan_empty_batch()
        commit = json.loads(files.read("commits/7").splitlines()[1])["nextBatchWatermarkMs"]
        return commit, snapshots.checkpoint.planned_watermark(8)


@given(histories())
@settings(max_examples=300, deadline=None)
def test_the_next_batch_runs_with_no_more_than_its_records_justify(history):
    progress, ahead = history.known(history.before, history.last), history.foreseen()
    ran = history.told(progress if history.had_looked_ahead else history.known(history.before))
    if ahead is not None:
        progress.look_ahead(ahead)
    commit, plan = started(history, ran, progress)

    is_covered = ahead is not None and history.planned is not None and ahead.is_covered(ends(history.planned))
    foreseen = [history.ahead] if is_covered else []
    justified = history.told(history.known(history.before, history.last, *foreseen, history.planned or history.last))
    assert plan <= max(ran, justified)
    assert history.planned is not None or commit <= max(ran, justified)
    assert (plan or commit) >= ran, "what the last batch has dropped does not come back"
    exact = not (history.lost and (any(history.deleted) or (history.planned or [0])[-1]))
    if (ahead is None or is_covered) and exact:
        assert (plan or commit) == max(ran, history.told(progress)), "a batch that may have been written runs as before"


@pytest.mark.parametrize("last", [None, Committed(7, {}, 0)], ids=["no snapshot", "an older snapshot"])
def test_the_epoch_is_higher_than_the_last_one_in_the_output_although_the_clock_is_behind(last, monkeypatch):
    """Otherwise readers would take the new marks for those of an older run, and ignore them.

    The older instance can write until the sink fences it, also after the new one has read its progress.
    """
    position = StoredPosition("old", 7, 700, Published({}, 0)).text
    mark = TableMark(job="job", epoch=10**15, batch=7, watermark=700, position=position)
    monkeypatch.setattr("floodmark.spark_jobs.start.job_output.clone", lambda spark: spark)
    marks = []
    table = SimpleNamespace(name="t", newest=lambda _: marks[-1] if marks else None, failing=lambda _: nullcontext())
    output = job_output(None, None, table, {}, "job", None)
    snapshots = SimpleNamespace(load=lambda _: Progress(Tracker([]), epoch=5))
    monkeypatch.setattr("floodmark.spark_jobs.batch.handler.committed", lambda _: last)
    sink = SimpleNamespace(open=lambda: marks.append(mark), target=None, close=lambda: None)
    identity, settings = JobIdentity("job", (), None), Settings(epoch=lambda: output.last().epoch if marks else 0)
    handler = BatchHandler(identity, [], sink, snapshots, settings, recent=1)
    handler.attach(SimpleNamespace(id="id", runId="run"), None, lambda: None)
    handler._closed.set()  # noqa: SLF001  # its thread ends
    assert handler.progress.epoch == 10**15 + 1


@pytest.mark.parametrize("marks", [0, resume._MOST + 1])  # noqa: SLF001  # its bound
def test_records_after_the_end_are_refused_however_many_marks_are_before_them(monkeypatch, marks):
    spec = SimpleNamespace(topics=["t"], connection=SimpleNamespace(config=dict))
    unread = [*[Mark("t", 0, 0, 0, None)] * marks, Data("t", 0, 7, 0, None, b"")]
    monkeypatch.setattr(resume, "offset_bounds", lambda *_: {("t", 0): (0, 9)})
    monkeypatch.setattr(resume, "read_until_end", lambda *_: iter(unread))
    with pytest.raises(UnreadInputError, match=r"1 record.*t/0 from offset 7"):
        resume.refuse_unread("job", [spec], Progress(Tracker(["t"])), {("t", 0): 0})
