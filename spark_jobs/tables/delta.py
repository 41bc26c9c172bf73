"""Delta tables as the output of a job: the mark of a commit is its ``userMetadata``, and its batch its transaction."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Final

from floodmark.producers.tables.table_history import delta_in_spark
from floodmark.producers.tables.table_mark import TableMark
from floodmark.schemas.errors import ContinueError
from floodmark.spark_jobs.internals.connectors import Connector, is_delta
from floodmark.spark_jobs.progress.published import StoredPosition
from floodmark.spark_jobs.tables.table import MINUTE, Table
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import override

_SETTINGS: Final = "spark.databricks.delta"
_STEPS: Final = (1, 20, 400, 8_000)
"""How many of the last commits to look at: Delta reads a file for each."""


def delta(
    name: str,
    *,
    key: str | Sequence[str] = (),
    partition_by: str | Sequence[str] = (),
    commit_every: timedelta = MINUTE,
) -> Table:
    """Return a Delta table for `write`.

    Each commit of the job has its rows and its watermark, and `complete_until` reads the watermark.  The table is
    created if it does not exist.

    Args:
        name: the name of the table, or the path of its folder, which has a ``/``.
        key: the columns that identify a row; with ``output_mode="update"``, the newest row of a key replaces the older
            one (MERGE).
        partition_by: columns, if the table is created.
        commit_every: the shortest time between two commits, 0 or more.  With 0, each batch is a commit.

    Raises:
        UsageError: if a value is out of its bounds.
    """
    first, slash, _ = name.partition("/")
    if slash and first and ":" not in first:  # Delta takes a relative path for the names of a schema and a table
        name = Path(name).absolute().as_posix()
    keys, partitions = ((one,) if isinstance(one, str) else tuple(one) for one in (key, partition_by))
    return DeltaTable(name, keys, partitions, commit_every)


@dataclass(frozen=True, slots=True)
class DeltaTable(Table):
    """See `delta`."""

    provider: ClassVar[Connector] = "delta"
    connector: ClassVar[str] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

    @property
    def _is_path(self) -> bool:
        return "/" in self.name

    @property
    @override
    def sql(self) -> str:
        return f"delta.`{self.name}`" if self._is_path else self.name

    @property
    @override
    def catalog(self) -> str:
        first, _, rest = self.name.partition(".")
        return "spark_catalog" if self._is_path or "." not in rest else first

    @override
    def exists(self, spark: SparkSession) -> bool:
        if self._is_path:
            return is_delta(spark, self.name)
        return spark.catalog.tableExists(self.name)

    @override
    def create_from(self, rows: DataFrame) -> None:
        if not self._is_path:
            Table.create_from(self, rows)
            return
        # `create` refuses a folder with files, such as one of a start that was killed.
        rows.write.format(self.provider).mode("append").partitionBy(*map(str, self.partition_by)).save(self.name)

    @override
    def newest(self, spark: SparkSession) -> TableMark | None:
        if not self.exists(spark):
            return None
        for limit in _STEPS:
            history = delta_in_spark(self.sql, spark, limit)
            for commit in reversed(history.commits):
                mark = TableMark.of(commit.properties)
                if mark is not None and mark.position is not None:
                    return mark
            if not history.expired:
                break
        return None

    @override
    def append(self, spark: SparkSession, rows: DataFrame, mark: TableMark) -> None:
        with self._transaction(spark, mark):
            rows.writeTo(self.sql).append()

    @override
    def merge(self, spark: SparkSession, statement: str, mark: TableMark) -> None:
        with self._transaction(spark, mark):
            spark.sql(statement)

    @contextmanager
    def _transaction(self, spark: SparkSession, mark: TableMark) -> Iterator[None]:
        """Let the commit carry the mark; Delta skips a second commit of one batch, also at once, without an error."""
        checkpoint_id = StoredPosition.of(str(mark.position)).checkpoint_id
        settings = {
            "commitInfo.userMetadata": mark.as_json(),
            "write.txnAppId": f"floodmark/{mark.job}/{checkpoint_id}",
            "write.txnVersion": str(mark.batch),
        }
        try:
            for name, value in settings.items():
                spark.conf.set(f"{_SETTINGS}.{name}", value)
            yield
        finally:
            for name in settings:
                spark.conf.unset(f"{_SETTINGS}.{name}")
        newest = self.newest(spark)
        if newest is None or newest.position != mark.position:
            reason = (
                f"Delta skips the commit of batch {mark.batch}, which it had before: RESTORE does not take that back"
            )
            new_output = "a new checkpoint_location with WriteOptions(start=Start(published='continue'))"
            raise ContinueError(job=mark.job, output=f"table {self.name!r}", reason=reason, new_output=new_output)
