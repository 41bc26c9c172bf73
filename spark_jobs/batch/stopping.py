"""How a query is stopped between two batches, so that a later start runs none of them again, or is restarted there.

Theory of operation
-------------------
Spark calls the handler of a batch on the query's own thread and commits the batch after that.  A stop in the middle of
either would leave a planned batch that the next start runs again: harmless where batches are transactions, double rows
where they are not.  So a stop has three steps, each by another thread than the query's:

1. it is requested: the batch in work comes to its end, and no other begins;
2. it waits until Spark has committed that batch: Spark reports its progress, or asks for the next batch, which waits;
3. the query is stopped: the batch that waited is interrupted before it has done anything.

A restart stops the query in the same way and starts it again.  A batch asks for it before it has done anything, so the
batches before are committed.  A stop waits for a restart that has begun, and keeps another from beginning.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from floodmark.spark_jobs.internals.engine import InterruptedBatchError
from pyspark.sql.streaming.query import StreamingQuery

_POLL: Final = 0.005
_COMMIT_TIMEOUT: Final = 10.0


class Stopping:
    """The stop of one query: the handler runs each batch inside `batch`, another thread calls `stop`.

    Args:
        running: returns the query while it is active, else ``None``.
    """

    def __init__(self, running: Callable[[], StreamingQuery | None]) -> None:
        self.last_batch: int | None = None
        """The last batch that was worked off; Spark commits it after that."""
        self.is_first = True
        """Whether the query has worked off no batch since it was started or restarted."""
        self.restarted: Final = threading.Event()
        """Is set, except during a restart."""
        self.restarted.set()
        self.is_of_active_query = False
        """Whether a stop was requested while the query ran: an interrupt is then no failure."""
        self._lock: Final = threading.Lock()
        self._between: Final = threading.Event()
        """The query has committed its last batch, and the next one waits."""
        self._requested: Final = threading.Event()
        self._running: Final = running

    @contextmanager
    def batch(self, batch_id: int) -> Iterator[None]:
        """Keep a stop waiting while a batch runs.

        Raises:
            InterruptedBatchError: where a stop was requested before: the batch has not begun; after the query stopped.
        """
        with self._lock:
            if not self._requested.is_set():
                yield
                self.last_batch, self.is_first = batch_id, False
                return
        self.interrupt()

    def interrupt(self) -> NoReturn:
        """Wait within a batch that has done nothing until another thread stops the query.

        Raises:
            InterruptedBatchError: always.
        """
        self._between.set()
        while (query := self._running()) is not None and query.isActive:
            time.sleep(_POLL)
        raise InterruptedBatchError

    def restart(self, start: Callable[[], None]) -> None:
        """Stop the query, whose batch calls `interrupt`, and start it again; not where it is to be stopped.

        Args:
            start: starts it.
        """
        with self._lock:
            query = self._running()
            if self._requested.is_set() or query is None or not query.isActive:
                return
            query.stop()
            self.is_first = True
            self._between.clear()
            start()

    def stop(self, timeout: float = _COMMIT_TIMEOUT, *, patience: float = -1) -> None:
        """Stop the query behind the batch in work, where it runs.

        Args:
            timeout: how long Spark may take to commit the batch, seconds; the query is stopped then, too.
            patience: how long the batch itself may take, seconds; -1: as long as it takes.
        """
        self.request_stop(patience)
        query = self._running()
        if query is not None:
            self.wait_committed(query, timeout)
            query.stop()

    @property
    def is_requested(self) -> bool:
        """Whether the query is to be stopped."""
        return self._requested.is_set()

    def request_stop(self, patience: float = -1) -> None:
        """Let no other batch begin, and wait for the one in work; ``patience``: seconds, -1: as long as it takes."""
        query = self._running()
        is_active = not self.restarted.is_set() or (query is not None and query.isActive)
        self.is_of_active_query = self.is_of_active_query or is_active
        self._requested.set()
        if self._lock.acquire(timeout=patience):
            self._lock.release()

    def wait_committed(self, query: StreamingQuery, timeout: float) -> None:
        """Wait until Spark has committed the last batch, or has stopped, for as many seconds at most."""
        deadline = time.monotonic() + timeout
        while query.isActive and not self._is_committed(query) and time.monotonic() < deadline:
            self._between.wait(_POLL)

    def _is_committed(self, query: StreamingQuery) -> bool:
        if self.last_batch is None or self.is_first or self._between.is_set():
            return True
        progress = query.lastProgress
        return progress is not None and int(progress["batchId"]) >= self.last_batch
