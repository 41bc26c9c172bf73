"""What a user says of the beginning of a job."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

from floodmark.schemas.errors import UsageError
from floodmark.schemas.timestamps import duration_of, event_time_of

WhenPublished = Literal["refuse", "continue", "repeat"]
"""What a job without a checkpoint makes of results that stand in its output topic already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Where a job begins whose ``checkpoint_location`` is new; one that has run goes on from there.

    Args:
        output_at: no result with an earlier event time is written, and the first ones are complete: the job reads
            the topics from there on where records arrived that such a result may need.  ``None``: from the beginning.
        published: what becomes of results that the output topic has from this job already: ``"refuse"`` to start;
            ``"continue"`` behind them, so that none is missing and none is there twice; ``"repeat"`` them.
        largest_window: how far before the time of a result its input may lie: the widest window (in a chain of
            windows, all widths together), the longest session, the bound of a join.  Jobs that keep state need it.
        early: how far the event time of a record may lie ahead of the time at which Kafka got it, 0 or more.

    Raises:
        UsageError: where a value is out of its bounds, or a time has no time zone.

    >>> Start(published="again")
    Traceback (most recent call last):
    floodmark.schemas.errors.UsageError: published is 'again', expected 'refuse' or 'continue' or 'repeat'
    """

    output_at: datetime | None = None
    published: WhenPublished = "refuse"
    largest_window: timedelta | None = None
    early: timedelta = timedelta(minutes=1)

    def __post_init__(self) -> None:
        if self.output_at is not None:
            if not isinstance(self.output_at, datetime):
                raise UsageError(reason=f"output_at is {self.output_at!r}, expected a datetime with a time zone")
            event_time_of(self.output_at)
        duration_of(self.early, "early")
        if self.largest_window is not None:
            duration_of(self.largest_window, "largest_window")
        if self.published not in get_args(WhenPublished):
            expected = " or ".join(map(repr, get_args(WhenPublished)))
            raise UsageError(reason=f"published is {self.published!r}, expected {expected}")
