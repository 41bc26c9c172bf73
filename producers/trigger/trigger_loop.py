"""The loop of a trigger: read, decide, store, fire.  The rules are in `plan.schedule`."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from floodmark.producers.clients.clock import Clock
from floodmark.producers.metrics import Metrics, delay, state_of
from floodmark.producers.trigger.outlook import Input, Outlook
from floodmark.producers.trigger.plan.periods import duration_text
from floodmark.producers.trigger.plan.schedule import Fired, Rules, Schedule
from floodmark.producers.trigger.plan.trigger_event import TriggerEvent
from floodmark.producers.trigger.target import Delivery
from floodmark.schemas.errors import TriggerError
from floodmark.schemas.timestamps import END_OF_TIME

_log = logging.getLogger(__name__)
_STORE_INTERVAL: Final = 60_000
"""Milliseconds after which a position is stored although nothing was fired, so that a restart reads less."""
_POLL: Final = 0.2
"""Seconds to wait for records."""


class StoredPosition(Protocol):
    """Where a trigger stores what it has fired, see `PositionTopic`."""

    @property
    def state(self) -> dict[str, Any] | None: ...  # noqa: D102
    def store(self, state: dict[str, Any]) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a trigger waits."""

    retry: float
    """Seconds to try again with a target that fails."""
    collect: int
    """Milliseconds to collect late rows for one repair."""


def first_period(rules: Rules, begin: int | str, found: Input, now: int) -> Fired | None:
    """Return the state of a new trigger; ``None``: where it begins is not known yet, or its input has ended before.

    ``begin``: ``"earliest"``, ``"now"``, or a time in epoch milliseconds; ``now``: the wall clock.
    """
    time, lowest = found.watermark if isinstance(begin, str) else begin, found.lowest
    if time is None:
        return None
    if begin == "earliest" and lowest is not None:
        time = min(time, lowest)  # what comes later is not below the watermark, or late
    if time == END_OF_TIME:
        return None
    past = now - rules.every - (rules.deadline or 0)  # deadlines up to here have passed: none is fired as incomplete
    return Fired.begin(rules.floor(time), rules.floor(past) + rules.every)


