"""The user's choice where a new job starts."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

from floodmark.schemas.errors import UsageError
from floodmark.schemas.timestamps import duration_of, event_time_of

WhenPublished = Literal["refuse", "continue", "repeat"]
"""What a job with a new checkpoint does if its output topic already has results of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Where a job with a new ``checkpoint_location`` starts; with an existing one it resumes from the checkpoint.

    Args:
        output_at: the job writes no result with an earlier event time, and the first results are complete: it reads
            from the first record that such a result may need.  Default: it reads all records.
        published: what to do if the output topic already has results of this job: ``"refuse"`` to start,
            ``"continue"`` after them (no result is missing or written twice), or ``"repeat"`` them.
        largest_window: how far before the time of a result its input may be: the widest window (for windows of windows,
            all widths together), the longest session, or the bound of a join; also a time that the query adds, as in
            ``date_trunc('hour', at) + INTERVAL 1 HOUR``.  Default: computed for fixed windows and
            `drop_duplicates_within`; other state, times that the query adds, and `event_time` need it.
        early: how far the event time of a record may be ahead of its Kafka timestamp, 0 or more.

    Raises:
        UsageError: if a value is out of its bounds, or a time has no time zone.

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
            if self.output_at.tzinfo is None:
                reason = f"output_at is {self.output_at!r}, which has no time zone; use datetime(..., tzinfo=UTC)"
                raise UsageError(reason=reason)
            event_time_of(self.output_at)
        duration_of(self.early, "early")
        if self.largest_window is not None:
            duration_of(self.largest_window, "largest_window")
        if self.published not in get_args(WhenPublished):
            expected = " or ".join(map(repr, get_args(WhenPublished)))
            raise UsageError(reason=f"published is {self.published!r}, expected {expected}")
