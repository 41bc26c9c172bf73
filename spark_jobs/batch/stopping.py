"""Stop a query between two batches, so that a later start runs no batch again; or restart it there.

Spark calls the handler of a batch on the query's own thread, and commits the batch after that.  A stop in between would
leave a planned batch that the next start runs again.  Transactions make that harmless; other sinks would write its rows
twice.  So another thread than the query's stops it in three steps:

1. it requests the stop: the current batch and ``on_batch`` run to their ends, and no other batch begins;
2. it waits until Spark has committed that batch: Spark reports its progress, or starts the next batch, which waits;
3. it stops the query: the waiting batch is interrupted before it has done anything.

A restart stops the query in the same way and starts it again.  A batch requests it before it has done anything, so all
earlier batches are committed.  A stop waits for a restart in progress, and prevents later ones.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from floodmark.spark_jobs.internals.engine import InterruptedBatchError, last_report
from floodmark.spark_jobs.internals.texts import was_cancelled
from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
_POLL: Final = 0.005
_COMMIT_TIMEOUT: Final = 10.0


class Stopping:
    """The stop of one query: the handler runs each batch inside `batch`, another thread calls `stop`."""

    def __init__(self, active_query: Callable[[], StreamingQuery | None]) -> None:
        self.last_batch: int | None = None  # the last batch that the handler has finished; Spark commits it after that
        self.is_first = True  # whether no batch has finished since the start or restart
        self.restarted: Final = threading.Event()  # set except during a restart
        self.restarted.set()
        self.is_of_active_query = False
        """Whether a stop was requested while the query ran: an interrupt is then no failure."""
        self._is_cut = False  # whether the query is stopped though a batch may run
        self._thread: int | None = None  # the one that runs a batch
        self._lock: Final = threading.RLock()
        """Held while a batch runs; its own thread may request a stop, too."""
        self._between: Final = threading.Event()
        """Set when the query has committed its last batch, and the next one waits."""
        self._requested: Final = threading.Event()
        self._active_query: Final = active_query

    @contextmanager
    def batch(self, batch_id: int) -> Iterator[None]:
        """Keep a stop waiting while a batch runs; after the stop, or if Ctrl-C cancels the batch, interrupt it."""
        with self._lock:
            if not self._requested.is_set():
                self._thread = threading.get_ident()
                try:
                    yield
                except BaseException as error:
                    if self._is_cut:
                        raise InterruptedBatchError from None  # a long text would overflow the stack of Spark
                    if not was_cancelled(error):
                        raise
                    self._requested.set()
                else:
                    self.last_batch, self.is_first = batch_id, False
                    return
                finally:
                    self._thread = None
                threading.Thread(target=self.stop, daemon=True).start()
        self.interrupt()

    def interrupt(self) -> NoReturn:
        """Wait, in a batch that has done nothing, until another thread stops the query; then interrupt the batch."""
        self._between.set()
        while (query := self._active_query()) is not None and query.isActive:
            time.sleep(_POLL)
        raise InterruptedBatchError from None

    def restart(self, start: Callable[[], None]) -> None:
        """Stop the query, whose batch calls `interrupt`, and call ``start``; not if a stop was requested."""
        with self._lock:
            query = self._active_query()
            if self._requested.is_set() or query is None or not query.isActive:
                return
            query.stop()
            self.is_first = True
            self._between.clear()
            start()

    def stop(self, timeout: float = _COMMIT_TIMEOUT, *, patience: float = -1) -> None:
        """Stop the query after its current batch (``patience`` seconds, -1: no limit) and the commit (``timeout``)."""
        self.request_stop(patience)
        query = self._active_query()
        if query is not None:
            self.wait_committed(query, timeout)
            self._is_cut = True
            query.stop()

    @property
    def is_in_batch(self) -> bool:
        """Whether the current thread runs a batch: its function, or ``on_batch``."""
        return self._thread == threading.get_ident()

    @property
    def is_requested(self) -> bool:
        """Whether the query is to be stopped."""
        return self._requested.is_set()

    def request_stop(self, patience: float = -1) -> None:
        """Let no other batch begin, and wait for the current one; ``patience``: seconds, -1: without limit."""
        query = self._active_query()
        is_active = not self.restarted.is_set() or (query is not None and query.isActive)
        self.is_of_active_query = self.is_of_active_query or is_active
        self._requested.set()
        if self._lock.acquire(timeout=patience):
            self._lock.release()

    def wait_committed(self, query: StreamingQuery, timeout: float) -> None:
        """Wait until Spark has committed the last batch or has stopped, at most ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while query.isActive and not self._is_committed(query):
            if time.monotonic() >= deadline:
                reason = f"Spark has not committed batch {self.last_batch} within {timeout:g} seconds"
                _log.warning(
                    "query %s: %s. The query stops, and the next start may run this batch again.", query.name, reason
                )
                return
            self._between.wait(_POLL)

    def _is_committed(self, query: StreamingQuery) -> bool:
        if self.last_batch is None or self.is_first or self._between.is_set():
            return True
        report = last_report(query)
        return report is not None and int(report["batchId"]) >= self.last_batch
