"""Until which time a table is complete, by the commits of the job that writes it."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

from floodmark.producers.board.estimate import ids_read, offsets_read
from floodmark.producers.tables.table_history import Commit, History, history_of
from floodmark.producers.tables.table_mark import TableMark
from floodmark.schemas.classify import Offsets
from floodmark.schemas.errors import UnmarkedTableError, UnreadableTableMarkError
from floodmark.schemas.records import Holder

_log = logging.getLogger(__name__)
_COMMITS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWatermark:
    """How complete a table is."""

    table: str
    job: str
    """The job that writes the table."""
    watermark: int | None
    """The job adds no row with an event time below it, epoch milliseconds; ``None``: unknown yet."""
    holder: Holder | None
    """The source that holds back the watermark, by the last commit of the job; ``None``: no source does."""
    snapshot: int
    """The last commit of the job: the id of an Iceberg snapshot, or the version of a Delta table."""
    committed_at: int
    """When it was committed, epoch milliseconds."""
    since: int
    """When a commit of the job had this watermark first, epoch milliseconds."""
    pause: int
    """The longest time between its last ten commits, milliseconds; 0: there is one."""
    read: Offsets = field(default_factory=dict, repr=False)
    """How far the job had read its input topics, by its last commit; empty: its commit does not tell."""
    ids: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The ids of its input topics, as ``read``."""
    removed_by: int | None = None
    """The last commit of another program that deleted or replaced rows; ``None``: none in the table's history."""


def complete_until(table: Any, *, spark: Any = None) -> TableWatermark:  # noqa: ANN401  # of optional libraries
    """Return how complete a table is that a job writes with ``write(table=)``.

    It reads the metadata, no rows.  A table that is open shows the snapshot that it was opened or refreshed with.

    The watermark is the highest that the job has committed since its last start, in the commits that led to the table's
    current state.  So compaction and other maintenance do not change it, and a rollback lowers it, as does a start with
    ``published="repeat"``.  A commit of an older epoch of the job behind one of a newer epoch (a zombie) counts for
    nothing.  Neither does a commit whose properties cannot be read: a warning in the log names it.  If several jobs
    have written the table, the lowest watermark counts.

    The watermark speaks of the rows of the job.  It says nothing of rows that other programs append.  If another
    program deletes or replaces rows, the watermark stays, because the job adds them no more: see ``removed_by``.

    Args:
        table: a ``Table`` of pyiceberg (``floodmark[iceberg]``), a ``DeltaTable`` of deltalake (``floodmark[delta]``),
            or with ``spark`` the name of an Iceberg or Delta table, as in SQL.
        spark: the session that knows the name.

    Raises:
        UnmarkedTableError: if no job has committed to the table, or its commits have expired.
        UnreadableTableError: if a file or a right is missing, or its catalog is away.
        UsageError: if the table is something else.
    """
    return watermark_of(history_of(table, spark))


def watermark_of(history: History) -> TableWatermark:
    """Return how complete a table is, by its history, or raise UnmarkedTableError."""
    jobs: dict[str, _Job] = {}
    removed_by, unreadable = None, ""
    for commit in history.commits:
        try:
            mark = TableMark.of(commit.properties)
        except UnreadableTableMarkError as error:
            unreadable = f"{error} (commit {commit.number})"
            _warn(history.table, commit.number, str(error))
            continue
        if mark is None:
            removed_by = commit.number if commit.removes else removed_by
            continue
        before = jobs.get(mark.job)
        if before is None:
            jobs[mark.job] = _Job(mark, commit, mark.watermark, commit.time, (commit.time,))
        elif mark.epoch >= before.mark.epoch:
            jobs[mark.job] = before.then(mark, commit)
    if not jobs:
        raise _unmarked(history, unreadable)
    job = min(jobs.values(), key=lambda one: (one.watermark is not None, one.watermark))
    return TableWatermark(
        table=history.table,
        job=job.mark.job,
        watermark=job.watermark,
        holder=job.mark.holder,
        snapshot=job.commit.number,
        committed_at=job.commit.time,
        since=job.since,
        pause=max((later - earlier for earlier, later in pairwise(job.times)), default=0),
        read=offsets_read(position := (job.mark.position or "").encode()),
        ids=ids_read(position),
        removed_by=removed_by,
    )


@lru_cache(maxsize=1_000)
def _warn(table: str, commit: int, reason: str) -> None:
    """Log once that a commit is ignored: a command reads the same table again and again."""
    _log.warning("table %s, commit %s is ignored: %s", table, commit, reason)


class _Job(NamedTuple):
    """The commits of one job, up to one of them."""

    mark: TableMark
    commit: Commit
    watermark: int | None
    since: int
    times: tuple[int, ...]

    def then(self, mark: TableMark, commit: Commit) -> "_Job":
        """Return the same with one commit more; within an epoch, a lower watermark does not count."""
        known = self.watermark if mark.epoch == self.mark.epoch else None
        watermark = max((one for one in (known, mark.watermark) if one is not None), default=None)
        since = self.since if watermark == self.watermark else commit.time
        return _Job(mark, commit, watermark, since, (*self.times[1 - _COMMITS :], commit.time))


def _unmarked(history: History, unreadable: str) -> UnmarkedTableError:
    count = f"none of its {len(history.commits)} commit(s)"
    if unreadable:
        reason, advice = f"{count} has a mark that can be read: {unreadable}", "Upgrade Floodmark, or write a new table"
    elif history.expired:
        reason = f"{count} is of a Floodmark job, and older ones are no longer in its metadata"
        advice = "Let the job commit once more, and let expiry keep the last snapshots of the job"
    elif history.commits:
        reason = f"{count} is of a Floodmark job"
        advice = "Write the table with write(table=), or, if a job has just created it, wait for its first results"
    else:
        reason, advice = "it is empty", "Start the job that writes it"
    return UnmarkedTableError(table=history.table, reason=reason, advice=advice)
