"""The stage of a table on the board: its job reads the topics before it, and commits instead of marking."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from floodmark.producers.board.causes import Cause
from floodmark.producers.board.model import Board, Lags, PartitionView, SourceView, Stage, State, TopicView
from floodmark.producers.board.source_history import Health
from floodmark.producers.tables.table_history import open_table
from floodmark.producers.tables.table_watermark import TableWatermark, complete_until
from floodmark.schemas.errors import FloodmarkError
from floodmark.schemas.records import Holder
from floodmark.schemas.timestamps import END_OF_TIME

LastRise = Callable[[str], int | None]
"""Returns when a topic's watermark last rose, see `Timeline.last_rise`."""

_SHORTEST: Final = 60_000  # milliseconds; a job that commits more often may pause so long, too


class Tables:
    """Some tables by their names, see `open_table`, read again and again for the board."""

    def __init__(self, names: Iterable[str]) -> None:
        self._found: dict[str, TableWatermark | str] = dict.fromkeys(names, "")
        self._opened: dict[str, Any] = {}
        self._named: set[str] = set()

    def read(self) -> set[str]:
        """Read the tables; return the topics that hold them, and that no call has returned before."""
        for name in self._found:
            try:
                self._opened[name] = open_table(name, self._opened.get(name))
                self._found[name] = complete_until(self._opened[name])
            except FloodmarkError as error:
                self._found[name] = str(error)
        holders = [found.holder for found in self._found.values() if not isinstance(found, str)]
        new = {holder.topic for holder in holders if holder is not None} - self._named
        self._named |= new
        return new

    def awaited(self) -> list[Holder]:
        """Return the sources that jobs wait for, by their last two commits with one watermark."""
        found = [one for one in self._found.values() if not isinstance(one, str) and one.committed_at > one.since]
        holders = (one.holder for one in found)
        return [one for one in holders if one is not None and None not in {one.partition, one.source}]

    def on(self, board: Board, last_rise: LastRise) -> Board:
        """Return the board with the tables as they were last read."""
        return with_tables(board, self._found, last_rise)


def with_tables(board: Board, tables: Mapping[str, TableWatermark | str], last_rise: LastRise) -> Board:
    """Return the board with some tables by their names; a text says why a table could not be read."""
    stages = [_stage(board, name, found, last_rise) for name, found in tables.items() if not isinstance(found, str)]
    unread = [(name, found) for name, found in tables.items() if isinstance(found, str)]
    return replace(board, stages=(*board.stages, *stages), unread=(*board.unread, *unread))


def _stage(board: Board, name: str, table: TableWatermark, last_rise: LastRise) -> Stage:
    inputs = () if table.holder is None else (table.holder.topic,)
    before = next(filter(None, map(board.topic, inputs)), None)
    state, lags = State.ACTIVE, Lags()
    if table.watermark is None:
        state = State.UNKNOWN
    elif table.watermark == END_OF_TIME:
        state = State.ENDED
    else:
        reached = None if before is None else before.watermark
        local = None if reached is None else max(0, reached - table.watermark)
        lags = Lags(wall=board.now - table.watermark, local=local)
    verdict, cause, reason = _judge(board.now, table, before, last_rise)
    row = SourceView(
        topic=name,
        partition=0,
        source=table.job,
        state=state,
        verdict=verdict,
        watermark=table.watermark,
        lags=lags,
        since=table.since,
        since_exact=True,
        last=table.committed_at,
        holder=table.holder,
        inputs=inputs,
        cause=cause,
        reason=reason,
    )
    view = TopicView(
        topic=name,
        state=state,
        verdict=verdict,
        watermark=table.watermark,
        lags=lags,
        since=table.since,
        since_exact=True,
        held_by=() if state is State.ENDED else (row,),
        partitions=(PartitionView(partition=0, state=state, watermark=table.watermark, sources=(row,)),),
        whole=True,
        input_watermark=None if before is None else before.watermark,
    )
    return Stage(name=table.job, inputs=inputs, topics=(view,))


def _judge(
    now: int, table: TableWatermark, before: TopicView | None, last_rise: LastRise
) -> tuple[Health | None, Cause | None, str]:
    """Return the verdict on the job of a table.

    A job without new input does not commit, so silence is a fault only if the watermark of its input has advanced since
    the last commit.
    """
    if table.watermark == END_OF_TIME:
        return Health.OK, None, ""
    if table.watermark is None:
        return None, Cause.NOTHING_PROMISED, "the job has no watermark yet"
    advanced = 0 if before is None else _advanced(before, table.watermark, last_rise)
    if now - table.committed_at > 2 * max(table.pause, _SHORTEST) and advanced > table.committed_at:
        return Health.STOP, Cause.SILENT, "the job no longer commits, but its input has advanced"
    return Health.OK, None, ""


def _advanced(view: TopicView, watermark: int, last_rise: LastRise) -> int:
    """Return when an input last advanced, epoch milliseconds; 0: unknown, or not above a table's watermark."""
    if view.state is State.ENDED:
        return max((row.since or 0 for row in view.sources()), default=0)
    since = view.since or 0
    if view.state is not State.IDLE:
        return since
    if all(row.watermark is None or row.watermark <= watermark for row in view.sources()):
        return 0
    return last_rise(view.topic) or since  # to go idle is no advance
