"""Iceberg and Delta tables on this disk, written by Spark and read again by pyiceberg and deltalake."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from floodmark.producers.tables.table_history import history_of
from floodmark.producers.tables.table_mark import TableMark
from floodmark.spark_jobs import local_session
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession
from support.harness import SHORT_LIVED

CATALOG = "lake"


def lake_session(folder: Path, *tables: Any, **settings: str) -> SparkSession:
    """Start a Spark with an Iceberg catalog in a folder."""
    place = f"spark.sql.catalog.{CATALOG}"
    chosen = {
        **SHORT_LIVED,
        place: "org.apache.iceberg.spark.SparkCatalog",
        f"{place}.type": "hadoop",
        f"{place}.warehouse": str(folder),
        "spark.sql.warehouse.dir": tempfile.mkdtemp(),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
        **settings,
    }
    return local_session("tables", tables=tables or ("iceberg", "delta"), settings=chosen)


def opened(kind: str, folder: Path, name: str) -> Any:
    """Open a table with a library that is not Spark."""
    if kind == "delta":
        return DeltaTable(str(folder / name))
    metadata = folder / "db" / name / "metadata"
    version = (metadata / "version-hint.text").read_text(encoding="utf-8")
    return StaticTable.from_metadata(str(metadata / f"v{version}.metadata.json"))


def rows_of(table: Any) -> list[dict[str, Any]]:
    """Return the rows of an open table."""
    found = table.to_pyarrow_table() if isinstance(table, DeltaTable) else table.scan().to_arrow()
    return list(found.to_pylist())


def marks_of(table: Any) -> list[TableMark]:
    """Return what the job says in its commits, the oldest first."""
    return [mark for commit in history_of(table).commits if (mark := TableMark.of(commit.properties)) is not None]


def counts_in(table: Any) -> Counter[tuple[str, int]]:
    """Add up rows of `counting.windowed`; a row that is there twice shows as a count too high."""
    total: Counter[tuple[str, int]] = Counter()
    for row in rows_of(table):
        total[row["user"], round(row["ended"].timestamp() * 1_000)] += row["n"]
    return total
