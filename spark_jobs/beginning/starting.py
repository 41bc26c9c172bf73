"""The start of one job: what is refused, what is chosen, and how its checkpoint gets there."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from floodmark.producers.clients.admin import Config
from floodmark.schemas.errors import PublishedError, UsageError
from floodmark.schemas.timestamps import event_time_of, to_datetime
from floodmark.spark_jobs.batch.sinks import Sink
from floodmark.spark_jobs.batch.snapshots import Snapshots
from floodmark.spark_jobs.beginning.beginning import Beginning, stored
from floodmark.spark_jobs.beginning.choice import Needs, at_time, behind, last_mark
from floodmark.spark_jobs.beginning.replay import Query, bring_to
from floodmark.spark_jobs.beginning.start import Start
from floodmark.spark_jobs.progress.spark_watermark import WindowsClose
from floodmark.spark_jobs.queries.outlook import widths
from floodmark.spark_jobs.queries.plan import Operator
from floodmark.spark_jobs.queries.replay import refuse_replay
from floodmark.spark_jobs.queries.source_options import batch_limit
from floodmark.spark_jobs.reading.source import SourceSpec
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
        self._continues = False

    @property
    def output_at(self) -> int | None:
        """Results with an earlier event time are left out, epoch milliseconds; ``None``: none is."""
        return self._wished if self._stored is None else self._stored.output_at

    def refuse(self) -> None:
        """Refuse wishes that contradict each other or what is there.

        Raises:
            UsageError: where they do.
            PublishedError: where the output topic has results of the job, and nobody said what becomes of them.
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
                "on; use a new checkpoint_location"
            )
            raise UsageError(reason=reason)
        moved = [spec.topics[0] for spec in self._specs if not spec.connection.from_earliest]
        if moved and self._is_new and (self._wished is not None or wishes.published == "continue"):
            reason = f"the source options of {moved[0]!r} say where it begins, and so does Start(): leave one out"
            raise UsageError(reason=reason)
        if not self._is_new or self._topic is None or wishes.published == "repeat":
            return
        last = last_mark(self._config, self._topic, self._job)
        self._continues = last is not None and wishes.published == "continue"
        if last is not None and not self._continues:
            raise PublishedError(
                job=self._job,
                topic=self._topic,
                watermark=last.watermark,
                checkpoint_location=self._snapshots.checkpoint_location,
            )

    def refuse_query(self, plan: Operator, judged: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Refuse a query whose state a replay would not bring back, where one is needed; see `refuse_replay`."""
        if self._continues:
            refuse_replay(plan, judged)

    def carry_out(
        self, spark: SparkSession, plan: Operator, sink: Sink, query: Query, windows_close: WindowsClose
    ) -> None:
        """Bring the checkpoint to where the job begins.

        Args:
            spark: the session.
            plan: the query.
            sink: where its rows go.
            query: gives it, with a function that is called with each batch.
            windows_close: as the job has it.

        Raises:
            ContinueError, RetentionError, UsageError: where it cannot begin there.
        """
        beginning = self._stored
        if beginning is None and self._is_new:
            chosen = self._choose(plan, sink, windows_close)
            limits = [most for spec in self._specs if (most := batch_limit(spec.connection.source_options()))]
            beginning = None if chosen is None else replace(chosen, most=min(limits, default=None))
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

    def _choose(self, plan: Operator, sink: Sink, windows_close: WindowsClose) -> Beginning | None:
        wishes = self._wishes
        stateful = any(node.keeps_state for node in plan.walk())
        needs = Needs(self._job, self._specs, stateful, widths(plan), wishes.largest_window, wishes.early)
        if self._continues and self._topic is not None:
            sink.open()  # an older instance that still runs is shut out, so that the newest mark is the last one
            last = last_mark(self._config, self._topic, self._job)
            if last is not None:
                return behind(needs, last, self._topic, windows_close, self._wished)
        return None if self._wished is None else at_time(needs, self._wished)
