"""Check that a time policy fits the events of a topic: most should keep their event times.  Pure."""

from collections import Counter
from datetime import timedelta
from math import ceil
from typing import Final

from floodmark.producers.event_times.time_policy import Outcome, TimePolicy
from floodmark.schemas.timestamps import are_seconds, milliseconds, to_datetime

_WINDOW: Final = 1_000
_IN_2001: Final = 10**12
_TEN_YEARS: Final = 10 * 365 * 86_400_000
_DAY: Final = 86_400  # seconds


class PolicyFit:
    """Statistics of a policy's decisions, and advice if more than ``share`` of the events lose their times."""

    def __init__(self, policy: TimePolicy, *, substreams: bool = False, share: float = 0.5) -> None:
        self._policy = policy
        self._share = share
        self._substreams = substreams
        self.first: int | None = None  # the first event time, epoch milliseconds
        self.doubted = 0  # number of event times, if all so far look like a longer unit
        self._distances: list[tuple[int, int]] = []  # of each event from its arrival, and from the largest time
        self._outcomes: Counter[Outcome] = Counter()
        self._keyless = 0
        self._misfit: bool | None = None  # of the last events judged
        self._advice: str | None = None

    def add(
        self,
        outcome: Outcome,
        event_time: int,
        arrival: int,
        *,
        behind: int = 0,
        per_millisecond: int = 1,
        keyless: bool = False,
    ) -> None:
        """Add a decision; every 1,000 events are judged together.

        Times are epoch milliseconds; ``behind``: how far below the largest event time so far.  ``per_millisecond``: of
        the format.  ``keyless``: the event lacks what should tell its substream.
        """
        if self.first is None or self.doubted:
            self.first = event_time if self.first is None else self.first
            self.doubted = self.doubted + 1 if are_seconds(event_time, arrival, per_millisecond) else 0
        self._distances.append((arrival - event_time, behind))
        self._outcomes[outcome] += 1
        self._keyless += keyless
        if len(self._distances) >= _WINDOW:
            self._close_window()

    @property
    def looks_like_seconds(self) -> bool:
        """Whether all event times so far look like a longer unit, such as seconds that were read as milliseconds."""
        return self.doubted > 0

    def doubt(self, about: str) -> str:
        """Return why the times look wrong; ``about``: how they are read."""
        first = self.first or 0
        factor = next((one for one in (1_000, 10**6, 10**9) if first * one >= _IN_2001), 1)
        times = (
            f"{to_datetime(first).isoformat()}, and {factor:,} times that is {to_datetime(first * factor).isoformat()}"
        )
        return f"all event times so far look like another unit, read as {about}: the first is {times}"

    def judge(self) -> None:
        """Judge the events so far, unless some were judged before."""
        if self._distances and self._misfit is None:
            self._close_window()

    def _close_window(self) -> None:
        lost = len(self._distances) - self._outcomes[Outcome.ON_TIME]
        misfit = lost > self._share * len(self._distances) or self._keyless == len(self._distances)
        if misfit and not self._misfit:
            self._advice = self._advise(lost)
        self._misfit = misfit
        self._distances, self._outcomes, self._keyless = [], Counter(), 0

    def _advise(self, lost: int) -> str:
        count = len(self._distances)
        delays, behinds = map(sorted, zip(*self._distances, strict=True))
        if self._keyless == count:
            told = f"None of {count:,} events has the key or the JSON field of --substream-by"
            return f"{told}, so their order is judged together. Correct --substream-by"
        median, most, least = (delays[ceil(share * count) - 1] for share in (0.5, 0.99, 0.01))
        counted = ", ".join(
            f"{number:,} {outcome.replace('_', ' ')}"
            for outcome, number in sorted(self._outcomes.items())
            if outcome is not Outcome.ON_TIME
        )
        told = f"{lost:,} of {count:,} events were not on time ({counted})."
        late = f"{told} Median delay: {median / 1000:,.1f} s."
        if abs(median) > _TEN_YEARS:
            years = f"{abs(median) / _TEN_YEARS * 10:,.0f} years"
            told += f" The median distance to the arrival is {years}. Check --json-field or --event-time, then --unit."
            return f"{told} For a topic that was filled later, use a large --late"
        if 2 * self._outcomes[Outcome.EARLY_DROPPED] > lost:
            advice = f"--early {ceil(-least / 1000)} keeps 99 % of these events, --early -1 all"
            told += f" In the median, they arrive {-median / 1000:,.1f} s before their event time."
            return f"{told} {advice}. Text without a zone is read as UTC: is it local time?"
        tolerance, known = milliseconds(self._policy.late), self._policy.out_of_order
        apart = known is not None or self._substreams
        order = milliseconds(known or timedelta(0)) if apart else tolerance
        ahead, behind = -delays[0], behinds[ceil(0.99 * count) - 1]
        if most <= tolerance and (most > order or ahead + median <= order < behind):
            wanted = f"--out-of-order {ceil(behind / 1000)} keeps the times of 99 %"
            return f"{late} {wanted if behind > order else 'A larger --out-of-order keeps the times of more events'}"
        if most <= tolerance:
            past = "an earlier start with other options, or an event ahead of its arrival"
            if ahead + median > order:
                past += f" (here up to {ahead / 1000:,.1f} s: pass a smaller --early)"
            paused = (
                "If senders or the broker paused for longer than --late, the watermark followed the clock: do nothing"
            )
            return f"{told} {paused}. Otherwise, it was moved too far by {past}. To start over, add --reset"
        wanted = ceil(most / 1000)
        far = sorted(far for delay, far in self._distances if delay <= 1000 * wanted)[ceil(0.99 * count) - 1]
        if apart:
            own = max(far, most)
            is_own = own > order
        else:  # it would be as --late: too little, or it would hold the watermark back by as much
            own = far
            is_own = far > 1000 * wanted or 2 * far < most
        also = f" --out-of-order {ceil(own / 1000)}" if is_own else ""
        then = "; if only old records are so late, restart with a smaller one after them" if wanted > _DAY else ""
        return f"{late} --late {wanted}{also} keeps the times of 99 % of these{then}"

    def pop_advice(self) -> str | None:
        """Return the advice for the user, once; ``None``: no advice."""
        advice, self._advice = self._advice, None
        return advice
