"""The law of late rows: a row is late by what stands before it in its partition, wherever batches and chunks cut it."""

import base64
import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
from floodmark.producers.testing import mark
from floodmark.schemas import Status, encode_watermark, is_late, mark_key
from floodmark.schemas.classify import Mark
from floodmark.schemas.errors import EventTimeShiftError
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.schemas.tracker import MarkPolicy, Tracker, driving, shifted
from floodmark.spark_jobs.batch.handler import BatchHandler
from floodmark.spark_jobs.batch.output_observation import Output
from floodmark.spark_jobs.progress.lateness import NOTHING, LateThresholds, Promises
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.reconcile import parse_marks
from floodmark.spark_jobs.reading.event_time import Derived
from floodmark.spark_jobs.reading.judge import judge
from floodmark.spark_jobs.reading.observation import Observation
from hypothesis import given, settings
from hypothesis import strategies as st

PLACE = ("t", 0)


def written(record, offset):
    """Write a mark as the scan brings it."""
    key, value = (base64.b64encode(part).decode() for part in (mark_key(record.source), encode_watermark(record)))
    place = {"topic": "t", "partition": 0, "offset": offset, "log_time": offset}
    return json.dumps([{**place, "key": key, "value": value}])


@st.composite
def logs(draw):
    """A log of one partition: ``None`` for a row, else a mark of one of two sources, restarts and naps among them."""
    size, sequences, log = draw(st.integers(1, 2)), {"a": -1, "b": -1}, []
    epochs = {"a": 1, "b": 1}
    for _ in range(draw(st.integers(0, 25))):
        if draw(st.booleans()):
            log.append(None)
            continue
        source = draw(st.sampled_from("ab"[:size]))
        if draw(st.integers(0, 9)) == 0:
            epochs[source], sequences[source] = epochs[source] + 1, -1
        sequences[source] += 1
        watermark = draw(st.one_of(st.none(), st.integers(0, 100)))
        status = draw(st.sampled_from([Status.ACTIVE, Status.ACTIVE, Status.ACTIVE, Status.IDLE]))
        which = {"epoch": epochs[source], "status": status, "size": size, "partitions": 3}
        log.append(mark(source, watermark, sequences[source], **which))
    return log


def plainly(log, shift):
    """What stands before each record: the highest watermark that a tracker of this partition alone ever had."""
    tracker, highest, found = Tracker(["t"]), NOTHING, []
    for offset, entry in enumerate(log):
        found.append(highest)
        if entry is not None:
            tracker.apply(shifted(entry, shift), topic="t", partition=0, log_time=offset)
            now = tracker.partition_watermark(*PLACE)
            highest = highest if now is None else max(highest, now)
    return found


@settings(deadline=None)
@given(logs(), st.lists(st.integers(0, 25)), st.lists(st.integers(0, 25)), st.sampled_from([0, 30]))
def test_neither_batches_nor_chunks_change_what_is_late(log, batches, chunks, shift):
    found, promises = [], Promises()
    bounds = sorted({0, len(log), *(cut for cut in batches if cut < len(log))})
    for start, end in itertools.pairwise(bounds):
        thresholds = LateThresholds.of(
            LateThresholds(Promises.restore(promises.snapshot()), NOTHING, None, shift).to_text(["t"])
        )
        inner = sorted({start, end, *(cut for cut in chunks if start < cut < end)})
        for begin, stop in itertools.pairwise(inner):
            texts = [None if log[at] is None else written(log[at], at) for at in range(begin, stop)]
            size = stop - begin
            columns = pd.Series(["t"] * size), pd.Series([0] * size), pd.Series(texts, dtype=object)
            found += list(judge(thresholds, *columns)["watermark"])
        for at in range(start, end):  # as the handler does behind the batch
            if log[at] is not None:
                (seen,) = parse_marks(written(log[at], at))
                promises.apply(seen, None, shift)
    assert found == plainly(log, shift)


