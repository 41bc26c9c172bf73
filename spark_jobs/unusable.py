"""Data records that are no rows: how each kind is counted and named, and when there is nothing else.  Pure."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

UNUSABLE: Final = ("unreadable", "timeless", "out_of_range")
"""The counts of records that should have been rows."""

_YEAR_10000: Final = 253_402_300_800
_ROWS: Final = "rows"
_TOO_LARGE: Final = "too_large"
_MILLISECONDS: Final = 'are these milliseconds? use json_lines(..., unit="ms")'
_CAUSES: Final = {
    "unreadable": "another schema or format than value= says",
    "timeless": "event_time= names a field that these records do not have",
    "out_of_range": "a default in the place of a time",
}


@dataclass(frozen=True, slots=True)
class Skipped:
    """How many records of one kind were skipped, and where the first one stands, in words."""

    count: int = 0
    first: str | None = None
    too_large: bool = False
    """Whether the first one's time lies behind the year 9999."""

    @classmethod
    def of(cls, count: int, first: str | None) -> "Skipped":
        """Read the first place as a batch observes it, JSON.

        >>> place = '"place": {"topic": "t", "partition": 0, "offset": 7}'
        >>> Skipped.of(1, "{%s}" % place).first
        't/0@7'
        >>> Skipped.of(1, '{%s, "epoch_seconds": 1700000000000}' % place).first
        't/0@7: its time is 1700000000000 s from 1970: are these milliseconds? use json_lines(..., unit="ms")'
        """
        if first is None:
            return cls(count)
        found = json.loads(first)
        place = "{topic}/{partition}@{offset}".format(**found["place"])
        seconds = found.get("epoch_seconds")
        if seconds is None:
            return cls(count, place)
        too_large = seconds >= _YEAR_10000
        hint = _MILLISECONDS if too_large else "Spark's watermark begins in 1970"
        return cls(count, f"{place}: its time is {seconds} s from 1970: {hint}", too_large)


def tally(counts: Counter[str], topic: str, rows: int, unusable: Mapping[str, Skipped]) -> None:
    """Add up what a reading has seen under its first topic, by names that no other count has."""
    counts[f"{topic}/{_ROWS}"] += rows
    for kind, skipped in unusable.items():
        counts[f"{topic}/{kind}"] += skipped.count
        counts[f"{topic}/{_TOO_LARGE}"] += skipped.too_large


def tally_row(counts: Counter[str], topic: str) -> None:
    """Add a row that was of use."""
    counts[f"{topic}/{_ROWS}"] += 1


def is_tally(name: str) -> bool:
    """Tell the counts of `tally` from those that users see: no topic has a slash in its name."""
    return "/" in name


def nothing_usable(counts: Mapping[str, int], topics: Sequence[str]) -> tuple[int, str] | None:
    """Return how many records of some topics there were and why none could be used; ``None`` where one could.

    >>> counts = Counter()
    >>> nothing_usable(counts, ["t"])
    >>> tally(counts, "t", 0, {"timeless": Skipped(2)})
    >>> nothing_usable(counts, ["t"])
    (2, '2 are timeless (event_time= names a field that these records do not have)')
    >>> tally_row(counts, "t")
    >>> nothing_usable(counts, ["t"])
    """
    seen = {kind: sum(counts.get(f"{topic}/{kind}", 0) for topic in topics) for kind in (_ROWS, _TOO_LARGE, *UNUSABLE)}
    unusable = sum(seen[kind] for kind in UNUSABLE)
    if seen[_ROWS] or not unusable:
        return None
    causes = {**_CAUSES, "out_of_range": _MILLISECONDS} if seen[_TOO_LARGE] else _CAUSES
    return unusable, "; ".join(f"{seen[kind]} are {kind} ({causes[kind]})" for kind in UNUSABLE if seen[kind])
