"""The minimum rule: how the statements of partitions make a topic's, and those of topics a stage's.  Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from floodmark.schemas.records import Status


@dataclass(frozen=True, slots=True)
class Combined:
    """A combined statement; ACTIVE without a watermark is unknown."""

    status: Status
    watermark: int | None = None

    @property
    def unknown(self) -> bool:
        """Whether nothing is promised."""
        return self.status is Status.ACTIVE and self.watermark is None


UNKNOWN: Final = Combined(Status.ACTIVE)
IDLE: Final = Combined(Status.IDLE)
ENDED: Final = Combined(Status.ENDED)


def lowest(watermarks: Collection[int | None]) -> int | None:
    """Return the lowest watermark; ``None``: one of them is unknown, or there is none.

    >>> lowest([30, 12]), lowest([30, None]), lowest([])
    (12, None, None)
    """
    return None if None in watermarks else min(watermarks, default=None)  # type: ignore[type-var]  # none is None


def least(parts: Iterable[Combined]) -> Combined:
    """Combine the statements of partitions or of topics: the same rule for both.

    >>> least([Combined(Status.ACTIVE, 30), IDLE, Combined(Status.ACTIVE, 12)]).watermark
    12
    >>> least([ENDED, IDLE]) is IDLE, least([ENDED, ENDED]) is ENDED, least([ENDED, UNKNOWN]) is UNKNOWN
    (True, True, True)
    """
    lowest: int | None = None
    idle = False
    for part in parts:
        if part.unknown:
            return UNKNOWN
        if part.watermark is not None:
            lowest = part.watermark if lowest is None else min(lowest, part.watermark)
        idle = idle or part.status is Status.IDLE
    if lowest is not None:
        return Combined(Status.ACTIVE, lowest)
    return IDLE if idle else ENDED
