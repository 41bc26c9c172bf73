"""Time policies: decide by arrival which events are early, late or out of order, and adjust or drop them.  Pure.

An event has an event time and an arrival time (the log time).  The policy gives it a *system time*, which is its event
time or an adjusted one, and computes the watermark:

1. *early*: ahead of its arrival by more than the tolerance: dropped; the watermark does not move;
2. *late*: behind its arrival by more than the tolerance: adjusted to arrival minus the tolerance, or dropped;
3. *out of order*: then behind the watermark: adjusted to the watermark, or dropped;
4. the watermark is at least the largest time seen minus the out-of-order tolerance.

Without events, it is at least the estimated arrival (last arrival plus the time since) minus the late tolerance.  To
repeat a run, store what `estimate` returns, and pass it to `advance`.  The rules are those of Azure Stream Analytics,
except that Azure adjusts all events out of order.

*Substreams*: each key has its own watermark.  No event gets a system time below the last arrival minus the late
tolerance, so this is a floor under all keys, and the watermark of the partition.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from heapq import heappop, heappush, heapreplace
from typing import Any, Final, get_args

from floodmark.producers.event_times.option_values import Action
from floodmark.schemas.errors import UsageError
from floodmark.schemas.stored_format import restoring
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME, duration_of, event_time_of, is_late, milliseconds

_ACTIONS: Final = get_args(Action)


class Outcome(StrEnum):
    """The decision of a policy on an event."""

    ON_TIME = "on_time"
    LATE_ADJUSTED = "late_adjusted"
    OUT_OF_ORDER_ADJUSTED = "out_of_order_adjusted"
    EARLY_DROPPED = "early_dropped"
    LATE_DROPPED = "late_dropped"
    OUT_OF_ORDER_DROPPED = "out_of_order_dropped"


Decision = tuple[Outcome, int | None]  # of an event: the outcome and its system time; ``None``: dropped


@dataclass(frozen=True, slots=True)
class TimePolicy:
    """How far event times may differ from arrival and order.  Immutable.

    Args:
        early: how far an event may be ahead of its arrival; ``None``: any distance.
        late: how far an event may be behind its arrival.
        out_of_order: how far an event may be behind the largest time seen; ``None``: as ``late``, in a substream 0.
        on_late: adjust or drop later events.
        on_out_of_order: adjust or drop events that are more out of order.
        max_keys: the most substreams above the floor whose watermarks are kept.

    >>> state = TimePolicy(late=timedelta(milliseconds=50), out_of_order=timedelta(milliseconds=20)).build()
    >>> state.decide(event_time=100, arrival=100)
    (<Outcome.ON_TIME: 'on_time'>, 100)
    >>> state.watermark
    80
    >>> state.decide(event_time=70, arrival=110)
    (<Outcome.OUT_OF_ORDER_ADJUSTED: 'out_of_order_adjusted'>, 80)
    >>> state.estimate(elapsed=40), state.watermark  # the last arrival was 110
    (100, 100)
    """

    early: timedelta | None = timedelta(minutes=5)
    late: timedelta = timedelta(seconds=5)
    out_of_order: timedelta | None = None
    on_late: Action = "adjust"
    on_out_of_order: Action = "adjust"
    max_keys: int = 10_000

    def __post_init__(self) -> None:
        for name in ("early", "late", "out_of_order"):
            tolerance = getattr(self, name)
            if tolerance is not None or name == "late":
                duration_of(tolerance, f"time policy: the {name} tolerance")
        for name in ("on_late", "on_out_of_order"):
            if getattr(self, name) not in _ACTIONS:
                raise UsageError(reason=f"time policy: {name} is {getattr(self, name)!r}, expected adjust or drop")
        if self.max_keys < 1:
            raise UsageError(reason=f"time policy: max_keys is {self.max_keys}, expected 1 or more")

    def build(self) -> "TimePolicyState":
        """Return the state of an empty partition."""
        return TimePolicyState(self)


class TimePolicyState:
    """The state of a policy in one partition.  Times are epoch milliseconds."""

    def __init__(self, policy: TimePolicy) -> None:
        self._early = None if policy.early is None else milliseconds(policy.early)
        self._late = milliseconds(policy.late)
        self._out_of_order = milliseconds(policy.late if policy.out_of_order is None else policy.out_of_order)
        self._out_of_order_in_key = milliseconds(policy.out_of_order or timedelta(0))
        self._policy = policy
        self.watermark: int | None = None
        """No later event gets a system time below it; with substreams, the floor under all keys; ``None``: unknown."""
        self._arrival: int | None = None
        self._keys: dict[bytes, int] = {}
        self._least: list[tuple[int, bytes]] = []  # a heap with an earlier watermark of each key
        self.counts: Counter[str] = Counter()  # events by the value of their `Outcome`, and ``keys_evicted``

    def decide(self, event_time: int, arrival: int | None, key: bytes | None = None) -> Decision:
        """Decide on one event, in the order of the log; without a readable ``arrival``, only the order decides."""
        if arrival is not None:
            self._arrival = arrival if self._arrival is None else max(self._arrival, arrival)
            if key is not None:
                self.advance(_within(self._arrival - self._late))  # the floor under every key
        outcome, time = self._judge(event_time, arrival, self.watermark_of(key))
        self.counts[outcome] += 1
        if time is not None and arrival is not None:
            largest = max(event_time, time)
            if key is not None:
                self._keep(key, _within(largest - self._out_of_order_in_key))
            else:
                self.advance(_within(largest - self._out_of_order))
        return outcome, time

    def _judge(self, event_time: int, arrival: int | None, watermark: int | None) -> Decision:
        if arrival is None:
            return self._in_order(event_time, Outcome.ON_TIME, watermark)
        if self._early is not None and event_time - arrival > self._early:
            return Outcome.EARLY_DROPPED, None
        outcome, time = Outcome.ON_TIME, event_time
        if arrival - event_time > self._late:
            if self._policy.on_late == "drop":
                return Outcome.LATE_DROPPED, None
            outcome, time = Outcome.LATE_ADJUSTED, arrival - self._late
        return self._in_order(time, outcome, watermark)

    def _in_order(self, time: int, outcome: Outcome, watermark: int | None) -> Decision:
        if is_late(time, watermark):
            if self._policy.on_out_of_order == "drop":
                return Outcome.OUT_OF_ORDER_DROPPED, None
            return Outcome.OUT_OF_ORDER_ADJUSTED, watermark
        return outcome, time

    def watermark_of(self, key: bytes | None) -> int | None:
        """Return the watermark of one substream."""
        if key is None:
            return self.watermark
        own = self._keys.get(key)
        return self.watermark if own is None or (self.watermark is not None and own < self.watermark) else own

    def _keep(self, key: bytes, watermark: int) -> None:
        own = self._keys.get(key)
        if watermark <= (self.watermark or 0 if own is None else own):
            return
        self._keys[key] = watermark
        if own is None:
            heappush(self._least, (watermark, key))
            while len(self._keys) > self._policy.max_keys:
                self._forget_least()

    def _forget_least(self) -> None:
        """Forget the key with the lowest watermark, and raise the floor to that; keys at the floor go first."""
        while (entry := self._least[0]) != (true := (self._keys[entry[1]], entry[1])):
            heapreplace(self._least, true)
        watermark, key = heappop(self._least)
        del self._keys[key]
        if self._is_ahead(watermark):
            self.watermark = watermark
            self.counts["keys_evicted"] += 1

    def estimate(self, elapsed: int) -> int | None:
        """Advance the watermark without an event, ``elapsed`` milliseconds after the last; return it if it moved."""
        if self._arrival is None:
            return None
        watermark = _within(self._arrival + elapsed - self._late)
        if not self._is_ahead(watermark):
            return None
        self.watermark = watermark
        return watermark

    def expect(self, arrival: int) -> bool:
        """Note that all events will arrive at this time or later; ignored, with ``False``, after the first arrival."""
        if self._arrival is not None:
            return False
        self._arrival = arrival
        return True

    def advance(self, watermark: int) -> None:
        """Raise the watermark to one that was decided elsewhere, such as in a run that is repeated."""
        if self._is_ahead(watermark):
            self.watermark = watermark

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "watermark": self.watermark,
            "arrival": self._arrival,
            "keys": {key.hex(): watermark for key, watermark in self._keys.items() if self._is_ahead(watermark)},
            "counts": dict(self.counts),
        }

    def _is_ahead(self, watermark: int) -> bool:
        return self.watermark is None or watermark > self.watermark

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a `snapshot`, or raise CorruptSnapshotError."""
        with restoring("of a time policy", "start over"):
            watermark, arrival = state["watermark"], state["arrival"]
            keys = {bytes.fromhex(key): event_time_of(own) for key, own in state["keys"].items()}
            counts = Counter({str(outcome): int(count) for outcome, count in state["counts"].items()})
            watermark = None if watermark is None else event_time_of(watermark)
            arrival = None if arrival is None else event_time_of(arrival)
        self.watermark, self._arrival = watermark, arrival if counts else None  # without events, it came from `expect`
        self._keys, self.counts = keys, counts
        self._least = sorted((own, key) for key, own in keys.items())  # sorted is a heap


def _within(time: int) -> int:
    """Return the nearest time in the years 1 to 9999."""
    return max(EARLIEST, min(END_OF_TIME, time))
