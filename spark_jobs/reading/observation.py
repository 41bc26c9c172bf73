"""What the driver learns of one batch of a source: the columns of the metrics, and their values as one frozen value.

Spark collects the metrics in accumulators of the tasks.  A task that runs again (its executor was lost, or it ran twice
at once) adds to them again, and a plan that runs twice does so with all its tasks.  So the counts are kept apart by
task: Spark's numeric histogram merges those of two tasks by putting their bins side by side, and a task whose bin is
there twice has run twice.

Spark computes the columns on the driver from what the tasks have aggregated: after each task, and for all jobs that
share a ``read`` with the same expressions, in their threads.  `to_json` is not made for that (two threads write into
one text), so it stands before or within the aggregates, which the tasks run, and the driver only joins texts.
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
_BINS: Final = 1 << 12
"""So many bins less one are kept apart; the counts of more are not exact."""

KINDS: Final = ("row", "tombstones", *UNUSABLE)
"""What the records of a bin are; marks are counted with the rows, for how many marks there are is known."""

PREPARED: Final = tuple(f"{OURS}{name}" for name in ("place", "event_time", "mark", "skipped", "late"))
"""The names of the columns that `prepared` adds; the last one only to judged rows."""


Counted = Mapping[tuple[str, str, int], int]
"""Kind (of `KINDS`), topic and partition to the number of records."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What one batch read of one source.

    ``marks``: the records under mark keys, as JSON.  ``records``: how many of each partition.
    ``earliest``: the lowest event time, epoch milliseconds.  ``exact``: whether each record was counted exactly once;
    where not, counts may be too high.  ``rows``: records that became rows.  ``unusable``: those that should
    have, by kind.  ``late``: the rows that were judged late, ``late_elsewhere`` those of them that are not behind their
    own partition's watermark, ``late_at`` the first place.
    """

    marks: str = "[]"
    records: Mapping[tuple[str, int], int] = field(default_factory=dict)
    rows: int = 0
    tombstones: int = 0
    unusable: Mapping[str, Skipped] = field(default_factory=dict)
    earliest: int | None = None
    late: int = 0
    late_elsewhere: int = 0
    late_at: str | None = None
    exact: bool = True

    @property
    def total(self) -> int:
        """How many records were read, marks among them."""
        return sum(self.records.values())

    def is_late(self, watermark: int | None) -> bool:
        """Tell whether any row is behind a watermark."""
        return self.earliest is not None and is_late(self.earliest, watermark)

    @classmethod
    def of(cls, metrics: Mapping[str, Any], topics: Sequence[str], counted: Counted | None = None) -> "Observation":
        """Read it from the metrics by their names; none at all: nothing was read.

        Args:
            metrics: of the columns of `columns`.
            topics: of the source.
            counted: how many records of each kind, topic and partition there are, where that is known without the bins.
        """
        marks = metrics.get("marks") or "[]"
        found = sizes(metrics.get("places"))
        exact = counted is not None or len({place for place, _ in found}) == len(found) < _BINS
        if counted is None:
            tally = Counter[tuple[str, str, int]]()
            for place, size in found:
                tally[_place(place, topics)] += size
            counted = tally
        kinds, records = Counter[str](), Counter[tuple[str, int]]()
        for (kind, topic, partition), size in counted.items():
            kinds[kind] += size
            records[topic, partition] += size
        return cls(
            marks=marks,
            records=records,
            rows=kinds["row"] - marks.count("{"),  # a mark is one flat object, and no text in it has a brace
            unusable={kind: Skipped.of(kinds[kind], metrics.get(f"{kind}_at")) for kind in UNUSABLE},
            tombstones=kinds["tombstones"],
            earliest=metrics.get("earliest"),
            late=int(metrics.get("late") or 0),
            late_elsewhere=int(metrics.get("late_elsewhere") or 0),
            late_at=metrics.get("late_at"),
            exact=exact,
        )


def _place(bin_: int, topics: Sequence[str]) -> tuple[str, str, int]:
    """Return the kind, the topic and the partition that a bin counts."""
    rest, partition = divmod(bin_ // _MAX_TASKS, _MAX_PARTITIONS)
    kind, topic = divmod(rest, _MAX_TOPICS)
    return KINDS[kind], topics[topic], partition


def prepared(records: DataFrame, result: Sequence[Column], topics: Sequence[str], *, judged: bool = False) -> DataFrame:
    """Return, for each decoded record, what becomes of it and what `columns` observes: for a row, next to nothing.

    Spark observes rows one by one, outside the code that it compiles for a whole stage: what each row needs is worked
    out here, in that code, and what only marks and skipped records need is null for the others.

    Raises:
        UsageError: for more topics than a bin can tell.
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
    where = code.cast("long") * _MAX_TOPICS + index
    where = (where * _MAX_PARTITIONS + F.col("partition")) * _MAX_TASKS + F.col("task")
    log_time = F.unix_millis("timestamp").alias("log_time")
    mark = F.struct("topic", "partition", "offset", log_time, "key", F.col("raw").alias("value"))
    seconds = F.when(kind == "out_of_range", F.unix_seconds("event_time")).alias("epoch_seconds")
    skipped = F.struct("kind", F.struct("topic", "partition", "offset").alias("place"), seconds)
    found = {
        "place": where,
        "event_time": F.when(is_row, F.col("event_time")),
        "mark": F.when(F.col("control"), F.to_json(mark)),
        "skipped": F.when(kind.isin(*UNUSABLE), skipped),
    }
    if judged:
        found["late"] = F.when(
            F.col("late"), F.struct(F.struct("topic", "partition", "offset").alias("place"), "behind.own")
        )
    return records.select(*result, *(column.alias(OURS + name) for name, column in found.items()))


def columns(*, judged: bool = False) -> list[Column]:
    """Return the aggregates over prepared records that `Observation.of` reads."""
    place, mark, skipped, late = (F.col(f"`{OURS}{name}`") for name in ("place", "mark", "skipped", "late"))
    unusable = [
        _first(
            skipped["kind"] == name,
            F.struct(skipped["place"].alias("place"), skipped["epoch_seconds"].alias("epoch_seconds")),
        ).alias(f"{name}_at")
        for name in UNUSABLE
    ]
    lateness = [
        F.count(late).alias("late"),
        F.count_if(~late["own"]).alias("late_elsewhere"),
        _first(late.isNotNull(), late["place"]).alias("late_at"),
    ]
    return [
        *(lateness if judged else []),
        _list(F.collect_list(mark)).alias("marks"),
        *unusable,
        F.unix_millis(F.min(F.col(f"`{OURS}event_time`"))).alias("earliest"),
        # Each task brings a bin for each kind in each of its partitions.
        bins(place, _BINS).alias("places"),
    ]


def _first(condition: Column, found: Column) -> Column:
    """Return the lowest struct of the rows that fulfil a condition, as JSON; null: there is none."""
    return F.min(F.when(condition, F.struct(found, F.to_json(found).alias("text")))).getField("text")


def _list(texts: Column) -> Column:
    """Return texts that are JSON as a list in JSON."""
    return F.concat(F.lit("["), F.array_join(texts, ","), F.lit("]"))
