"""The start of one job: refuses what would not be exact, chooses the start point, and prepares the checkpoint."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from floodmark.schemas.errors import ContinueError, PublishedError, RetentionError, UnsupportedQueryError, UsageError
from floodmark.schemas.errors.base import iso
from floodmark.schemas.timestamps import event_time_of, to_datetime
from floodmark.spark_jobs.batch.sinks import Sink
from floodmark.spark_jobs.batch.snapshots import Snapshots
from floodmark.spark_jobs.progress.watermarks import WindowsClose
from floodmark.spark_jobs.queries.plan import Operator, widths
from floodmark.spark_jobs.queries.refusals import refuse_output_at, refuse_replay
from floodmark.spark_jobs.queries.source_options import batch_limit
from floodmark.spark_jobs.reading.source_spec import SourceSpec
from floodmark.spark_jobs.start.find_start_point import Needs, start_after_published, start_at_time
from floodmark.spark_jobs.start.job_output import JobOutput, LastBatch
from floodmark.spark_jobs.start.prepare_checkpoint import Query, prepare_checkpoint
from floodmark.spark_jobs.start.start_options import Start
from floodmark.spark_jobs.start.start_point import StartPoint, stored
from pyspark.sql import SparkSession

_CONTINUE: Final = "WriteOptions(start=Start(published='continue')) (not for narrower windows)"


@dataclass
class JobStart:
    """Where one job starts; call `refuse`, `refuse_query` and `prepare` in this order."""

    job: str
    output: JobOutput | None  # ``None``: a function, which does not tell what the job has written
    specs: Sequence[SourceSpec]
    snapshots: Snapshots
    options: Start
    plan: Operator
    windows_close: WindowsClose
    _judged: Sequence[tuple[str, Sequence[str]]] = field(default=(), init=False)
    _later: bool = field(default=False, init=False)
    _last: LastBatch | None = field(default=None, init=False)
    _chosen: StartPoint | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._stored = stored(self.snapshots.checkpoint.files)
        self._is_new = self._stored is None and not self.snapshots.checkpoint.is_planned
        self._wished = None if self.options.output_at is None else event_time_of(self.options.output_at)
        self._moved = [spec.topics[0] for spec in self.specs if spec.connection.moved_start is not None]

    @property
    def output_at(self) -> int | None:
        """The job writes no results with an earlier event time, epoch milliseconds; ``None``: it writes all."""
        return self._wished if self._stored is None else self._stored.output_at

    def committed(self) -> range:
        """Return the numbers of the batches with results that Spark has committed."""
        start_point, last = stored(self.snapshots.checkpoint.files), self.snapshots.checkpoint.last_committed
        first = 0 if start_point is None else start_point.first
        return range(0) if first is None else range(first, first if last is None else last + 1)

    def may_follow(self, newest: tuple[str, int] | None) -> bool:
        """Tell whether this checkpoint's first batch may come after ``newest`` of another one; ``None``: after none."""
        start_point = stored(self.snapshots.checkpoint.files)
        if newest is None:
            return start_point is None or start_point.follows is None
        if start_point is None and self._last is not None:
            return True  # `prepare` is going to choose a start point after it
        return self.options.published == "repeat" or (start_point is not None and start_point.follows == newest)

    def epoch(self) -> int:
        """Return the last epoch of the job in its output; 0: none."""
        last = None if self.output is None else self.output.last()
        return 0 if last is None else last.epoch

    def refuse(self) -> None:
        """Refuse options that contradict each other."""
        options = self.options
        if self.output is None and options.published != "refuse":
            reason = (
                f"the writer of job {self.job!r} is a function, which does not tell what it has written: "
                "Start(published=) needs an ExactlyOnceWriter, or topic="
            )
            raise UsageError(reason=reason)
        if self._moved and self._is_new and (self._wished is not None or options.published == "continue"):
            reason = (
                f"both the source options of {self._moved[0]!r} and Start() set where the job starts: remove these "
                "source options"
            )
            raise UsageError(reason=reason)

    def refuse_query(self, judged: Iterable[tuple[str, Sequence[str]]], *, later: bool) -> None:
        """Refuse a start that would repeat results, or not be exact; ``judged`` comes from `event_times_of_state`.

        ``later``: whether the query may make times later, by how much is not known.
        """
        self._judged, self._later = list(judged), later
        started_at = None if self._stored is None else self._stored.output_at
        if self._wished is not None and not self._is_new and started_at != self._wished:
            refuse_output_at(self.plan, self._judged)
            reason = (
                f"checkpoint_location {self.snapshots.checkpoint_location} has not begun with output_at="
                f"{to_datetime(self._wished).isoformat()}, so its state may lack rows that these results need. "
                f"{self.advice()}"
            )
            raise UsageError(reason=reason)
        if not self._is_new:
            return
        if self.output is not None and self.options.published != "repeat":
            self._last = self.output.last()
            if self._last is None:
                self.output.settle()
                self._last = self.output.last()
            if self._last is not None and self.options.published == "refuse":
                raise self._published(self.output, self._last)
            if self._last is not None:
                refuse_replay(self.plan, self._judged, self.output.new)
        if self._last is None and self._wished is not None:
            refuse_output_at(self.plan, self._judged)
        self._chosen = self._choose()

    def _published(self, output: JobOutput, last: LastBatch) -> PublishedError:
        """Return the error for results that would be written again, with advice that no start refuses."""
        advice = f"write them again with WriteOptions(start=Start(published='repeat')), or use {output.new}"
        extent = f"written results to {output.name}, complete up to {iso(last.watermark)}"
        if last.ended:
            advice, extent = f"use {output.new}", f"written results to {output.name}, and has ended there"
        elif last.watermark is None:
            extent = f"started on {output.name}, but has no watermark there, so it may have written results or none"
            advice = f"if it has none, use WriteOptions(start=Start(published='repeat')). Otherwise, use {output.new}"
        elif self._can_continue(output, last):
            advice = f"Continue after them with {_CONTINUE}, {advice}"
        return PublishedError(
            job=self.job,
            output=output.name,
            watermark=last.watermark,
            extent=extent,
            checkpoint_location=self.snapshots.checkpoint_location,
            advice=advice[0].upper() + advice[1:],
        )

    def advice(self) -> str:
        """Return what the user can do if the state in the checkpoint cannot be used; no start refuses this advice."""
        new = "use a new checkpoint_location"
        last = None if self.output is None else self.output.last()
        if self.output is None or last is None:
            return new
        if last.ended:
            return f"{new} and {self.output.new}"
        if last.watermark is None:
            repeat = f"If {self.output.name} has no results, add WriteOptions(start=Start(published='repeat'))"
            return f"{new}. {repeat}; if it has, use {self.output.new}"
        if self._can_continue(self.output, last):
            return f"{new}, with {_CONTINUE} or {self.output.new}"
        return f"{new} and {self.output.new}"

    def wrote(self) -> bool:
        """Tell whether the output has a batch of the job, or does not tell."""
        return self.output is None or self.output.last() is not None

    def last_id(self) -> str | None:
        """Return the id of this checkpoint, which has lost it, from the last batch in the output; ``None``: no batch.

        With another id, the job would not know which batches the output has.
        """
        last = None if self.output is None else self.output.last()
        if self.output is None or last is None or last.batch is None or last.published is None:
            return None
        checkpoint_id, number = last.batch
        if self.snapshots.checkpoint.planned_end(number) == last.published.read:
            return checkpoint_id
        new = f"a new checkpoint_location and {self.output.new}"
        reason = f"their last batch, {number}, is not one of {self.snapshots.checkpoint_location}"
        raise ContinueError(job=self.job, output=self.output.name, reason=reason, new_output=new)

    def _can_continue(self, output: JobOutput, last: LastBatch) -> bool:
        try:
            refuse_replay(self.plan, self._judged, output.new)
            self._continue(output, last)
        except (ContinueError, RetentionError, UnsupportedQueryError):
            return False
        except UsageError:  # it names what to add
            pass
        return not self._moved

    def prepare(self, spark: SparkSession, sink: Sink, query: Query) -> None:
        """Move the checkpoint to where the job starts."""
        start_point = self._stored
        if start_point is None and self._is_new:
            if self.output is not None and self._last is not None:
                sink.open()  # fences an older instance that still runs, so that its newest batch is the last one
                self.output.settle()
                self._last = self.output.last()
                self._chosen = self._choose()
            limits = [most for spec in self.specs if (most := batch_limit(spec.connection.source_options()))]
            start_point = None if self._chosen is None else replace(self._chosen, most=min(limits, default=None))
        if start_point is not None:
            prepare_checkpoint(
                start_point, spark, self.specs, self.snapshots, query, job=self.job, windows_close=self.windows_close
            )

    def _choose(self) -> StartPoint | None:
        if self.output is not None and self._last is not None:
            return self._continue(self.output, self._last)
        return None if self._wished is None else start_at_time(self._needs(), self._wished)

    def _continue(self, output: JobOutput, last: LastBatch) -> StartPoint:
        return start_after_published(self._needs(), last, output, self.windows_close, self._wished)

    def _needs(self) -> Needs:
        start, stateful = self.options, any(node.keeps_state for node in self.plan.walk())
        reach = widths(self.plan), self._later, start.largest_window
        return Needs(self.job, self.specs, stateful, *reach, start.early)
