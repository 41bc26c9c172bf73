"""The tables of a trigger: their watermark, by the commits of the jobs that write them."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from floodmark.producers.clients.clock import Deadline
from floodmark.producers.clients.consumers import Closing
from floodmark.producers.tables.table_history import open_table
from floodmark.producers.tables.table_rows import latest_time
from floodmark.producers.tables.table_watermark import TableWatermark, complete_until
from floodmark.producers.trigger.outlook import Row
from floodmark.producers.trigger.plan.periods import instant
from floodmark.schemas.classify import Offsets
from floodmark.schemas.errors import FloodmarkError, UnmarkedTableError
from floodmark.schemas.records import Holder
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME
from floodmark.schemas.tracker import Hold

_log = logging.getLogger(__name__)
_PAUSE: Final = 5.0
"""Seconds between two looks at the tables."""
_WENT_BACK: Final = (
    "the watermark of table %s went back to %s: a table was rolled back, or created again, or its job repeats results. "
    "Periods from %s on that were fired are not fired again. To fire them, use another --name with --from %s"
)


class TableInput(Closing):
    """Some tables, whose periods are complete when they are in all of them; late rows are not seen.

    Args:
        tables: names as `open_table` takes them.
        column: the event time of the rows; it bounds the periods of tables whose jobs have ended.
        stored: of `state`; ``None``: nothing.

    Raises:
        UnreadableTableError: if the rows of a table cannot be read.
        UsageError: if a table does not open, or has no such column.
    """

    def __init__(self, tables: Sequence[str], column: str, stored: Mapping[str, Any] | None) -> None:
        self._column = column
        self._tables = {name: open_table(name) for name in tables}
        self._found: dict[str, TableWatermark | str] = dict.fromkeys(tables, "it is not read yet")
        for table in self._tables.values():
            latest_time(table, column, END_OF_TIME)  # the column must exist
        self._looks, self._next = 0, Deadline(0)
        self.lowest: int | None = None
        """Not known: where the rows of a table begin is no promise of its job."""
        self.highest: int | None = None if stored is None else stored["highest"]
        """The highest event time that is known, epoch milliseconds."""
        self._reached = None if self.highest is None else self.highest + 1
        """The last watermark that was known."""

    def _look(self) -> None:
        """Look at all tables; after an error, what the last look has found stays."""
        found = {name: _watermark_of(table) for name, table in self._tables.items()}
        watermark = _lowest(found)
        if watermark is not None:
            if self._reached is not None and watermark < self._reached:
                _log.warning(_WENT_BACK, ", ".join(found), *(instant(watermark),) * 3)
            self._reached = watermark
        if watermark == END_OF_TIME:
            since = EARLIEST if self.highest is None else self.highest
            latest = [latest_time(table, self._column, since) for table in self._tables.values()]
            self.highest = max((one for one in latest if one is not None), default=self.highest)
        elif watermark is not None:
            self.highest = watermark - 1 if self.highest is None else max(self.highest, watermark - 1)
        self._found = found
        self._looks, self._next = self._looks + 1, Deadline(_PAUSE)

    @property
    def watermark(self) -> int | None:
        """The minimum over all tables, epoch milliseconds; ``None``: unknown."""
        return _lowest(self._found)

    @property
    def ended(self) -> bool:
        """Whether the jobs of all tables have ended."""
        return self.watermark == END_OF_TIME

    def holders(self, below: int | None = None) -> list[Hold]:
        """Return what holds back the watermark: the holder of the lowest table, or tables without watermark.

        ``below``: the same of each table that has not reached this time.
        """
        holds = []
        for name, found in self._found.items():
            if isinstance(found, str) or found.watermark is None:
                why = found if isinstance(found, str) else "its job has not committed a watermark"
                holds.append(Hold(Holder(name), None, why))
            elif not self.ended and (found.watermark == self.watermark if below is None else found.watermark < below):
                holds.append(Hold(found.holder or Holder(name), found.watermark, f"it holds table {name}", found.since))
        return holds

    def poll(self, seconds: float, _row: Row) -> None:
        """Look at the tables again, if the last look is long ago; else wait.

        An error of the first look is raised; after a later one it looks again.
        """
        if not self._next.passed:
            time.sleep(seconds)
            return
        try:
            self._tables = {name: open_table(name, table) for name, table in self._tables.items()}
            self._look()
        except FloodmarkError as error:
            if not self._looks:
                raise
            self._next = Deadline(_PAUSE)
            _log.warning("the tables are looked at again later: %s", error)

    def end(self) -> Offsets:
        """Return the next look, in place of offsets."""
        return {("looks", 0): self._looks + 1}

    def has_read(self, ends: Offsets) -> bool:
        """Tell whether that look is done."""
        return all(self._looks >= end for end in ends.values())

    def state(self) -> dict[str, Any]:
        """Return what is known, as JSON values."""
        return {"highest": self.highest}

    def close(self) -> None:
        """Do nothing: tables need no end."""


def _watermark_of(table: Any) -> TableWatermark | str:  # noqa: ANN401  # of optional libraries
    """Return the watermark of a table, or why it has none."""
    try:
        return complete_until(table)
    except UnmarkedTableError as error:
        return f"{error.reason}. {error.advice}"


def _lowest(found: Mapping[str, TableWatermark | str]) -> int | None:
    known = [one.watermark for one in found.values() if not isinstance(one, str) and one.watermark is not None]
    return min(known) if len(known) == len(found) else None
