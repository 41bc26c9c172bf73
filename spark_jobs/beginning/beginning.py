"""Where a job begins, as a value that its checkpoint keeps until the job is there."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil
from typing import Final

from floodmark.schemas.classify import Offsets
from floodmark.schemas.errors import CorruptSnapshotError
from floodmark.spark_jobs.batch.snapshots import FOLDER
from floodmark.spark_jobs.internals.hadoop import Files
from floodmark.spark_jobs.progress.offsets import from_spark, to_spark

_NAME: Final = f"{FOLDER}/start.json"


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a job begins.

    Args:
        begins: where it reads from.
        replayed: up to where it reads without a result; ``None``: from ``begins`` on there are results.
        ran: the watermark that the last published batch ran with, as Spark counts it, epoch milliseconds; 0: none.
        output: the watermark that was handed on; ``None``: none.
        epoch: the job's, as a source of its output topic, so far.
        most: the most records of one batch of the replay; ``None``: no limit.
        output_at: results with an earlier event time are left out, epoch milliseconds; ``None``: none is.
        done: whether the checkpoint stands there.
    """

    begins: Offsets
    replayed: Offsets | None = None
    ran: int = 0
    output: int | None = None
    epoch: int = 0
    most: int | None = None
    output_at: int | None = None
    done: bool = False

    @property
    def records(self) -> int:
        """How many offsets are replayed."""
        return sum(end - self.begins[place] for place, end in (self.replayed or {}).items())

    def steps(self) -> Iterator[tuple[Offsets, int]]:
        """Yield where each batch before the first result ends, and the watermark that it runs with.

        All but the last run without any, and the last one is empty: it closes what was closed.  Where nothing is
        replayed, there is one empty batch, behind which the job begins.

        >>> list(Beginning({("t", 0): 5}, {("t", 0): 11}, ran=70, most=4).steps())
        [({('t', 0): 8}, 0), ({('t', 0): 11}, 0), ({('t', 0): 11}, 70)]
        >>> list(Beginning({("t", 0): 5}).steps())
        [({('t', 0): 5}, 0)]
        """
        replayed = self.replayed or self.begins
        count = max(1, ceil(self.records / self.most)) if self.most else 1
        for number in range(1, count + 1):
            yield self._share(replayed, number, count), 0
        if self.ran:
            yield replayed, self.ran

    def _share(self, replayed: Offsets, number: int, count: int) -> Offsets:
        return {
            place: (begin := self.begins[place]) + (end - begin) * number // count for place, end in replayed.items()
        }


def stored(files: Files) -> Beginning | None:
    """Return the beginning that a checkpoint has; ``None``: it began with the topics.

    Raises:
        CorruptSnapshotError: where it cannot be read.
    """
    text = files.read(_NAME)
    if text is None:
        return None
    try:
        found = json.loads(text)
        begins, replayed = found.pop("begins"), found.pop("replayed")
        return Beginning(from_spark(begins), None if replayed is None else from_spark(replayed), **found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        advice = "take a new checkpoint_location and a new output topic"
        raise CorruptSnapshotError(where=_NAME, reason=str(error), advice=advice) from error


def store(files: Files, beginning: Beginning) -> None:
    """Keep a beginning in a checkpoint."""
    replayed = None if beginning.replayed is None else to_spark(beginning.replayed)
    files.write(_NAME, json.dumps({**asdict(beginning), "begins": to_spark(beginning.begins), "replayed": replayed}))
