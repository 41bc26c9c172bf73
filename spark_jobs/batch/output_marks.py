"""The watermark records that a job writes behind its rows."""

import time

from floodmark.producers.strategies.basic import Explicit
from floodmark.producers.strategies.numbering import Identity, MarkWriter
from floodmark.schemas.records import Membership, Status
from floodmark.schemas.timestamps import promisable
from floodmark.spark_jobs.batch.sinks import Marks, Sink
from floodmark.spark_jobs.progress.progress import Progress


class OutputMarks:
    """A job as a source of its output topic."""

    def __init__(self, job: str, epoch: int, membership: Membership, sink: Sink) -> None:
        self._sink = sink
        self._promise = Explicit(job)
        partitions = sink.partitions()
        self._writer = None if partitions is None else MarkWriter(Identity(job, epoch, membership), partitions)
        self._ended = False

    def behind(self, batch_id: int, progress: Progress) -> Marks:
        """Return the marks that stand behind the rows of a batch.

        None, where the sink has no place for them, or an earlier run has written them: a mark that is not written must
        not take a number of the sequence.  Nothing follows the end of an epoch.
        """
        writer = self._writer
        if writer is None or self._ended or self._sink.is_there(batch_id):
            return []
        writer.grow(self._sink.partitions() or 1)
        rows = self._sink.rows()
        for partition, count in (rows or {}).items():
            writer.count(partition, count)
        self._ended = progress.ended
        if not progress.ended and progress.output is not None:
            self._promise.advance(progress.output)
        watermark = self._promise.watermark()
        now, processing_time = time.time_ns() // 1_000_000, progress.processing_time
        marks = writer.marks(
            now,
            counted=rows is not None,
            watermark=None if watermark is None else promisable(watermark),
            status=Status.ENDED if progress.ended else Status.ACTIVE,
            processing_time_watermark=None if processing_time is None else min(processing_time, now),
            holder=next((hold.holder for hold in progress.holders()), None),
        )
        return list(marks)
