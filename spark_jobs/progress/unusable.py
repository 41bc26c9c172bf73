"""Data records that give no row: their counts by kind, and the error if there are no others.  Pure."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from floodmark.schemas.errors import UnreadableTopicError

UNUSABLE: Final = ("unreadable", "missing_event_time", "out_of_range")  # the kinds of such records

_YEAR_10000: Final = 253_402_300_800  # seconds since 1970
_FINER_UNIT: Final = 'is the unit wrong? In json(), use unit="ms" instead of "s" (the default), or "us" instead of "ms"'
_CAUSES: Final = {
    "unreadable": "another schema or format than value= says",
    "missing_event_time": "event_time= names a field that these records do not have",
    "out_of_range": "a default in the place of a time",
}


@dataclass(frozen=True, slots=True)
class Skipped:
    """The number of skipped records of one kind, and the offset of the first one."""

    count: int = 0
    topic: str = ""
    partition: int = 0
    offset: int = 0
    seconds: int | None = None  # the first one's event time, seconds since 1970, if it is out of range

    @classmethod
    def of(cls, count: int, first: str | None) -> "Skipped":
        """Read the first record from the JSON that a batch observes; ``None``: no record.

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
        """Whether the first one's time is after the year 9999."""
        return self.seconds is not None and self.seconds >= _YEAR_10000

    def __str__(self) -> str:
        """Name the first record and its time."""
        where = f"{self.count}, the first at {self.topic}/{self.partition}@{self.offset}"
        if self.seconds is None:
            return where
        hint = _FINER_UNIT if self.too_large else "Spark can judge those after 1970 and before 9999"
        return f"{where}: its time is {self.seconds} s from 1970; {hint}"


class Doublings:
    """Decides when a growing count is logged: at first, and when it has doubled since, so that no log is flooded.

    >>> doublings = Doublings()
    >>> [count for count in (0, 3, 3, 5, 6, 7, 8, 12) if doublings.has_doubled("unreadable", count)]
    [3, 6, 12]
    """

    def __init__(self) -> None:
        self._logged: dict[object, int] = {}

    def has_doubled(self, what: object, count: int) -> bool:
        """Return whether to log a count now, which then counts as logged."""
        if count < max(1, 2 * self._logged.get(what, 0)):
            return False
        self._logged[what] = count
        return True


@dataclass(slots=True)
class TopicRecords:
    """The records of one topic since the checkpoint was created."""

    rows: int = 0
    unusable: dict[str, int] = field(default_factory=dict)  # by kind, see `UNUSABLE`
    too_large: bool = False  # whether an ``out_of_range`` record has a time after the year 9999
    partition: int = 0
    offset: int = 0  # of the first unusable record
    latest: int | None = None
    """The highest event time that no injector has adjusted, epoch milliseconds; the end of time: unknown."""

    def add(self, rows: int, unusable: Mapping[str, Skipped], latest: int | None = None) -> dict[str, int]:
        """Add the records of one batch; return the totals of the kinds that it had."""
        if latest is not None:
            self.latest = max(latest, self.latest or latest)
        self.rows += rows
        firsts = [(skipped.partition, skipped.offset) for skipped in unusable.values() if skipped.count]
        if firsts and not any(self.unusable.values()):
            self.partition, self.offset = min(firsts)
        for kind, skipped in unusable.items():
            self.unusable[kind] = self.unusable.get(kind, 0) + skipped.count
            self.too_large = self.too_large or skipped.too_large
        return {kind: self.unusable[kind] for kind, skipped in unusable.items() if skipped.count}

    def snapshot(self) -> dict[str, Any]:
        """Return it as a JSON value, without what is not known."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def nothing_usable(found: Mapping[str, TopicRecords], topics: Sequence[str]) -> UnreadableTopicError | None:
    """Return the error for topics without a usable record; ``None``: there is one, or no record at all.

    >>> found = {"t": TopicRecords()}
    >>> nothing_usable(found, ["t"])
    >>> found["t"].add(0, {"missing_event_time": Skipped(2, "t", 0, 7)})
    {'missing_event_time': 2}
    >>> nothing_usable(found, ["t"]).cause
    '2 missing_event_time (event_time= names a field that these records do not have)'
    >>> found["t"].add(1, {})
    {}
    >>> nothing_usable(found, ["t"])
    """
    given = [found[topic] for topic in topics if topic in found]
    kinds = sum((Counter(one.unusable) for one in given), Counter[str]())
    if any(one.rows for one in given) or not kinds.total():
        return None
    causes = {**_CAUSES, "out_of_range": _FINER_UNIT} if any(one.too_large for one in given) else _CAUSES
    cause = "; ".join(f"{kinds[kind]} {kind} ({causes[kind]})" for kind in UNUSABLE if kinds[kind])
    first = found.get(topics[0], TopicRecords())
    return UnreadableTopicError(
        topic=", ".join(topics), count=kinds.total(), cause=cause, partition=first.partition, offset=first.offset
    )
