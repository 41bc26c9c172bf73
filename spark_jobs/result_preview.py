"""Print the first results of a query, without an output topic and a checkpoint: for a REPL or a notebook."""

import threading
import time
from datetime import timedelta
from tempfile import TemporaryDirectory
from typing import Final

from floodmark.schemas.errors import UsageError
from floodmark.schemas.errors.base import iso
from floodmark.schemas.timestamps import duration_of
from floodmark.spark_jobs.writer import write
from pyspark.sql import DataFrame, Row

_POLL: Final = 0.05


def preview(result: DataFrame, *, wait: timedelta = timedelta(seconds=30), rows: int = 20) -> None:
    """Print the first complete results of a query, its watermark, and which source holds the watermark back.

    The query runs as a job with a temporary checkpoint and writes nothing to Kafka.  It stops when it has enough rows,
    when its input has ended, or after ``wait``.

    Args:
        result: any operators over one or more `floodmark.spark_jobs.read`, in a session with a local master.
        wait: the longest time to wait for rows, more than 0.
        rows: the number of rows to print, 1 or more.

    Raises:
        UsageError: if an argument is out of its bounds, or the session's master is a cluster.
        JobFailedError, UnsupportedQueryError: as `floodmark.spark_jobs.write`.
    """
    seconds = duration_of(wait, "wait", least=1) / 1_000
    if rows < 1:
        raise UsageError(reason=f"rows is {rows}, expected 1 or more")
    spark = result.sparkSession
    if not str(spark.sparkContext.master).startswith("local"):
        reason = "preview() needs a session with a local master, because its checkpoint is on this machine; use write()"
        raise UsageError(reason=reason)
    found: list[Row] = []
    enough = threading.Event()

    def keep(batch: DataFrame, _batch_id: int) -> None:
        found.extend(batch.limit(rows - len(found)).collect())
        if len(found) == rows:
            enough.set()

    with TemporaryDirectory(prefix="floodmark-preview-", ignore_cleanup_errors=True) as directory:
        job = write(result, writer=keep, job="preview", checkpoint_location=directory)
        deadline = time.monotonic() + seconds
        while job.isActive and not job.ended and time.monotonic() < deadline and not enough.wait(_POLL):
            pass
        job.stop()
    failure = job.exception()
    if failure is not None:
        raise failure
    if found:
        spark.createDataFrame(found, result.schema).show(rows, truncate=False)
    held = [] if job.ended or enough.is_set() else [hold.sentence for hold in job.holders()[:3]]
    told = "; ".join([f"{len(found)} row(s), watermark {iso(job.watermark)}", *held])
    print(told)  # noqa: T201  # as DataFrame.show does
