"""Whether a job may look ahead, how far, and which watermarks matter to it.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from floodmark.spark_jobs.queries.plan import SILENT_STATE, Operator
from floodmark.spark_jobs.queries.source_options import batch_limit

_JUDGED_BEFORE: Final = {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Join"}
"""Operators with state that judge late rows by the watermark of the batch before, and show it to no function."""

_MICROS: Final = 1000
_MOST_AHEAD: Final = 20_000
_SHARE: Final = 10
_LEAST_LIMIT: Final = 10_000
_UNLIMITED: Final = 1 << 31


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
class LookaheadRules:
    """How far one may look ahead of a query's batches.

    ``possible``: whether a watermark may be set that rests on records which only the next batch reads.  ``patient``:
    whether nothing comes out of the query but by its watermark, so that rows may wait for it.  ``ends``: when its
    windows end; ``None``: it has none, or other results that a watermark brings out, or they were not recognised.
    ``only_windows``: whether windows are all that it keeps, so that a watermark between two ends changes nothing.
    """

    possible: bool
    patient: bool = False
    ends: WindowEnds | None = None
    only_windows: bool = False

    @classmethod
    def of(cls, plan: Operator, *, output_mode: str, trigger: Mapping[str, Any] | None) -> "LookaheadRules":
        """Judge a query.

        A function of the user's that is shown the watermark (``applyInPandasWithState``, ``transformWithState``) would
        take rows of the same batch for late.  A trigger by the clock reads long after one could look.

        >>> read = Operator("EventTimeWatermark")
        >>> LookaheadRules.of(Operator("Deduplicate", children=(read,)), output_mode="append", trigger=None)
        LookaheadRules(possible=True, patient=False, ends=None, only_windows=False)
        >>> function = Operator("TransformWithState", children=(read,))
        >>> LookaheadRules.of(function, output_mode="append", trigger=None).possible
        False
        """
        state = [node for node in plan.walk() if node.keeps_state]
        ends = _window_ends(state)
        only_windows = ends is not None and all(node.kind == "Aggregate" for node in state)
        possible = bool(state) and all(node.kind in _JUDGED_BEFORE for node in state) and not trigger
        return cls(possible, output_mode == "append" and _is_patient(plan), ends, only_windows)


def _is_patient(node: Operator) -> bool:
    """Tell whether all rows that leave an operator have waited for a watermark."""
    streams = [child for child in node.children if child.streaming]
    return node.kind == "Aggregate" or (bool(streams) and all(map(_is_patient, streams)))


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
    """Return how many records may stand ahead of a batch so that the next one surely reads them all; 0: nobody knows.

    A batch of Spark reads all that is there, up to its limit.  A tenth of that leaves room for what is written
    meanwhile; where even that is little, a burst could fill it.

    >>> most_ahead({"kafka.isolation.level": "read_committed", "maxOffsetsPerTrigger": "1000000"})
    20000
    >>> most_ahead({"kafka.isolation.level": "read_committed", "maxOffsetsPerTrigger": "120"})
    0
    >>> most_ahead({"kafka.isolation.level": "read_committed", "minOffsetsPerTrigger": "5"}), most_ahead({})
    (0, 0)
    """
    lower = {name.lower(): value for name, value in options.items()}
    if lower.get("kafka.isolation.level") != "read_committed" or "minoffsetspertrigger" in lower:
        return 0
    limit = batch_limit(options) or _UNLIMITED
    return min(_MOST_AHEAD, limit // _SHARE) if limit >= _LEAST_LIMIT else 0
