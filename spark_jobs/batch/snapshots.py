"""The files with a job's progress, beside Spark's own files in the checkpoint location: one snapshot per batch.

A checkpoint on a local disk is written directly, any other through Hadoop's file system.  A reader sees a whole
snapshot or none.
"""

import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeVar

from floodmark.schemas.errors import (
    ChangedQueryError,
    CorruptSnapshotError,
    ForeignCheckpointError,
    MissingSnapshotError,
)
from floodmark.schemas.stored_format import restoring
from floodmark.spark_jobs.internals.checkpoint import BATCHES_RETAINED, Checkpoint
from floodmark.spark_jobs.internals.texts import change
from floodmark.spark_jobs.progress.progress import Progress
from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

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
    output_at: int | None = None  # the job writes no results with an earlier event time; ``None``: it writes all
    checkpoint_id: str = ""

    def __str__(self) -> str:
        return f"job {self.job!r} ({', '.join(self.topics)} to {self.output or 'a writer'})"

    @classmethod
    def restore(cls, found: Mapping[str, Any]) -> "JobIdentity":
        """Return what a file has."""
        topics, output_at = tuple(found["topics"]), found.get("output_at")
        return cls(found["job"], topics, found["output"], output_at, found["checkpoint_id"])


class Snapshots:
    """The snapshots of one checkpoint location; call `claim` before anything is written."""

    def __init__(self, spark: SparkSession, checkpoint_location: str) -> None:
        self.checkpoint_location = checkpoint_location
        self.checkpoint: Final = Checkpoint(spark, checkpoint_location)
        self._files = self.checkpoint.files
        self._new = "use a new checkpoint_location"

    def claim(
        self,
        identity: JobIdentity,
        new_output: str | None,
        wrote: Callable[[], bool],
        last_id: Callable[[], str | None],
        *,
        rebuild: bool = False,
    ) -> JobIdentity:
        """Note that the checkpoint belongs to a job; return its identity with the id of the checkpoint's first use.

        For a checkpoint that has lost its own, ``wrote`` tells whether the output may have a batch of the job, and
        ``last_id`` returns the id that the output has.
        """
        if new_output is not None:
            self._new = f"use a new checkpoint_location and {new_output}"
        name = f"{FOLDER}/job.json"
        kept = self._note(name, JobIdentity.restore, rebuild=rebuild)
        if kept is None:
            if self.checkpoint.is_used and not rebuild:
                found = f"a plain Spark query, or to a job that has lost {name}"
                advice = f" If this job has lost the file, {_REBUILD}; with a plain query's, results would be missing."
                raise self._foreign(found, identity, advice)
            if self.checkpoint.last_committed is not None and not wrote():
                raise self._foreign("a plain Spark query, since the output has no batch of this job", identity)
            lost = last_id() if self.checkpoint.is_planned else None
            claimed = replace(identity, checkpoint_id=lost or uuid.uuid4().hex)
            self._files.write(name, json.dumps(asdict(claimed)))
            return claimed
        claimed = replace(identity, checkpoint_id=kept.checkpoint_id)
        if replace(kept, output_at=identity.output_at) != claimed:
            raise self._foreign(str(kept), identity)
        forgets = kept.output_at is not None and identity.output_at is None
        if forgets and (committed := self.checkpoint.last_committed) is not None:
            raise self._missing(committed, f"{FOLDER}/start.json", self._new)
        if kept != claimed:
            self._files.write(name, json.dumps(asdict(claimed)))
        return claimed

    def recognise(
        self, job: str, query: Query, advice: Callable[[], str], *, same: bool = False, rebuild: bool = False
    ) -> None:
        """Refuse the state of another query, and note this query.

        A checkpoint without a committed batch, or of another Spark version, accepts any query.
        """
        name, committed = f"{FOLDER}/query.json", self.checkpoint.last_committed
        stored = self._note(name, lambda found: Query(**found), rebuild=rebuild)
        if stored == query:
            return
        if stored is None and committed is not None and not rebuild:
            raise self._missing(committed, name, self._advice)
        if stored is not None and stored.spark == query.spark and not same and committed is not None:
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

    def _foreign(self, found: str, identity: JobIdentity, advice: str = "") -> ForeignCheckpointError:
        return ForeignCheckpointError(
            checkpoint_location=self.checkpoint_location, found=found, expected=str(identity), advice=advice
        )

    def store(self, batch_id: int, progress: Mapping[str, Any]) -> None:
        """Store the progress after a batch, and delete a snapshot that is older than Spark's own files."""
        self._files.write(self._name(batch_id), json.dumps(progress, separators=(",", ":")))
        if batch_id >= BATCHES_RETAINED:
            self._files.delete(self._name(batch_id - BATCHES_RETAINED))

    def load(self, batch_id: int) -> Progress:
        """Return the progress after a committed batch, or raise a `SnapshotError` with advice."""
        name = self._name(batch_id)
        progress = self._parsed(name, lambda found: Progress.restore(found, f"{self.checkpoint_location}/{name}"))
        if progress is None:
            raise self._missing(batch_id, name, self._advice)
        return progress

    def _note(self, name: str, restore: Callable[[dict[str, Any]], _T], *, rebuild: bool) -> _T | None:
        """Return what a file has; ``None``: it does not exist, or is damaged and to be written again."""
        try:
            return self._parsed(name, restore)
        except CorruptSnapshotError as error:
            if not rebuild:
                raise
            _log.warning("%s is written again: %s", error.where, error.reason)
            return None

    def _parsed(self, name: str, restore: Callable[[dict[str, Any]], _T]) -> _T | None:
        try:
            with restoring(f"{self.checkpoint_location}/{name}"):
                text = self._files.read(name)
                return None if text is None else restore(json.loads(text))
        except CorruptSnapshotError as error:
            advice = f"{error.advice}; or {self._advice}"
            raise CorruptSnapshotError(where=error.where, reason=error.reason, advice=advice) from error

    @property
    def _advice(self) -> str:
        return f"{_REBUILD}; or {self._new}"

    def _missing(self, batch_id: int, name: str, advice: str) -> MissingSnapshotError:
        return MissingSnapshotError(
            batch_id=batch_id, checkpoint_location=self.checkpoint_location, name=name, advice=advice
        )

    def _name(self, batch_id: int) -> str:
        return f"{FOLDER}/{batch_id}.json"
