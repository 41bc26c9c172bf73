"""Windows per key, closed by the watermark of the key: for topics whose injector keeps substreams.

Spark has one watermark for all keys.  Here the watermark of a key comes with its rows (see `read`'s ``substream``), so
a key need not wait for a slow one.  The watermark of all keys completes a key that falls silent.  The idea is Azure
Stream Analytics' ``TIMESTAMP BY ... OVER``.
"""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final

from floodmark.schemas.errors import SubstreamError, UsageError
from floodmark.schemas.timestamps import duration_of
from floodmark.spark_jobs.reading.event_time import derived_times
from floodmark.spark_jobs.reading.source_spec import plan_of
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import IntegralType, LongType, StringType, StructField, StructType
from typing_extensions import override

if TYPE_CHECKING:  # slow to import, and few jobs need it
    import pandas as pd

_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
# Without a leading underscore: newer Spark versions pass rows as namedtuples, which rename such fields.
_TIME: Final = "floodmark_time"
_WATERMARK: Final = "floodmark_watermark"
_ROW: Final = "floodmark_row"

Aggregate = Callable[[list[dict[str, Any]]], dict[str, Any]]
"""From the rows of a complete window of a key to the columns of its result; must be picklable."""


def windows_per_key(
    rows: DataFrame, *, key: str, event_time: str, substream: str, width: timedelta, aggregate: Aggregate, schema: str
) -> DataFrame:
    """Aggregate tumbling windows of each key, completed by the key's own watermark.

    Args:
        rows: from `read` with ``ReadOptions(substream=)`` (and ``adjusted=``, if an injector adjusts times).
        key: a string column.
        event_time: the event-time column.
        substream: the column with the key's watermark.
        width: of the windows, 1 ms or more; they begin at multiples of it since 1970.
        aggregate: called with the rows of a window as dicts of their JSON values, in the order of arrival; returns the
            columns of ``schema``.
        schema: these columns in Spark's SQL types.

    Returns:
        The key, ``window_end`` (a timestamp, the event time of the result) and the columns of ``schema``.

    Raises:
        UsageError: if the session does not keep its state in RocksDB, which Spark's operator needs, the width is below
            1 ms, the schema has no columns, or the rows come from `event_time` with a ``shift``, which the watermark of
            a key does not follow; while the job runs, if ``aggregate`` returns other columns.
        SubstreamError: while the job runs, for a row in a window that the key's own watermark has completed: all
            records of a key must be in one partition.
    """
    width_ms = duration_of(width, "windows_per_key(): width", 1)
    spark = rows.sparkSession
    if spark.conf.get(_PROVIDER, "") != _ROCKSDB:
        raise UsageError(reason=f"windows_per_key() needs the session setting {_PROVIDER}={_ROCKSDB}")
    if derived_times(plan_of(rows)).shift:
        reason = "the watermark of a key does not follow event_time(..., shift=): use read(shift=)"
        raise UsageError(reason=f"windows_per_key(): {reason}")
    times = F.unix_millis(event_time).alias(_TIME), F.unix_millis(substream).alias(_WATERMARK)
    shaped = rows.select(
        key, event_time, *times, F.to_json(F.struct(*rows.columns), {"ignoreNullFields": "false"}).alias(_ROW)
    )
    columns = StructType.fromDDL(schema)
    if not isinstance(columns, StructType):
        raise UsageError(reason=f"windows_per_key(): schema {schema!r} names no columns")
    output = StructType([StructField(key, StringType()), StructField("window_end", LongType()), *columns.fields])
    processor = _Windows(key, width_ms, aggregate, columns)
    results = shaped.groupBy(key).transformWithStateInPandas(processor, output, "Append", "EventTime")
    return results.withColumn("window_end", F.timestamp_millis("window_end"))


class _Windows(StatefulProcessor):
    """The open windows of one key, and the watermark that has completed windows."""

    def __init__(self, key: str, width: int, aggregate: Aggregate, columns: StructType) -> None:
        self._key = key
        self._width = width
        self._aggregate = aggregate
        self._columns = columns.names
        self._whole = [column.name for column in columns if isinstance(column.dataType, IntegralType)]

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._windows = handle.getMapState("windows", "start BIGINT", "rows STRING")
        self._done = handle.getValueState("done", "watermark BIGINT")

    @override
    def handleInputRows(self, key: Any, rows: Iterator["pd.DataFrame"], timerValues: Any) -> Iterator["pd.DataFrame"]:
        stored = self._done.get()
        done = watermark = -(1 << 62) if stored is None else int(stored[0])
        arrived: dict[int, list[str]] = {}
        for frame in rows:
            for time, row in zip(frame[_TIME], frame[_ROW], strict=True):
                start = int(time) // self._width * self._width
                if start + self._width <= done:
                    raise SubstreamError(key=str(key[0]), event_time=int(time), watermark=done)
                arrived.setdefault(start, []).append(row)
            marks = frame[_WATERMARK].dropna()
            watermark = watermark if marks.empty else max(watermark, int(marks.max()))
        for start, lines in arrived.items():
            stored_rows = self._windows.getValue((start,)) if self._windows.containsKey((start,)) else None
            earlier = json.loads(stored_rows[0]) if stored_rows else []
            self._windows.updateValue((start,), (json.dumps([*earlier, *lines]),))
            # Spark's watermark is 1 ms lower.
            self._handle.registerTimer(start + self._width - 1)
        yield from self._complete(key, watermark)

    @override
    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator["pd.DataFrame"]:
        watermark = int(timerValues.getCurrentWatermarkInMs()) + 1
        yield from self._complete(key, watermark)
        done = self._done.get()
        if done is not None and done[0] > watermark:
            self._handle.registerTimer(done[0] - 1)
        elif not any(True for _ in self._windows.keys()):  # noqa: SIM118  # Spark's own map
            self._done.clear()  # Spark drops rows behind the watermark of all keys, so a silent key needs no state

    def _complete(self, key: tuple[Any, ...], watermark: int) -> Iterator["pd.DataFrame"]:
        """Yield the results of the windows that end at or before a watermark."""
        known = [int(start[0]) for start in self._windows.keys()]  # noqa: SIM118  # Spark's own map
        due = sorted(start for start in known if start + self._width <= watermark)
        results: list[dict[str, Any]] = []
        for start in due:
            stored_rows = self._windows.getValue((start,))
            lines = json.loads(stored_rows[0]) if stored_rows else []
            values = self._aggregate([json.loads(line) for line in lines])
            if values.keys() != set(self._columns):
                missing = [name for name in self._columns if name not in values]
                surplus = [name for name in values if name not in self._columns]
                reason = (
                    f"windows_per_key(): aggregate returned other columns than those of schema: missing {missing}, "
                    f"surplus {surplus}; return each column of the schema, and no other"
                )
                raise UsageError(reason=reason)
            results.append({self._key: key[0], "window_end": start + self._width, **values})
            self._windows.removeKey((start,))
        stored = self._done.get()
        if stored is None or watermark > int(stored[0]):
            self._done.update((watermark,))
        if results:
            import pandas as pd  # noqa: PLC0415  # see above

            found = pd.DataFrame(results, columns=[self._key, "window_end", *self._columns])
            for name in self._whole:  # beside a null, pandas makes floats of them, which are not exact
                found[name] = pd.Series([_exact(result[name]) for result in results], dtype=object)
            yield found


def _exact(value: Any) -> Any:  # noqa: ANN401  # what a user's function returns
    return int(value) if isinstance(value, Integral) else value
