"""The rows of a table whose event times are complete, read by pyiceberg, deltalake or Spark."""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, overload

from floodmark.producers.tables.table_history import reading
from floodmark.producers.tables.table_watermark import complete_until
from floodmark.schemas.errors import UsageError
from floodmark.schemas.timestamps import EARLIEST, event_time_of, to_datetime

if TYPE_CHECKING:
    from pyarrow import Scalar, Schema, Table
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)


@overload
def read_complete(table: Any, column: str) -> "Table": ...  # noqa: ANN401  # of optional libraries
@overload
def read_complete(table: str, column: str, *, spark: "SparkSession") -> "DataFrame": ...
def read_complete(table: Any, column: str, *, spark: Any = None) -> Any:
    """Return the rows of a table with event times below its watermark: those to which the job adds no more.

    There are none as long as the watermark is unknown.  A table that is open shows the snapshot that it was opened or
    refreshed with.  If another program has deleted or replaced rows, the log has a warning with its last commit.

    Args:
        table: as in `complete_until`.
        column: the event time of the rows, the column that the job has as ``event_time=``: a timestamp (without a time
            zone it is in UTC), or a long integer with epoch milliseconds.
        spark: the session that knows the name of the table.

    Returns:
        A ``pyarrow.Table``; with ``spark``, a DataFrame.

    Raises:
        UnmarkedTableError, UnreadableTableError: as `complete_until`.
        UsageError: as `complete_until`; also if the table has no such column, or the column is no time.
    """
    found = complete_until(table, spark=spark)
    if found.removed_by is not None:
        _log.warning(
            "table %s: commit %s of another program deleted or replaced rows, so rows of job %r may be missing",
            found.table,
            found.removed_by,
            found.job,
        )
    below = EARLIEST if found.watermark is None else found.watermark
    with reading(table):
        if spark is not None:
            return _in_spark(spark.table(table), column, below)
        if hasattr(table, "current_snapshot"):
            limit = _literal(table.schema().as_arrow(), column, below)
            return table.scan(row_filter=import_module("pyiceberg.expressions").LessThan(column, limit)).to_arrow()
        schema = table.to_pyarrow_dataset().schema
        return _query(table, schema, "SELECT *", column, "<", below).cast(schema)


def latest_time(table: Any, column: str, since: int) -> int | None:  # noqa: ANN401  # of optional libraries
    """Return the highest event time in a table of pyiceberg or deltalake that is ``since`` or later; ``None``: none.

    Raises:
        UnreadableTableError: as `complete_until`.
        UsageError: if the table has no such column, or the column is no time.
    """
    with reading(table):
        if hasattr(table, "current_snapshot"):
            schema, at_least = table.schema().as_arrow(), import_module("pyiceberg.expressions").GreaterThanOrEqual
            rows = table.scan(at_least(column, _literal(schema, column, since)), selected_fields=(column,)).to_arrow()
            latest = import_module("pyarrow.compute").max(rows[column]).as_py()
        else:
            schema, select = table.to_pyarrow_dataset().schema, f"SELECT max({_quoted(column)})"
            latest = _query(table, schema, select, column, ">=", since)[0][0].as_py()
    if isinstance(latest, datetime) and latest.tzinfo is None:
        latest = latest.replace(tzinfo=UTC)
    return None if latest is None else event_time_of(latest)


def _query(table: Any, schema: "Schema", select: str, column: str, compare: str, time: int) -> "Table":  # noqa: ANN401  # an extra
    """Return the rows of a table of deltalake whose column compares so with a time, as its own engine reads them.

    pyarrow would read by threads that need Python: one that still runs when the process exits aborts it.
    """
    import pyarrow as pa  # noqa: PLC0415  # an extra

    is_time = pa.types.is_timestamp(_limit(schema, column, time).type)
    limit = f"to_timestamp_micros({time * 1000})" if is_time else time
    rows = import_module("deltalake").QueryBuilder().register("rows", table)
    return pa.table(rows.execute(f"{select} FROM rows WHERE {_quoted(column)} {compare} {limit}"))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _in_spark(frame: "DataFrame", column: str, below: int) -> "DataFrame":
    kind = dict(frame.dtypes).get(column)
    moment = to_datetime(below).replace(tzinfo=None)
    limits = {
        "timestamp": f"timestamp_millis({below})",
        "timestamp_ntz": f"TIMESTAMP_NTZ '{moment.isoformat()}'",
        "bigint": str(below),
    }
    if kind not in limits:
        raise _no_time(column, kind, frame.columns)
    return frame.where(f"`{column}` < {limits[kind]}")


def _literal(schema: "Schema", column: str, time: int) -> int | str:
    """Return a time as a value of a filter of pyiceberg."""
    limit = _limit(schema, column, time).as_py()
    return limit if isinstance(limit, int) else str(limit.isoformat())


def _limit(schema: "Schema", column: str, below: int) -> "Scalar":
    """Return a time as a value of a column's type."""
    import pyarrow as pa  # noqa: PLC0415  # an extra

    kind = schema.field(column).type if column in schema.names else None
    if kind == pa.int64():
        return pa.scalar(below)
    if kind is None or not pa.types.is_timestamp(kind):
        raise _no_time(column, kind, schema.names)
    moment = to_datetime(below)
    return pa.scalar(moment if kind.tz else moment.replace(tzinfo=None), kind)


def _no_time(column: str, kind: object, names: Sequence[str]) -> UsageError:
    if kind is None:
        return UsageError(reason=f"the table has no column {column!r}, only {', '.join(names)}")
    expected = "a timestamp, or a long integer with epoch milliseconds"
    return UsageError(reason=f"column {column!r} is of type {kind}, expected {expected}")