@settings(deadline=None, max_examples=300)
@given(
    late=st.sampled_from([None, "drop", "adjust"]),
    before=st.lists(st.integers(0, 60), min_size=1, max_size=2),
    ends=st.sampled_from([False, False, True]),
    within=st.lists(st.integers(0, 60), max_size=2),
    rows=st.lists(st.tuples(st.integers(-20, 5), st.integers(-10, 5)), min_size=1, max_size=2),
    reads=st.integers(0, 5),
    derives=st.integers(5, 20),
)
def test_a_row_fails_the_job_only_if_its_time_is_moved_further_than_the_shift(
    late, before, ends, within, rows, reads, derives
):
    """``late=`` judges a row by its own time; then `event_time` moves it back.  Rows are drawn near both limits."""
    rows = [(max(1, max(before) - reads + near), max(0, derives + more)) for near, more in rows]
    progress, shift = Progress(Tracker(["t"])), reads + derives
    progress.resume(now=1, judged=True)
    written_before = [mark("a", time, number) for number, time in enumerate(before)]
    if ends:
        written_before.append(mark("a", 60, len(before), status=Status.ENDED))
    applied = [Mark("t", 0, number, 0, one) for number, one in enumerate(written_before)]
    progress.apply(applied, {"t": MarkPolicy(None, shift)})
    watermark = progress.watermark
    promised = END_OF_TIME if ends else max(before) - reads
    assert watermark == promised - (0 if ends else derives)

    first = len(applied)
    texts = [written(mark("a", time, first + number), first + number) for number, time in enumerate(within)]
    texts = [*texts, *[None] * len(rows)]
    columns = pd.Series(["t"] * len(texts)), pd.Series([0] * len(texts)), pd.Series(texts, dtype=object)
    thresholds = LateThresholds.of(progress.thresholds(None, shift, derives).to_text(["t"]))
    judged = judge(thresholds, *columns)["watermark"][len(within) :]
    assert max(judged) <= END_OF_TIME
    results = []  # the derived times, and how far each is moved
    for (time, moved), threshold in zip(rows, judged, strict=True):
        if late != "drop" or time >= threshold:
            results.append(((max(time, threshold) if late == "adjust" else time) - moved, moved))
    for derived, moved in results:
        on_time = late is not None or derived + moved >= promised
        assert ends or not on_time or moved > derives or not is_late(derived, watermark)

    observed = SimpleNamespace(
        inputs=[(SimpleNamespace(late=late), Observation(earliest=min(time for time, _ in rows)))],
        metrics={"o": {"earliest": min([derived for derived, _ in results], default=None)}},
        output=Output(),
    )
    handler = SimpleNamespace(
        identity=SimpleNamespace(job="j"),
        _settings=SimpleNamespace(derived=Derived(derives, ("o",))),
        progress=progress,
    )
    too_far = [moved > derives and is_late(derived, watermark) for derived, moved in results]
    try:
        BatchHandler._check(handler, 1, observed, passes_late=False, watermark=watermark)  # noqa: SLF001  # the check alone
        assert len(rows) > 1 or not any(too_far)
    except EventTimeShiftError:
        assert any(too_far)


def test_the_watermark_of_the_batch_judges_where_the_partition_knows_less():
    found = judge(
        LateThresholds(Promises(), 50, None), pd.Series(["t"]), pd.Series([0]), pd.Series([None], dtype=object)
    )
    assert found.to_dict("list") == {"watermark": [50], "of_partition": [False]}


def test_what_a_tracker_knows_is_taken_up():
    tracker = Tracker(["t"])
    tracker.apply(mark("a", 30, partitions=2), topic="t", partition=1, log_time=0)
    promises = Promises.of(tracker)
    assert [promises.promised(("t", number)) for number in range(2)] == [NOTHING, 30]
    (seen,) = parse_marks(written(mark("a", 40, 1, partitions=2), 5))
    promises.apply(replace(seen, partition=1))
    assert promises.promised(("t", 1)) == 40


def test_a_percentile_judges_where_it_drives():
    record = replace(mark("a", 10), percentiles={33: 40, 66: 30, 100: 10})
    assert [driving(record, percent).watermark for percent in (None, 20, 33, 50, 100)] == [10, 40, 40, 30, 10]
