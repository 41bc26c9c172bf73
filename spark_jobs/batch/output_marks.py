"""The watermark records that a job writes behind its rows."""

import time
from dataclasses import replace

from floodmark.producers.strategies.basic import Explicit
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.numbering import Identity
from floodmark.schemas.records import Membership
from floodmark.spark_jobs.batch.sinks import Marks, Sink
from floodmark.spark_jobs.progress.progress import Progress


class OutputMarks:
    """A job as a source of its output topic.

    Args:
        job: the job.
        epoch: of the job.
        membership: how many write to the topic.
        sink: where the rows go; open.
    """

    def __init__(self, job: str, epoch: int, membership: Membership, sink: Sink) -> None:
        self._sink = sink
        self._generator = Explicit(job)
        self._emitter: Emitter | None = None
        partitions = sink.partitions()
        if partitions is not None:
            self._emitter = Emitter(Identity(job, epoch, membership), self._generator, partitions)

    def behind(self, batch_id: int, progress: Progress) -> Marks:
        """Return the marks that stand behind the rows of a batch.

        None, where the sink has no place for them, or an earlier run has written them: a mark that is not written must
        not take a number of the sequence.  Nothing follows the end of an epoch.

        Args:
            batch_id: of the batch, which the sink has consumed.
            progress: of the job, with this batch.
        """
        emitter = self._emitter
        if emitter is None or emitter.ended or self._sink.is_there(batch_id):
            return []
        emitter.grow(self._sink.partitions() or 1)
        rows = self._sink.rows()
        for partition, count in (rows or {}).items():
            emitter.count(partition, count)
        if progress.ended:
            emitter.end()
        elif progress.output is not None:
            self._generator.advance(progress.output)
        holder = next((hold.holder for hold in progress.holders()), None)
        now, worked_off = time.time_ns() // 1_000_000, progress.processing_time
        worked_off = None if worked_off is None else min(worked_off, now)
        marks = emitter.marks(now, holder, counted=rows is not None)
        return [(partition, replace(mark, processing_time_watermark=worked_off)) for partition, mark in marks]
