"""What can be foreseen of a query: whether a watermark may be set ahead of its marks, and which one matters.  Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from floodmark.spark_jobs.queries.plan import Operator

_JUDGED_BEFORE: Final = {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Join"}
"""Operators with state that judge late rows by the watermark of the batch before, and show it to no function."""

_SILENT_STATE: Final = {"Deduplicate", "DeduplicateWithinWatermark", "Distinct"}
_GROUPING: Final = re.compile(r"^~?Aggregate \[(.*?)\], \[")
_EVENT_TIME: Final = re.compile(r"#(\d+)-T\d+ms")
_STRUCT: Final = "named_struct(start, knownnullable("
_SLIDE: Final = re.compile(r" % (\d+)\)")
_START: Final = re.compile(r" - (-?\d+)\) % ")
_WIDTH: Final = re.compile(r" \+ (\d+)\), LongType, TimestampType")
_MICROS: Final = 1000


@dataclass(frozen=True, slots=True)
class WindowEnds:
    """When fixed windows end: (period, one end) of each kind of window, microseconds."""

    grids: frozenset[tuple[int, int]]

    def latest(self, at: int) -> int:
        """Return the latest end at or before a time, epoch microseconds.

        Args:
            at: epoch milliseconds.

        >>> WindowEnds(frozenset({(10_000_000, 0), (5_000_000, 1_000_000)})).latest(18_000)
        16000000
        """
        return max((at * _MICROS - end) // period * period + end for period, end in self.grids)

    def floor(self, at: int) -> int:
        """Return the earliest time at which the same windows have ended, both epoch milliseconds.

        >>> WindowEnds(frozenset({(10_000_000, 0)})).floor(18_000)
        10000
        """
        return -(-self.latest(at) // _MICROS)

    def lie_between(self, before: int, after: int) -> bool:
        """Tell whether a window ends after one time and not after another, both epoch milliseconds."""
        return self.latest(after) > self.latest(before)


@dataclass(frozen=True, slots=True)
class Outlook:
    """How far one may look ahead of a query's batches.

    ``possible``: whether a watermark may be set that rests on records which only the next batch reads.  ``patient``:
    whether nothing comes out of the query but by its watermark, so that rows may wait for it.  ``ends``: when its
    windows end; ``None``: it has none, or other results that a watermark brings out, or they were not recognised.
    ``whole``: whether windows are all that it keeps, so that a watermark between two ends changes nothing.
    """

    possible: bool
    patient: bool = False
    ends: WindowEnds | None = None
    whole: bool = False

    @classmethod
    def of(cls, plan: Operator, *, output_mode: str, trigger: Mapping[str, Any] | None) -> "Outlook":
        """Judge a query.

        A function of the user's that is shown the watermark (``applyInPandasWithState``, ``transformWithState``) would
        take rows of the same batch for late.  A trigger by the clock reads long after one could look.

        >>> read = Operator("EventTimeWatermark")
        >>> Outlook.of(Operator("Deduplicate", children=(read,)), output_mode="append", trigger=None)
        Outlook(possible=True, patient=False, ends=None, whole=False)
        >>> Outlook.of(Operator("TransformWithState", children=(read,)), output_mode="append", trigger=None).possible
        False
        """
        state = [node for node in plan.walk() if node.keeps_state]
        ends = _window_ends(state)
        whole = ends is not None and all(node.kind == "Aggregate" for node in state)
        possible = bool(state) and all(node.kind in _JUDGED_BEFORE for node in state) and not trigger
        return cls(possible, output_mode == "append" and _is_patient(plan), ends, whole)


def _is_patient(node: Operator) -> bool:
    """Tell whether all rows that leave an operator have waited for a watermark."""
    streams = [child for child in node.children if child.streaming]
    return node.kind == "Aggregate" or (bool(streams) and all(map(_is_patient, streams)))


def _window_ends(state: list[Operator]) -> WindowEnds | None:
    grids = set[tuple[int, int]]()
    for node in state:
        if node.kind in _SILENT_STATE:
            continue
        grid = _grid(node) if node.kind == "Aggregate" else None
        if grid is None:
            return None
        grids.add(grid)
    return WindowEnds(frozenset(grids)) if grids else None


def _grid(aggregate: Operator) -> tuple[int, int] | None:
    """Return the period and one end of an aggregate's windows."""
    found = _windows(aggregate)
    return None if found is None else (found.slide, (found.start + found.width) % found.slide)


def widths(plan: Operator) -> int | None:
    """Return how far before the end of a result the rows may lie that it needs, where fixed windows say so.

    Returns:
        The widths of all windows together, milliseconds; a deduplication adds nothing.  ``None``: the query keeps other
        state, for which nothing here tells it.
    """
    needed = 0
    for node in plan.walk():
        if node.keeps_state and node.kind not in _SILENT_STATE:
            found = _windows(node) if node.kind == "Aggregate" else None
            if found is None:
                return None
            needed += found.width
    return -(-needed // _MICROS)


@dataclass(frozen=True, slots=True)
class _Windows:
    """Windows that begin at a time and each period after it, and are so wide; microseconds."""

    slide: int
    start: int
    width: int


def _windows(aggregate: Operator) -> _Windows | None:
    """Read the windows of an aggregate from Spark's own line for them."""
    grouping = _GROUPING.match(aggregate.text)
    times = _EVENT_TIME.findall(grouping[1]) if grouping else []
    if len(times) != 1:
        return None
    for node in _line(aggregate):
        if _STRUCT in node.text and f"#{times[0]}-T" in node.text:
            found = [set(map(int, pattern.findall(node.text))) for pattern in (_SLIDE, _START, _WIDTH)]
            if any(len(numbers) != 1 for numbers in found):
                return None
            return _Windows(*(numbers.pop() for numbers in found))
        if node.keeps_state:
            return None
    return None


def _line(node: Operator) -> Iterator[Operator]:
    """Yield the operators below one, as long as they stand in line."""
    while len(node.children) == 1:
        node = node.children[0]
        yield node
