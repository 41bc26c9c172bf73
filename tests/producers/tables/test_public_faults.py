"""Three public faults of the table watermark of Iceberg's Kafka Connect sink, beside ours on the same input.

`ValidThrough` is a model of the sink's rule, in the issues' words: a coordinator asks two tasks, and stamps a commit
with the lowest time of their answers.  It counts answers, and it stamps nothing after a timeout.  Ours: each task is a
source of a topic, the tracker has the job's watermark, and each commit carries it.
"""

import pytest
from floodmark.producers.tables.table_history import Commit, History
from floodmark.producers.tables.table_mark import TableMark
from floodmark.producers.tables.table_watermark import watermark_of
from floodmark.producers.testing import mark
from floodmark.schemas import Status, Tracker

TASKS = 2
IDLE = Status.IDLE


class ValidThrough:
    """The model of ``CommitState``: it collects answers from all commits, and counts those of the current one."""

    def __init__(self):
        self._ready, self._received, self.stamped = [], 0, None

    def answer(self, time, *, current=True):
        self._ready.append(time)
        self._received += current

    def commit(self):
        """Stamp the commit, if enough answers came before the timeout; a commit has no stamp otherwise."""
        full = self._received >= TASKS
        self.stamped = min(self._ready) if full and None not in self._ready else None
        self._ready, self._received = [], 0


class Floodmark:
    """Our table: the job commits the tracker's watermark with each batch."""

    def __init__(self):
        self.tracker, self._commits = Tracker({"t"}), []

    def mark(self, task, time, sequence, epoch=2, status=Status.ACTIVE):
        record = mark(task, time, sequence, epoch=epoch, size=TASKS, status=status)
        self.tracker.apply(record, topic="t", partition=0, log_time=0)
        self.tracker.advance()

    def commit(self, epoch=2, watermark=...):
        number = len(self._commits) + 1
        watermark = self.tracker.watermark if watermark is ... else watermark
        said = TableMark(job="j", epoch=epoch, batch=number, watermark=watermark).properties()
        self._commits.append(Commit(number, number, said, removes=False, parent=number - 1 or None))

    @property
    def watermark(self):
        return watermark_of(History("t", self._commits, expired=False)).watermark


@pytest.fixture
def theirs():
    return ValidThrough()


@pytest.fixture
def ours():
    """Both tables are complete until 100."""
    ours = Floodmark()
    ours.mark("a", 100, 0)
    ours.mark("b", 100, 0)
    ours.commit()
    assert ours.watermark == 100
    return ours


@pytest.mark.parametrize(("stale", "stamped"), [(50, 50), (None, None)])
def test_a_zombie_drags_theirs_back_or_takes_it_away_and_does_not_touch_ours(theirs, ours, stale, stamped):
    """apache/iceberg issue 17077: answers to a zombie coordinator are among those of which the minimum is taken."""
    theirs.answer(stale, current=False)
    theirs.answer(200)
    theirs.answer(210)
    theirs.commit()
    assert theirs.stamped == stamped
    ours.mark("a", 200, 1)
    ours.mark("b", 210, 1)
    ours.mark("a", 50, 9, epoch=1)  # of a process that was replaced
    ours.commit()
    ours.commit(epoch=1, watermark=stale)  # and a job that was replaced
    ours.commit(epoch=1, watermark=900)
    assert ours.watermark == 200


def test_an_idle_task_stops_theirs_and_not_ours(theirs, ours):
    """apache/iceberg issue 17811: a task without records never answers, so each commit is partial, without a stamp."""
    theirs.answer(200)
    theirs.commit()
    assert theirs.stamped is None
    ours.mark("b", 100, 1, status=IDLE)
    ours.mark("a", 200, 1)
    ours.commit()
    assert ours.watermark == 200


def test_a_redelivered_message_makes_theirs_too_high_and_not_ours(theirs, ours):
    """apache/iceberg pull request 17925: two deliveries of one answer count as the answers of two tasks."""
    truth = 100  # task b has rows from 100 on that no commit has
    theirs.answer(200)
    theirs.answer(200)
    theirs.commit()
    assert theirs.stamped > truth
    ours.mark("a", 200, 1)
    ours.mark("a", 200, 1)
    ours.commit()
    assert ours.watermark == truth
    assert [hold.holder.source for hold in ours.tracker.holders()] == ["b"]
