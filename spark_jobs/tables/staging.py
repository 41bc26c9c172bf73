"""The batches of a job that await the next commit to its table: Parquet files and one text file in the checkpoint."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from floodmark.producers.tables.table_mark import TableMark
from floodmark.schemas.errors import CorruptSnapshotError
from floodmark.schemas.stored_format import restoring
from floodmark.spark_jobs.batch.snapshots import FOLDER
from floodmark.spark_jobs.internals.connectors import Folders
from floodmark.spark_jobs.internals.files import Files
from floodmark.spark_jobs.progress.published import StoredPosition
from pyspark.sql import DataFrame, SparkSession

_ADVICE: Final = "use a new checkpoint_location"
_FOLDER: Final = f"{FOLDER}/staged"
_ESCAPES: Final = str.maketrans({one: f"\\{one}" for one in "[]{}*?\\"})
_NAME: Final = f"{_FOLDER}/batches.json"


class StagedRows(NamedTuple):
    """The rows of a batch."""

    folder: str
    size: int  # of all files, in bytes


@dataclass(frozen=True, slots=True)
class Staged:
    """Batches that the table lacks, without a gap."""

    first: int
    rows: Mapping[int, StagedRows]
    """Of each batch that has any."""
    mark: TableMark
    """Of the last batch."""

    @property
    def position(self) -> StoredPosition:
        """Of the last batch; it names no earlier checkpoint."""
        return StoredPosition.of(str(self.mark.position))

    def then(self, rows: StagedRows | None, mark: TableMark) -> "Staged":
        """Return them with one more batch; ``rows``: of the batch, if it has any."""
        staged = self.rows if rows is None else {**self.rows, mark.batch: rows}
        return replace(self, rows=staged, mark=mark)

    @property
    def text(self) -> str:
        """The batches as JSON text."""
        staged = {str(batch): list(rows) for batch, rows in self.rows.items()}
        return json.dumps({"first": self.first, "rows": staged, "mark": self.mark.properties()})

    @classmethod
    def of(cls, text: str) -> "Staged":
        """Read the text."""
        with restoring(f"in {_NAME} of the checkpoint", _ADVICE):
            found = json.loads(text)
            mark = TableMark.of(found["mark"])
            if mark is None:
                raise ValueError("no mark")
            staged = {int(batch): StagedRows(*rows) for batch, rows in found["rows"].items()}
            return cls(found["first"], staged, mark)


class Staging:
    """The staged batches of one checkpoint.  A folder gets a new name each time, so no file is ever overwritten."""

    def __init__(self, spark: SparkSession, checkpoint_location: str, files: Files) -> None:
        self._files = files
        self._folders = Folders(spark, checkpoint_location, _FOLDER)

    def write(self, frame: DataFrame) -> StagedRows:
        """Write the rows of a batch, in one action."""
        name = uuid.uuid4().hex
        frame.write.parquet(self._folders.path(name))
        return StagedRows(name, self._folders.size(name))

    def read(self, spark: SparkSession, rows: StagedRows) -> DataFrame:
        """Return the rows of a batch; `CorruptSnapshotError` if files are missing or cut, such as by a power failure.

        Spark would pass over empty and missing ones.
        """
        path, size = self._folders.path(rows.folder), self._folders.size(rows.folder)
        if size != rows.size:
            reason = f"its files have {size:,} bytes, and had {rows.size:,}"
            raise CorruptSnapshotError(where=path, reason=reason, advice=_ADVICE)
        path = path.translate(_ESCAPES)  # Spark takes what it reads for a pattern
        return spark.read.option("ignoreCorruptFiles", "false").parquet(path)  # whatever the session says

    def load(self) -> Staged | None:
        """Return the staged batches, and delete the folders of others."""
        text = self._files.read(_NAME)
        staged = None if text is None else Staged.of(text)
        kept = set() if staged is None else {rows.folder for rows in staged.rows.values()}
        for name in self._folders.names():
            if name not in kept:
                self._folders.delete(name)
        return staged

    def store(self, staged: Staged) -> None:
        """Store which batches are staged."""
        self._files.write(_NAME, staged.text)

    def clear(self, staged: Staged) -> None:
        """Forget batches that the table has, and delete their rows."""
        self._files.delete(_NAME)
        for rows in staged.rows.values():
            self.delete(rows)

    def delete(self, rows: StagedRows) -> None:
        """Delete the rows of a batch."""
        self._folders.delete(rows.folder)
