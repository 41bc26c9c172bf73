"""What a trigger says of a period: the event, its key, and its JSON.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from floodmark.producers.trigger.plan.periods import instant
from floodmark.schemas.tracker import Hold

Kind = Literal["complete", "incomplete", "repair"]


@dataclass(frozen=True, slots=True)
class TriggerEvent:
    """One event.  An event that is fired again after a crash is equal to the first.

    >>> event = TriggerEvent("daily", ("flights",), "complete", 0, 3_600_000, 3_700_000)
    >>> event.key
    'daily/1970-01-01T00:00:00Z/complete'
    >>> TriggerEvent.of(event.as_dict()) == event
    True
    """

    trigger: str
    """The name of the trigger."""
    topics: tuple[str, ...]
    kind: Kind
    start: int
    """Of the period, epoch milliseconds."""
    end: int
    watermark: int | None = None
    """Of the topics, when the event was decided; ``None``: unknown."""
    late_rows: int = 0
    """Of a repair: rows that arrived behind the watermark since the last event of this period."""
    repair: int = 0
    """Of a repair: its number in this trigger, from 1."""
    missing: tuple[Mapping[str, Any], ...] = ()
    """Of an incomplete period: what holds the watermark back, see `missing_of`."""

    @property
    def key(self) -> str:
        """The idempotency key: the same if the event is fired again, and that of no other event."""
        number = f"-{self.repair}" if self.repair else ""
        return f"{self.trigger}/{instant(self.start)}/{self.kind}{number}"

    def as_dict(self) -> dict[str, Any]:
        """Return the event as JSON values, as targets get it."""
        return {
            "key": self.key,
            "trigger": self.trigger,
            "topics": list(self.topics),
            "kind": self.kind,
            "complete": self.kind != "incomplete",
            "start": instant(self.start),
            "end": instant(self.end),
            "start_ms": self.start,
            "end_ms": self.end,
            "watermark": None if self.watermark is None else instant(self.watermark),
            "watermark_ms": self.watermark,
            "missing": list(self.missing),
            "late_rows": self.late_rows,
            "repair": self.repair,
        }

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "TriggerEvent":
        """Return the event of its JSON values."""
        return cls(
            trigger=stored["trigger"],
            topics=tuple(stored["topics"]),
            kind=stored["kind"],
            start=stored["start_ms"],
            end=stored["end_ms"],
            watermark=stored["watermark_ms"],
            late_rows=stored["late_rows"],
            repair=stored["repair"],
            missing=tuple(stored["missing"]),
        )


def missing_of(hold: Hold) -> dict[str, Any]:
    """Return what holds a watermark back, as JSON values.

    >>> from floodmark.schemas.records import Holder
    >>> missing_of(Hold(Holder("flights", 0, "JFK"), 0, "lowest watermark"))["watermark"]
    '1970-01-01T00:00:00Z'
    """
    place = hold.holder
    return {
        "topic": place.topic,
        "partition": place.partition,
        "source": place.source,
        "reason": hold.reason,
        "watermark": None if hold.watermark is None else instant(hold.watermark),
        "since": None if hold.since is None else instant(hold.since),
    }
