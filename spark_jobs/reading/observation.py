"""The metrics of one source in one batch: their columns, and their values as one frozen value.

Spark collects metrics in accumulators of the tasks.  A task that runs again (its executor was lost, or it ran twice at
once) adds to them again, and so do all tasks of a plan that runs twice.  So the counts are kept per task: Spark's
numeric histogram merges two tasks by putting their bins side by side, and a bin that occurs twice shows a task that ran
twice.

Spark computes the columns on the driver from the aggregates of the tasks: after each task, and for all jobs that share
a ``read`` with the same expressions, in their threads.  `to_json` is not thread-safe (two threads write into one text).
So it is in or before the aggregates, which the tasks run, and the driver only joins texts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from floodmark.schemas.errors import UsageError
from floodmark.schemas.timestamps import is_late
from floodmark.spark_jobs.internals.texts import bins, sizes
from floodmark.spark_jobs.progress.unusable import UNUSABLE, Skipped
from floodmark.spark_jobs.reading.rows import OURS
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

_MAX_PARTITIONS: Final = 1 << 20
_MAX_TASKS: Final = 1 << 20
_MAX_TOPICS: Final = 1 << 10
_BINS: Final = 1 << 12  # the counts are exact for fewer bins
_BOUNDS: Final = (("event_time", F.min, "earliest"), ("unadjusted", F.max, "latest"))

KINDS: Final = ("row", "tombstones", *UNUSABLE)
"""The kinds of records in a bin; marks are counted as rows, since their number is known."""

PREPARED: Final = tuple(f"{OURS}{name}" for name in ("bin", "event_time", "unadjusted", "mark", "skipped", "late"))
"""The columns that `prepared` adds; ``late`` only to judged rows."""

Counted = Mapping[tuple[str, str, int], int]  # kind (of `KINDS`), topic and partition to the number of records


@dataclass(frozen=True, slots=True)
class Observation:
    """What one batch has read of one source."""

    marks: str = "[]"  # the records with keys of marks, as JSON
    records: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """The number of records of each partition, with marks."""
    rows: int = 0
    tombstones: int = 0
    unusable: Mapping[str, Skipped] = field(default_factory=dict)  # the skipped records, by kind
    earliest: int | None = None  # the lowest event time, epoch milliseconds
    latest: int | None = None  # the highest one that no injector has adjusted: those have the unit of the values
    late: int = 0  # rows that were judged late
    late_by_batch: int = 0
    """Those of them that are late only by the watermark of the batch, not by that of their partition."""
    late_at: str | None = None  # the first late row
    exact: bool = True  # whether each record was counted once; if not, counts may be too high

    @property
    def total(self) -> int:
        """The number of records, with marks."""
        return sum(self.records.values())

    def is_late(self, watermark: int | None) -> bool:
        """Tell whether any row is earlier than a watermark."""
        return self.earliest is not None and is_late(self.earliest, watermark)

    @classmethod
    def of(cls, metrics: Mapping[str, Any], topics: Sequence[str], counted: Counted | None = None) -> "Observation":
        """Read it from the metrics of `columns`, by their names; ``counted``: counts that replace those of the bins."""
        marks = metrics.get("marks") or "[]"
        found = sizes(metrics.get("bins"))
        exact = counted is not None or len({number for number, _ in found}) == len(found) < _BINS
        tally = [(_counted_in(number, topics), size) for number, size in found] if counted is None else counted.items()
        kinds, records = Counter[str](), Counter[tuple[str, int]]()
        for (kind, topic, partition), size in tally:
            kinds[kind] += size
            records[topic, partition] += size
        return cls(
            marks=marks,
            records=records,
            rows=kinds["row"] - marks.count("{"),  # a mark is one flat object, and no text in it has a brace
            unusable={kind: Skipped.of(kinds[kind], metrics.get(f"{kind}_at")) for kind in UNUSABLE},
            tombstones=kinds["tombstones"],
            earliest=metrics.get("earliest"),
            latest=metrics.get("latest"),
            late=int(metrics.get("late") or 0),
            late_by_batch=int(metrics.get("late_by_batch") or 0),
            late_at=metrics.get("late_at"),
            exact=exact,
        )


def _counted_in(bin_: int, topics: Sequence[str]) -> tuple[str, str, int]:
    """Return the kind, the topic and the partition of a bin."""
    rest, partition = divmod(bin_ // _MAX_TASKS, _MAX_PARTITIONS)
    kind, topic = divmod(rest, _MAX_TOPICS)
    return KINDS[kind], topics[topic], partition


def prepared(records: DataFrame, result: Sequence[Column], topics: Sequence[str], *, judged: bool = False) -> DataFrame:
    """Return the columns ``result`` of each decoded record, and the columns that `columns` aggregates.

    Spark observes rows one by one, outside the code that it compiles for a whole stage.  So these columns are computed
    in that code, and for rows they are mostly null.
    """
    if len(topics) > _MAX_TOPICS:
        raise UsageError(reason=f"read() got {len(topics):,} topics, expected {_MAX_TOPICS:,} at most")
    kind = F.col("kind")
    is_row = kind == "row"
    code, index = F.when(is_row | F.col("control"), 0), F.when(F.col("topic") == topics[0], 0)
    for number, name in enumerate(KINDS[1:], 1):
        code = code.when(kind == name, number)
    for number, name in enumerate(topics[1:], 1):
        index = index.when(F.col("topic") == name, number)
    index = index if len(topics) > 1 else F.lit(0)
    bin_ = code.cast("long") * _MAX_TOPICS + index
    bin_ = (bin_ * _MAX_PARTITIONS + F.col("partition")) * _MAX_TASKS + F.col("task")
    place = F.struct("topic", "partition", "offset").alias("place")
    log_time = F.unix_millis("timestamp").alias("log_time")
    mark = F.struct("topic", "partition", "offset", log_time, "key", F.col("raw").alias("value"))
    seconds = F.when(kind == "out_of_range", F.unix_seconds("event_time")).alias("epoch_seconds")
    skipped = F.struct("kind", place, seconds)
    found = {
        "bin": bin_,
        "event_time": F.when(is_row, F.col("event_time")),
        "unadjusted": F.when(is_row & F.col("adjusted").isNull(), F.col("event_time")),
        "mark": F.when(F.col("control"), F.to_json(mark)),
        "skipped": F.when(kind.isin(*UNUSABLE), skipped),
    }
    if judged:
        found["late"] = F.when(F.col("late"), F.struct(place, "threshold.of_partition"))
    return records.select(*result, *(column.alias(OURS + name) for name, column in found.items()))


def columns(*, judged: bool = False) -> list[Column]:
    """Return the aggregates of prepared records that `Observation.of` reads."""
    bin_, mark, skipped, late = (F.col(f"`{OURS}{name}`") for name in ("bin", "mark", "skipped", "late"))
    at = F.struct(skipped["place"].alias("place"), skipped["epoch_seconds"].alias("epoch_seconds"))
    unusable = [_first(skipped["kind"] == name, at).alias(f"{name}_at") for name in UNUSABLE]
    lateness = [
        F.count(late).alias("late"),
        F.count_if(~late["of_partition"]).alias("late_by_batch"),
        _first(late.isNotNull(), late["place"]).alias("late_at"),
    ]
    return [
        *(lateness if judged else []),
        F.concat(F.lit("["), F.array_join(F.collect_list(mark), ","), F.lit("]")).alias("marks"),  # a list in JSON
        *unusable,
        *(F.unix_millis(of(F.col(f"`{OURS}{column}`"))).alias(name) for column, of, name in _BOUNDS),
        # Each task has a bin for each kind in each of its partitions.
        bins(bin_, _BINS).alias("bins"),
    ]


def _first(condition: Column, found: Column) -> Column:
    """Return the lowest struct of the rows that fulfil a condition, as JSON; null: no such row."""
    return F.min(F.when(condition, F.struct(found, F.to_json(found).alias("text")))).getField("text")
