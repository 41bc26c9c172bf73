"""What the driver learns of one batch of a source: the columns of the metrics, and their values as one frozen value.

Spark collects the metrics in accumulators of the tasks.  A task that runs again (its executor was lost, or it ran twice
at once) adds to them again, and a plan that runs twice does so with all its tasks.  So the counts are kept apart by
task: Spark's numeric histogram merges those of two tasks by putting their bins side by side, and a task whose bin is
there twice has run twice.

Spark computes the columns on the driver from what the tasks have aggregated: after each task, and for all jobs that
share a ``read`` with the same expressions, in their threads.  `to_json` is not made for that (two threads write into
one text), so it stands within the aggregates, which the tasks run, and the driver only joins texts.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from floodmark.schemas.timestamps import is_late
from floodmark.spark_jobs.progress.unusable import UNUSABLE, Skipped
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

_MAX_PARTITIONS: Final = 1 << 20
_MAX_TASKS: Final = 1 << 20
_TASKS: Final = 1 << 12
"""So many tasks less one are kept apart; the counts of more are not exact."""

_NUMBER: Final = re.compile(r"[0-9.E]+")
"""In Spark's text of the bins, pairs of a place and a count: ``[{1048576, 3.0}, {1048577, 1.2E7}]``."""


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
    def of(cls, metrics: Mapping[str, Any], topics: Sequence[str]) -> "Observation":
        """Read it from the metrics by their names; none at all: nothing was read."""
        numbers = [float(number) for number in _NUMBER.findall(metrics.get("places") or "")]
        tasks, sizes = numbers[::2], numbers[1::2]
        records = Counter[tuple[str, int]]()
        for task, size in zip(tasks, sizes, strict=True):
            topic, partition = divmod(int(task) // _MAX_TASKS, _MAX_PARTITIONS)
            records[topics[topic], partition] += int(size)
        return cls(
            marks=metrics.get("marks") or "[]",
            records=records,
            rows=int(metrics.get("rows") or 0),
            unusable={kind: Skipped.of(int(metrics.get(kind) or 0), metrics.get(f"{kind}_at")) for kind in UNUSABLE},
            tombstones=int(metrics.get("tombstones") or 0),
            earliest=metrics.get("earliest"),
            late=int(metrics.get("late") or 0),
            late_elsewhere=int(metrics.get("late_elsewhere") or 0),
            late_at=metrics.get("late_at"),
            exact=len(set(tasks)) == len(tasks) < _TASKS,
        )


def columns(topics: Sequence[str], *, judged: bool = False) -> list[Column]:
    """Return the aggregates over decoded records that `Observation.of` reads.

    Args:
        topics: of the source.
        judged: whether the rows carry what `judge.judged` adds.
    """
    index = F.array_position(F.array(*map(F.lit, topics)), F.col("topic")) - 1
    where = (index.cast("long") * _MAX_PARTITIONS + F.col("partition")) * _MAX_TASKS + F.col("task")
    # Exact while it has bins left: each task brings one for each of its partitions.
    bins = F.histogram_numeric(where, F.lit(_TASKS))
    place = F.struct("topic", "partition", "offset")
    log_time = F.unix_millis("timestamp").alias("log_time")
    mark = F.struct("topic", "partition", "offset", log_time, "key", F.col("raw").alias("value"))
    kind = F.col("kind")
    seconds = F.unix_seconds("event_time").alias("epoch_seconds")
    unusable = []
    for name in UNUSABLE:
        found = F.struct(place.alias("place"), *([seconds] if name == "out_of_range" else []))
        unusable += [F.count_if(kind == name).alias(name), _first(kind == name, found).alias(f"{name}_at")]
    lateness = [
        F.count_if("late").alias("late"),
        F.count_if(F.expr("late and not behind.own")).alias("late_elsewhere"),
        _first(F.col("late"), place).alias("late_at"),
    ]
    return [
        *(lateness if judged else []),
        _list(F.collect_list(F.when(F.col("control"), F.to_json(mark)))).alias("marks"),
        F.count_if(kind == "row").alias("rows"),
        F.count_if(kind == "tombstones").alias("tombstones"),
        *unusable,
        F.unix_millis(F.min(F.when(kind == "row", F.col("event_time")))).alias("earliest"),
        bins.cast("string").alias("places"),
    ]


def _first(condition: Column, found: Column) -> Column:
    """Return the lowest struct of the rows that fulfil a condition, as JSON; null: there is none."""
    return F.min(F.when(condition, F.struct(found, F.to_json(found).alias("text")))).getField("text")


def _list(texts: Column) -> Column:
    """Return texts that are JSON as a list in JSON."""
    return F.concat(F.lit("["), F.array_join(texts, ","), F.lit("]"))
