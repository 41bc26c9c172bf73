"""Iceberg tables as the output of a job: the mark of a commit is in the properties of its snapshot."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from floodmark.producers.tables.table_mark import PREFIX, TableMark
from floodmark.spark_jobs.internals.connectors import (
    Connector,
    forget_table,
    newest_summary,
    with_snapshot_properties,
)
from floodmark.spark_jobs.tables.table import MINUTE, Table
from pyspark.sql import Column, DataFrame, SparkSession
from typing_extensions import override


def iceberg(
    name: str,
    *,
    key: str | Sequence[str] = (),
    partition_by: str | Column | Sequence[str | Column] = (),
    commit_every: timedelta = MINUTE,
) -> Table:
    """Return an Iceberg table for `write`.

    Each snapshot of the job has its rows and its watermark, and `complete_until` reads the watermark.  The table is
    created if it does not exist.

    Args:
        name: ``catalog.database.table``; the session configures the catalog as ``spark.sql.catalog.<catalog>``.
        key: the columns that identify a row; with ``output_mode="update"``, the newest row of a key replaces the older
            one (MERGE).
        partition_by: columns, or transforms such as ``F.partitioning.days("ended")``, if the table is created.
        commit_every: the shortest time between two snapshots, 0 or more.  With 0, each batch is a snapshot.

    Raises:
        UsageError: if a value is out of its bounds.
    """
    partitions = (partition_by,) if isinstance(partition_by, str | Column) else tuple(partition_by)
    return IcebergTable(name, (key,) if isinstance(key, str) else tuple(key), partitions, commit_every)


@dataclass(frozen=True, slots=True)
class IcebergTable(Table):
    """See `iceberg`."""

    provider: ClassVar[Connector] = "iceberg"
    connector: ClassVar[str] = "org.apache.iceberg.spark.SparkCatalog"

    @property
    @override
    def sql(self) -> str:
        return self.name

    @property
    @override
    def catalog(self) -> str:
        return self.name.partition(".")[0]

    @override
    def exists(self, spark: SparkSession) -> bool:
        forget_table(spark, self.name)
        return spark.catalog.tableExists(self.name)

    @override
    def newest(self, spark: SparkSession) -> TableMark | None:
        summary = newest_summary(spark, self.name, f"{PREFIX}position") if self.exists(spark) else None
        return None if summary is None else TableMark.of(summary)

    @override
    def append(self, spark: SparkSession, rows: DataFrame, mark: TableMark) -> None:
        properties = {f"snapshot-property.{name}": value for name, value in mark.properties().items()}
        rows.writeTo(self.name).options(**properties).append()

    @override
    def merge(self, spark: SparkSession, statement: str, mark: TableMark) -> None:
        with_snapshot_properties(spark, mark.properties(), statement)
