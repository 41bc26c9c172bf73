"""What a job knows of its progress between two batches, and how that is a value.  Pure: no Spark, Kafka or clock.

The invariant: *the output watermark of a batch is complete up to what the batch ran with*.  Spark applies the watermark
that the records of batch n give from batch n + 1 on, so the rows of batch n + 1 are the last ones below it.  How far
below, the operators say: a join may give rows that are as much older as its bound is wide.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from floodmark.schemas.counts import RecordCounts
from floodmark.schemas.errors import CorruptSnapshotError
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.schemas.tracker import Tracker
from floodmark.spark_jobs.progress.lateness import Promises

WindowsClose = Literal["after", "at"]
"""When Spark closes a window that ends at E, as the watermark T passes: ``after``: T > E.  ``at``: T >= E."""

FORMAT: Final = 2


def spark_watermark(watermark: int, windows_close: WindowsClose) -> int:
    """Translate a watermark (no later event below T) to Spark's, whose late filter is ``event_time <= watermark``.

    ``after`` gives T - 1 ms: no operator drops a row at exactly T.  ``at`` gives T, so that a window is out one mark
    earlier, but operators on raw event times (session windows, joins, dropDuplicates, timers) drop a row at exactly T.

    >>> spark_watermark(12, "after"), spark_watermark(12, "at"), spark_watermark(END_OF_TIME, "after") == END_OF_TIME
    (11, 12, True)
    """
    return watermark - 1 if windows_close == "after" and watermark != END_OF_TIME else watermark


def ran_with_of(watermark: int, windows_close: WindowsClose) -> int | None:
    """Translate Spark's watermark back; 0 is Spark's word for none.

    >>> ran_with_of(11, "after"), ran_with_of(12, "at"), ran_with_of(0, "at")
    (12, 12, None)
    """
    if watermark == 0:
        return None
    return watermark + 1 if windows_close == "after" and watermark != END_OF_TIME else watermark


@dataclass(slots=True)
class Progress:
    """The state of one job, as of the last finished batch.

    Args:
        tracker: all that the input has promised.
        applied: the watermark that the next batch runs with.
        output: the watermark handed on; ``None``: nothing yet.
        epoch: the generation of the job as a source of its output topic.
        counts: totals since the checkpoint began.
        ledger: whether the records that the marks count were all read.
        promised: where a percentile drives the job, what all events together allow; else ``None``.
        promises: where late rows are judged one by one, what was promised in each partition; else ``None``.
    """

    tracker: Tracker
    applied: int | None = None
    output: int | None = None
    epoch: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    ledger: RecordCounts = field(default_factory=RecordCounts)
    promised: Tracker | None = None
    promises: Promises | None = None

    def advance(self) -> int | None:
        """Take what the trackers have learnt into the next batch, and return the watermark that it runs with."""
        self.tracker.advance()
        if self.promised is not None:
            self.promised.advance()
        self.applied = self.tracker.watermark
        return self.applied

    def hand_on(self, complete: int | None, hold: int) -> int | None:
        """Say what is complete after a batch.

        Args:
            complete: no later result is stamped below it, but for the hold.
            hold: how much earlier than its completion a result may be stamped, milliseconds.

        Returns:
            The output watermark: never back, `END_OF_TIME` when all input has ended and is worked off.
        """
        if complete is not None:
            held = complete if complete == END_OF_TIME else complete - hold
            self.output = held if self.output is None else max(self.output, held)
        return self.output

    @property
    def ended(self) -> bool:
        """Whether all input has ended and every result of it is out."""
        return self.output == END_OF_TIME

    def snapshot(self) -> dict[str, Any]:
        """Return all of it as a value that JSON can carry."""
        return {
            "format": FORMAT,
            "tracker": self.tracker.snapshot(),
            "applied": self.applied,
            "output": self.output,
            "epoch": self.epoch,
            "counts": dict(self.counts),
            "ledger": self.ledger.snapshot(),
            "promised": None if self.promised is None else self.promised.snapshot(),
            **({} if self.promises is None else {"promises": self.promises.snapshot()}),
        }

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any], where: str) -> "Progress":
        """Build it from what `snapshot` returned.

        Raises:
            CorruptSnapshotError: where it is of another format or damaged.
        """
        try:
            if snapshot["format"] != FORMAT:
                reason = f"its format is {snapshot['format']}, expected {FORMAT}"
                raise CorruptSnapshotError(where=where, reason=reason, advice="use the Floodmark version that wrote it")
            return cls(
                Tracker.restore(snapshot["tracker"]),
                snapshot["applied"],
                snapshot["output"],
                snapshot["epoch"],
                Counter(snapshot["counts"]),
                RecordCounts.restore(snapshot["ledger"]),
                None if snapshot["promised"] is None else Tracker.restore(snapshot["promised"]),
                Promises.restore(snapshot["promises"]) if "promises" in snapshot else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptSnapshotError(
                where=where, reason=f"{type(error).__name__}: {error}", advice="restore an intact copy"
            ) from error
