"""The stage of a table on the board: its job reads the topics before it, and commits instead of marking."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from floodmark.producers.board.causes import Cause, reason_of
from floodmark.producers.board.model import (
    Board,
    Lags,
    PartitionView,
    SourceView,
    Stage,
    State,
    TopicView,
    goes_on,
    lost_input,
)
from floodmark.producers.board.source_history import Health
from floodmark.producers.tables.table_history import open_table
from floodmark.producers.tables.table_watermark import TableWatermark, complete_until
from floodmark.schemas.errors import FloodmarkError
from floodmark.schemas.records import Holder
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME

LastRise = Callable[[str], int | None]
"""Returns when a topic's watermark last rose, see `Timeline.last_rise`."""

_SHORTEST: Final = 60_000  # milliseconds; a job that commits more often may pause so long, too
_UNKNOWN: Final = {State.UNKNOWN, State.MISSING}


class Tables:
    """Some tables by their names, see `open_table`, read again and again for the board."""

    def __init__(self, names: Iterable[str]) -> None:
        self._found: dict[str, TableWatermark | str] = dict.fromkeys(names, "")
        self._opened: dict[str, Any] = {}

    def read(self) -> set[str]:
        """Read the tables; return the input topics of their jobs."""
        for name in self._found:
            try:
                self._opened[name] = open_table(name, self._opened.get(name))
                self._found[name] = complete_until(self._opened[name])
            except FloodmarkError as error:
                self._found[name] = str(error)
        read = (found for found in self._found.values() if not isinstance(found, str))
        return set[str]().union(*map(_inputs, read))

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


def _inputs(table: TableWatermark) -> set[str]:
    """Return the input topics that the last commit of a job names."""
    return {topic for topic, _ in table.read} | (set() if table.holder is None else {table.holder.topic})


def _stage(board: Board, name: str, table: TableWatermark, last_rise: LastRise) -> Stage:
    inputs = tuple(sorted(_inputs(table)))
    found = [view for view in map(board.topic, inputs) if view is not None]
    before = [] if len(found) < len(inputs) or any(view.state in _UNKNOWN for view in found) else found
    reached = min((view.watermark for view in before if view.watermark is not None), default=None)
    state, lags = State.ACTIVE, Lags()
    if table.watermark is None:
        state = State.UNKNOWN
    elif table.watermark == END_OF_TIME:
        state = State.ENDED
    else:
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
        input_watermark=reached,
    )
    return Stage(name=table.job, inputs=inputs, topics=(view,))


def _judge(
    now: int, table: TableWatermark, before: Sequence[TopicView], last_rise: LastRise
) -> tuple[Health | None, Cause | None, str]:
    """Return the verdict on the job of a table; ``before``: its input topics, none if one of them is unknown.

    A job without new input does not commit, so silence is a fault only if the watermark of its input has advanced since
    the last commit.
    """
    if table.watermark == END_OF_TIME:
        outlived = goes_on(before, table.read)
        return (Health.STOP, Cause.OUTLIVED, reason_of(Cause.OUTLIVED)) if outlived else (Health.OK, None, "")
    if table.watermark is None:
        return None, Cause.NOTHING_PROMISED, "the job has no watermark yet"
    advanced = _advanced(before, table.watermark, last_rise)
    if now - table.committed_at > 2 * max(table.pause, _SHORTEST) and advanced > table.committed_at:
        if (lost := lost_input(before, table.read, table.ids)) is not None:
            return Health.STOP, *lost
        return Health.STOP, Cause.SILENT, "the job no longer commits, but its input has advanced"
    return Health.OK, None, ""


class _Input(NamedTuple):
    watermark: int  # its last one, epoch milliseconds
    rose: int  # when it last rose, epoch milliseconds; 0: unknown, or not above the table's
    left: float  # since when it is idle or ended, and does not count; infinite: it counts


def _advanced(before: Sequence[TopicView], watermark: int, last_rise: LastRise) -> int:
    """Return when the minimum of some inputs last advanced, epoch milliseconds; 0: unknown, or not above a table's."""
    if all(view.state is State.ENDED for view in before):
        return max((row.since or 0 for view in before for row in view.sources()), default=0)
    inputs = [_input(view, watermark, last_rise) for view in before]
    low = min((one.watermark for one in inputs if one.left == math.inf), default=EARLIEST)
    # An input that rises moves the minimum if no lower one counts then; one that leaves, if it was below the others.
    rises = (
        one.rose
        for one in inputs
        if all(other.left <= one.rose or other.watermark >= one.watermark for other in inputs)
    )
    return max(0, *rises, *(int(one.left) for one in inputs if one.left < math.inf and one.watermark < low))


def _input(view: TopicView, watermark: int, last_rise: LastRise) -> _Input:
    if view.watermark is not None:
        return _Input(view.watermark, view.since or 0, math.inf)
    last = max((row.watermark for row in view.sources() if row.watermark is not None), default=EARLIEST)
    left = max((row.since or 0 for row in view.sources()), default=0)
    unread = 0 if view.state is State.ENDED else left  # its rise was before
    rose = 0 if last <= watermark else last_rise(view.topic) or unread  # to go idle is no advance
    return _Input(last, rose, left)
