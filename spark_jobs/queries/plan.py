"""A query as a tree of operators, which `internals.analysed` reads.  Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

_KEEP_STATE: Final = {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "GlobalLimit"}
SILENT_STATE: Final = {"Deduplicate", "DeduplicateWithinWatermark", "Distinct"}
"""Operators with state that give no results when the watermark advances."""
LIMITS: Final = {"GlobalLimit", "LocalLimit"}
_IN_FRAMES: Final = {"MapInArrow", "MapInPandas", "PythonMapInArrow"}
"""Python functions that read their input frame by frame."""
_MULTIPLYING: Final = {"Expand", "Generate", "Join"}

_MICROS: Final = 1000


@dataclass(frozen=True, slots=True)
class Windows:
    """Fixed windows, in microseconds: one begins at ``start``, and one each ``slide`` after it."""

    slide: int
    start: int
    width: int

    def next_end(self, time: int) -> int:
        """Return the first end after a time.

        >>> Windows(slide=10, start=3, width=20).next_end(13), Windows(slide=10, start=3, width=20).next_end(12)
        (23, 13)
        """
        end = self.start + self.width
        return time + self.slide - (time - end) % self.slide


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of an analysed query."""

    kind: str  # Spark's name of the operator
    text: str = ""  # Spark's line for the operator
    streaming: bool = True
    children: tuple["Operator", ...] = ()
    columns: str = ""  # the columns and types of a table or of a read, whose operators below are left out
    source: str | None = None  # For the observation of a source: its name.  The operators below are left out.
    bounded: bool = True  # for a join of streams: whether its condition bounds the event times of both sides
    observation: str | None = None  # for an observation: its name
    within: int = 0  # for a deduplication within a time: this time, milliseconds
    windows: Windows | None = None
    """For an aggregate: the fixed windows it groups by; ``None``: none, or not recognised."""
    timed: bool = True  # for a deduplication: whether it compares an event time
    clock: Literal["", "timeout", "timers"] = ""
    """For a user's function with state: what of it follows the clock, not the event time."""

    @property
    def keeps_state(self) -> bool:
        """Whether the operator keeps state from batch to batch."""
        if not self.streaming:
            return False
        if self.kind == "Join":
            return all(child.streaming for child in self.children)
        return self.kind in _KEEP_STATE or "WithState" in self.kind

    def walk(self) -> Iterator["Operator"]:
        """Yield the operator and all below, from the top."""
        yield self
        for child in self.children:
            yield from child.walk()


def observations_after_state(plan: Operator) -> set[str]:
    """Return the names of the observations after an operator with state.

    >>> below = Operator("CollectMetrics", observation="below")
    >>> above = Operator("CollectMetrics", observation="above", children=(Operator("Aggregate", children=(below,)),))
    >>> observations_after_state(above)
    {'above'}
    """
    observed = [node for node in plan.walk() if node.observation is not None]
    return {str(node.observation) for node in observed if any(below.keeps_state for below in node.walk())}


def limited(plan: Operator, frame: int, most: int | None = None) -> dict[str, int]:
    """Return the sources whose tasks may end early, and how many records each task reads in any case.

    A limit may end a task at any record, and a Python function after a frame (``frame`` rows).  An aggregation in
    between reads all rows first.  ``most``: the same for the operators above.

    >>> read = Operator("CollectMetrics", source="read")
    >>> limited(Operator("GlobalLimit", children=(read,)), 9), limited(Operator("MapInPandas", children=(read,)), 9)
    ({'read': 0}, {'read': 9})
    >>> limited(Operator("GlobalLimit", children=(Operator("Aggregate", children=(read,)),)), 9)
    {}
    >>> limited(Operator("MapInPandas", children=(Operator("Generate", children=(read,)),)), 9)
    {'read': 0}
    """
    if plan.source is not None:
        return {} if most is None else {plan.source: most}
    if plan.kind in LIMITS or (most is not None and plan.kind in _MULTIPLYING):
        most = 0
    elif plan.kind == "Aggregate":
        most = None
    elif plan.kind in _IN_FRAMES and most is None:
        most = frame
    found = dict[str, int]()
    for child in plan.children:
        for name, least in limited(child, frame, most).items():
            found[name] = min(least, found.get(name, least))
    return found


def widths(plan: Operator) -> int | None:
    """Return how far before the end of a result its input may be, according to fixed windows; milliseconds.

    This is the sum of the widths of all windows and of the times of deduplications within a time.  ``None``: the query
    has other state.
    """
    needed = 0
    for node in plan.walk():
        needed += node.within * _MICROS
        if node.keeps_state and node.kind not in SILENT_STATE:
            if node.windows is None:
                return None
            needed += node.windows.width
    return -(-needed // _MICROS)
