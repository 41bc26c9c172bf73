"""Whose batch may begin, if a process runs more jobs than it has cores.

If all batches ran at once, each would take as long as all of them, and a window would wait for that once in each job of
a chain.  In turns, a batch is short, and a job that waits for its turn reads on: its next batch closes more windows.

The first turn goes to the job with the lowest watermark.  In a chain, this is the one that reads what the last batch
has written, so the windows of one batch pass through the whole chain before the first job takes the next ones.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

_SETTLE: Final = 0.05  # seconds after a batch, in which other jobs find its marks
_LONGEST_BATCH: Final = 5.0  # seconds; a longer batch gives its turn away, or short ones would wait for it
_LONGEST_WAIT: Final = 10.0  # seconds; after them, a job begins without a turn
_AWAY: Final = 1.0  # seconds after which a job no longer waits if it has not asked again

Order = tuple[bool, int]
"""Lower goes first: whether the next batch would close nothing, then the watermark."""


class Turns:
    """The turns of the jobs of a process, each named by an object; any thread may call it.

    >>> now = 0.0
    >>> turns = Turns(lambda: now)
    >>> for job in ("a", "b", "c"):
    ...     turns.end(job)  # of an earlier batch
    >>> now = 1.0
    >>> turns.take("a", (False, 9), most=1), turns.take("b", (False, 7), most=1), turns.take("c", (False, 5), most=1)
    (True, False, False)
    >>> turns.end("a")
    >>> now = 1.1
    >>> turns.take("b", (False, 7), most=1), turns.take("c", (False, 5), most=1)
    (False, True)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock: Final = threading.Lock()
        self._known: Final[dict[object, float]] = {}  # when each job has last asked, or ended a batch
        self._until: Final[dict[object, float]] = {}  # who has a turn
        self._waiting: Final[dict[object, tuple[Order, float]]] = {}  # the order, and since when
        self._free_at = 0.0

    def is_crowded(self, most: int) -> bool:
        """Tell whether more than ``most`` jobs have run in the last seconds."""
        with self._lock:
            self._forget(self._clock())
            return len(self._known) > most

    def take(self, who: object, order: Order, most: int) -> bool:
        """Tell whether a job has a turn now, of ``most`` at once; if not, it asks again."""
        with self._lock:
            now = self._known[who] = self._clock()
            self._forget(now)
            if who in self._until:
                return True
            _, since = self._waiting.get(who, (order, now))
            self._waiting[who] = order, since
            is_free = len(self._until) < most and now >= self._free_at
            is_first = all(order <= other for other, _ in self._waiting.values())
            if len(self._known) > most and not (is_free and is_first) and now < since + _LONGEST_WAIT:
                return False
            del self._waiting[who]
            self._until[who] = now + _LONGEST_BATCH
            return True

    def _forget(self, now: float) -> None:
        for other in [other for other, until in self._until.items() if until <= now]:
            del self._until[other]
        for other in [other for other in self._waiting if self._known[other] + _AWAY <= now]:
            del self._waiting[other]
        for other in [other for other, seen in self._known.items() if seen + _LONGEST_WAIT <= now]:
            del self._known[other]

    def end(self, who: object) -> None:
        """End a turn, or the wait for one."""
        with self._lock:
            self._waiting.pop(who, None)
            now = self._known[who] = self._clock()
            if self._until.pop(who, None) is not None:
                self._free_at = now + _SETTLE

    def leave(self, who: object) -> None:
        """Forget a job."""
        with self._lock:
            for jobs in (self._known, self._until, self._waiting):
                jobs.pop(who, None)
