"""Which queries may look ahead, how far, and which watermarks matter to them.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from floodmark.spark_jobs.queries.plan import SILENT_STATE, Operator
from floodmark.spark_jobs.queries.source_options import batch_limit

_JUDGED_BEFORE: Final = {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Join"}
"""Operators with state that judge late rows by the watermark of the batch before, and pass it to no user function."""

_MICROS: Final = 1000
_MOST_AHEAD: Final = 20_000
_SHARE: Final = 10
_LEAST_LIMIT: Final = 10_000


@dataclass(frozen=True, slots=True)
class WindowEnds:
    """When fixed windows end: (period, one end) of each kind of window, microseconds."""

    grids: frozenset[tuple[int, int]]

    def latest(self, at: int) -> int:
        """Return the latest end (epoch microseconds) at or before a time (epoch milliseconds).

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
class LookaheadRules:
    """What a look ahead may do for a query."""

    possible: bool  # whether a batch may run with a watermark of records that it is going to read
    waits_for_watermark: bool = False
    """Whether the query gives no row before its watermark advances, so new rows can wait for a mark."""
    ends: WindowEnds | None = None
    """When its windows end; ``None``: it has no windows, or other results, too, or its windows were not recognised."""
    only_windows: bool = False  # whether windows are its only state, so a watermark between two ends changes nothing

    @classmethod
    def of(cls, plan: Operator, *, output_mode: str, trigger: Mapping[str, Any] | None) -> "LookaheadRules":
        """Return the rules for a query.

        A user function that gets the watermark (``applyInPandasWithState``, ``transformWithState``) would take rows of
        the same batch for late.  With a trigger, Spark reads the batch long after the look ahead.

        >>> read = Operator("EventTimeWatermark")
        >>> LookaheadRules.of(Operator("Deduplicate", children=(read,)), output_mode="append", trigger=None)
        LookaheadRules(possible=True, waits_for_watermark=False, ends=None, only_windows=False)
        >>> function = Operator("TransformWithState", children=(read,))
        >>> LookaheadRules.of(function, output_mode="append", trigger=None).possible
        False
        """
        state = [node for node in plan.walk() if node.keeps_state]
        ends = _window_ends(state)
        only_windows = ends is not None and all(node.kind == "Aggregate" for node in state)
        possible = bool(state) and all(node.kind in _JUDGED_BEFORE for node in state) and not trigger
        return cls(possible, output_mode == "append" and _waits_for_watermark(plan), ends, only_windows)


def _waits_for_watermark(node: Operator) -> bool:
    """Tell whether an operator gives rows only when the watermark advances."""
    streams = [child for child in node.children if child.streaming]
    return node.kind == "Aggregate" or (bool(streams) and all(map(_waits_for_watermark, streams)))


def _window_ends(state: list[Operator]) -> WindowEnds | None:
    grids = set[tuple[int, int]]()
    for node in state:
        if node.kind in SILENT_STATE:
            continue
        found = node.windows
        if found is None:
            return None
        grids.add((found.slide, (found.start + found.width) % found.slide))
    return WindowEnds(frozenset(grids)) if grids else None


def most_ahead(options: Mapping[str, str]) -> int:
    """Return how many records a look ahead may read so that the next batch surely reads all of them; 0: unknown.

    Spark's next batch reads all records up to its limit.  A tenth of the limit leaves room for records that arrive
    meanwhile.  A burst could fill a limit below 10,000 records, so there the result is 0.

    >>> most_ahead({"maxOffsetsPerTrigger": "1000000"}), most_ahead({"maxOffsetsPerTrigger": "120"})
    (20000, 0)
    >>> most_ahead({"minOffsetsPerTrigger": "5"}), most_ahead({})
    (0, 20000)
    """
    if "minoffsetspertrigger" in map(str.lower, options):
        return 0
    limit = batch_limit(options)
    if limit is None:
        return _MOST_AHEAD
    return min(_MOST_AHEAD, limit // _SHARE) if limit >= _LEAST_LIMIT else 0
