"""Writes a job's batches into a table: each is staged in the checkpoint, and several are one commit.

A batch is staged with the watermark, the number and the position of the job after it.  The commit has the rows of all
staged batches and these values of the last one.  A batch that is a commit by itself is not staged: it is written from
Spark's cache.  After a crash, a start finds each batch in the table, staged, or in neither: then Spark runs it again.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final
from weakref import WeakMethod

from floodmark.producers.tables.table_mark import TableMark
from floodmark.schemas.errors import FloodmarkError, InfrastructureError, TableError, UsageError
from floodmark.spark_jobs.batch.sinks import LateRows, MayFollow, Sink, StoredBatches, run_into_cache
from floodmark.spark_jobs.internals.connectors import clone, is_stopped
from floodmark.spark_jobs.internals.jvm import FAILURES
from floodmark.spark_jobs.internals.texts import reason_of
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.published import Published, StoredPosition
from floodmark.spark_jobs.tables.staging import Staged, StagedRows, Staging
from floodmark.spark_jobs.tables.table import TWICE, Table
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import override

_log = logging.getLogger(__name__)
_ATTEMPTS: Final = 5


def _call(method: WeakMethod[Callable[[], None]]) -> None:
    """Call a method, unless its object is gone: a timer keeps no failed job in memory."""
    found = method()
    if found is not None:
        found()


def table_position(table: Table, spark: SparkSession) -> Callable[[], StoredPosition | None]:
    """Return what reads the position that a table has."""

    def read() -> StoredPosition | None:
        mark = table.newest(spark)
        return None if mark is None else StoredPosition.of(str(mark.position))

    return read


class TableSink(Sink):
    """Stages each batch, and commits the staged ones every ``commit_every``, at the end, and at a stop."""

    def __init__(
        self,
        table: Table,
        spark: SparkSession,
        staging: Staging,
        job: str,
        checkpoint_id: str,
        committed: Callable[[], range],
        may_follow: MayFollow,
    ) -> None:
        self._table = table
        self._spark = clone(spark)
        self._staging = staging
        read, name = table_position(table, self._spark), f"table {table.name!r}"
        self._stored = StoredBatches(read, job, checkpoint_id, committed, may_follow, name=name, new="a new table")
        self._staged: Staged | None = None
        self._written: StagedRows | None = None
        """The rows of the batch that has run; ``None``: they are in Spark's cache."""
        self._view = f"floodmark_{uuid.uuid4().hex}"
        self._due = 0.0
        """When the next commit may be, by the monotonic clock."""
        self._timer: threading.Timer | None = None
        self._lock = threading.RLock()
        """Held by the thread of the query, and by that of the timer."""
        self._is_open = False
        """Whether this start has the checkpoint: before and after, another one may, so nothing is committed."""

    @override
    def open(self) -> None:
        with self._lock, self._table.failing(self._stored.job):
            staged = self._staging.load()
            self._stored.open(None if staged is None else staged.position)
            if staged is not None and self._stored.last == staged.mark.batch + 1:
                # The job was killed behind the commit of this next batch, which Spark repeats: `commit` compares both.
                self._staging.clear(staged)
            else:
                self._staged = staged
            self._commit_news()
            self._is_open = True

    @override
    def consume(self, frame: DataFrame) -> None:
        with self._lock:
            is_alone = self._staged is None or not self._staged.rows
            is_due = time.monotonic() >= self._due
        if is_alone and is_due:
            run_into_cache(frame)
            self._written = None
        else:
            self._written = self._staging.write(frame)

    @override
    def commit(
        self, frame: DataFrame, batch_id: int, progress: Progress, published: Published, late: LateRows, rows: int
    ) -> None:
        with self._lock:
            self.check()
            position = StoredPosition(self._stored.checkpoint_id, batch_id, progress.output, published)
            last = self._stored.own if self._staged is None else self._staged.position
            if self._stored.has(position, last):
                _log.info("job %s: batch %d is in the table, or staged for it, already", self._stored.job, batch_id)
                self._discard()
                return
            if self._staged is not None and batch_id > self._staged.mark.batch + 1:
                raise self._stored.gap(batch_id - 1)
            mark = TableMark(
                job=self._stored.job,
                epoch=progress.epoch,
                batch=batch_id,
                watermark=progress.output,
                holder=next((hold.holder for hold in progress.holders()), None),
                position=position.text,
            )
            staged = self._staged or Staged(batch_id, {}, mark)
            if rows and self._written is None:
                frame.createOrReplaceGlobalTempView(self._view)  # the sessions share it, and the cache
                try:
                    self._commit_with_retries(staged.then(None, mark), self._spark.table(f"global_temp.{self._view}"))
                finally:
                    self._spark.catalog.dropGlobalTempView(self._view)
                return
            staged = staged.then(self._written if rows else None, mark)
            self._staging.store(staged)
            self._staged = staged
            if not rows:
                self._discard()
            if progress.ended or time.monotonic() >= self._due:
                self._commit_news()
            else:
                self._schedule()

    @override
    def close(self) -> None:
        """Commit what is staged; if this fails, the job fails, and the next start does it."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if self._is_open and self.failure is None and self._has_news and not is_stopped(self._spark):
                try:
                    self._commit_news()
                except (FloodmarkError, *FAILURES) as error:
                    self.failure = error
                    _log.warning(
                        "job %s: the last commit failed; rows that the table lacks are in the checkpoint: %s",
                        self._stored.job,
                        error,
                    )
            self._is_open = False

    @property
    def _has_news(self) -> bool:
        """Whether a commit would change the table: it has rows or a higher watermark."""
        staged, found = self._staged, self._stored.found
        if staged is None:
            return False
        return bool(staged.rows) or staged.mark.watermark != (None if found is None else found.output)

    def _schedule(self) -> None:
        """Commit at the due time, also if no batch runs then."""
        if self._has_news and self._timer is None:
            self._timer = threading.Timer(self._due - time.monotonic(), _call, [WeakMethod(self._on_time)])
            self._timer.daemon = True
            self._timer.start()

    def _on_time(self) -> None:
        with self._lock:
            self._timer = None
            if not self._is_open or is_stopped(self._spark):
                return
            try:
                self._commit_news()
            except (InfrastructureError, *FAILURES) as error:
                _log.warning(
                    "job %s: a commit failed; rows that the table lacks are in the checkpoint, for the next commit: %s",
                    self._stored.job,
                    error,
                )
                self._due = time.monotonic() + self._table.commit_every.total_seconds()
                self._schedule()
            except FloodmarkError as error:  # a retry would fail, too
                self.failure = error

    def _discard(self) -> None:
        """Delete the rows of the batch that has run."""
        if self._written is not None:
            self._staging.delete(self._written)

    def _commit_news(self) -> None:
        if self._staged is not None and self._has_news:
            self._commit_with_retries(self._staged)

    def _commit_with_retries(self, staged: Staged, cached: DataFrame | None = None) -> None:
        """Commit the staged batches; ``cached``: the rows of the last one, if they are in Spark's cache."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._commit(staged, cached)
                break
            except FAILURES as error:  # the commit may have been made: the next attempt asks the table
                if TWICE in (reason := reason_of(error)):
                    said = reason[reason.index(TWICE) :]
                    raise UsageError(reason=f"job {self._stored.job!r}, table {self._table.name!r}: {said}") from error
                if attempt == _ATTEMPTS:
                    raise TableError(job=self._stored.job, table=self._table.name, reason=reason) from error
                _log.warning("job %s: a commit is retried after: %s", self._stored.job, reason)
                time.sleep(attempt)
        self._staged = None
        self._due = time.monotonic() + self._table.commit_every.total_seconds()
        self._staging.clear(staged)

    def _commit(self, staged: Staged, cached: DataFrame | None) -> None:
        """Write the batches that the table lacks, in one commit."""
        position = self._stored.next(staged.first, staged.position)
        if position is None:
            return
        lacking = {
            number: self._staging.read(self._spark, rows)
            for number, rows in staged.rows.items()
            if number > self._stored.last
        }
        if cached is not None:
            lacking[staged.mark.batch] = cached
        self._table.commit(self._spark, lacking, replace(staged.mark, position=position.text))
        self._stored.found = position
