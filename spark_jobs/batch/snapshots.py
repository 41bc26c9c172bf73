"""The files with a job's progress, beside Spark's own files in the checkpoint location: one snapshot per batch.

A checkpoint on a local disk is written directly, any other through Hadoop's file system.  A reader sees a whole
snapshot or none.
"""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from floodmark.schemas.errors import (
    ChangedQueryError,
    CorruptSnapshotError,
    ForeignCheckpointError,
    MissingSnapshotError,
)
from floodmark.spark_jobs.internals.checkpoint import BATCHES_RETAINED, Checkpoint
from floodmark.spark_jobs.internals.texts import change
from floodmark.spark_jobs.progress.progress import Progress
from pyspark.sql import SparkSession

FOLDER: Final = "floodmark"

REBUILD: Final = "spark.floodmark.rebuild"  # the setting of a session for ``WriteOptions(rebuild=True)``

SAME_QUERY: Final = "spark.floodmark.same-query"
"""The setting of a session that declares an edited query to be the same."""

_REBUILD: Final = f"start with --conf {REBUILD}=true, or WriteOptions(rebuild=True), to rebuild it from the topics"


@dataclass(frozen=True, slots=True)
class Query:
    """The query that the state in a checkpoint depends on."""

    spark: str  # Spark's version, since each words the lines in its own way
    lines: Sequence[str]  # see `texts.meaning`; and settings of `write`


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """The job that a checkpoint belongs to."""

    job: str
    topics: tuple[str, ...]
    output: str | None
    checkpoint_id: str = ""


class Snapshots:
    """The snapshots of one checkpoint location; call `claim` before anything is written."""

    def __init__(self, spark: SparkSession, checkpoint_location: str) -> None:
        self.checkpoint_location = checkpoint_location
        self.checkpoint: Final = Checkpoint(spark, checkpoint_location)
        self._files = self.checkpoint.files
        self._new = "use a new checkpoint_location"

    def claim(self, identity: JobIdentity, new_output: str | None, *, adopt: bool = False) -> JobIdentity:
        """Note that the checkpoint belongs to a job; return its identity with the id of the checkpoint's first use."""
        if new_output is not None:
            self._new = f"use a new checkpoint_location and {new_output}"
        name = f"{FOLDER}/job.json"
        text = self._files.read(name)
        if text is None:
            if self.checkpoint.is_used and not adopt:
                raise self._foreign("a query that is not Floodmark's", identity)
            claimed = replace(identity, checkpoint_id=uuid.uuid4().hex)
            self._files.write(name, json.dumps(asdict(claimed)))
            return claimed
        stored = self._parse(name, text, self._new)
        kept = JobIdentity(stored["job"], tuple(stored["topics"]), stored["output"], stored["checkpoint_id"])
        if replace(kept, checkpoint_id=identity.checkpoint_id) != identity:
            raise self._foreign(f"job {kept.job!r} ({', '.join(kept.topics)} to {kept.output})", identity)
        return kept

    def recognise(self, job: str, query: Query, advice: Callable[[], str], *, same: bool = False) -> None:
        """Refuse the state of another query, and note this query.

        A checkpoint without a committed batch, or of another Spark version, accepts any query.
        """
        name = f"{FOLDER}/query.json"
        text = self._files.read(name)
        stored = None if text is None else Query(**self._parse(name, text, self._new))
        if stored == query:
            return
        has_state = self.checkpoint.last_committed is not None
        if stored is not None and stored.spark == query.spark and not same and has_state:
            before, now = change(stored.lines, query.lines)
            raise ChangedQueryError(
                job=job,
                checkpoint_location=self.checkpoint_location,
                stored=before,
                found=now,
                setting=SAME_QUERY,
                advice=advice(),
            )
        self._files.write(name, json.dumps(asdict(query)))

    def _foreign(self, found: str, identity: JobIdentity) -> ForeignCheckpointError:
        expected = f"job {identity.job!r} ({', '.join(identity.topics)} to {identity.output})"
        return ForeignCheckpointError(checkpoint_location=self.checkpoint_location, found=found, expected=expected)

    def store(self, batch_id: int, progress: Mapping[str, Any]) -> None:
        """Store the progress after a batch, and delete a snapshot that is older than Spark's own files."""
        self._files.write(self._name(batch_id), json.dumps(progress, separators=(",", ":")))
        if batch_id >= BATCHES_RETAINED:
            self._files.delete(self._name(batch_id - BATCHES_RETAINED))

    def load(self, batch_id: int) -> Progress:
        """Return the progress after a committed batch, or raise a `SnapshotError` with advice."""
        name = self._name(batch_id)
        text, advice = self._files.read(name), f"{_REBUILD}; or {self._new}"
        if text is None:
            raise MissingSnapshotError(batch_id=batch_id, checkpoint_location=self.checkpoint_location, advice=advice)
        return Progress.restore(self._parse(name, text, advice), f"{self.checkpoint_location}/{name}")

    def _parse(self, name: str, text: str, advice: str) -> dict[str, Any]:
        try:
            return dict(json.loads(text))
        except (ValueError, TypeError) as error:
            where = f"{self.checkpoint_location}/{name}"
            raise CorruptSnapshotError(where=where, reason=str(error), advice=advice) from error

    def _name(self, batch_id: int) -> str:
        return f"{FOLDER}/{batch_id}.json"
