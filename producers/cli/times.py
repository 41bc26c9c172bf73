"""Times and lengths of time as people read them."""

from typing import Final

from floodmark.schemas.timestamps import to_datetime

_TENTHS: Final = 10_000
_UNITS: Final = (("y", 31_536_000), ("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def span(milliseconds: int | None) -> str:
    """Return a length of time as people say it; two units at most.

    >>> span(1_500), span(95_000), span(None), span(-7_200_000), span(90_000_000)
    ('1.5 s', '1 min 35 s', '-', '-2 h', '1 d 1 h')
    """
    if not milliseconds:
        return "-" if milliseconds is None else "0 s"
    if milliseconds < 0:
        return f"-{span(-milliseconds)}"
    if milliseconds < _TENTHS:
        return f"{milliseconds / 1000:.1f} s"
    left, parts = milliseconds // 1000, list[str]()
    for unit, seconds in _UNITS:
        count, left = divmod(left, seconds)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(part for part in parts[:2] if part)


def moment(time: int | None, now: int) -> str:
    """Return a time in UTC, without its day where that is today.

    >>> moment(1_763_800_000_000, 1_763_800_060_000), moment(0, 1_763_800_060_000)
    ('08:26:40Z', '1970-01-01 00:00:00Z')
    """
    if time is None:
        return "-"
    at = to_datetime(time)
    return at.strftime("%H:%M:%SZ") if at.date() == to_datetime(now).date() else f"{at:%Y-%m-%d %H:%M:%SZ}"
