"""The last marks of one source in one partition, and its verdict by them.  Pure.

The rules are those of LinkedIn's Burrow for consumer offsets (its wiki, "Consumer Lag Evaluation Rules"), with the
watermark for the committed offset, and no threshold to set.  Marks come in bursts (`flush`) and events with pauses, so
the history also learns the longest pause between two marks and the longest time without progress.
"""

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from itertools import combinations, pairwise
from typing import Final, NamedTuple

from floodmark.producers.board.estimate import inputs_named, offsets_read
from floodmark.producers.event_times.injection import STATE_HEADER
from floodmark.schemas.classify import Mark, Offsets, Place, mark_header
from floodmark.schemas.records import (
    HELD_HEADER,
    READ_HEADER,
    Held,
    Holder,
    Status,
    Verdict,
    WatermarkRecord,
    processing_time_of,
)
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME, promisable
from floodmark.schemas.topic_state import TopicState

WINDOW: Final = 10  # marks that a verdict needs, as in Burrow

_LEARNED: Final = 50  # pauses to remember

_BEGINNING: Final = 2_000  # milliseconds of silence to allow a source with few marks: two default intervals

_RESTART: Final = 60_000  # milliseconds of silence to allow after the first mark of a restart

_RESTARTS: Final = 3  # as many within `_OFTEN` milliseconds are no deployment

_OFTEN: Final = 120_000

_SLOW: Final = 5_000  # milliseconds of lag that may come and go, as at a start

_SHRINKS: Final = 7
"""Of the 45 pairs of ten lags, so many may shrink where the lag grows, as in Mann and Kendall's test of a trend.

Between events that are irregular, lags grow, too: for as long as the watermark stands.
"""

_AHEAD: Final = 300_000  # milliseconds that a watermark may be ahead of the clock: clocks of machines differ
_CENTURY: Final = 36_525 * 86_400_000  # no booking is so far ahead, but a placeholder such as 9999-12-31 is

_SECONDS_FROM: Final = 1_000_000_000
_SECONDS_UNTIL: Final = 31_536_000_000
"""Watermarks from January 12th to December 31st, 1970: real times in seconds.  Times in tests are smaller."""


class Health(StrEnum):
    """The verdict on a source in a partition; ``None`` instead: its marks are too few to tell."""

    OK = "OK"  # the watermark advances or is not behind the clock, or the source is idle or ended
    WARN = "WARN"  # its lag is over 5 s, and grew over ten marks; an injector has no events; many restarts
    REWIND = "REWIND"  # the watermark is lower than before: rows between the two are late
    UNCOUNTED = "UNCOUNTED"  # more sources write to the topic than its membership counts
    STALL = "STALL"  # the watermark did not advance over ten marks, and for longer than it lately did
    STOP = "STOP"  # no mark came for longer than its last ten took, and for twice its longest recent pause
    TIME = "TIME"  # the watermark is in 1970 (seconds taken for milliseconds), or an event moved it ahead of the clock
    FENCED = "FENCED"  # readers ignore a process that still writes: another has a higher epoch or membership


_SEVERITY: Final = (
    *(Health.OK, Health.WARN, None),
    *(Health.REWIND, Health.UNCOUNTED, Health.STALL, Health.STOP, Health.TIME, Health.FENCED),
)


def severity(verdict: Health | None) -> int:
    """Return a number that is higher for a worse verdict; unknown is worse than a warning.

    >>> severity(Health.OK) < severity(Health.WARN) < severity(None) < severity(Health.STALL) < severity(Health.STOP)
    True
    """
    return _SEVERITY.index(verdict)


def is_failure(verdict: Health | None) -> bool:
    """Return whether a source with this verdict is stuck or fails."""
    return severity(verdict) > severity(None)


def is_ahead(watermark: int | None, now: int) -> bool:
    """Return whether a watermark is further ahead of the clock than clocks differ; both in epoch milliseconds."""
    return watermark is not None and now + _AHEAD < watermark < END_OF_TIME


class _Point(NamedTuple):
    log_time: int
    watermark: int | None
    records: int | None
    processing_time: int | None

    @property
    def lag(self) -> int:
        """Milliseconds from the watermark to the log time; without a watermark, since 1970."""
        return self.log_time - (self.watermark or 0)


class _Jump(Enum):
    FROM_THE_CLOCK = 1
    FROM_ELSEWHERE = 2


