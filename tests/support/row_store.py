"""A store of a job's results that keeps the job's position with them: one file, replaced at once."""

import json
from pathlib import Path

from floodmark.spark_jobs import ExactlyOnceWriter
from pyspark.sql import DataFrame


class RowStore(ExactlyOnceWriter):
    """Stores a key, a time (epoch milliseconds) and a number of each row, given as SQL of Spark."""

    def __init__(self, path: str | Path, *columns: str) -> None:
        self._path, self._columns = Path(path), columns

    def write(self, rows: DataFrame, position: str) -> None:
        stored = [*self.rows, *rows.selectExpr(*self._columns).collect()]
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps({"rows": stored, "position": position}), encoding="utf-8")
        draft.replace(self._path)

    def position(self) -> str | None:
        return self._stored().get("position")

    @property
    def rows(self) -> list[tuple[str, int, int]]:
        return [tuple(row) for row in self._stored().get("rows", [])]

    def _stored(self):
        return json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else {}


def count_store(path: str | Path) -> RowStore:
    return RowStore(path, "user", "unix_millis(ended)", "n")
