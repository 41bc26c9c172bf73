"""What the last marks of one source in one partition say: does it move, and is it well.  Pure.

The rules are those of LinkedIn's Burrow for the offsets of a consumer (its wiki, "Consumer Lag Evaluation Rules", and
``core/internal/evaluator/caching.go``), carried over to marks: what a consumer commits is what a source promises, and
the lag is the time by which the promise is behind the clock.  Nobody sets a threshold.  Where Burrow judges by ten
commits at a steady interval, marks come in bursts (`flush`) and events in pauses, so two lengths are learned besides:
the longest pause between two marks, and the longest time that the watermark stood, of the last fifty: an outage is
forgotten after so many.
"""

from collections import deque
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

from floodmark.schemas.processing_time import processing_time_of
from floodmark.schemas.records import Status, WatermarkRecord
from floodmark.schemas.timestamps import promisable

WINDOW: Final = 10
"""So many marks are judged, as in Burrow."""

_LEARNED: Final = 50
"""So many pauses are remembered."""

_BEGINNING: Final = 2_000
"""Milliseconds of silence that are no news of a source with few marks: two of the producers' default intervals."""


class Health(StrEnum):
    """The verdict on a source in a partition; ``None`` in its place: its marks do not tell.

    Burrow's rules, with the watermark for the offset, and wall clock less watermark for the lag:
    """

    OK = "OK"
    """It has risen, or it is not behind the clock, or it asks not to be waited for (idle, ended)."""
    WARN = "WARN"
    """It rises, but over ten marks its lag grew and at no step shrank."""
    REWIND = "REWIND"
    """It promises less than it has promised before: what was handed on is not taken back, what comes below is late."""
    STALL = "STALL"
    """Its marks come, and over ten of them the watermark stood; for longer than it lately used to."""
    STOP = "STOP"
    """Nothing came for longer than its last ten marks took, and than twice the longest pause that it lately made."""


_SEVERITY: Final = (Health.OK, Health.WARN, None, Health.REWIND, Health.STALL, Health.STOP)


def severity(verdict: Health | None) -> int:
    """Return a number by which verdicts compare: a higher one is worse; unknown is worse than a warning.

    >>> severity(Health.OK) < severity(Health.WARN) < severity(None) < severity(Health.STALL) < severity(Health.STOP)
    True
    """
    return _SEVERITY.index(verdict)


def is_failure(verdict: Health | None) -> bool:
    """Tell whether a verdict means that something is stuck or fails, rather than well, slow or unknown."""
    return severity(verdict) > severity(None)


class _Point(NamedTuple):
    log_time: int
    watermark: int | None
    records: int | None
    processing_time: int | None

    @property
    def lag(self) -> int:
        """How far the promise was behind the clock; without one, infinitely far for all that comes here."""
        return self.log_time - (self.watermark or 0)


