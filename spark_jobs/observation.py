"""What the driver learns of one batch of a reading: the columns of the metrics, and their values as one frozen value.

Spark collects the metrics in accumulators of the tasks.  A task that runs again (its executor was lost, or it ran twice
at once) adds to them again, and a plan that runs twice does so with all its tasks.  So the counts are kept apart by
task: Spark's numeric histogram merges those of two tasks by putting their bins side by side, and a task whose bin is
there twice has run twice.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

_MAX_PARTITIONS: Final = 1 << 20
_MAX_TASKS: Final = 1 << 20
_PLACES: Final = 1 << 12
"""So many tasks less one are told apart; the counts of more are not exact."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What one batch saw of one reading.

    ``marks``: the records under control keys, as JSON.  ``records``: how many of each partition.
    ``earliest``: the lowest event time, epoch milliseconds.  ``exact``: whether each record was counted exactly once;
    where not, counts may be too high.  ``*_at``: the first place.
    """

    marks: str = "[]"
    records: Mapping[tuple[str, int], int] = field(default_factory=dict)
    unreadable: int = 0
    unreadable_at: str | None = None
    timeless: int = 0
    timeless_at: str | None = None
    tombstones: int = 0
    earliest: int | None = None
    exact: bool = True

    @property
    def total(self) -> int:
        """How many records were read, marks among them."""
        return sum(self.records.values())

    @classmethod
    def of(cls, metrics: Mapping[str, Any], topics: Sequence[str]) -> "Observation":
        """Read it from the metrics by their names; none at all: nothing was read."""
        points = json.loads(metrics.get("places") or "[]")
        records = Counter[tuple[str, int]]()
        for point in points:
            topic, partition = divmod(int(point["x"]) // _MAX_TASKS, _MAX_PARTITIONS)
            records[topics[topic], partition] += int(point["y"])
        tasks = {point["x"] for point in points}
        return cls(
            marks=metrics.get("marks") or "[]",
            records=records,
            unreadable=int(metrics.get("unreadable") or 0),
            unreadable_at=metrics.get("unreadable_at"),
            timeless=int(metrics.get("timeless") or 0),
            timeless_at=metrics.get("timeless_at"),
            tombstones=int(metrics.get("tombstones") or 0),
            earliest=metrics.get("earliest"),
            exact=len(tasks) == len(points) < _PLACES,
        )


def columns(topics: Sequence[str]) -> list[Column]:
    """Return the aggregates over decoded records that `Observation.of` reads."""
    index = F.array_position(F.array(*map(F.lit, topics)), F.col("topic")) - 1
    where = (index.cast("long") * _MAX_PARTITIONS + F.col("partition")) * _MAX_TASKS + F.col("task")
    # Exact while it has bins left: each task brings one for each of its partitions.
    places = F.histogram_numeric(where, F.lit(_PLACES))
    place = F.struct("topic", "partition", "offset")
    log_time = F.unix_millis("timestamp").alias("log_time")
    mark = F.struct("topic", "partition", "offset", log_time, "key", F.col("raw").alias("value"))
    unreadable = F.expr("not control and raw is not null and value is null")
    timeless = F.expr("not control and value is not null and event_time is null")
    return [
        F.to_json(F.collect_list(F.when(F.col("control"), mark))).alias("marks"),
        F.count_if(F.expr("not control and raw is null")).alias("tombstones"),
        F.count_if(unreadable).alias("unreadable"),
        F.to_json(F.min(F.when(unreadable, place))).alias("unreadable_at"),
        F.count_if(timeless).alias("timeless"),
        F.to_json(F.min(F.when(timeless, place))).alias("timeless_at"),
        F.unix_millis(F.min("event_time")).alias("earliest"),
        F.to_json(places).alias("places"),
    ]
