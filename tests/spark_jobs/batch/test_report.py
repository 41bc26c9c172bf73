"""What a batch says of itself, and what is logged where batches do not move the watermark."""

import json
from datetime import timedelta
from types import SimpleNamespace

from floodmark.producers.testing import mark
from floodmark.schemas import Holder, Tracker
from floodmark.schemas.classify import Mark
from floodmark.schemas.tracker import UNMARKED, Hold
from floodmark.spark_jobs.batch.report import Batch, Standstill
from floodmark.spark_jobs.progress.progress import Progress

AT = 1_767_225_600_000
SHOWN = "2026-01-01T00:00:00.000+00:00"


def batch(**fields):
    counts = ("records", "marks", "late", "unreadable", "missing_event_time", "out_of_range", "unreadable_marks")
    zero = dict.fromkeys((*counts, "tombstones", "lost", "surplus", "rows", "batch_id"), 0)
    times = {"watermark": AT, "promised": None, "output": AT}
    return Batch(**{"job": "clicks", "ended": False, "duration": timedelta(seconds=0.5), **times, **zero, **fields})


def test_a_batch_shows_its_times_and_what_it_counted():
    assert repr(batch(batch_id=3, late=2)) == (
        f"Batch(job='clicks', batch_id=3, watermark={SHOWN}, promised=unknown, output={SHOWN}, records=0, late=2, "
        "rows=0, duration=0:00:00.500000, batch_watermark=unknown, processing_time_watermark=unknown)"
    )
    told = json.loads(batch().to_json())
    assert (told["watermark"], told["duration"]) == (AT, 0.5), "numbers for programs"


def test_a_job_says_once_who_holds_a_watermark_that_stands_still(caplog):
    standstill = Standstill("clicks")
    progress = SimpleNamespace(
        ended=False, watermark=AT, holders=lambda: [Hold(Holder("t", 0, "web-1"), AT, "lowest watermark", AT + 1)]
    )

    def said():  # of all that the process logs
        return [record for record in caplog.records if record.name == Standstill.__module__]

    for _ in range(9):
        standstill.note(progress, moved=False)
    assert said() == []
    for _ in range(20):
        standstill.note(progress, moved=False)
    (record,) = said()
    assert record.getMessage() == (
        f"job clicks: 10 batches have not moved the watermark ({SHOWN}): "
        f"t/0/web-1: lowest watermark {SHOWN}, since 2026-01-01T00:00:00.001+00:00"
    )
    standstill.note(progress, moved=True)
    for _ in range(10):
        standstill.note(progress, moved=False)
    assert len(said()) == 2, "once more, after it has moved"
    for _ in range(20):
        standstill.note(SimpleNamespace(**{**vars(progress), "ended": True}), moved=False)
    assert len(said()) == 2


def test_a_job_names_a_topic_without_marks_in_the_first_batch_with_its_rows(caplog):
    standstill, progress = Standstill("clicks"), Progress(Tracker({"plain", "marked"}))
    progress.apply([Mark("marked", 0, 0, 5, mark("web", AT, 0))])
    standstill.note(progress, moved=False)
    assert caplog.messages == [], "no row was read of it"
    for _ in range(2):
        standstill.note(progress, moved=False, read={"plain", "marked"})
    assert caplog.messages == [f"job clicks has read rows, but has no watermark. Topic plain: {UNMARKED}"]
