"""The kit for tests: what its page shows is true, and a producer and a tracker accept what it makes."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from floodmark.producers.testing import InMemoryLog, ManualClock, mark
from floodmark.schemas import Status, Tracker, Verdict
from floodmark.schemas.classify import Data, Mark, Unreadable
from floodmark.schemas.errors import UsageError

PAGE = Path(__file__).parents[2] / "producers" / "README.md"


def test_the_example_of_the_page_runs():
    section = PAGE.read_text(encoding="utf-8").split("\n## Testing your own code")[1]
    exec(re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1), {})  # noqa: S102  # our own page


def test_time_passes_on_both_clocks_and_only_the_wall_clock_is_set():
    clock = ManualClock(wall=datetime(2013, 1, 1, tzinfo=UTC), steady=7)
    clock.advance(timedelta(milliseconds=5))
    assert (clock.wall(), clock.steady()) == (1_356_998_400_005, 12)
    clock.set(3)
    assert (clock.wall(), clock.steady()) == (3, 12)
    with pytest.raises(UsageError, match="expected 0 or more"):
        clock.advance(timedelta(seconds=-1))


def test_a_log_holds_what_kafka_would_and_readers_see_it_so():
    log = InMemoryLog("clicks", partitions=1)
    log.append(b"12", key=b"k", headers=[("h", None)], log_time=5)
    log.append(mark("web", watermark=25, partitions=2))
    log.append(b"a later format", key=b"__floodmark__/web")
    log.grow(2)
    log.grow(1)
    assert log.append(mark("web", 30, status=Status.ENDED, partitions=2), partition=1) == 0
    tracker = Tracker({"clicks"})
    data, first, unreadable, last = log.read(tracker)
    assert isinstance(data, Data)
    assert (data.key, data.value, data.headers, data.log_time, data.offset) == (b"k", b"12", [("h", None)], 5, 0)
    assert isinstance(unreadable, Unreadable)
    assert [one.verdict for one in (first, last)] == [Verdict.ACCEPTED] * 2
    assert tracker.advance() is None, "what the unreadable mark says is not known"
    log.append(mark("web", 40, 2, partitions=2))
    (found,) = log.read(tracker, begin={0: 3, 1: 1})
    assert isinstance(found, Mark)
    assert tracker.advance() == 30, "awake in one partition, it counts in both"
