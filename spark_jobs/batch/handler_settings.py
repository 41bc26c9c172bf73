"""The settings of a job that its batches need."""

from dataclasses import dataclass
from datetime import timedelta

from floodmark.spark_jobs.lookahead.rules import LookaheadRules
from floodmark.spark_jobs.progress.spark_watermark import WindowsClose
from floodmark.spark_jobs.reading.event_time import Derived


@dataclass(frozen=True, slots=True)
class Settings:
    """See `WriteOptions`; ``rules`` and ``derived`` follow from the query."""

    hold: timedelta = timedelta(0)
    windows_close: WindowsClose = "after"
    rebuild: bool = False
    lookahead: timedelta = timedelta(0)
    rules: LookaheadRules = LookaheadRules(possible=False)  # noqa: RUF009  # frozen
    derived: Derived = Derived()  # noqa: RUF009  # frozen
