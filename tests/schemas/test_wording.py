"""Times as people read them: in what is printed, and in what errors say."""

import pytest
from floodmark.schemas.checker import Checker
from floodmark.schemas.classify import classify, mark_record
from floodmark.schemas.completeness.complete_rows import Window
from floodmark.schemas.completeness.position import Position
from floodmark.schemas.errors import DeliveryError, LateRecordError, PromiseBrokenError, WatermarkRegressionError
from floodmark.schemas.errors.base import iso
from floodmark.schemas.records import Holder, Membership, WatermarkRecord
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME, event_time_of, to_datetime
from floodmark.schemas.tracker import Hold, Tracker
from hypothesis import given
from hypothesis import strategies as st

AT = 1_767_225_600_000
SHOWN = "2026-01-01T00:00:00.000+00:00"


@given(st.integers(EARLIEST, END_OF_TIME - 1))
def test_every_time_of_the_calendar_is_shown_as_it_is(time):
    assert event_time_of(to_datetime(time).fromisoformat(iso(time))) == time


def test_the_edges_of_the_calendar():
    assert iso(END_OF_TIME) == "end of time"
    assert iso(None) == "unknown"
    assert iso(10**30) == str(10**30)
    assert iso(END_OF_TIME + 1) == str(END_OF_TIME + 1)


@pytest.mark.parametrize(
    "error",
    [
        LateRecordError(source="a", event_time=5, watermark=AT),
        WatermarkRegressionError(source="a", last=AT, received=5),
        DeliveryError(source="a", failed=1, topic="t", reason="r", held_at=AT),
        PromiseBrokenError(job="j", event_time=5, watermark=AT, topic="t"),
    ],
)
def test_errors_show_times_as_people_read_them(error):
    assert SHOWN in str(error)
    assert str(AT) not in str(error)


def test_a_window_shows_its_times_and_how_many_rows_it_has():
    window = Window(AT, AT + 60_000, (), Position("{}"))
    assert repr(window) == f"Window(start={SHOWN}, end=2026-01-01T00:01:00.000+00:00, rows=0)"


def test_a_hold_shows_its_times():
    hold = Hold(Holder("t", 0, "a"), AT, "lowest watermark", AT + 1)
    assert repr(hold) == f"Hold('t/0/a: lowest watermark', watermark={SHOWN}, since=2026-01-01T00:00:00.001+00:00)"
    assert hold.sentence == f"t/0/a: lowest watermark {SHOWN}, since 2026-01-01T00:00:00.001+00:00"
    (unknown,) = Tracker({"t"}).holders()
    assert unknown.sentence.startswith("t: no watermark record (mark) was read yet: ")


def test_a_finding_shows_times_beside_their_numbers():
    record = WatermarkRecord(
        source="a", epoch=1, sequence=0, watermark=AT, partitions=1, emitted_at=0, membership=Membership(), records=0
    )
    checker = Checker()
    checker.mark(classify("t", 0, 0, 0, *mark_record(record)))
    (found,) = checker.data(0, 1, event_time=12)
    assert f"event time 12 is behind the watermark {AT} (1970-01-01T00:00:00.012+00:00 < {SHOWN})" in str(found)
