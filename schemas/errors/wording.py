"""Times and foreign text as people read them, in messages and reprs.  Pure."""

from datetime import UTC, datetime, timedelta
from string import Formatter
from typing import Any, Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END: Final = timedelta(milliseconds=253_402_300_799_999)  # `END_OF_TIME` of the timestamps, which import this room


def iso(time: int | None) -> str:
    """Return a time in ISO 8601, UTC; ``None`` is unknown, and the end of time is called so.

    What lies outside the calendar stays a number.

    >>> iso(1_356_998_400_000), iso(None), iso(253_402_300_799_999)
    ('2013-01-01T00:00:00.000+00:00', 'unknown', 'end of time')
    """
    if time is None:
        return "unknown"
    try:
        since = timedelta(milliseconds=time)
        return "end of time" if since == _END else (_EPOCH + since).isoformat(timespec="milliseconds")
    except OverflowError:
        return str(time)


def printable(text: str) -> str:
    r"""Return text of which a terminal only shows characters: what would control it, or breaks a line, is escaped.

    >>> print(printable("web\x1b[2J \n\u202e naïve"))
    web\x1b[2J \n\u202e naïve
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def printable_lines(text: str) -> str:
    """Return the same of text with lines of its own."""
    return "\n".join(map(printable, text.split("\n")))


class Wording(Formatter):
    """Fills in templates; a field that is a time is written ``{watermark!t}``.

    >>> Wording().format("behind {watermark!t}", watermark=12)
    'behind 1970-01-01T00:00:00.012+00:00'
    """

    def convert_field(self, value: Any, conversion: str | None) -> Any:  # noqa: ANN401  # as its base has it
        """Show a time where a template asks for it; all else as Python does."""
        return iso(value) if conversion == "t" else super().convert_field(value, conversion)
