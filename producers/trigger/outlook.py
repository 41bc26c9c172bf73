"""What a trigger knows of its input at a moment: the interface of inputs, and the `Seen` that the schedule needs."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from floodmark.producers.clients.clock import Clock
from floodmark.producers.trigger.plan.schedule import Schedule, Seen
from floodmark.schemas.classify import Offsets
from floodmark.schemas.tracker import Hold

Row = Callable[[int, int | None], object]
"""Called with the event time of a row, and the watermark when it was read."""


class Input(Protocol):
    """What a trigger reads, see `TopicInput`."""

    @property
    def watermark(self) -> int | None: ...  # noqa: D102
    @property
    def lowest(self) -> int | None: ...  # noqa: D102
    @property
    def highest(self) -> int | None: ...  # noqa: D102
    @property
    def ended(self) -> bool: ...  # noqa: D102
    def holders(self, below: int | None = None) -> list[Hold]: ...  # noqa: D102
    def poll(self, seconds: float, row: Row) -> None: ...  # noqa: D102
    def end(self) -> Offsets: ...  # noqa: D102
    def has_read(self, ends: Offsets) -> bool: ...  # noqa: D102
    def state(self) -> dict[str, Any]: ...  # noqa: D102


class Outlook:
    """Judges whether a deadline has passed, and for how long late rows were collected.

    A period is overdue only if the input was read up to what it had at the deadline: a reader that is behind must not
    blame the sources.

    Args:
        source: what is read.
        collect: milliseconds to collect late rows for one repair.
        clock: a test passes another one.
    """

    def __init__(self, source: Input, collect: int, clock: Clock) -> None:
        self._source, self._collect, self._clock = source, collect, clock
        self._deadline: tuple[int, Offsets] | None = None
        """When a deadline had passed, and the end of the input then."""
        self._late_since: Final[list[int]] = []
        """When the first late row was seen, by the steady clock; empty: there is none."""

    def seen(self, schedule: Schedule, *, over: bool) -> Seen:
        """Return what is known now; ``over``: nothing more is read, so late rows are not collected any longer."""
        now = self._look_at_deadline(schedule)
        current = self._deadline is not None and self._source.has_read(self._deadline[1])
        settled = over or self._is_collected(schedule)
        return Seen(self._source.watermark, self._source.highest, now, current, settled)

    def _look_at_deadline(self, schedule: Schedule) -> int:
        """Note the end of the input when a deadline has passed; return the time to judge it by."""
        now, passes = self._clock.wall(), schedule.next_deadline
        if self._deadline is not None and (passes is None or self._deadline[0] < passes):
            self._deadline = None
        if self._deadline is None and passes is not None and passes <= now:
            self._deadline = now, self._source.end()
        return now if self._deadline is None else self._deadline[0]

    def _is_collected(self, schedule: Schedule) -> bool:
        now = self._clock.steady()
        if not schedule.fired.late:
            self._late_since.clear()
        elif not self._late_since:
            self._late_since.append(now)
        return bool(self._late_since) and now - self._late_since[0] >= self._collect
