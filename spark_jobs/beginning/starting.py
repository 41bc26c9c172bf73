"""The start of one job: what is refused, what is chosen, and how its checkpoint gets there."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from floodmark.producers.clients.admin import Config
from floodmark.schemas.errors import (
    ContinueError,
    PublishedError,
    RetentionError,
    UnsupportedQueryError,
    UsageError,
)
from floodmark.schemas.errors.base import iso
from floodmark.schemas.timestamps import event_time_of, to_datetime
from floodmark.spark_jobs.batch.sinks import Sink
from floodmark.spark_jobs.batch.snapshots import Snapshots
from floodmark.spark_jobs.beginning.beginning import Beginning, stored
from floodmark.spark_jobs.beginning.choice import LastMark, Needs, at_time, behind, last_mark
from floodmark.spark_jobs.beginning.rerun import Query, bring_to
from floodmark.spark_jobs.beginning.start import Start
from floodmark.spark_jobs.progress.spark_watermark import WindowsClose
from floodmark.spark_jobs.queries.plan import Operator, widths
from floodmark.spark_jobs.queries.refusals import refuse_replay
from floodmark.spark_jobs.queries.source_options import batch_limit
from floodmark.spark_jobs.reading.source_spec import SourceSpec
from pyspark.sql import SparkSession


class Starting:
    """Where one job begins, from the user's wishes and from what is there.

    Args:
        job: the job.
        topic: its output topic; ``None``: it has a writer.
        config: confluent-kafka settings for that.
        specs: what it reads.
        snapshots: of its checkpoint.
        wishes: the user's.
    """

    def __init__(
        self,
        job: str,
        topic: str | None,
        config: Config,
        specs: Sequence[SourceSpec],
        snapshots: Snapshots,
        wishes: Start,
    ) -> None:
        self._job = job
        self._topic = topic
        self._config = config
        self._specs = specs
        self._snapshots = snapshots
        self._wishes = wishes
        self._stored = stored(snapshots.checkpoint.files)
        self._is_new = self._stored is None and not snapshots.checkpoint.is_planned
        self._wished = None if wishes.output_at is None else event_time_of(wishes.output_at)
        self._moved = [spec.topics[0] for spec in specs if not spec.connection.from_earliest]
        self._last: LastMark | None = None
        self._chosen: Beginning | None = None

    @property
    def output_at(self) -> int | None:
        """Results with an earlier event time are left out, epoch milliseconds; ``None``: none is."""
        return self._wished if self._stored is None else self._stored.output_at

    def refuse(self) -> None:
        """Refuse wishes that contradict each other or the checkpoint.

        Raises:
            UsageError: where they do.
        """
        wishes = self._wishes
        if self._topic is None and (wishes.output_at is not None or wishes.published != "refuse"):
            reason = f"job {self._job!r} has a writer: Start(output_at=) and Start(published=) need topic="
            raise UsageError(reason=reason)
        begun = None if self._stored is None else self._stored.output_at
        if self._wished is not None and not self._is_new and begun != self._wished:
            reason = (
                f"checkpoint_location {self._snapshots.checkpoint_location} has not begun with output_at="
                f"{to_datetime(self._wished).isoformat()}: what it holds may lack rows that results need from there "
                "on; use a new checkpoint_location, with published='continue' or a new output topic"
            )
            raise UsageError(reason=reason)
        if self._moved and self._is_new and (self._wished is not None or wishes.published == "continue"):
            reason = (
                f"the source options of {self._moved[0]!r} say where the job begins, and so does Start(): remove these "
                "source options"
            )
            raise UsageError(reason=reason)

    def refuse_query(
        self, plan: Operator, judged: Iterable[tuple[str, Sequence[str]]], windows_close: WindowsClose
    ) -> None:
        """Refuse, before anything is written, a start that would write results again, or could not be exact.

        Raises:
            PublishedError: where the output topic has results of the job, and `Start` does not name a way on.
            UnsupportedQueryError: where a replay would not bring back the query's state; see `refuse_replay`.
            ContinueError, RetentionError, UsageError: where the job cannot begin as was wished.
        """
        if not self._is_new or self._topic is None:
            return
        if self._wishes.published != "repeat":
            self._last = last_mark(self._config, self._topic, self._job)
        if self._last is not None and self._wishes.published == "refuse":
            raise self._published(self._last, plan, judged, windows_close)
        if self._last is not None:
            refuse_replay(plan, judged)
        self._chosen = self._choose(plan, windows_close)

    def _published(
        self,
        last: LastMark,
        plan: Operator,
        judged: Iterable[tuple[str, Sequence[str]]],
        windows_close: WindowsClose,
    ) -> PublishedError:
        """Return the error for results that would be written again; it advises what would not be refused."""
        advice = "write them again with Start(published='repeat'), or use a new output topic"
        if last.ended:
            advice = "use a new output topic"
        elif self._can_continue(plan, judged, windows_close):
            advice = f"Continue behind them with WriteOptions(start=Start(published='continue')), {advice}"
        return PublishedError(
            job=self._job,
            topic=str(self._topic),
            watermark=last.watermark,
            extent="and has ended there" if last.ended else f"complete up to {iso(last.watermark)}",
            checkpoint_location=self._snapshots.checkpoint_location,
            advice=advice[0].upper() + advice[1:],
        )

    def advice(self, plan: Operator, judged: Iterable[tuple[str, Sequence[str]]], windows_close: WindowsClose) -> str:
        """Return what the user can do if the state in the checkpoint cannot be used; no start refuses this advice."""
        new = "Use a new checkpoint_location"
        if self._topic is not None:
            self._last = last_mark(self._config, self._topic, self._job)
        if self._last is None:
            return new
        if not self._last.ended and self._can_continue(plan, judged, windows_close):
            return f"{new}, with WriteOptions(start=Start(published='continue')) or a new output topic"
        return f"{new} and a new output topic"

    def _can_continue(
        self, plan: Operator, judged: Iterable[tuple[str, Sequence[str]]], windows_close: WindowsClose
    ) -> bool:
        try:
            refuse_replay(plan, judged)
            self._choose(plan, windows_close)
        except (ContinueError, RetentionError, UnsupportedQueryError):
            return False
        except UsageError:  # it names what to add
            pass
        return not self._moved

    def carry_out(
        self, spark: SparkSession, plan: Operator, sink: Sink, query: Query, windows_close: WindowsClose
    ) -> None:
        """Bring the checkpoint to where the job begins.

        Raises:
            ContinueError, RetentionError, UsageError: where it cannot begin there.
        """
        beginning = self._stored
        if beginning is None and self._is_new:
            if self._last is not None:
                sink.open()  # an older instance that still runs is shut out, so that the newest mark is the last one
                self._last = last_mark(self._config, str(self._topic), self._job)
                self._chosen = self._choose(plan, windows_close)
            limits = [most for spec in self._specs if (most := batch_limit(spec.connection.source_options()))]
            beginning = None if self._chosen is None else replace(self._chosen, most=min(limits, default=None))
        if beginning is not None:
            bring_to(
                beginning,
                spark,
                self._specs,
                self._snapshots,
                query,
                job=self._job,
                windows_close=windows_close,
            )

    def _choose(self, plan: Operator, windows_close: WindowsClose) -> Beginning | None:
        wishes = self._wishes
        stateful = any(node.keeps_state for node in plan.walk())
        needs = Needs(self._job, self._specs, stateful, widths(plan), wishes.largest_window, wishes.early)
        if self._last is not None:
            return behind(needs, self._last, str(self._topic), windows_close, self._wished)
        return None if self._wished is None else at_time(needs, self._wished)
