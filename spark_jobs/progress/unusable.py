"""Data records that are no rows: how each kind is counted and named, and when there is nothing else.  Pure."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from floodmark.schemas.errors import UnreadableTopicError

UNUSABLE: Final = ("unreadable", "missing_event_time", "out_of_range")
"""The counts of records that should have been rows."""

_YEAR_10000: Final = 253_402_300_800  # seconds since 1970
_ROWS: Final = "rows"
_TOO_LARGE: Final = "too_large"
_PARTITION: Final = "partition"
_OFFSET: Final = "offset"
_MILLISECONDS: Final = 'are these milliseconds? use json(..., unit="ms")'
_CAUSES: Final = {
    "unreadable": "another schema or format than value= says",
    "missing_event_time": "event_time= names a field that these records do not have",
    "out_of_range": "a default in the place of a time",
}


@dataclass(frozen=True, slots=True)
class Skipped:
    """How many records of one kind were skipped, and where the first one stands."""

    count: int = 0
    topic: str = ""
    partition: int = 0
    offset: int = 0
    seconds: int | None = None
    """The first one's event time, seconds since 1970, where it is out of range."""

    @classmethod
    def of(cls, count: int, first: str | None) -> "Skipped":
        """Read the first place as a batch observes it, JSON; ``None``: there is none.

        >>> print(Skipped.of(1, '{"place": {"topic": "t", "partition": 0, "offset": 7}}'))
        1, the first at t/0@7
        >>> print(Skipped.of(1, '{"place": {"topic": "t", "partition": 0, "offset": 7}, "epoch_seconds": -5}'))
        1, the first at t/0@7: its time is -5 s from 1970; Spark can judge those after 1970 and before 9999
        """
        if first is None:
            return cls(count)
        found = json.loads(first)
        return cls(count, **found["place"], seconds=found.get("epoch_seconds"))

    @property
    def too_large(self) -> bool:
        """Whether the first one's time lies behind the year 9999."""
        return self.seconds is not None and self.seconds >= _YEAR_10000

    def __str__(self) -> str:
        """Say where the first one stands and what its time may be."""
        where = f"{self.count}, the first at {self.topic}/{self.partition}@{self.offset}"
        if self.seconds is None:
            return where
        hint = _MILLISECONDS if self.too_large else "Spark can judge those after 1970 and before 9999"
        return f"{where}: its time is {self.seconds} s from 1970; {hint}"


def tally(counts: Counter[str], topic: str, rows: int, unusable: Mapping[str, Skipped]) -> None:
    """Add up what one source of a job has brought, under its first topic, by names that no other count has."""
    counts[f"{topic}/{_ROWS}"] += rows
    for kind, skipped in unusable.items():
        if skipped.count and not any(counts[f"{topic}/{other}"] for other in UNUSABLE):
            counts[f"{topic}/{_PARTITION}"], counts[f"{topic}/{_OFFSET}"] = skipped.partition, skipped.offset
        counts[f"{topic}/{kind}"] += skipped.count
        counts[f"{topic}/{_TOO_LARGE}"] += skipped.too_large


def tally_row(counts: Counter[str], topic: str) -> None:
    """Add a row that was of use."""
    counts[f"{topic}/{_ROWS}"] += 1


def is_tally(name: str) -> bool:
    """Tell the counts of `tally` from those that users see: no topic has a slash in its name."""
    return "/" in name


def nothing_usable(counts: Mapping[str, int], topics: Sequence[str]) -> UnreadableTopicError | None:
    """Return the error for topics of which no record could be used; ``None`` where one could, or there is none.

    >>> counts = Counter()
    >>> nothing_usable(counts, ["t"])
    >>> tally(counts, "t", 0, {"missing_event_time": Skipped(2, "t", 0, 7)})
    >>> nothing_usable(counts, ["t"]).cause
    '2 missing_event_time (event_time= names a field that these records do not have)'
    >>> tally_row(counts, "t")
    >>> nothing_usable(counts, ["t"])
    """
    found = {kind: sum(counts.get(f"{topic}/{kind}", 0) for topic in topics) for kind in (_ROWS, _TOO_LARGE, *UNUSABLE)}
    count = sum(found[kind] for kind in UNUSABLE)
    if found[_ROWS] or not count:
        return None
    causes = {**_CAUSES, "out_of_range": _MILLISECONDS} if found[_TOO_LARGE] else _CAUSES
    cause = "; ".join(f"{found[kind]} {kind} ({causes[kind]})" for kind in UNUSABLE if found[kind])
    place = {name: counts.get(f"{topics[0]}/{name}", 0) for name in (_PARTITION, _OFFSET)}
    return UnreadableTopicError(topic=", ".join(topics), count=count, cause=cause, **place)


def renamed(counts: Mapping[str, int], names: Mapping[str, str]) -> dict[str, int]:
    """Rename counts, also those of a topic (``clicks/timeless``)."""
    parts = ((*name.rpartition("/"), count) for name, count in counts.items())
    return {f"{topic}{slash}{names.get(kind, kind)}": count for topic, slash, kind, count in parts}
