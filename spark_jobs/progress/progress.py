"""What a job knows of its progress between two batches, and how that is a value.  Pure: no Spark, Kafka or clock.

The invariant: *the output watermark of a batch is complete up to what the batch ran with*.  Spark applies the watermark
that the records of batch n give from batch n + 1 on, so the rows of batch n + 1 are the last ones below it.  How far
below, the operators say: a join may give rows that are as much older as its bound is wide.  So the output watermark
never goes back, and what all events together allow is never above the watermark that drives the job.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Final

from floodmark.schemas.classify import AnyMark, Mark, Offsets
from floodmark.schemas.completeness.position import TopicIds
from floodmark.schemas.counts import Discrepancy, RecordCounts
from floodmark.schemas.errors import UnreadableTopicError
from floodmark.schemas.mark_policy import AS_WRITTEN, MarkPolicy, apply_mark
from floodmark.schemas.stored_format import require_format, restoring
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.schemas.tracker import Hold, Tracker
from floodmark.spark_jobs.lookahead.marks_ahead import Ahead
from floodmark.spark_jobs.progress.ignored import Ignored
from floodmark.spark_jobs.progress.lateness import NOTHING, LateThresholds, Promises
from floodmark.spark_jobs.progress.offsets import from_spark, to_spark
from floodmark.spark_jobs.progress.reconcile import BatchMarks, reconcile
from floodmark.spark_jobs.progress.unusable import Skipped, TopicRecords, nothing_usable

FORMAT: Final = 1


class Progress:
    """The state of one job, as of the last finished batch.  Only its methods change it.

    Args:
        tracker: all that the input has promised.
        next_watermark: the watermark that the next batch runs with.
        output: the watermark handed on; ``None``: nothing yet.
        epoch: the generation of the job as a source of its output topic.
        counts: totals since the checkpoint began.
        record_counts: whether the records that the marks count were all read.
        promised: where a percentile drives the job, what all events together allow; else ``None``.
        promises: where late rows are judged one by one, what was promised in each partition; else ``None``.

    >>> progress = Progress(Tracker({"clicks"}))
    >>> progress.apply([])
    >>> progress.finish_batch(complete=30, hold=10), progress.finish_batch(complete=35, hold=20)
    (20, 20)
    """

    __slots__ = (
        *("_ahead", "_batch_watermark", "_counts", "_epoch", "_next_watermark", "_output"),
        *("_promised", "_promises", "_record_counts", "_records", "_tracker", "ignored", "processing_time"),
        "topic_ids",
    )

    def __init__(
        self,
        tracker: Tracker,
        *,
        next_watermark: int | None = None,
        output: int | None = None,
        epoch: int = 0,
        counts: Mapping[str, int] = MappingProxyType({}),
        record_counts: RecordCounts | None = None,
        promised: Tracker | None = None,
        promises: Promises | None = None,
    ) -> None:
        self._ahead: Ahead | None = None
        self.ignored: Final = Ignored()
        """Processes whose marks are ignored, since this start of the job."""
        self.processing_time: int | None = None
        """Up to when all that came to the sources is worked off with the last batch; ``None``: not known."""
        self.topic_ids = TopicIds()
        """Of the topics that are read."""
        self._batch_watermark: int | None = None
        self._tracker = tracker
        self._next_watermark = next_watermark
        self._output = output
        self._epoch = epoch
        self._counts = Counter(counts)
        self._record_counts = RecordCounts() if record_counts is None else record_counts
        self._records: dict[str, TopicRecords] = {}
        self._promised = promised
        self._promises = promises

    @property
    def watermark(self) -> int | None:
        """The watermark of the input, epoch milliseconds; ``None``: not known."""
        return self._tracker.watermark

    @property
    def next_watermark(self) -> int | None:
        """The watermark that the next batch runs with, epoch milliseconds; ``None``: none."""
        return self._next_watermark if self._ahead is None else self._ahead.watermark

    @property
    def ahead(self) -> Ahead | None:
        """The watermark of the next batch, where it rests on records that only this batch will read."""
        return self._ahead

    @property
    def batch_watermark(self) -> int | None:
        """The watermark that the last batch ran with, epoch milliseconds; ``None``: none, or not known."""
        return self._batch_watermark

    @property
    def promised(self) -> int | None:
        """What all events together allow, epoch milliseconds: less than `watermark` where a percentile drives."""
        return (self._promised or self._tracker).watermark

    @property
    def output(self) -> int | None:
        """The watermark handed on, epoch milliseconds; ``None``: nothing yet."""
        return self._output

    @property
    def epoch(self) -> int:
        """The generation of the job as a source of its output topic."""
        return self._epoch

    @property
    def ended(self) -> bool:
        """Whether all input has ended and every result of it is out."""
        return self._output == END_OF_TIME

    @property
    def idle(self) -> bool:
        """Whether nobody is to be waited for, and more may come: see `Tracker.idle`."""
        return self._tracker.idle

    @property
    def counts(self) -> dict[str, int]:
        """The totals since the checkpoint began, and what became of the watermark records."""
        return dict(self._counts) | dict(self._tracker.counts)

    def holders(self) -> list[Hold]:
        """Name what holds the watermark of the input."""
        return self._tracker.holders()

    def nothing_usable(self, topics: Collection[str]) -> UnreadableTopicError | None:
        """Return the error for topics of which no record could be used so far, see `unusable.nothing_usable`."""
        return nothing_usable(self._records, tuple(topics))

    def thresholds(self, percentile: int | None = None, shift: int = 0) -> LateThresholds | None:
        """Return what the tasks of the next batch must know to judge its rows; ``None``: they do not judge."""
        if self._promises is None:
            return None
        known = NOTHING if self._next_watermark is None else self._next_watermark
        return LateThresholds(self._promises, known, percentile, shift)

    def resume(self, *, now: int, percentile: bool = False, judged: bool = False) -> None:
        """Begin a new epoch of the job.

        Args:
            now: epoch milliseconds.
            percentile: whether a percentile drives the job.
            judged: whether late rows are judged one by one.
        """
        self._epoch = max(self._epoch + 1, now)
        if percentile and self._promised is None:
            self._promised = self._tracker.copy()
        if not judged:
            self._promises = None
        elif self._promises is None:
            self._promises = Promises.of(self._tracker)

    def rebuilt(self, batch_watermark: int | None, *, stateful: bool, hold: int) -> None:
        """Hand on what is certainly complete, after a lost snapshot was worked out again.

        With state nothing says how far operators were complete, but at the end: the next batch tells.

        Args:
            batch_watermark: what the last committed batch ran with; ``None``: none.
            stateful: whether operators keep state.
            hold: see `finish_batch`.
        """
        if not stateful:
            self.finish_batch(complete=self._next_watermark, hold=hold)
        elif batch_watermark == self._next_watermark == END_OF_TIME:
            self.finish_batch(complete=END_OF_TIME)

    def apply(self, marks: Iterable[AnyMark], policies: Mapping[str, MarkPolicy] = MappingProxyType({})) -> None:
        """Take in the marks of a batch, in the order of each partition, and advance.

        Those come first that the watermark of the batch rests on: it holds as soon as they are all there.
        """
        ahead, given = self._ahead, list(marks)
        self._batch_watermark = self.next_watermark
        for mark in given:
            if ahead is None or ahead.rests_on(mark):
                self._apply(mark, policies.get(mark.topic, AS_WRITTEN))
        self._advance()
        if ahead is None:
            return
        for mark in given:
            if not ahead.rests_on(mark):
                self._apply(mark, policies.get(mark.topic, AS_WRITTEN))
        self._ahead = None
        self._advance()

    def _apply(self, mark: AnyMark, policy: MarkPolicy) -> None:
        if self._promises is not None:
            self._promises.apply(mark, *policy)
        if self._promised is not None:
            apply_mark(self._promised, mark, shift=policy.shift)
        verdict = apply_mark(self._tracker, mark, *policy)
        if verdict is not None and isinstance(mark, Mark):
            self.ignored.take(mark, verdict, self._tracker)

    def _advance(self) -> None:
        self._tracker.advance()
        if self._promised is not None:
            self._promised.advance()
        self._next_watermark = self._tracker.watermark

    def tracked(self) -> Tracker:
        """Return a copy of all that the input has promised."""
        return self._tracker.copy()

    def look_ahead(self, ahead: Ahead) -> None:
        """Let the next batch run with a watermark that rests on records which it is going to read."""
        self._ahead = ahead

    def withdraw_ahead(self, planned: Offsets | None = None) -> bool:
        """Forget a watermark that was set ahead, unless a planned batch reads what it rests on.

        Args:
            planned: where the batch ends; ``None``: none is planned.

        Returns:
            Whether there was one, and it is forgotten.
        """
        if self._ahead is None or (planned is not None and self._ahead.is_covered(planned)):
            return False
        self._ahead = None
        return True

    def is_at_least(self, watermark: int) -> bool:
        """Tell whether the input has come as far as a watermark."""
        return self.watermark is not None and self.watermark >= watermark

    def tally(self, topic: str, rows: int, unusable: Mapping[str, Skipped]) -> None:
        """Add up what one source of the job has brought, under its first topic."""
        self._records.setdefault(topic, TopicRecords()).add(rows, unusable)

    def reconcile(
        self, marks: BatchMarks, start: Offsets, end: Offsets, uncounted: Collection[str]
    ) -> list[Discrepancy]:
        """Compare the rows of a batch with what its marks count, see `reconcile.reconcile`."""
        return reconcile(self._record_counts, marks, start, end, uncounted)

    def finish_batch(
        self, *, complete: int | None, hold: int = 0, counts: Mapping[str, int] | None = None
    ) -> int | None:
        """Hand on what is complete after a batch, and add up what it has counted.

        Args:
            complete: no later result is stamped below it, but for the hold; ``None``: nothing is known.
            hold: how much earlier than its completion a result may be stamped, milliseconds.
            counts: of this batch.

        Returns:
            The output watermark: never back, `END_OF_TIME` when all input has ended and is worked off.
        """
        self._counts.update(counts or {})
        worked_off = self._tracker.processing_time
        if worked_off is not None and (self.processing_time is None or worked_off > self.processing_time):
            self.processing_time = worked_off
        if complete is not None:
            held = complete if complete == END_OF_TIME else complete - hold
            self._output = held if self._output is None else max(self._output, held)
        return self._output

    def snapshot(self) -> dict[str, Any]:
        """Return all of it as a value that JSON can carry."""
        ahead = self._ahead
        return {
            "format": FORMAT,
            "epoch": self._epoch,
            "tracker": self._tracker.snapshot(),
            "tracker_of_all_events": None if self._promised is None else self._promised.snapshot(),
            "promises_by_partition": None if self._promises is None else self._promises.snapshot(),
            "batch_watermark": self._batch_watermark,
            "next_watermark": self._next_watermark,
            "lookahead": ahead and {"watermark": ahead.watermark, "positions": to_spark(ahead.positions)},
            "output_watermark": self._output,
            "processing_time": self.processing_time,
            "topic_ids": dict(self.topic_ids),
            "counts": dict(self._counts),
            "record_counts": self._record_counts.snapshot(),
            "records_by_topic": {topic: asdict(records) for topic, records in self._records.items()},
        }

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any], where: str) -> "Progress":
        """Build it from what `snapshot` returned.

        Raises:
            CorruptSnapshotError: where it is of another format or damaged.
        """
        with restoring(where):
            require_format(snapshot, FORMAT)
            promised, promises, ahead = (
                snapshot[name] for name in ("tracker_of_all_events", "promises_by_partition", "lookahead")
            )
            found = cls(
                Tracker.restore(snapshot["tracker"]),
                next_watermark=snapshot["next_watermark"],
                output=snapshot["output_watermark"],
                epoch=snapshot["epoch"],
                counts=snapshot["counts"],
                record_counts=RecordCounts.restore(snapshot["record_counts"]),
                promised=None if promised is None else Tracker.restore(promised),
                promises=None if promises is None else Promises.restore(promises),
            )
            found._batch_watermark, found.processing_time = snapshot["batch_watermark"], snapshot["processing_time"]
            found.topic_ids = TopicIds(snapshot["topic_ids"])
            found._ahead = None if ahead is None else Ahead(ahead["watermark"], from_spark(ahead["positions"]))
            for topic, records in snapshot["records_by_topic"].items():
                found._records[topic] = TopicRecords(**records)
        return found
