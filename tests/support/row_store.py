"""A store of a job's results that keeps the job's position with them: one SQLite file."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from floodmark.spark_jobs import ExactlyOnceWriter
from pyspark.sql import DataFrame

_TABLES = "CREATE TABLE IF NOT EXISTS results (k, at, n); CREATE TABLE IF NOT EXISTS job (position)"


class RowStore(ExactlyOnceWriter):
    """Stores a key, a time (epoch milliseconds) and a number of each row, given as SQL of Spark."""

    def __init__(self, path: str | Path, *columns: str) -> None:
        self._path = path
        self._columns = columns
        with self._open() as db:
            db.executescript(_TABLES)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path)) as db, db:
            yield db

    def write(self, rows: DataFrame, position: str) -> None:
        """Store rows and position in one transaction."""
        found = [tuple(row) for row in rows.selectExpr(*self._columns).collect()]
        with self._open() as db:
            db.executemany("INSERT INTO results VALUES (?, ?, ?)", found)
            db.execute("DELETE FROM job")
            db.execute("INSERT INTO job VALUES (?)", [position])

    def position(self) -> str | None:
        with self._open() as db:
            return next((text for (text,) in db.execute("SELECT position FROM job")), None)

    @property
    def rows(self) -> list[tuple[str, int, int]]:
        with self._open() as db:
            return db.execute("SELECT k, at, n FROM results").fetchall()


def count_store(path: str | Path) -> RowStore:
    """Return a store of the rows of `harness.COUNT`."""
    return RowStore(path, "user", "unix_millis(ended)", "n")
