"""What is complete, as callers take it: windows, and an iterator that knows what was taken.  Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from floodmark.schemas.classify import Data
from floodmark.schemas.completeness.position import Position
from floodmark.schemas.errors.wording import iso

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Window:
    """All records with ``start <= event time < end``, in the order of these times; epoch milliseconds."""

    start: int
    end: int
    rows: tuple[Data, ...]
    position: Position
    """Where to go on once this window and all before it are stored."""

    def __repr__(self) -> str:
        """Show the times as people read them, and how many rows there are."""
        return f"Window(start={iso(self.start)}, end={iso(self.end)}, rows={len(self.rows)})"


class Handout(Iterator[Item], Generic[Item]):
    """What is complete: an iterator with a length.

    An item is handed out when a loop takes it.  What none has taken comes first from the next call.
    """

    def __init__(self, take: Callable[[], Item], size: Callable[[], int], position: Position) -> None:
        self._take = take
        self._size = size
        self.position: Final = position
        """Where to go on once all of it, and all before it, is stored."""

    def __next__(self) -> Item:
        return self._take()

    def __len__(self) -> int:
        return self._size()
