"""Periods of event time: durations as people write them, and patterns for the names of periods.  Pure.

Periods begin at 1970-01-01T00:00:00Z and follow each other without a gap, as tumbling windows do: an hour begins at a
full hour in UTC, a day at midnight in UTC.
"""

import re
from dataclasses import dataclass
from math import lcm
from string import Formatter
from typing import Final

from floodmark.schemas.errors import UsageError
from floodmark.schemas.timestamps import END_OF_TIME, to_datetime

_DURATION: Final = re.compile(r"([0-9]{1,9})(ms|s|min|m|h|d)", re.ASCII)
_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
DAY: Final = _UNITS["d"]
_LONGEST: Final = 36_500 * DAY
_CYCLES: Final = (1, _UNITS["min"], _UNITS["h"], DAY // 2, DAY, 146_097 * DAY)
"""After each of these, some fields of `strftime` repeat; after the last, 400 years, all but those with the century."""
_COMPARED: Final = 1_500
"""Periods to compare at the distance of each cycle: days up to 1974, with a leap year and weeks in two years."""
_DIRECTIVE: Final = re.compile(r"%[^a-zA-Z%]*[EO]?([a-zA-Z%])")


def duration(text: str, option: str) -> int:
    """Return a duration in milliseconds; `UsageError` names the option.

    >>> duration("90min", "--every"), duration("1d", "--every")
    (5400000, 86400000)
    >>> duration("soon", "--every")
    Traceback (most recent call last):
    floodmark.schemas.errors.UsageError: --every is 'soon', expected a duration: 30s, 15min, 1h or 1d, at most 36500d
    """
    found = _DURATION.fullmatch(text.strip())
    length = 0 if found is None else int(found[1]) * _UNITS[found[2]]
    if not 0 < length <= _LONGEST:
        raise UsageError(reason=f"{option} is {text!r}, expected a duration: 30s, 15min, 1h or 1d, at most 36500d")
    return length


def duration_text(milliseconds: int) -> str:
    """Return a duration as `duration` reads it.

    >>> duration_text(300_000), duration_text(5_400_000), duration_text(86_400_000), duration_text(1_001)
    ('5min', '90min', '1d', '1001ms')
    """
    unit = max(
        (unit for unit in _UNITS if milliseconds % _UNITS[unit] == 0), key=lambda unit: (_UNITS[unit], len(unit))
    )
    return f"{milliseconds // _UNITS[unit]}{unit}"


def instant(time: int) -> str:
    """Return a time in ISO 8601, UTC; a number outside the calendar stays a number.

    >>> instant(1_356_998_400_000), instant(500), instant(10**15)
    ('2013-01-01T00:00:00Z', '1970-01-01T00:00:00.500000Z', '1000000000000000')
    """
    try:
        return to_datetime(time).isoformat().replace("+00:00", "Z")
    except OverflowError:  # Kafka's timestamp of a mark, from a writer that uses another unit
        return str(time)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text with the start or the end of a period in it, such as a path or the key of a partition.

    Args:
        text: with fields of `str.format`, each a datetime.
        option: for messages.
        every: length of the periods, milliseconds.

    Raises:
        UsageError: if it has other fields than ``start`` and ``end``, or ``%s``, which depends on the zone of the
            machine, or if two of the periods that are compared have the same text.

    >>> Pattern("out/dt={start:%Y-%m-%d}/hour={start:%H}", "--success", 3_600_000).of(3_600_000)
    'out/dt=1970-01-01/hour=01'
    >>> Pattern("out/hour={start:%H}", "--success", 3_600_000)
    Traceback (most recent call last):
    floodmark.schemas.errors.UsageError: --success is 'out/hour={start:%H}', which gives two periods the same name. \
Write the date and the time, such as {start:%Y-%m-%dT%H:%M:%S}
    """

    text: str
    option: str
    every: int

    def __post_init__(self) -> None:
        last = END_OF_TIME - self.every
        starts = {start for cycle in _CYCLES for start in range(0, last, lcm(self.every, cycle))[:_COMPARED]}
        try:
            names = {self.of(start) for start in starts}
            is_local = any("s" in _DIRECTIVE.findall(spec or "") for _, _, spec, _ in Formatter().parse(self.text))
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            reason = f"{self.option} is {self.text!r}, expected only fields such as {{start:%Y-%m-%d}} or {{end:%H}}"
            raise UsageError(reason=reason) from error
        if is_local or len(names) < len(starts):
            fault = "uses the time zone of this machine for %s" if is_local else "gives two periods the same name"
            reason = f"{self.option} is {self.text!r}, which {fault}. Write the date and the time, such as"
            raise UsageError(reason=f"{reason} {{start:%Y-%m-%dT%H:%M:%S}}")

    def of(self, start: int) -> str:
        """Return the text for the period with this start, epoch milliseconds."""
        return self.text.format(start=to_datetime(start), end=to_datetime(start + self.every))
