"""A stop comes between two batches: behind the commit of the one in work, and before the next has done anything."""

import json
import logging
import threading
from types import SimpleNamespace

import pytest
from floodmark.schemas.tracker import Tracker
from floodmark.spark_jobs.batch.handler import BatchHandler
from floodmark.spark_jobs.batch.stopping import Stopping
from floodmark.spark_jobs.internals.engine import InterruptedBatchError
from floodmark.spark_jobs.progress.progress import Progress
from support.harness import until

_LIMIT = 60.0


class Query:
    """What a stop asks of a query; keeps the order of what happens to it."""

    def __init__(self):
        self.name, self.runId = "totals-1", ""
        self.isActive = True
        self.happened = []
        self.committed = None

    @property
    def _jsq(self):
        """Spark's query in the JVM, and its report."""
        report = SimpleNamespace(json=lambda: json.dumps({"batchId": self.committed}))
        return SimpleNamespace(lastProgress=lambda: None if self.committed is None else report)

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


def test_a_stop_waits_for_on_batch_before_the_time_for_the_commit_begins():
    query, stops = Query(), []

    def on_batch(_batch):
        stops.append(in_thread(handler.stopping.stop, 0))
        until(lambda: handler.stopping.is_requested, "the stop")
        stops[0].join(0.1)
        query.happened.append("on_batch is done")

    identity, rules = SimpleNamespace(job="totals"), SimpleNamespace(possible=False)
    handler = BatchHandler(identity, [], None, None, SimpleNamespace(rules=rules), recent=1, on_batch=on_batch)
    handler.progress = Progress(Tracker({"orders"}))
    handler._spark = SimpleNamespace(streams=SimpleNamespace(get=lambda _: query))  # noqa: SLF001
    handler._run = lambda *_: (SimpleNamespace(processing_time_watermark=None, records=0), {})  # noqa: SLF001
    handler._attached.set()  # noqa: SLF001
    handler(SimpleNamespace(unpersist=lambda: None), 7)
    stops[0].join(_LIMIT)
    assert query.happened == ["on_batch is done", "the query is stopped"]


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


def test_a_commit_that_takes_too_long_does_not_keep_a_query_running(caplog):
    query = Query()
    stopping = Stopping(lambda: query)
    with stopping.batch(0):
        pass
    stopping.stop(timeout=0)
    assert not query.isActive
    assert "the next start may run this batch again" in caplog.text


def test_a_stop_is_no_error_in_the_log_of_py4j(caplog):
    for error in (InterruptedBatchError(), ValueError("the writer failed")):
        try:
            raise error
        except Exception:
            logging.getLogger("py4j.clientserver").exception("There was an exception")
    assert [record.exc_info[0] for record in caplog.records] == [ValueError]
