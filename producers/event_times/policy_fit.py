"""Whether a time policy fits the events of a topic: most of them should keep the times that they tell.  Pure."""

from collections import Counter
from math import ceil
from typing import Final

from floodmark.producers.event_times.time_policy import Outcome, TimePolicy
from floodmark.schemas.timestamps import are_seconds, milliseconds, to_datetime

_WINDOW: Final = 1_000
_AGES: Final = 10 * 365 * 86_400_000


class PolicyFit:
    """What a policy has decided of the last events, and what would fit them better.

    >>> fit = PolicyFit(TimePolicy())
    >>> for number in range(100):
    ...     fit.add(Outcome.LATE_ADJUSTED, 1_767_225_600_000, 1_767_225_610_000 + 100 * number)
    >>> fit.judge()
    >>> print(fit.pop_advice())
    100 of 100 events lost their times (100 late adjusted): they arrive 14.9 s late (median); --late 20 would keep 99 %
    >>> fit.pop_advice(), fit.looks_like_seconds
    (None, False)
    """

    def __init__(self, policy: TimePolicy) -> None:
        self._policy = policy
        self.first: int | None = None
        """The first event time, epoch milliseconds."""
        self._plausible = False
        self._delays: list[int] = []
        self._outcomes: Counter[Outcome] = Counter()
        self._judged = self._misfit = False
        self._advice: str | None = None

    def add(self, outcome: Outcome, event_time: int, arrival: int) -> None:
        """Take in what was decided of an event; every thousand events are judged.

        Args:
            outcome: the decision.
            event_time: what the event tells, epoch milliseconds.
            arrival: when it arrived, epoch milliseconds.
        """
        if not self._plausible:
            self.first = event_time if self.first is None else self.first
            self._plausible = not are_seconds(event_time, arrival)
        self._delays.append(arrival - event_time)
        self._outcomes[outcome] += 1
        if len(self._delays) >= _WINDOW:
            self._close_window()

    @property
    def looks_like_seconds(self) -> bool:
        """Whether all event times so far would be right if they were a thousand times as large."""
        return self.first is not None and not self._plausible

    def doubt(self, about: str) -> str:
        """Say why the times look wrong, for an error; about: how they are read."""
        first = self.first or 0
        times = f"{to_datetime(first).isoformat()}, and 1,000 times that is {to_datetime(first * 1000).isoformat()}"
        return f"all event times so far look like another unit, read as {about}: the first is {times}"

    def judge(self) -> None:
        """Judge what has come, where it is less than a thousand events."""
        if self._delays and not self._judged:
            self._close_window()

    def _close_window(self) -> None:
        lost = len(self._delays) - self._outcomes[Outcome.ON_TIME]
        misfit = 2 * lost > len(self._delays)
        if misfit and not self._misfit:
            self._advice = self._advise(lost)
        self._judged, self._misfit = True, misfit
        self._delays, self._outcomes = [], Counter()

    def _advise(self, lost: int) -> str:
        count, delays = len(self._delays), sorted(self._delays)
        median, most, least = (delays[ceil(share * count) - 1] for share in (0.5, 0.99, 0.01))
        counted = ", ".join(
            f"{number:,} {outcome.replace('_', ' ')}"
            for outcome, number in sorted(self._outcomes.items())
            if outcome is not Outcome.ON_TIME
        )
        told = f"{lost:,} of {count:,} events lost their times ({counted}): they arrive"
        if abs(median) > _AGES:
            years = f"{abs(median) / _AGES * 10:,.0f} years"
            return (
                f"{told} {years} off (median); is --unit right? For a topic that was filled later, use a large --late"
            )
        if 2 * self._outcomes[Outcome.EARLY_DROPPED] > lost:
            advice = f"--early {ceil(-least / 1000)} would keep 99 %, --early -1 all"
            return f"{told} {-median / 1000:,.1f} s before their times (median); {advice}"
        if most <= milliseconds(self._policy.late):
            return f"{told} {median / 1000:,.1f} s late (median); a larger --out-of-order would keep more"
        return f"{told} {median / 1000:,.1f} s late (median); --late {ceil(most / 1000)} would keep 99 %"

    def pop_advice(self) -> str | None:
        """Return what to tell the user, once; ``None``: nothing."""
        advice, self._advice = self._advice, None
        return advice
