"""The progress of a job between two batches, as a value.  Pure: no Spark, Kafka or clock.

The invariant: *results below the output watermark of a batch are complete*.  Spark applies the watermark of the records
of batch n from batch n + 1 on, so the rows of batch n + 1 are the last ones below it.  The operators tell how far below
they may be: the rows of a join may be earlier by the width of its bound.  The output watermark never regresses.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from floodmark.schemas.classify import AnyMark, Mark, Offsets
from floodmark.schemas.completeness.position import TopicIds
from floodmark.schemas.counts import Discrepancy, RecordCounts
from floodmark.schemas.errors import UnreadableTopicError
from floodmark.schemas.stored_format import require_format, restoring
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.schemas.tracker import AS_WRITTEN, Hold, MarkPolicy, Tracker, apply_mark
from floodmark.spark_jobs.lookahead.marks_ahead import Ahead
from floodmark.spark_jobs.progress.ignored import Ignored
from floodmark.spark_jobs.progress.lateness import NOTHING, LateThresholds, Promises
from floodmark.spark_jobs.progress.offsets import from_spark, to_spark
from floodmark.spark_jobs.progress.reconcile import BatchMarks, reconcile
from floodmark.spark_jobs.progress.unusable import Doublings, Skipped, TopicRecords, nothing_usable

FORMAT: Final = 1


class Progress:
    """The state of one job after its last finished batch.  Only its methods change it.

    ``full_tracker``: of the full watermarks, if a percentile drives the job; ``promises``: those of each partition, if
    late rows are judged one by one.

    >>> progress = Progress(Tracker({"clicks"}))
    >>> progress.apply([])
    >>> progress.finish_batch(20), progress.finish_batch(15)
    (20, 20)
    """

    __slots__ = (
        *("_ahead", "_batch_watermark", "_counts", "_epoch", "_full_tracker", "_next_watermark", "_output"),
        *("_promises", "_record_counts", "_records", "_tracker", "doublings", "ignored", "processing_time"),
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
        full_tracker: Tracker | None = None,
        promises: Promises | None = None,
    ) -> None:
        self._ahead: Ahead | None = None
        self._batch_watermark: int | None = None
        self._output = output
        self._epoch = epoch
        self.processing_time: int | None = None  # the processing-time watermark, see `Batch`; it never regresses
        self.ignored: Final = Ignored()
        self.doublings: Final = Doublings()  # of the counts of unusable records, for the log of this run
        self.topic_ids = TopicIds()
        self._tracker = tracker
        self._next_watermark = next_watermark
        self._counts = Counter(counts)
        self._record_counts = RecordCounts() if record_counts is None else record_counts
        self._records: dict[str, TopicRecords] = {}
        self._full_tracker = full_tracker
        self._promises = promises

    @property
    def watermark(self) -> int | None:
        """The input watermark, epoch milliseconds; ``None``: unknown."""
        return self._tracker.watermark

    @property
    def next_watermark(self) -> int | None:
        """The watermark that the next batch runs with, epoch milliseconds."""
        return self._next_watermark if self._ahead is None else self._ahead.watermark

    @property
    def ahead(self) -> Ahead | None:
        """The watermark of the next batch, if it rests on marks that only this batch will read."""
        return self._ahead

    @property
    def batch_watermark(self) -> int | None:
        """The watermark that the last batch ran with, epoch milliseconds; ``None``: none, or unknown."""
        return self._batch_watermark

    @property
    def promised(self) -> int | None:
        """The input watermark of all events, epoch milliseconds: below `watermark` if a percentile drives the job."""
        return (self._full_tracker or self._tracker).watermark

    @property
    def output(self) -> int | None:
        """The output watermark, epoch milliseconds."""
        return self._output

    @property
    def epoch(self) -> int:
        """The epoch of the job as a source of its output topic."""
        return self._epoch

    @property
    def ended(self) -> bool:
        """Whether all input has ended and every result is complete."""
        return self._output == END_OF_TIME

    @property
    def idle(self) -> bool:
        """See `Tracker.idle`."""
        return self._tracker.idle

    @property
    def counts(self) -> dict[str, int]:
        """The totals since the checkpoint was created, and those of marks by verdict."""
        return dict(self._counts) | dict(self._tracker.counts)

    def holders(self) -> list[Hold]:
        """Return the sources that hold the input watermark."""
        return self._tracker.holders()

    def nothing_usable(self, topics: Collection[str]) -> UnreadableTopicError | None:
        """Return the error for topics without a usable record so far, see `unusable.nothing_usable`."""
        return nothing_usable(self._records, tuple(topics))

    def thresholds(self, percentile: int | None = None, shift: int = 0, derived: int = 0) -> LateThresholds | None:
        """Return the thresholds by which the tasks of the next batch judge its rows; ``None``: they do not judge."""
        if self._promises is None:
            return None
        known = NOTHING if self._next_watermark is None else self._next_watermark
        return LateThresholds(self._promises, known, percentile, shift, derived)

    def resume(self, *, now: int, percentile: bool = False, judged: bool = False) -> None:
        """Begin a new epoch, not before ``now`` (epoch ms); ``judged``: whether late rows are judged one by one."""
        self._epoch = max(self._epoch + 1, now)
        if percentile and self._full_tracker is None:
            self._full_tracker = self._tracker.copy()
        if not judged:
            self._promises = None
        elif self._promises is None:
            self._promises = Promises.of(self._tracker)

    def complete_after_rebuild(self, batch_watermark: int | None, *, stateful: bool) -> int | None:
        """Return the watermark up to which the results of a rebuilt progress are surely complete.

        Results of operators with state are surely complete only if the last batch ran at the end of all input.
        """
        ended = batch_watermark == self._next_watermark == END_OF_TIME
        return self._next_watermark if ended or not stateful else None

    def apply(
        self,
        marks: Iterable[AnyMark],
        policies: Mapping[str, MarkPolicy] = MappingProxyType({}),
        to_end: Callable[[], bool] = lambda: True,
        *,
        advance: bool = True,
    ) -> None:
        """Apply the marks of a batch, in the order of each partition, and ``advance`` the watermark.

        ``to_end``: see `Tracker.advance`.

        The marks that the batch's watermark rests on come first, since this watermark holds once they are applied.
        """
        ahead, parts = self._ahead, [list(marks)]
        self._batch_watermark = self.next_watermark
        if ahead is not None:
            parts = [[mark for mark in parts[0] if ahead.rests_on(mark) is first] for first in (True, False)]
        for part in parts:
            for mark in part:
                self._apply(mark, policies.get(mark.topic, AS_WRITTEN))
            for tracker in (self._tracker, self._full_tracker) if advance else ():
                if tracker is not None:
                    tracker.advance(to_end)
        self._ahead, self._next_watermark = None, self._tracker.watermark

    def _apply(self, mark: AnyMark, policy: MarkPolicy) -> None:
        if self._promises is not None:
            self._promises.apply(mark, *policy)
        if self._full_tracker is not None:
            apply_mark(self._full_tracker, mark, shift=policy.shift)
        verdict = apply_mark(self._tracker, mark, *policy)
        if verdict is not None and isinstance(mark, Mark):
            self.ignored.take(mark, verdict, self._tracker)

    def tracker_copy(self) -> Tracker:
        """Return a copy of the input's tracker."""
        return self._tracker.copy()

    def look_ahead(self, ahead: Ahead) -> None:
        """Let the next batch run with a watermark of marks that it is going to read."""
        self._ahead = ahead

    def withdraw_ahead(self, planned: Offsets | None = None) -> bool:
        """Withdraw the watermark of a look ahead, unless a batch planned up to ``planned`` reads all of its marks."""
        if self._ahead is None or (planned is not None and self._ahead.is_covered(planned)):
            return False
        self._ahead = None
        return True

    def is_at_least(self, watermark: int) -> bool:
        """Tell whether the input watermark has reached a value."""
        return self.watermark is not None and self.watermark >= watermark

    def tally(
        self, topic: str, rows: int, unusable: Mapping[str, Skipped], latest: int | None = None
    ) -> dict[str, int]:
        """Add up the records of one source, under its first topic; return its totals of the kinds in ``unusable``."""
        return self._records.setdefault(topic, TopicRecords()).add(rows, unusable, latest)

    def latest(self, topic: str) -> int | None:
        """Return the highest event time of the rows under ``topic``, epoch milliseconds; ``None``: none, or unknown."""
        return self._records.get(topic, TopicRecords()).latest

    def reconcile(
        self, marks: BatchMarks, start: Offsets, end: Offsets, uncounted: Collection[str]
    ) -> list[Discrepancy]:
        """Compare the rows of a batch with the counts in its marks, see `reconcile.reconcile`."""
        return reconcile(self._record_counts, marks, start, end, uncounted)

    def finish_batch(self, complete: int | None, counts: Mapping[str, int] | None = None) -> int | None:
        """Add up the counts of a batch, and return the output watermark, which never regresses.

        ``complete``: a lower bound of the event times in later results; ``None``: unknown.
        """
        self._counts.update(counts or {})
        processed = self._tracker.processing_time
        if processed is not None and (self.processing_time is None or processed > self.processing_time):
            self.processing_time = processed
        if complete is not None:
            self._output = complete if self._output is None else max(self._output, complete)
        return self._output

    def snapshot(self) -> dict[str, Any]:
        """Return the progress as a JSON value."""
        ahead = self._ahead
        return {
            "format": FORMAT,
            "epoch": self._epoch,
            "tracker": self._tracker.snapshot(),
            "tracker_of_all_events": None if self._full_tracker is None else self._full_tracker.snapshot(),
            "promises_by_partition": None if self._promises is None else self._promises.snapshot(),
            "batch_watermark": self._batch_watermark,
            "next_watermark": self._next_watermark,
            "lookahead": ahead and {"watermark": ahead.watermark, "positions": to_spark(ahead.positions)},
            "output_watermark": self._output,
            "processing_time": self.processing_time,
            "topic_ids": dict(self.topic_ids),
            "counts": dict(self._counts),
            "record_counts": self._record_counts.snapshot(),
            "records_by_topic": {topic: records.snapshot() for topic, records in self._records.items()},
        }

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any], where: str) -> "Progress":
        """Return the progress of a snapshot, or raise `CorruptSnapshotError`."""
        with restoring(where):
            require_format(snapshot, FORMAT)
            full, promises = snapshot["tracker_of_all_events"], snapshot["promises_by_partition"]
            ahead = snapshot["lookahead"]
            found = cls(
                Tracker.restore(snapshot["tracker"]),
                next_watermark=snapshot["next_watermark"],
                output=snapshot["output_watermark"],
                epoch=snapshot["epoch"],
                counts=snapshot["counts"],
                record_counts=RecordCounts.restore(snapshot["record_counts"]),
                full_tracker=None if full is None else Tracker.restore(full),
                promises=None if promises is None else Promises.restore(promises),
            )
            found._batch_watermark, found.processing_time = snapshot["batch_watermark"], snapshot["processing_time"]
            found.topic_ids = TopicIds(snapshot["topic_ids"])
            found._ahead = None if ahead is None else Ahead(ahead["watermark"], from_spark(ahead["positions"]))
            for topic, records in snapshot["records_by_topic"].items():
                found._records[topic] = TopicRecords(**records)
        return found
