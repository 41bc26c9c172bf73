"""Which batches of a job a store takes."""

from functools import partial
from types import SimpleNamespace

import pytest
from floodmark.schemas.completeness.position import TopicIds
from floodmark.schemas.errors import ContinueError, RecreatedTopicError, ReplacedCheckpointError
from floodmark.spark_jobs.batch.sinks import ExactlyOnceWriter, StoreSink
from floodmark.spark_jobs.progress.published import Published


class Store(ExactlyOnceWriter):
    """Keeps the rows of each batch, and the position."""

    def __init__(self):
        self.batches, self.text = [], None

    def write(self, rows, position):
        self.batches.append(rows)
        self.text = position

    def position(self):
        return self.text


def job(store, checkpoint="first", committed=range(0), may_follow=lambda _: True):
    """Start a job, and return its step: write the rows of a batch."""
    sink = StoreSink(store, "totals", checkpoint, lambda: committed, may_follow)
    sink.open()

    def step(rows, batch, end=0, ids=()):
        published = Published({("clicks", 0): end}, 0, TopicIds(ids))
        sink.commit(rows, batch, SimpleNamespace(output=None), published, {}, 1)

    return step


def test_a_store_takes_each_batch_once_over_restarts():
    store = Store()
    for rows, batch in (("a", 0), ("b", 1), ("b again", 1), ("c", 2)):
        job(store)(rows, batch)
    assert store.batches == ["a", "b", "c"]


def test_a_stored_batch_of_a_topic_that_was_made_anew_is_not_taken_for_the_same():
    """Killed between the store's commit and Spark's, with the first batch of a checkpoint."""
    store = Store()
    job(store)("a", 0, ids={"clicks": "Xq3"})
    job(store)("a", 0, ids={"clicks": "Xq3", "views": "known later"})
    with pytest.raises(RecreatedTopicError) as caught:
        job(store)("b", 0, ids={"clicks": "b7A"})
    assert (caught.value.known, caught.value.found) == ("Xq3", "b7A")
    assert store.batches == ["a"]


def test_a_job_that_begins_at_a_time_ran_a_batch_before():
    store = Store()
    with pytest.raises(ContinueError, match="lacks batch 1"):
        job(store, committed=range(1, 1))("a", 2)
    job(store, committed=range(1, 1))("a", 1)
    assert store.batches == ["a"]


def test_a_new_checkpoint_follows_and_the_old_one_is_refused():
    store = Store()
    old = job(store)
    old("a", 0)
    job(store, "second", range(3, 3))("b", 3)  # after three batches that restored its state
    with pytest.raises(ReplacedCheckpointError):
        old("b", 1)
    with pytest.raises(ReplacedCheckpointError):
        job(store)
    assert store.batches == ["a", "b"]


def test_a_checkpoint_without_a_batch_follows_only_the_batch_that_it_started_after():
    """Otherwise what another one has stored since would be stored twice."""
    store, old = Store(), ("first", 0)
    job(store)("a", 0)
    start = partial(job, store, "second", range(3, 3), lambda newest: newest == old)
    start()
    job(store)("b", 1)
    with pytest.raises(ReplacedCheckpointError, match="since batch 0 of this one"):
        start()
    old = ("first", 1)
    start()("c", 3)
    start()("d", 4)
    assert store.batches == ["a", "b", "c", "d"]


def test_a_store_that_is_emptied_before_the_first_batch_of_a_checkpoint_that_continues_is_refused():
    with pytest.raises(ContinueError, match="lacks the results after which this checkpoint starts"):
        job(Store(), "second", range(3, 3), lambda newest: newest == ("first", 0))


@pytest.mark.parametrize("batches", [1, 2])
def test_an_older_copy_of_the_checkpoint_is_refused(batches):
    """It plans another batch with the same number, whose rows would be missing."""
    store = Store()
    for batch in range(1 + batches):
        job(store)("rows", batch, batch)
    with pytest.raises(ReplacedCheckpointError, match="a newer copy of this one, since batch 0 of"):
        job(store)("rows", 1, 2)


NEW = r"a new checkpoint_location and an empty store\.$"
CONTINUE = (
    r"a new checkpoint_location with WriteOptions\(start=Start\(published='continue'\)\), or with an empty store\.$"
)


@pytest.mark.parametrize(("kept", "advice"), [(0, NEW), (1, CONTINUE)], ids=["emptied", "restored from a backup"])
def test_a_store_that_lost_batches_is_refused(kept, advice):
    """Otherwise their rows would be missing without an error.  A job continues only after a position in the store."""
    store, text = Store(), [None]
    for batch in range(3):
        job(store)("rows", batch)
        text.append(store.text)
    store.text = text[kept]
    only = r"If another instance runs, keep only one\. "
    with pytest.raises(
        ContinueError, match=rf"lacks batch 2 of this checkpoint\. {only}Use its store as it was, or {advice}"
    ):
        job(store)("rows", 3)
    with pytest.raises(ContinueError, match=r"lacks batch 2 of this checkpoint\."):
        job(store, committed=range(3))  # also if no batch follows


def test_a_checkpoint_does_not_follow_another_that_was_given_its_store_emptied():
    """The rows of its own batches are missing there."""
    store = Store()
    job(store, "second")("rows", 0)
    with pytest.raises(ContinueError, match="lacks batch 1 of this checkpoint"):
        job(store, "first", range(2))
    with pytest.raises(ContinueError, match="lacks batch 1 of this checkpoint"):
        job(store, "first")("rows", 2)


@pytest.mark.parametrize(
    ("kept", "advice"), [(0, NEW), (1, CONTINUE)], ids=["deleted", "rolled back to an earlier checkpoint's batch"]
)
def test_a_store_that_loses_batches_under_its_job_is_refused(kept, advice):
    store, text = Store(), [None]
    job(store, "first")("rows", 0)
    text.append(store.text)
    running = job(store, "second", range(1, 1))
    running("rows", 1)
    store.text = text[kept]
    with pytest.raises(ContinueError, match=f"it lost them while the job ran: it was deleted.*{advice}"):
        running("rows", 2)
    assert store.batches == ["rows", "rows"]
