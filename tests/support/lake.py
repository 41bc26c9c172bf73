"""Iceberg and Delta tables on this disk, written by Spark and read again by pyiceberg and deltalake."""

import tempfile
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from floodmark.producers.tables.table_history import history_of
from floodmark.producers.tables.table_mark import TableMark
from floodmark.schemas import END_OF_TIME
from floodmark.schemas.timestamps import EARLIEST
from floodmark.spark_jobs import delta, iceberg, local_session
from floodmark.spark_jobs.demo.days_table import lake_settings
from floodmark.spark_jobs.internals.connectors import CONNECTORS
from floodmark.spark_jobs.internals.jvm import RELEASE
from floodmark.spark_jobs.tables.table import Table
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession
from support.harness import SMALL_BATCHES

KINDS = [kind for kind, release in CONNECTORS if release == RELEASE]
"""Those of this Spark."""


def lake_session(folder: Path, *tables: str) -> SparkSession:
    """Start a Spark with an Iceberg catalog in a folder."""
    settings = {
        **SMALL_BATCHES,
        **lake_settings(folder),
        "spark.sql.warehouse.dir": tempfile.mkdtemp(),
        "spark.driver.maxResultSize": "500k",  # no job collects its rows
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    return local_session("tables", tables=tables or KINDS, settings=settings)


def place_of(kind: str, folder: Path, name: str) -> Path:
    return folder / "db" / name if kind == "iceberg" else folder / name


def named_table(kind: str, place: Path, commit_every: timedelta = timedelta(0), **settings: Any) -> Table:
    if kind == "delta":
        return delta(str(place), commit_every=commit_every, **settings)
    return iceberg(f"lake.{place.parent.name}.{place.name}", commit_every=commit_every, **settings)


def is_written(place: Path) -> bool:
    return any((*place.glob("metadata/v*.metadata.json"), *place.glob("_delta_log/0*.json")))


def opened(kind: str, place: Path) -> Any:
    """Open a table with a library that is not Spark."""
    if kind == "delta":
        return DeltaTable(str(place))
    # Not by the version hint, which is away for a moment while a commit replaces it.
    newest = max((place / "metadata").glob("v*.metadata.json"), key=lambda file: int(file.name[1:].partition(".")[0]))
    return StaticTable.from_metadata(str(newest))


def rows_of(table: Any, commit: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of an open table, now or after a commit."""
    if isinstance(table, DeltaTable):
        if commit is not None:
            table = DeltaTable(table.table_uri, version=commit)
        return list(table.to_pyarrow_table().to_pylist())
    return list(table.scan(snapshot_id=commit).to_arrow().to_pylist())


def partitions_of(table: Any) -> list[str]:
    """Return the names of what an open table is partitioned by."""
    if isinstance(table, DeltaTable):
        return list(table.metadata().partition_columns)
    return [field.name for field in table.spec().fields]


def marks_of(table: Any) -> list[TableMark]:
    """Return what the job says in its commits, the oldest first."""
    return [mark for commit in history_of(table).commits if (mark := TableMark.of(commit.properties)) is not None]


def millis(row: dict[str, Any]) -> int:
    """Return the time of a row of `counting.windowed`, epoch milliseconds."""
    return round(row["ended"].timestamp() * 1_000)


def counts_in(table: Any) -> Counter[tuple[str, int]]:
    """Add up rows of `counting.windowed`; a row that is there twice shows as a count too high."""
    total = Counter()
    for row in rows_of(table):
        total[row["user"], millis(row)] += row["n"]
    return total


def assert_true_marks(table: Any, *, ended: bool = True) -> None:
    """Assert that no watermark is above the truth, or goes back: all rows below it were there at its commit."""
    final, last = rows_of(table), EARLIEST
    for commit in history_of(table).commits:
        mark = TableMark.of(commit.properties)
        if mark is not None and mark.watermark is not None:
            found = [row for row in rows_of(table, commit.number) if millis(row) < mark.watermark]
            expected = [row for row in final if millis(row) < mark.watermark]
            assert sorted(found, key=str) == sorted(expected, key=str), mark
            assert last <= mark.watermark, "it went back"
            last = mark.watermark
    assert (last == END_OF_TIME) == ended
