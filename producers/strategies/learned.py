"""Strategies that learn the delays of events: percentile watermarks, and a bound that adapts.  Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from typing import Any, Final

from floodmark.producers.strategies.interface import Built, Generator, State, Strategy
from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import MAX_PERCENTS
from floodmark.schemas.stored_format import restoring
from floodmark.schemas.timestamps import duration_of
from typing_extensions import override

_BITS: Final = 8  # the leading bits of a delay that are kept
_ALL: Final = 100  # per cent


class Delays:
    """How far events are behind the largest event time before them, milliseconds, in bounded memory.

    It counts delays in ranges, whose width is less than 1/128 of the delay.  A quantile is never too short.

    >>> delays = Delays()
    >>> for delay in (*range(100), 100_000):
    ...     delays.add(delay)
    >>> delays.at_most(0.5), delays.at_most(1.0)
    (50, 100000)
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}  # by the longest delay of each range
        self._longest = 0

    def add(self, delay: int) -> None:
        """Add a delay, milliseconds, 0 or more."""
        spare = delay.bit_length() - _BITS
        end = delay | (1 << spare) - 1 if spare > 0 else delay
        self._counts[end] = self._counts.get(end, 0) + 1
        self._longest = max(self._longest, delay)

    def at_most(self, share: float) -> int:
        """Return a delay that this share of the events did not exceed, less than 1 % above the shortest; else 0."""
        seen, total = 0, sum(self._counts.values())
        for end in sorted(self._counts):
            seen += self._counts[end]
            if seen / total >= share:
                return min(end, self._longest)
        return 0

    def snapshot(self) -> dict[str, Any]:
        """Return the state as a value that JSON can hold."""
        return {"counts": sorted(self._counts.items()), "longest": self._longest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the state to a `snapshot`, or raise `CorruptSnapshotError`."""
        with restoring("of observed delays", "begin with fresh delays"):
            counts = {int(end): int(count) for end, count in state["counts"]}
            longest = int(state["longest"])
        self._counts, self._longest = counts, longest


@dataclass(slots=True)
class _Learned(State):
    largest_event_time: int | None = None
    watermark: int | None = None  # at the last tick
    percentiles: dict[str, int] = field(default_factory=dict)  # at the last tick; the keys are text for JSON
    delays: dict[str, Any] = field(default_factory=dict)  # only in snapshots, see `Delays.snapshot`


class _Learning(Generator):
    """The largest event time, and the delays of events."""

    def __init__(self) -> None:
        self._delays = Delays()
        self._state: _Learned = _Learned()

    @override
    def on_event(self, event_time: int, now: int | None = None, value: bytes | None = None) -> None:
        largest = self._state.largest_event_time
        largest = self._state.largest_event_time = event_time if largest is None else max(largest, event_time)
        self._delays.add(largest - event_time)

    def _bound(self) -> int:
        raise NotImplementedError

    @override
    def on_tick(self, now: int, wall: int | None = None) -> None:
        self._state.watermark = self.watermark()

    @override
    def watermark(self) -> int | None:
        # The bound may have grown since the last tick; the watermark must not decrease.
        largest, promised = self._state.largest_event_time, self._state.watermark
        if largest is None:
            return promised
        watermark = largest - self._bound()
        return watermark if promised is None else max(watermark, promised)

    @override
    def snapshot(self) -> dict[str, Any]:
        return {**super().snapshot(), "delays": self._delays.snapshot()}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._delays.restore(self._state.delays)


class _Adapting(_Learning):
    def __init__(self, share: float, margin: float, least: int, most: int) -> None:
        super().__init__()
        self._share, self._margin, self._least, self._most = share, margin, least, most

    @override
    def _bound(self) -> int:
        return int(min(self._most, max(self._least, self._delays.at_most(self._share) * self._margin)))


def adaptive(
    share: float = 0.999, *, margin: float = 1.5, least: timedelta = timedelta(0), most: timedelta = timedelta(hours=1)
) -> Strategy:
    """`bounded_out_of_orderness` with a bound that follows the observed delays.

    Args:
        share: quantile of the observed delays that the bound covers, above 0 and at most 1.
        margin: factor between that quantile and the bound.
        least: lower limit of the bound, which also applies before the first event.
        most: upper limit of the bound.

    >>> generator = adaptive(0.99, margin=1, least=timedelta(0)).build()
    >>> for second in range(1000):
    ...     generator.on_event(second * 1000 - (0 if second % 2 else 3000))
    >>> 999_000 - generator.watermark()
    2000
    """
    try:
        covers, stretches = 0 < share <= 1, 0 < margin < inf
    except TypeError as error:
        reason = f"share {share!r}, margin {margin!r}: expected numbers, only least= and most= are durations"
        raise UsageError(reason=reason) from error
    if not covers:
        raise UsageError(reason=f"the share of delays to cover is {share}, expected more than 0 and at most 1")
    shortest, longest = duration_of(least, "the least bound"), duration_of(most, "the largest bound")
    if not stretches or longest < shortest:
        expected = "0 < margin < inf, 0 <= least <= most"
        raise UsageError(reason=f"margin {margin}, least {least}, most {most}: expected {expected}")
    return Built(_Adapting, (share, margin, shortest, longest))


class _Percentiles(_Learning):
    def __init__(self, bound: int, percents: tuple[int, ...]) -> None:
        super().__init__()
        self._fixed_bound, self._percents = bound, percents

    @override
    def _bound(self) -> int:
        return self._fixed_bound

    @override
    def on_tick(self, now: int, wall: int | None = None) -> None:
        super().on_tick(now, wall)
        self._state.percentiles = {str(percent): time for percent, time in self.percentiles().items()}

    @override
    def percentiles(self) -> Mapping[int, int]:
        watermark = self.watermark()
        largest = self._state.largest_event_time
        reported = {int(percent): time for percent, time in self._state.percentiles.items()}
        if largest is None or watermark is None:
            return reported
        found = {}
        for percent in self._percents:
            behind = 0 if percent == _ALL else self._delays.at_most(percent / _ALL)
            time = watermark if percent == _ALL else max(watermark, largest - behind)
            found[percent] = max(time, reported.get(percent, time))
        return found


def percentile(bound: timedelta, percents: tuple[int, ...] = (33, 66, 100)) -> Strategy:
    """The watermark of `bounded_out_of_orderness`, and higher watermarks that only a percentage of the events keeps.

    The watermark at 33 per cent is the largest event time minus the delay that 33 per cent of the events did not
    exceed.  Readers that choose it get earlier, speculative results and more late rows ("Streaming Systems", ch. 3).
    ``percents`` are from 1 to 100, at most 64 of them; otherwise it raises `UsageError`.

    >>> generator = percentile(timedelta(seconds=10), percents=(50, 100)).build()
    >>> for event_time in (10_000, 20_000, 15_000, 30_000, 21_000):
    ...     generator.on_event(event_time)
    >>> generator.percentiles()
    {50: 30000, 100: 20000}
    """
    UsageError.unless_type("percents", percents, Collection, "some from 1 to 100, as (33, 66, 100)")
    if not percents or any(percent not in range(1, _ALL + 1) for percent in percents):
        raise UsageError(reason=f"percents are {percents}, expected some from 1 to 100")
    if len(set(percents)) > MAX_PERCENTS:
        raise UsageError(reason=f"there are {len(set(percents))} percents, expected at most {MAX_PERCENTS}")
    milliseconds = duration_of(bound, "the bound of out-of-orderness")
    return Built(_Percentiles, (milliseconds, tuple(sorted({int(percent) for percent in percents}))))
