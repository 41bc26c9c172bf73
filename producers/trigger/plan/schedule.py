"""Decide which event a trigger fires next.  Pure: no Kafka, no target, no clock.

The invariant: *a period is fired as complete only if the watermark has reached its end, and each period of the trigger
is*.  Before an event is fired, `Fired` with this event is stored; so after a crash the same event is fired again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from floodmark.producers.trigger.plan.trigger_event import Kind, TriggerEvent, missing_of
from floodmark.schemas.timestamps import END_OF_TIME, is_late
from floodmark.schemas.tracker import Hold

_MOST: Final = 20
"""The most places to name as missing."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a trigger is to fire; durations are milliseconds."""

    trigger: str
    topics: tuple[str, ...]
    """The names of what it reads."""
    every: int
    """Length of a period."""
    deadline: int | None = None
    """Time after the end of a period at which it is fired as incomplete; ``None``: never."""
    tables: bool = False
    """Whether the names are of tables."""

    def floor(self, time: int) -> int:
        """Return the start of the period of a time.

        >>> Rules("hourly", ("flights",), 3_600_000).floor(3_700_000)
        3600000
        """
        return time - time % self.every


@dataclass(frozen=True, slots=True)
class Fired:
    """What a trigger has fired.  All times are starts of periods, epoch milliseconds."""

    first: int
    """The first period of this trigger."""
    next: int
    """The first period that was not fired as complete."""
    overdue: int
    """The first period that was fired neither as complete nor as incomplete."""
    repairs: int = 0
    """Number of repairs."""
    late: Mapping[int, int] = field(default_factory=dict)
    """By complete period: late rows for which no repair was fired."""
    firing: TriggerEvent | None = None
    """The event that is being fired."""

    @classmethod
    def begin(cls, first: int, overdue: int) -> "Fired":
        """Return the state of a trigger that has fired nothing."""
        return cls(first, first, max(first, overdue))

    def as_dict(self) -> dict[str, Any]:
        """Return the state as JSON values.

        >>> Fired.of(Fired.begin(0, 0).as_dict()) == Fired.begin(0, 0)
        True
        """
        return {
            "first": self.first,
            "next": self.next,
            "overdue": self.overdue,
            "repairs": self.repairs,
            "late": [[start, rows] for start, rows in sorted(self.late.items())],
            "firing": None if self.firing is None else self.firing.as_dict(),
        }

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "Fired":
        """Return the state of its JSON values."""
        firing = stored["firing"]
        return cls(
            **{name: stored[name] for name in ("first", "next", "overdue", "repairs")},
            late=dict(stored["late"]),
            firing=None if firing is None else TriggerEvent.of(firing),
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of the input at a moment."""

    watermark: int | None
    last: int | None = None
    """The highest event time that is known, which bounds the periods of an input that has ended; ``None``: none."""
    now: int = 0
    """The wall clock, epoch milliseconds."""
    current: bool = False
    """Whether the input was read up to what it had at ``now``; else no period is fired as incomplete."""
    settled: bool = False
    """Whether late rows that were collected are to be fired now."""


class Schedule:
    """What a trigger fires next.

    >>> schedule = Schedule(Rules("hourly", ("flights",), 3_600_000), Fired.begin(0, 0))
    >>> schedule.due(Seen(3_599_999))
    >>> schedule.due(Seen(3_600_000)).key
    'hourly/1970-01-01T00:00:00Z/complete'
    >>> schedule.done()
    >>> schedule.take_late(5, 3_600_000)
    True
    >>> schedule.due(Seen(3_600_000, settled=True)).key
    'hourly/1970-01-01T00:00:00Z/repair-1'
    """

    def __init__(self, rules: Rules, fired: Fired) -> None:
        self.rules: Final = rules
        self.fired = fired
        self.late_rows = 0
        """Late rows of complete periods that this process has read."""

    @property
    def next_deadline(self) -> int | None:
        """When the next period counts as incomplete, epoch milliseconds; ``None``: never."""
        if self.rules.deadline is None:
            return None
        return max(self.fired.next, self.fired.overdue) + self.rules.every + self.rules.deadline

    def take_late(self, time: int, watermark: int | None) -> bool:
        """Count a row if it is late and its period is complete; return whether it is counted."""
        start = self.rules.floor(time)
        if watermark is None or not is_late(time, watermark) or not self.fired.first <= start:
            return False
        if start + self.rules.every > watermark:
            return False
        late = {**self.fired.late, start: self.fired.late.get(start, 0) + 1}
        self.fired = replace(self.fired, late=late)
        self.late_rows += 1
        return True

    def due(self, seen: Seen, holders: Callable[[int], Sequence[Hold]] = lambda _end: ()) -> TriggerEvent | None:
        """Return the next event, the same until `done`; ``None``: nothing is due.

        Complete periods come first, in their order, then incomplete ones, then repairs.  ``holders`` names what has not
        reached a time.
        """
        if self.fired.firing is None:
            event = self._complete(seen) or self._incomplete(seen, holders) or self._repair(seen)
            self.fired = replace(self.fired, firing=event)
        return self.fired.firing

    def done(self) -> None:
        """Note that the event of `due` was fired."""
        fired, event = self.fired, self.fired.firing
        if event is None:
            return
        if event.kind == "complete":
            fired = replace(fired, next=event.end, overdue=max(fired.overdue, event.end))
        elif event.kind == "incomplete":
            fired = replace(fired, overdue=event.end)
        else:
            late = {start: rows for start, rows in fired.late.items() if start != event.start}
            more = fired.late.get(event.start, 0) - event.late_rows
            fired = replace(fired, repairs=event.repair, late={**late, event.start: more} if more else late)
        self.fired = replace(fired, firing=None)

    def _event(self, kind: Kind, start: int, seen: Seen, **more: Any) -> TriggerEvent:  # noqa: ANN401  # its fields
        rules = self.rules
        return TriggerEvent(rules.trigger, rules.topics, kind, start, start + rules.every, seen.watermark, **more)

    def _complete(self, seen: Seen) -> TriggerEvent | None:
        start, watermark = self.fired.next, seen.watermark
        if watermark is None or watermark < start + self.rules.every:
            return None
        if watermark == END_OF_TIME and (seen.last is None or start > seen.last):
            return None
        return self._event("complete", start, seen)

    def _incomplete(self, seen: Seen, holders: Callable[[int], Sequence[Hold]]) -> TriggerEvent | None:
        deadline = self.next_deadline
        if deadline is None or deadline > seen.now or not seen.current or seen.watermark == END_OF_TIME:
            return None
        start = max(self.fired.next, self.fired.overdue)
        found = holders(start + self.rules.every)[:_MOST]
        return self._event("incomplete", start, seen, missing=tuple(map(missing_of, found)))

    def _repair(self, seen: Seen) -> TriggerEvent | None:
        ready = [start for start in self.fired.late if start < self.fired.next]
        if not ready or not seen.settled:
            return None
        start = min(ready)
        return self._event("repair", start, seen, late_rows=self.fired.late[start], repair=self.fired.repairs + 1)
