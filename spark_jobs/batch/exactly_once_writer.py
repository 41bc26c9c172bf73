"""A user's store that keeps the position of the job with the rows, so that it gets each row exactly once."""

import logging
from abc import ABC, abstractmethod
from typing import Final

from floodmark.schemas.errors import ContinueError, ReplacedCheckpointError
from floodmark.spark_jobs.batch.sinks import LateRows, Sink, run_into_cache
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.published import Published, StoredPosition
from pyspark.sql import DataFrame
from typing_extensions import override

_log = logging.getLogger(__name__)
STORE: Final = "its store"
EMPTY_STORE: Final = "an empty store"


class ExactlyOnceWriter(ABC):
    """Writes the rows of a job to a store, which keeps the job's position with them, in one transaction.

    The store then gets each row exactly once: after a crash the job does not write a batch that the store has, and
    with a new checkpoint it continues after the position, see `Start`.  Both methods run on threads of the job.
    """

    @abstractmethod
    def write(self, rows: DataFrame, position: str) -> None:
        """Store the rows of a batch, and the position in place of the one before, in one transaction.

        Args:
            rows: in Spark's cache, so you may run any number of actions.
            position: JSON text that grows with the number of input partitions.
        """

    @abstractmethod
    def position(self) -> str | None:
        """Return the position that the store has; ``None``: none."""


def stored_position(writer: ExactlyOnceWriter) -> StoredPosition | None:
    """Return the position that a store has; ``None``: none."""
    text = writer.position()
    return None if text is None else StoredPosition.of(text)


class StoreSink(Sink):
    """Passes each batch to a writer that keeps the position of the job; skips batches that its store has."""

    def __init__(self, writer: ExactlyOnceWriter, job: str, checkpoint_id: str) -> None:
        self._writer = writer
        self._job = job
        self._checkpoint_id = checkpoint_id
        self._found: StoredPosition | None = None
        """The last position in the store that is known."""

    @override
    def open(self) -> None:
        """Read the position."""
        self._found = stored_position(self._writer)
        if self._found is not None and self._checkpoint_id in self._found.earlier:
            raise self._replaced(self._found.earlier[self._checkpoint_id])

    @override
    def consume(self, frame: DataFrame) -> None:
        run_into_cache(frame)

    @override
    def commit(self, frame: DataFrame, batch_id: int, progress: Progress, published: Published, late: LateRows) -> None:
        """Write the batch, unless the store has it; refuse a gap, since its rows would be missing without an error."""
        found = stored_position(self._writer)
        is_own = found is not None and found.checkpoint_id == self._checkpoint_id
        if found is not None and is_own and batch_id <= found.batch_id:
            _log.info("job %s: batch %d is in the store already", self._job, batch_id)
            return
        if found != self._found and not is_own:
            raise self._replaced(batch_id - 1)
        last = found.batch_id if found is not None and is_own else -1
        if (found is None or is_own) and batch_id > last + 1:
            reason = f"the store lacks batch {batch_id - 1} of this checkpoint"
            new = f"the store as it was, or a new checkpoint_location and {EMPTY_STORE}"
            raise ContinueError(job=self._job, output=STORE, reason=reason, new_output=new)
        earlier = {} if found is None else dict(found.earlier)
        if found is not None and not is_own:
            earlier[found.checkpoint_id] = found.batch_id
        self._found = StoredPosition(self._checkpoint_id, batch_id, progress.output, published, earlier)
        self._writer.write(frame, self._found.text)

    def _replaced(self, batch_id: int) -> ReplacedCheckpointError:
        return ReplacedCheckpointError(job=self._job, output=STORE, batch_id=batch_id, new_output=EMPTY_STORE)
