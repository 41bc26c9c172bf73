"""A stop comes between two batches: behind the commit of the one in work, and before the next has done anything."""

import logging
import threading

import pytest
from floodmark.spark_jobs.batch.stopping import Stopping
from floodmark.spark_jobs.internals.engine import InterruptedBatchError

_LIMIT = 60.0


class Query:
    """What a stop asks of a query; keeps the order of what happens to it."""

    def __init__(self):
        self.isActive = True
        self.happened = []
        self.committed = None

    @property
    def lastProgress(self):  # noqa: N802  # Spark's own name
        return None if self.committed is None else {"batchId": self.committed}

    def commit(self, batch_id):
        self.happened.append(f"batch {batch_id} is committed")
        self.committed = batch_id

    def stop(self):
        self.happened.append("the query is stopped")
        self.isActive = False


def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def test_a_stop_waits_for_the_batch_in_work_and_its_commit():
    query = Query()
    stopping = Stopping(lambda: query)
    with stopping.batch(3):
        stop = in_thread(stopping.stop, _LIMIT)
        query.happened.append("batch 3 is done")
    query.commit(3)
    stop.join(_LIMIT)
    assert query.happened == ["batch 3 is done", "batch 3 is committed", "the query is stopped"]


def test_no_batch_begins_behind_the_request_and_asking_for_one_shows_that_the_last_is_committed():
    query, errors = Query(), []
    stopping = Stopping(lambda: query)

    def next_batch():
        try:
            with stopping.batch(4):
                query.happened.append("batch 4 begins")
        except InterruptedBatchError as error:
            errors.append(error)

    with stopping.batch(3):
        pass
    stopping.request_stop()
    waiting = in_thread(next_batch)
    stopping.wait_committed(query, _LIMIT)
    assert waiting.is_alive()
    query.stop()
    waiting.join(_LIMIT)
    assert query.happened == ["the query is stopped"]
    assert len(errors) == 1


def test_a_batch_that_failed_is_not_waited_for():
    query = Query()
    stopping = Stopping(lambda: query)
    with pytest.raises(ValueError, match="failed"), stopping.batch(0):
        raise ValueError("it failed")
    stopping.stop(_LIMIT)
    assert stopping.last_batch is None
    assert not query.isActive


def test_a_commit_that_takes_too_long_does_not_keep_a_query_running():
    query = Query()
    stopping = Stopping(lambda: query)
    with stopping.batch(0):
        pass
    stopping.stop(timeout=0)
    assert not query.isActive


def test_a_stop_is_no_error_in_the_log_of_py4j(caplog):
    for error in (InterruptedBatchError(), ValueError("the writer failed")):
        try:
            raise error
        except Exception:
            logging.getLogger("py4j.clientserver").exception("There was an exception")
    assert [record.exc_info[0] for record in caplog.records] == [ValueError]
