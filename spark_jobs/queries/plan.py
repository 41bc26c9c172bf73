"""A query as a tree of operators.  Pure: `internals.analysed` reads it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

_KEEP_STATE: Final = {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "GlobalLimit"}
SILENT_STATE: Final = {"Deduplicate", "DeduplicateWithinWatermark", "Distinct"}
"""Operators with state that a watermark brings no results out of."""
_LIMITS: Final = {"GlobalLimit", "LocalLimit"}

_MICROS: Final = 1000


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows that begin at a time and each period after it, and are so wide; microseconds."""

    slide: int
    start: int
    width: int


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a query as Spark has analysed it."""

    kind: str
    """Spark's name for it."""
    text: str = ""
    """Spark's own line for it."""
    streaming: bool = True
    children: tuple["Operator", ...] = ()
    columns: str = ""
    """The columns and types, where the operators below are not shown: of a table, or of a stream."""
    source: str | None = None
    """The name of the source that it is the observation of: what stands below is not shown."""
    bounded: bool = True
    """For a join of streams: whether its condition bounds, by event time, how long the rows of each side are kept."""
    observation: str | None = None
    """The name of the observation that it is."""
    within: int = 0
    """For a deduplication within a time: that time, milliseconds."""
    windows: Windows | None = None
    """For an aggregate: the fixed windows of the event time that it groups by; ``None``: none are recognised."""
    timed: bool = True
    """For a deduplication: whether an event time is among the columns that it compares."""
    clock: Literal["", "timeout", "timers"] = ""
    """For a user's function with state: what of it follows the clock instead of the event time."""

    @property
    def keeps_state(self) -> bool:
        """Whether it keeps state from batch to batch."""
        if not self.streaming:
            return False
        if self.kind == "Join":
            return all(child.streaming for child in self.children)
        return self.kind in _KEEP_STATE or "WithState" in self.kind

    def walk(self) -> Iterator["Operator"]:
        """Yield it and all operators below, from the top."""
        yield self
        for child in self.children:
            yield from child.walk()


def observations_behind_state(plan: Operator) -> set[str]:
    """Return the names of those observations that stand behind an operator with state.

    >>> below = Operator("CollectMetrics", observation="below")
    >>> above = Operator("CollectMetrics", observation="above", children=(Operator("Aggregate", children=(below,)),))
    >>> observations_behind_state(above)
    {'above'}
    """
    observed = [node for node in plan.walk() if node.observation is not None]
    return {str(node.observation) for node in observed if any(below.keeps_state for below in node.walk())}


def limited(plan: Operator, *, by_limit: bool = False) -> set[str]:
    """Return the names of those sources whose tasks a limit may end before they have read all of a batch.

    An aggregation reads all before it gives a row.

    >>> read = Operator("CollectMetrics", source="read")
    >>> limited(Operator("GlobalLimit", children=(read,)))
    {'read'}
    >>> limited(Operator("GlobalLimit", children=(Operator("Aggregate", children=(read,)),)))
    set()
    """
    if plan.source is not None:
        return {plan.source} if by_limit else set()
    by_limit = plan.kind in _LIMITS or (by_limit and plan.kind != "Aggregate")
    return {name for child in plan.children for name in limited(child, by_limit=by_limit)}


def widths(plan: Operator) -> int | None:
    """Return how far before the end of a result the rows may lie that it needs, where fixed windows say so.

    Returns:
        The widths of all windows together and the times of deduplications within a time, milliseconds.  ``None``: the
        query keeps other state, for which nothing here tells it.
    """
    needed = 0
    for node in plan.walk():
        needed += node.within * _MICROS
        if node.keeps_state and node.kind not in SILENT_STATE:
            if node.windows is None:
                return None
            needed += node.windows.width
    return -(-needed // _MICROS)