class TriggerLoop:
    """One running trigger.

    Args:
        rules: what to fire.
        source: what it reads, from where the position says.
        delivery: where events go.
        position: what was stored last, if anything; an error when storing ends the trigger.
        begin: of a new trigger, see `first_period`.
        collect: milliseconds to collect late rows for one repair.
        clock: a test passes another one.

    Raises:
        TriggerError: if the position is of another trigger; when firing, if the target fails for too long.
    """

    def __init__(
        self,
        rules: Rules,
        source: Input,
        delivery: Delivery,
        position: StoredPosition,
        *,
        begin: int | str = "now",
        collect: int = 60_000,
        clock: Clock = Clock(),
    ) -> None:
        self.rules, self.source, self.delivery = rules, source, delivery
        self._position, self._clock = position, clock
        self._outlook = Outlook(source, collect, clock)
        self._epoch = clock.wall()
        self._stored_at = clock.steady()
        stored = position.state
        self.schedule = None if stored is None else Schedule(rules, Fired.of(stored["fired"]))
        self._first = begin, source.end()
        require_same(rules, stored)

    @property
    def ended(self) -> bool:
        """Whether all sources have ended, and what the topics had at the start is read.

        The mark that ends a topic may not be its last offset: a commit of a transaction follows, and it is read later.
        """
        return self.source.ended and self.source.has_read(self._first[1])

    def run(
        self, *, stop: Callable[[], bool], until_end: bool = False, progress: Callable[[], None] = lambda: None
    ) -> None:
        """Fire what is due until ``stop``, the end of the input, or with ``until_end`` its present end.

        ``progress`` is called after each step, before the first event of a new trigger, and while the target fails.
        """
        self._fire(stop, progress)  # what a crash may have interrupted
        ends = self.source.end() if until_end else None  # not before the end by which deadlines are judged
        over = warned = False
        while not over and not stop():
            self.source.poll(_POLL, self._row)
            over = self.ended or (ends is not None and self.source.has_read(ends))
            self._start(progress)
            warned = warned or self._warn_of_waiting()
            self._fire(stop, progress, over=over)
            progress()
        self._store()

    def _start(self, progress: Callable[[], None]) -> None:
        """Choose the first period once what the topics had at the start is read, and store it before anything else."""
        begin, ends = self._first
        if self.schedule is None and self.source.has_read(ends):
            fired = first_period(self.rules, begin, self.source, self._clock.wall())
            if fired is not None:
                self.schedule = Schedule(self.rules, fired)
                self._store()
                progress()

    def _warn_of_waiting(self) -> bool:
        """Warn, and return true, if what the topics had at the start is read and does not say where to begin."""
        waits = self.schedule is None and not self.ended and self.source.has_read(self._first[1])
        if waits:
            _log.warning(
                "trigger %r waits for the first watermark to know its first period%s. "
                "To begin now, use --from with a time. Held by %s",
                self.rules.trigger,
                "" if self.rules.deadline is None else ", and no deadline counts until then",
                "; ".join(map(str, self.source.holders()[:1])),
            )
        return waits

    def _row(self, time: int, watermark: int | None) -> None:
        if self.schedule is not None:
            self.schedule.take_late(time, watermark)

    def _store(self) -> None:
        if self.schedule is not None:
            fired = self.schedule.fired.as_dict()
            self._position.store({"rules": _identity(self.rules), "fired": fired, "input": self.source.state()})
            self._stored_at = self._clock.steady()

    def _fire(self, stop: Callable[[], bool], progress: Callable[[], None], *, over: bool = False) -> None:
        """Fire what is due.  An event is stored before each attempt to fire it, until it is taken."""

        def stop_retrying() -> bool:
            progress()
            return stop()

        schedule = self.schedule
        if schedule is None:
            return
        fired = False
        while not stop() and (event := self._next(schedule, over=over)) is not None:
            if not self.delivery.fire(event, stop_retrying, self._store):
                return
            schedule.done()
            fired = True
        if fired or self._clock.steady() - self._stored_at >= _STORE_INTERVAL:
            self._store()

    def _next(self, schedule: Schedule, *, over: bool) -> TriggerEvent | None:
        seen = self._outlook.seen(schedule, over=over)
        return schedule.due(seen, self.source.holders)

    def metrics(self) -> Metrics:
        """Return the metrics of this process; as of a job, the output watermark is the end of what was fired."""
        schedule, watermark, ended = self.schedule, self.source.watermark, self.source.ended
        fired = None if schedule is None else schedule.fired.next
        return Metrics(
            "trigger",
            self.rules.trigger,
            records=self.delivery.counts.total(),
            late_events=None if schedule is None else schedule.late_rows,
            failed=int(self.delivery.failing),
            watermark_delay_seconds=delay(self._clock.wall(), fired),
            local_lag_seconds=None if fired is None or watermark is None or ended else (watermark - fired) / 1_000,
            watermark=fired,
            state=state_of(fired, ended=ended),
            epoch=self._epoch,
        )


def require_same(rules: Rules, stored: Mapping[str, Any] | None) -> None:
    """Refuse the position of another trigger with `TriggerError`."""
    if stored is not None and stored["rules"] != _identity(rules):
        before, after = (_shown(identity) for identity in (stored["rules"], _identity(rules)))
        reason = f"its position was stored for {before}, and now it has {after}"
        raise TriggerError(trigger=rules.trigger, reason=reason, advice="choose another --name for another trigger")


def _identity(rules: Rules) -> dict[str, Any]:
    """Return what a stored position is only valid for, as JSON values."""
    return {"tables" if rules.tables else "topics": list(rules.topics), "every_ms": rules.every}


def _shown(identity: Mapping[str, Any]) -> str:
    names = [*identity.get("topics", ()), *(f"table {name}" for name in identity.get("tables", ()))]
    return f"--every {duration_text(identity['every_ms'])} of {', '.join(names)}"
