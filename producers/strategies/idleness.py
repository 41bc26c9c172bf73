"""Idleness for any strategy: a source that is silent for too long becomes idle.  Pure."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from floodmark.producers.strategies.interface import FORMAT, Built, Generator, Strategy, strategy_of
from floodmark.producers.strategies.scopes import PerPartition
from floodmark.schemas.stored_format import require_format, restoring
from floodmark.schemas.timestamps import duration_of
from typing_extensions import override


class _WithIdleness(Generator):
    """Forwards all calls to another generator, and measures silence."""

    def __init__(self, strategy: Strategy, timeout: int) -> None:
        inner = self._inner = strategy.build()
        self.stamps, self.punctual = inner.stamps, inner.punctual
        self._timeout = timeout
        self._last_event: int | None = None
        self._silent = 0  # milliseconds of silence at the last tick; unlike the steady clock, valid in another process
        self._timed_out = False

    @override
    def on_event(self, event_time: int, now: int | None = None, value: bytes | None = None) -> None:
        self._inner.on_event(event_time, now, value)
        self._last_event, self._silent, self._timed_out = now, 0, False

    @override
    def on_tick(self, now: int, wall: int | None = None) -> None:
        if self._last_event is None:  # no event yet: the silence starts at the first tick
            self._last_event = now - self._silent
        self._silent = now - self._last_event
        self._timed_out = self._silent > self._timeout
        self._inner.on_tick(now, wall)

    @override
    def advance(self, watermark: int) -> None:
        self._inner.advance(watermark)
        self._last_event, self._silent, self._timed_out = None, 0, False  # a new watermark ends the silence

    @override
    def watermark(self) -> int | None:
        return self._inner.watermark()

    @override
    def stamp(self, wall: int) -> int:
        return self._inner.stamp(wall)

    @override
    def percentiles(self) -> Mapping[int, int] | None:
        return self._inner.percentiles()

    @property
    @override
    def idle(self) -> bool:
        return self._timed_out or self._inner.idle

    @override
    def snapshot(self) -> dict[str, Any]:
        return {"format": FORMAT, "silent_ms": self._silent, "idle": self._timed_out, "inner": self._inner.snapshot()}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        with restoring("of idleness", "restore it into the strategy that it was taken from"):
            require_format(state, FORMAT)
            silent, timed_out, inner = int(state["silent_ms"]), bool(state["idle"]), state["inner"]
        self._inner.restore(inner)
        self._last_event, self._silent, self._timed_out = None, silent, timed_out


def with_idleness(strategy: Strategy, timeout: timedelta) -> Strategy:
    """Mark a source as idle if it has no event and no `advance` for ``timeout``, measured by a steady clock.

    Readers learn of it at most one interval of marks later.  The source becomes active again before its next record and
    with a new watermark.  With `per_partition`, a partition that is silent for ``timeout`` follows the lowest watermark
    of the others; the source becomes idle when all partitions are silent.  Raises `UsageError` if the timeout is not
    more than 0.

    >>> from floodmark.producers.strategies.basic import ascending
    >>> generator = with_idleness(ascending(), timedelta(milliseconds=10)).build()
    >>> generator.on_tick(100), generator.idle
    (None, False)
    >>> generator.on_tick(111), generator.idle
    (None, True)
    >>> generator.on_event(5, now=112), generator.idle
    (None, False)
    """
    inner, milliseconds = strategy_of(strategy), duration_of(timeout, "the timeout of idleness", 1)
    if isinstance(inner, PerPartition):
        return replace(inner, quiet=milliseconds)
    return Built(_WithIdleness, (inner, milliseconds))
