"""Judge each row in the task that reads it: adds the watermark by which the row may be late.

A task of Spark's Kafka source reads one partition in the order of its log, with the marks.  A Python function in the
same task follows the marks; of data rows it gets only their number.  The promises before the batch come from its
handler, as a local property of the query's thread.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from floodmark.schemas.errors import UsageError
from floodmark.spark_jobs.progress.lateness import LateThresholds
from floodmark.spark_jobs.progress.reconcile import parse_marks
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.pandas.functions import pandas_udf

if TYPE_CHECKING:  # slow to import, and only jobs with late= need it
    import pandas as pd

SPLITTING: Final = ("minpartitions", "maxrecordsperpartition")
"""Options of Spark's Kafka source that split a partition over several tasks."""

_RESULT: Final = "watermark long, of_partition boolean"


def judged(rows: DataFrame, name: str) -> DataFrame:
    """Add to decoded records ``threshold`` (the watermark, and whether it is that of the partition) and ``late``."""
    place = F.struct("topic", "partition", "offset", F.unix_millis("timestamp").alias("log_time"))
    fields = [place.getField(field).alias(field) for field in ("topic", "partition", "offset", "log_time")]
    mark = F.to_json(F.array(F.struct(*fields, "key", F.col("raw").alias("value"))))
    threshold = _watermarks(name)(F.col("topic"), F.col("partition"), F.when(F.col("control"), mark))
    late = (F.col("kind") == "row") & (F.unix_millis("event_time") < F.col("threshold.watermark"))
    return rows.withColumn("threshold", threshold).withColumn("late", late)


def _watermarks(name: str) -> Any:  # noqa: ANN401  # a function of columns
    import pandas as pd  # noqa: PLC0415  # see above; Spark reads the hints of the function

    def follow(batches: Iterator[tuple[pd.Series, pd.Series, pd.Series]]) -> Iterator[pd.DataFrame]:
        context = TaskContext.get()
        text = None if context is None else context.getLocalProperty(name)
        if text is None:
            reason = "read(late=...) runs only under floodmark.spark_jobs.write, with PySpark's threads pinned"
            raise UsageError(reason=reason)
        thresholds = LateThresholds.of(text)
        for topics, partitions, marks in batches:
            yield judge(thresholds, topics, partitions, marks)

    function: Any = pandas_udf  # its hints know no iterators
    return function(follow, _RESULT).asNondeterministic()


def judge(
    thresholds: LateThresholds, topics: "pd.Series", partitions: "pd.Series", marks: "pd.Series"
) -> "pd.DataFrame":
    """Return the watermark before each row; a task reads one partition, in the order of its log."""
    import numpy as np  # noqa: PLC0415  # see above
    import pandas as pd  # noqa: PLC0415  # the same

    size = len(topics)
    watermark, of_partition = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.bool_)
    if size:
        place = str(topics.iloc[0]), int(partitions.iloc[0])
        begin = 0
        for end in dict.fromkeys([*np.flatnonzero(marks.notna().to_numpy()), size - 1]):
            # The mark itself is for the rows after it.
            promised = thresholds.promises.promised(place)
            watermark[begin : end + 1] = thresholds.of_rows(promised)
            of_partition[begin : end + 1] = promised >= thresholds.watermark
            text = marks.iloc[end]
            if isinstance(text, str):
                for mark in parse_marks(text):
                    thresholds.apply(mark)
            begin = end + 1
    return pd.DataFrame({"watermark": watermark, "of_partition": of_partition})