class History:
    """The last marks of one source in one partition, in the order of the log; replays and zombies are left out.

    >>> history = History()
    >>> def mark(sequence, watermark):
    ...     return WatermarkRecord(source="web", epoch=1, sequence=sequence, watermark=watermark, partitions=1,
    ...                            emitted_at=0)
    >>> for second in range(20):
    ...     history.take(mark(second, min(second, 9) * 1_000 - 500), second * 1_000)
    >>> history.since, history.since_exact, history.verdict(now=19_500)
    (9000, True, <Health.STALL: 'STALL'>)
    >>> history.verdict(now=29_000)
    <Health.STOP: 'STOP'>
    """

    __slots__ = (
        *("_last", "_pauses", "_peak", "_points", "_rose", "_stood"),
        *("mark", "seen", "since", "since_exact"),
    )

    def __init__(self) -> None:
        self.mark: WatermarkRecord | None = None
        """The last one."""
        self.since = 0
        """Since when it says so: log time of the first mark with this watermark and status, epoch milliseconds."""
        self.since_exact = False
        """Whether that is known; else it says so since then or longer."""
        self.seen = 0
        """When the last mark was written, by its log time, or was read, where it was waited for."""
        self._points: deque[_Point] = deque(maxlen=WINDOW)
        self._last = (-1, -1)
        self._peak: int | None = None
        self._pauses: deque[int] = deque([0], maxlen=_LEARNED)
        self._stood: deque[int] = deque([0], maxlen=_LEARNED)
        self._rose = False

    def take(self, mark: WatermarkRecord, log_time: int, read_at: int | None = None) -> None:
        """Take the next mark.

        Args:
            mark: of this source and partition.
            log_time: its Kafka timestamp, epoch milliseconds.
            read_at: the reader's clock, where the mark was read as it came; ``None``: it stood there before.
        """
        number = (mark.epoch, mark.sequence)
        if number <= self._last:
            return
        watermark = None if mark.watermark is None else promisable(mark.watermark)
        if mark.epoch != self._last[0]:
            self._points.clear()
            self._rose = False
        before = self._points[-1].watermark if self._points else None
        rose = bool(self._points) and watermark is not None and (before is None or watermark > before)
        if self.mark is None or rose or mark.epoch != self._last[0] or mark.status is not self.mark.status:
            if rose and self._rose:
                self._stood.append(log_time - self.since)
            self.since, self.since_exact = log_time, self.mark is not None or mark.sequence == 0
        if self._points:
            self._pauses.append(log_time - self._points[-1].log_time)
        self._rose = self._rose or rose
        self._points.append(_Point(log_time, watermark, mark.records, processing_time_of(mark)))
        if watermark is not None:
            self._peak = watermark if self._peak is None else max(watermark, self._peak)
        self.mark, self._last = mark, number
        self.seen = max(log_time, log_time if read_at is None else read_at)

    @property
    def watermark(self) -> int | None:
        """The last promise, epoch milliseconds; ``None``: none yet."""
        return self._points[-1].watermark if self._points else None

    @property
    def is_whole(self) -> bool:
        """Whether there are as many marks as are judged."""
        return len(self._points) == WINDOW

    @property
    def is_settled(self) -> bool:
        """Whether older marks would change no verdict: there are enough, or no older ones, or it is not waited for."""
        mark = self.mark
        return mark is not None and (
            self.is_whole or mark.status is not Status.ACTIVE or len(self._points) > mark.sequence
        )

    @property
    def brings_records(self) -> bool:
        """Whether records came within the last marks."""
        counted = [point.records for point in self._points if point.records is not None]
        return len(counted) > 1 and counted[-1] > counted[0]

    @property
    def works_off(self) -> bool:
        """Whether, within the last marks, what had come to it was worked off."""
        known = [point.processing_time for point in self._points if point.processing_time is not None]
        return len(known) > 1 and known[-1] > known[0]

    @property
    def gains(self) -> bool:
        """Whether the watermark comes nearer to the clock: over ten marks the lag shrank, and at no step grew."""
        lags = self._lags()
        return self.is_whole and lags[-1] < lags[0] and all(b <= a for a, b in pairwise(lags))

    def _lags(self) -> list[int]:
        return [point.lag for point in self._points]

    def verdict(self, now: int) -> Health | None:
        """Judge the source by its last marks.

        Args:
            now: the reader's clock, epoch milliseconds.

        Returns:
            The verdict; ``None``: there are too few marks to tell, or nothing is promised.
        """
        if self.mark is None:
            return None
        if self.mark.status is not Status.ACTIVE:
            return Health.OK
        watermark = self.watermark
        if watermark is None:
            return Health.STOP if self._is_silent(now) else None
        if watermark >= now:
            return Health.OK
        if self._peak is not None and watermark < self._peak:
            return Health.REWIND
        return Health.STOP if self._is_silent(now) else self._movement()

    def _is_silent(self, now: int) -> bool:
        steps = len(self._points) - 1
        if steps < 1:
            return False
        span = self._points[-1].log_time - self._points[0].log_time
        least = 0 if self.is_whole else _BEGINNING
        return now - self.seen > max(span * (WINDOW - 1) // steps, 2 * max(self._pauses), least)

    def _movement(self) -> Health | None:
        first, last = self._points[0], self._points[-1]
        if first.watermark != last.watermark:
            lags = self._lags()
            slower = self.is_whole and lags[-1] > lags[0]
            return Health.WARN if slower and all(b >= a for a, b in pairwise(lags)) else Health.OK
        stands = last.log_time - self.since
        if self.is_whole and stands > max(*self._pauses, *self._stood):
            return Health.STALL
        return Health.OK if self._rose else None
