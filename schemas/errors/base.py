"""The base of all errors: typed fields, and a message made from them with control characters escaped.  Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from string import Formatter
from typing import Any, ClassVar, Final, dataclass_transform

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END: Final = timedelta(milliseconds=253_402_300_799_999)  # `END_OF_TIME` of `timestamps`, which imports this module


def iso(time: int | None) -> str:
    """Return a time in ISO 8601, UTC; a number outside the calendar stays a number.

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
    r"""Return text with line breaks and control characters escaped.

    >>> print(printable("web\x1b[2J \n\u202e naïve"))
    web\x1b[2J \n\u202e naïve
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def printable_lines(text: str) -> str:
    """Return the same, but keep line breaks."""
    return "\n".join(map(printable, text.split("\n")))


class Wording(Formatter):
    """Fills in the templates of errors; ``{watermark!t}`` formats a time.

    >>> Wording().format("behind {watermark!t}", watermark=12)
    'behind 1970-01-01T00:00:00.012+00:00'
    """

    def convert_field(self, value: Any, conversion: str | None) -> Any:  # noqa: ANN401  # as its base has it
        """Format a time for ``!t``."""
        return iso(value) if conversion == "t" else super().convert_field(value, conversion)


__all__ = ["FloodmarkError"]

_PUBLIC: Final = "floodmark.schemas.errors"


@dataclass_transform(kw_only_default=True, eq_default=False)
@dataclass(kw_only=True, eq=False, repr=False)
class FloodmarkError(Exception):
    """The base of all errors of Floodmark.  Each kind declares its fields and the template of its message.

    Fields are keyword arguments and attributes.  A missing or unknown field is a `TypeError`; so is raising a family.

    >>> from floodmark.schemas.errors import UnknownTopicError
    >>> UnknownTopicError(topic="clicks", bootstrap_servers="localhost:9092").topic
    'clicks'
    """

    template: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """Make each kind a dataclass with its fields as keyword arguments."""
        super().__init_subclass__()
        cls.template = cls.__dict__.get("template", "")
        if cls.__module__.startswith(_PUBLIC):
            cls.__module__ = _PUBLIC  # the name in imports, tracebacks and pickles
        dataclass(kw_only=True, eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        if not self.template:
            raise TypeError(f"{type(self).__name__} is a family of errors: raise one of its kinds")
        super().__init__(Wording().format(self.template, **self._fields()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by fields, so that the error keeps them in another process."""
        return partial(type(self), **self._fields()), ()

    def _fields(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("__")}