class History:
    """The last marks of one source in one partition, in log order, without repeated marks and those of old epochs.

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

    def __init__(self) -> None:
        self.mark: WatermarkRecord | None = None
        self.since = 0  # log time of the first mark with this watermark and status, in any epoch, epoch milliseconds
        self.since_exact = False  # whether that mark was read; else an earlier one may have the same watermark
        self.seen = 0  # log time of the last mark, or when it was read if that is later, epoch milliseconds
        self.retired = False  # whether readers ignored the last mark, because its membership is too old
        self._fenced: deque[tuple[int, int]] = deque(maxlen=WINDOW)
        self._restarts: deque[int] = deque(maxlen=_RESTARTS)  # log times of the first marks of the last epochs
        self._jump: _Jump | None = None
        self._known: int | None = None
        self._near: deque[bool] = deque(maxlen=WINDOW)  # whether the last watermarks, in any epoch, were near the clock
        self._by_events = False  # whether events moved the watermark to where it is
        self._sequences: dict[int, int] = {}
        self._points: deque[_Point] = deque(maxlen=WINDOW)
        self._last = (-1, -1)
        self.peak: int | None = None  # the highest watermark of any epoch, epoch milliseconds
        self._moved = 0  # as `since`, in the last epoch
        self._pauses: deque[int] = deque([0], maxlen=_LEARNED)
        self._stood: deque[int] = deque([0], maxlen=_LEARNED)
        self._rose = False

    def take(self, mark: WatermarkRecord, log_time: int, read_at: int | None = None, *, retired: bool = False) -> None:
        """Take the next mark; ``read_at``: when it arrived, epoch milliseconds, ``None`` for marks of the past."""
        number = (mark.epoch, mark.sequence)
        seen = max(log_time, log_time if read_at is None else read_at)
        if mark.sequence <= self._sequences.get(mark.epoch, -1):
            return  # a replay
        self._sequences[mark.epoch] = mark.sequence
        if number <= self._last:
            if mark.status is Status.ENDED:
                self._fenced.clear()
            else:
                self._fenced.append((mark.epoch, seen))
            return
        watermark = None if mark.watermark is None else promisable(mark.watermark)
        if watermark is not None:
            self._watch_for_a_jump(mark, watermark, log_time)
        skipped = mark.sequence != (self._last[1] + 1 if mark.epoch == self._last[0] else 0)  # marks were not read
        if mark.epoch != self._last[0]:
            self._begin_epoch(log_time)
        if mark.epoch != self._last[0] or skipped:
            self._rose = False
        before = self._points[-1].watermark if self._points else None
        rose = bool(self._points) and watermark is not None and (before is None or watermark > before)
        if self.mark is None or rose or mark.epoch != self._last[0] or mark.status is not self.mark.status:
            self._change(mark, watermark, log_time, rose=rose, exact=not skipped, retired=retired)
        if self._points and not skipped:
            self._pauses.append(log_time - self._points[-1].log_time)
        self._rose = self._rose or rose
        self._points.append(_Point(log_time, watermark, mark.records, processing_time_of(mark)))
        if watermark is not None:
            self.peak = watermark if self.peak is None else max(watermark, self.peak)
        self.mark, self._last = mark, number
        self.seen, self.retired = seen, retired

    def _begin_epoch(self, log_time: int) -> None:
        self._points.clear()
        self._fenced.clear()
        if self.is_active:
            self._restarts.append(log_time)

    def _change(
        self, mark: WatermarkRecord, watermark: int | None, log_time: int, *, rose: bool, exact: bool, retired: bool
    ) -> None:
        """Note when the present state began: a restart with the same status and watermark changes nothing."""
        if rose and self._rose:
            self._stood.append(log_time - self._moved)
        self._moved = log_time
        known = self.mark is not None and mark.status is self.mark.status and self.peak is not None
        ignored = retired and self.mark is not None
        if not (ignored or (known and watermark in {None, self.peak})):
            self.since, self.since_exact = log_time, exact

    def _watch_for_a_jump(self, mark: WatermarkRecord, watermark: int, log_time: int) -> None:
        """Note an event that moved the watermark ahead of the clock; times that always are (bookings) are no jump."""
        before, self._known = self._known, watermark
        if watermark == before:
            return
        near, ahead = list(self._near), watermark - log_time > _AHEAD
        self._near.append(abs(watermark - log_time) <= _AHEAD)
        if before is None:
            return
        counts = [*(point.records for point in self._points), mark.records]
        self._by_events = None in counts or len(set(counts)) > 1
        if ahead and self._by_events and before - log_time <= _AHEAD:
            self._jump = _Jump.FROM_THE_CLOCK if len(near) > 1 and all(near) else _Jump.FROM_ELSEWHERE
        elif not ahead or self._jump is not _Jump.FROM_THE_CLOCK:
            self._jump = None

    @property
    def watermark(self) -> int | None:
        """Of the last mark, epoch milliseconds."""
        return self._points[-1].watermark if self._points else None

    @property
    def is_active(self) -> bool:
        """Whether the last mark's status is active."""
        return self.mark is not None and self.mark.status is Status.ACTIVE

    @property
    def is_whole(self) -> bool:
        """Whether there are enough marks for a verdict."""
        return len(self._points) == WINDOW

    @property
    def has_one_mark(self) -> bool:
        """Whether only one mark was read, and the source is active by it: whether it still writes is unknown."""
        return self.is_active and len(self._points) == 1

    def stops_at_one(self, now: int) -> bool:
        """Return whether no second mark has come for longer than after a restart."""
        return self.has_one_mark and now - self.seen > _RESTART

    @property
    def is_waited_for(self) -> bool:
        """Whether readers wait for it by its last mark, also if it has stopped."""
        return self.is_active and self.mark is not None and self.mark.lease is None

    @property
    def is_settled(self) -> bool:
        """Whether older marks would not change the verdict, also not of a jump or of a job that has ended."""
        mark, marks = self.mark, len(self._points)
        if mark is None or (self.is_active and not self.since_exact and self._is_ahead(self._points[-1].log_time)):
            return False
        return self.is_whole or (not self.is_active and marks > 1) or marks > mark.sequence

    @property
    def brings_records(self) -> bool:
        """Whether the source sent records between its last marks."""
        counted = [point.records for point in self._points if point.records is not None]
        return len(counted) > 1 and counted[-1] > counted[0]

    def marks_since(self, time: int) -> int:
        """Return how many of the last ten marks came after a log time, epoch milliseconds."""
        return sum(point.log_time > time for point in self._points)

    @property
    def stands(self) -> bool:
        """Whether the watermark was the same over the last marks."""
        return bool(self._points) and self._points[0].watermark == self._points[-1].watermark

    @property
    def works_off(self) -> bool:
        """Whether the processing-time watermark advanced over the last marks."""
        known = [point.processing_time for point in self._points if point.processing_time is not None]
        return len(known) > 1 and known[-1] > known[0]

    @property
    def _tells_its_work(self) -> bool:
        """Whether the last mark is of no job, and says what the source has read, or what is not acknowledged."""
        mark = self.mark
        return mark is not None and mark.holder is None and mark.processing_time_watermark is not None

    @property
    def awaits_acknowledgement(self) -> bool:
        """Whether the oldest unacknowledged record of the source was the same over the last marks."""
        return self._tells_its_work and not self.works_off

    @property
    def _has_read_all(self) -> bool:
        """Whether an injector has read all of its input, and its watermark is going to follow the clock."""
        return self._tells_its_work and self.works_off and not self.brings_records

    @property
    def waits_for(self) -> Holder | None:
        """The source that a job waits for, by its last mark; ``None``: none, or this mark advanced its watermark."""
        mark = self.mark
        if mark is None or mark.holder is None or self.retired or None in {mark.holder.partition, mark.holder.source}:
            return None
        return mark.holder if len({point.watermark for point in [*self._points][-2:]}) == 1 else None

    @property
    def gains(self) -> bool:
        """Whether the lag shrank over ten marks, and grew at none."""
        lags = self._lags()
        return self.is_whole and lags[-1] < lags[0] and all(b <= a for a, b in pairwise(lags))

    def _lags(self) -> list[int]:
        return [point.lag for point in self._points]

    def epochs(self, now: int) -> tuple[int, ...]:
        """Return the epochs that write under this name, the highest last; empty if it is one, or a restart overlaps."""
        if len(self._fenced) <= 1:
            return ()
        took = self._fenced[-1][1] - self._fenced[0][1]
        if now - self._fenced[-1][1] > max(took, _BEGINNING):
            return ()
        return (*sorted({epoch for epoch, _ in self._fenced}), self._last[0])

    def lives(self, now: int) -> bool:
        """Return whether the process with the highest epoch still writes."""
        overtaken = len(self._fenced) == WINDOW and self.seen < self._fenced[0][1]
        ended = self.mark is None or self.mark.status is Status.ENDED
        return len(self._points) > 1 and not (ended or overtaken or self._is_silent(now))

    def verdict(self, now: int, front: int | None = None) -> Health | None:
        """Return the verdict at ``now``; ``None``: unknown.  ``front``: the highest watermark of the sources."""
        if self.mark is None:
            return None
        if self.epochs(now):
            return Health.FENCED
        if not self.is_active:
            return Health.OK
        is_explained = self._jump is None and (self.watermark or 0) < now + _CENTURY
        if self.is_in_seconds(now) or (self._is_ahead(now) and not is_explained):
            return Health.TIME
        found = self._progress(now, front)
        return Health.WARN if found is Health.OK and self.restarts_often(now) else found

    def restarts_often(self, now: int) -> bool:
        """Return whether the source has lately started again and again: it fails, or two services fence each other."""
        return len(self._restarts) == _RESTARTS and now - self._restarts[0] <= _OFTEN

    def _progress(self, now: int, front: int | None) -> Health | None:
        watermark, is_silent = self.watermark, self._is_silent(now)
        if watermark is None:
            waits = self.is_whole and self.awaits_acknowledgement
            return Health.STOP if is_silent else Health.STALL if waits else None
        if watermark >= now:
            # No event is due yet, but others with a higher watermark may wait for this source.
            if is_silent and front is not None and front > watermark:
                return Health.STOP
            return None if self.may_have_jumped(now) else Health.OK
        if is_silent:
            return Health.STOP
        return Health.REWIND if self.peak is not None and watermark < self.peak else self._movement()

    def is_in_seconds(self, now: int) -> bool:
        """Return whether the watermark is in 1970, as if seconds were taken for milliseconds."""
        watermark = self.watermark
        is_source = self.mark is not None and self.mark.holder is None
        return is_source and watermark is not None and _SECONDS_FROM <= watermark < _SECONDS_UNTIL < now

    def may_have_jumped(self, now: int) -> bool:
        """Return whether the watermark is ahead of the clock, and no mark shows how it got there."""
        unseen = self.is_whole and not self.since_exact
        return unseen and self._is_ahead(now) and self.brings_records and not self._is_silent(now)

    def is_unexplained(self, now: int) -> bool:
        """Return whether events moved the watermark ahead of the clock, and it was so in all marks that were read."""
        moved = self._by_events or self.brings_records
        return self.is_active and self._jump is None and moved and self._is_ahead(now)

    def _is_ahead(self, now: int) -> bool:
        is_source = self.mark is not None and self.mark.holder is None
        return is_source and is_ahead(self.watermark, now)

    def _is_silent(self, now: int) -> bool:
        steps = len(self._points) - 1
        if steps < 1:  # a restart may have died at once: only its earlier runs tell how often it sends marks
            usual = max(self._pauses)
            return bool(usual) and now - self.seen > max(2 * usual, _RESTART)
        span = self._points[-1].log_time - self._points[0].log_time
        least = 0 if self.is_whole else _BEGINNING
        return now - self.seen > max(span * (WINDOW - 1) // steps, 2 * max(self._pauses), least)

    def _movement(self) -> Health | None:
        last = self._points[-1]
        if not self.stands:
            lags = self._lags()
            slower = self.is_whole and lags[-1] > max(lags[0], _SLOW)
            return Health.WARN if slower and self._grew(lags) else Health.OK
        stands = last.log_time - self._moved
        if self.is_whole and stands > max(*self._pauses, *self._stood):
            return Health.WARN if self._has_read_all else Health.STALL
        return Health.OK if self._rose else None

    def _grew(self, lags: Sequence[int]) -> bool:
        """Tell whether lags grew at every step, or in most pairs, and by more than the watermark lately stood."""
        shrank = sum(b < a for a, b in combinations(lags, 2))
        return shrank == 0 or (shrank <= _SHRINKS and lags[-1] - lags[0] >= max(self._stood))


def _batch_watermark(published: bytes) -> int | None:
    """Return the watermark in a `READ_HEADER`: Spark's, which is a millisecond lower; ``None``: none, or the end."""
    try:
        watermark = json.loads(published)["batch_watermark"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    valid = isinstance(watermark, int) and EARLIEST <= watermark < END_OF_TIME and watermark != 0
    return watermark + 1 if valid else None


@dataclass(slots=True, eq=False)
class TopicMarks:
    """The marks of one topic: its state, and the history of each source in each partition."""

    state: TopicState = field(default_factory=TopicState)
    histories: dict[tuple[int, str], History] = field(default_factory=dict)  # by partition and source
    inputs: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The input topics of each job that writes to it, by its marks."""
    published: dict[str, bytes] = field(default_factory=dict)  # the last `READ_HEADER` of each job that writes to it
    held: dict[tuple[int, str], Held | None] = field(default_factory=dict)
    """By partition and source: the topic that alignment makes it wait for, by its last mark."""
    injectors: set[str] = field(default_factory=set)  # the sources that are injectors, by their marks
    waiting_shards: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By job whose executors write: how many shards of its batch are not written, of how many."""
    hidden: Mapping[int, Place] = field(default_factory=dict)
    """By partition with an open transaction: where it begins; looked up while a source is silent there."""
    whole: bool = False  # whether all of its records were read, from the first one
    begins: Mapping[int, int] = field(default_factory=dict)  # the offset of the first record, by partition
    counted: dict[int, int] = field(default_factory=dict)
    """The offset of the last mark that counts records, or may stand for some, by partition."""
    topic_id: str | None = None  # Kafka's id of it when it was read
    read_until: int | None = None  # the clock when its end was last reached, epoch ms; ``None``: always at the end

    def take(self, mark: Mark, counts: Counter[str], read_at: int | None) -> None:
        """Take the next mark; see `Fold.take`."""
        record, number = mark.record, mark.partition
        verdict = self.state.apply(record, number, mark.log_time, counts)
        history = self.histories.get((number, record.source))
        if history is None:
            history = self.histories[number, record.source] = History()
        history.take(record, mark.log_time, read_at, retired=verdict is Verdict.RETIRED)
        published = mark_header(mark, record.source, READ_HEADER)
        if named := inputs_named(record.holder, published):
            self.inputs[record.source] |= named
        if verdict not in {Verdict.ACCEPTED, Verdict.REGRESSED}:
            return
        # An end mark may be all that a source without counts has sent.
        if record.records or (record.records is None and record.status is not Status.ENDED):
            self.counted[number] = mark.offset
        if offsets_read(published):  # it names all: a job may have been moved to another topic
            self.inputs[record.source] = named
        if mark_header(mark, record.source, STATE_HEADER) is not None:
            self.injectors.add(record.source)
        self.held[number, record.source] = Held.of(mark_header(mark, record.source, HELD_HEADER))
        if published is not None:
            self.published[record.source] = published

    def batch_watermark(self) -> int | None:
        """Return the lowest watermark that the operators of the topic's jobs ran with; ``None``: unknown, or no job."""
        found = (_batch_watermark(self.published.get(job, b"")) for job in self.inputs)
        known = [watermark for watermark in found if watermark is not None]
        return min(known) if known and len(known) == len(self.inputs) else None

    def read_to_the_end(self, job: str) -> Offsets:
        """Return up to where a job that has ended had read its input; empty: it has not, or its end was not read."""
        history = self.histories.get((0, job))  # marks of other partitions do not say what it has read
        ended = history is not None and history.mark is not None and history.mark.status is Status.ENDED
        return offsets_read(self.published.get(job)) if ended else {}

    def members(self, number: int) -> list[str]:
        """Return the sources with a mark of the newest membership in a partition."""
        part, version = self.state.partitions.get(number), self.state.roster.version
        return [] if part is None else sorted(n for n, source in part.sources.items() if source.version == version)

    def sizes(self) -> list[int]:
        """Return the sizes that marks gave the newest membership; more than one is a conflict."""
        roster = self.state.roster
        said = [history.mark.membership for history in self.histories.values() if history.mark is not None]
        return sorted({roster.size, *(one.size for one in said if one.version == roster.version)})

    def retired(self, now: int) -> dict[int, list[str]]:
        """Return by partition the sources that still write there with an older membership."""
        found: defaultdict[int, list[str]] = defaultdict(list)
        for (number, name), history in sorted(self.histories.items()):
            if history.retired and history.lives(now):
                found[number].append(name)
        return found

    def uncounted(self, counts: Callable[[History], bool]) -> frozenset[str]:
        """Return the members of which ``counts`` is true in a partition, if the membership counts fewer."""
        found = {
            name
            for number in self.state.partitions
            for name in self.members(number)
            if counts(self.histories[number, name])
        }
        return frozenset(found) if len(found) > self.state.roster.size else frozenset()

    def front(self, now: int) -> int | None:
        """Return the highest watermark of the sources that still write."""
        counted = [history for history in self.histories.values() if history.is_active and not history.retired]
        return max((h.watermark for h in counted if h.watermark is not None and h.lives(now)), default=None)

    def lacks(self, number: int, *, since: bool) -> bool:
        """Return whether earlier records are needed; see `Fold.lacking`."""
        part = self.state.partitions.get(number) or self.state.empty(number)
        found = [self.histories[number, name] for name in self.members(number)]
        settled = sum(history.is_settled and (history.since_exact or not since) for history in found)
        return settled + len(part.absent()) < max(self.state.roster.size, 1)
