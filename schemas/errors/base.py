"""What all errors of Floodmark share: typed fields, a message made from them, families that are not raised.  Pure."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, dataclass_transform

from floodmark.schemas.errors.wording import Wording

__all__ = ["FloodmarkError"]

_PUBLIC: Final = "floodmark.schemas.errors"


@dataclass_transform(kw_only_default=True, eq_default=False)
@dataclass(kw_only=True, eq=False, repr=False)
class FloodmarkError(Exception):
    """The base of all errors of Floodmark: a kind declares its fields and the template of its message.

    Fields are keyword arguments and attributes.  A field that is missing or misspelt is a `TypeError`, and so is an
    attempt to raise a family of errors.

    >>> from floodmark.schemas.errors import UnknownTopicError
    >>> UnknownTopicError(topic="clicks", bootstrap_servers="localhost:9092").topic
    'clicks'
    """

    template: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """Give each kind the keyword arguments that its fields say."""
        super().__init_subclass__()
        cls.template = cls.__dict__.get("template", "")
        if cls.__module__.startswith(_PUBLIC):
            cls.__module__ = _PUBLIC  # as users import it, and as tracebacks and pickles name it
        dataclass(kw_only=True, eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        if not self.template:
            raise TypeError(f"{type(self).__name__} is a family of errors: raise one of its kinds")
        super().__init__(Wording().format(self.template, **self._fields()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by fields, so that an error crosses processes whole."""
        return partial(type(self), **self._fields()), ()

    def _fields(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("__")}
