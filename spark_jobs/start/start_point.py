"""Where a job starts reading, as a value that its checkpoint stores."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Final

from floodmark.schemas.classify import Offsets
from floodmark.schemas.errors import CorruptSnapshotError
from floodmark.spark_jobs.batch.snapshots import FOLDER
from floodmark.spark_jobs.internals.files import Files
from floodmark.spark_jobs.progress.offsets import from_spark, to_spark

_NAME: Final = f"{FOLDER}/start.json"


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Where a job starts; times and watermarks are epoch milliseconds."""

    begins: Offsets  # the first offsets that the job reads
    replayed: Offsets | None = None
    """The job reads up to here without writing results; ``None``: it writes results from ``begins`` on."""
    ran: int = 0  # the watermark of the last published batch, as Spark counts it; 0: none
    output: int | None = None  # the last output watermark; ``None``: none
    epoch: int = 0  # the last epoch of the job as a source of its output topic
    most: int | None = None  # the most records in one batch of the replay; ``None``: no limit
    output_at: int | None = None  # the job writes no results with an earlier event time; ``None``: it writes all
    first: int | None = None  # the first batch that may have results; ``None``: the checkpoint is not prepared yet
    follows: tuple[str, int] | None = None
    """The last published batch: the id of its checkpoint and its number; ``None``: none, or unknown."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """The ids of the input topics; the offsets are only valid with them."""

    @property
    def continues(self) -> bool:
        """Whether the output has results of the job, from an earlier checkpoint."""
        return self.follows is not None or self.epoch > 0

    @property
    def records(self) -> int:
        """The number of offsets to replay."""
        return sum(end - self.begins[place] for place, end in (self.replayed or {}).items())

    def steps(self) -> Iterator[tuple[Offsets, int]]:
        """Yield, for each batch before the first result, where it ends, and its watermark.

        All but the last batch have no watermark.  The last one reads nothing and closes what the published batches had
        closed.  Without a replay, there is one empty batch.

        >>> list(StartPoint({("t", 0): 5}, {("t", 0): 11}, ran=70, most=4).steps())
        [({('t', 0): 8}, 0), ({('t', 0): 11}, 0), ({('t', 0): 11}, 70)]
        >>> list(StartPoint({("t", 0): 5}).steps())
        [({('t', 0): 5}, 0)]
        """
        replayed = self.replayed or self.begins
        count = max(1, ceil(self.records / self.most)) if self.most else 1
        for number in range(1, count + 1):
            share = {
                place: (begin := self.begins[place]) + (end - begin) * number // count
                for place, end in replayed.items()
            }
            yield share, 0
        if self.ran:
            yield replayed, self.ran


def stored(files: Files) -> StartPoint | None:
    """Return the start point that a checkpoint has; ``None``: the job started with the first records."""
    text = files.read(_NAME)
    if text is None:
        return None
    try:
        fields = json.loads(text)
        begins, replayed = fields.pop("begins"), fields.pop("replayed")
        follows = None if fields["follows"] is None else tuple(fields["follows"])
        read = None if replayed is None else from_spark(replayed)
        return StartPoint(from_spark(begins), read, **{**fields, "follows": follows})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        advice = "use a new checkpoint_location and a new output (topic, table or store)"
        raise CorruptSnapshotError(where=_NAME, reason=str(error), advice=advice) from error


def store(files: Files, start_point: StartPoint) -> None:
    """Store a start point in a checkpoint."""
    fields = asdict(start_point)
    for name in ("begins", "replayed"):
        fields[name] = None if fields[name] is None else to_spark(fields[name])
    files.write(_NAME, json.dumps(fields))
