"""The settings of a job that its batches need."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from sys import maxsize

from floodmark.spark_jobs.lookahead.rules import LookaheadRules
from floodmark.spark_jobs.progress.watermarks import Stamp, WindowsClose
from floodmark.spark_jobs.reading.event_time import Derived


@dataclass(frozen=True, slots=True)
class Settings:
    """See `WriteOptions`; the others follow from the query."""

    stamp: Stamp = Stamp()  # noqa: RUF009  # frozen
    windows_close: WindowsClose = "after"
    rebuild: bool = False
    lookahead: timedelta = timedelta(0)
    rules: LookaheadRules = LookaheadRules(possible=False)  # noqa: RUF009  # frozen
    derived: Derived = Derived()  # noqa: RUF009  # frozen
    limits: Sequence[Mapping[str, int]] = ()
    """The most records of the second batch of a start, the third, ..., by topic; later ones have the last limit."""
    turns: int = maxsize
    """How many batches of all jobs of the process may run at once, if they look ahead."""
    epoch: Callable[[], int] = int
    """Returns the last epoch of the job in its output; 0: none."""

    def output(self, complete: int | None) -> int | None:
        """See `Stamp.output`."""
        return self.stamp.output(complete, self.windows_close)
