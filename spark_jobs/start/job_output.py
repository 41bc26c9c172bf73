"""Where a job writes, and the last batch that it has written there."""

from collections.abc import Callable
from dataclasses import dataclass

from floodmark.producers.clients.admin import Config, answering, await_transactions
from floodmark.producers.readers.replay import last_matching
from floodmark.schemas.classify import Classified, Mark, mark_header
from floodmark.schemas.records import READ_HEADER, Status
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.spark_jobs.batch.sinks import (
    EMPTY_STORE,
    STORE,
    BatchWriter,
    ExactlyOnceWriter,
    batch_of,
    stored_position,
)
from floodmark.spark_jobs.internals.connectors import clone
from floodmark.spark_jobs.progress.published import Published, StoredPosition
from floodmark.spark_jobs.tables.table import Table
from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The newest batch of a job in its output."""

    watermark: int | None  # the output watermark, epoch milliseconds
    ended: bool
    published: Published | None  # how far the job had read; ``None``: the output does not have it
    epoch: int = 0  # of the job as a source of its output; 0: a store, which has no marks
    batch: tuple[str, int] | None = None
    """The id of its checkpoint and its number; ``None``: the output does not have them."""


@dataclass(frozen=True, slots=True)
class JobOutput:
    """The output of a job: a topic, a table, or the store of a writer that keeps the job's position."""

    name: str
    new: str  # what to use to start over
    last: Callable[[], LastBatch | None]
    """Returns the newest batch of the job; ``None``: there is none.

    It raises `BrokerUnavailableError` if the topic cannot be read, also for lack of the right, and
    `CorruptSnapshotError` if the position is damaged; `TableError` if the table cannot be read.
    """

    settle: Callable[[], None] = lambda: None
    """Waits until `last` sees all batches of runs that have ended: an open transaction of another writer hides some."""


def job_output(
    topic: str | None,
    writer: BatchWriter | ExactlyOnceWriter | None,
    table: Table | None,
    config: Config,
    job: str,
    spark: SparkSession,
) -> JobOutput | None:
    """Return the output of a job; ``None``: a function, which does not tell what it has written."""
    if topic is not None:
        return _topic_output(config, topic, job)
    if table is not None:
        return _table_output(table, spark, job)
    return _store_output(writer) if isinstance(writer, ExactlyOnceWriter) else None


def _topic_output(config: Config, topic: str, job: str) -> JobOutput:
    def read(record: Classified) -> LastBatch | None:
        if not isinstance(record, Mark) or record.source != job:
            return None
        text, mark = mark_header(record, job, READ_HEADER), record.record
        published = None if text is None else Published.of(text)
        batch = batch_of(record, job)
        return LastBatch(mark.watermark, mark.status is Status.ENDED, published, mark.epoch, batch)

    def last() -> LastBatch | None:
        with answering(config.get("bootstrap.servers"), about=f"topic {topic!r}"):
            return last_matching(config, topic, [0], read).get(0)

    return JobOutput(
        f"topic {topic!r}", "a new output topic", last, lambda: await_transactions(config, topic, f"job {job!r}", [0])
    )


def _table_output(table: Table, spark: SparkSession, job: str) -> JobOutput:
    def last() -> LastBatch | None:
        with table.failing(job):
            mark = table.newest(clone(spark))
        return None if mark is None else _last_batch(StoredPosition.of(str(mark.position)), mark.epoch)

    return JobOutput(f"table {table.name!r}", "a new table", last)


def _store_output(writer: ExactlyOnceWriter) -> JobOutput:
    def last() -> LastBatch | None:
        found = stored_position(writer)
        return None if found is None else _last_batch(found)

    return JobOutput(STORE, EMPTY_STORE, last)


def _last_batch(found: StoredPosition, epoch: int = 0) -> LastBatch:
    batch = found.checkpoint_id, found.batch_id
    return LastBatch(found.output, found.output == END_OF_TIME, found.published, epoch, batch)
