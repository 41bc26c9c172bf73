"""From the records of topics to complete rows and windows, and positions to resume from.  Pure.

Rows wait in a `Buffer` until the watermark has passed them.  Complete items go into a queue.  An item is *handed out*
when the caller's loop takes it, so a loop that ends early loses nothing.  With each item comes the position to resume
from once it and all earlier items are stored.  Rows with the same time are in the order of topic, partition and offset.

A position has two offsets per partition: that of the oldest waiting row, so of a record with an event time, and the
end of what was read.  A reader that resumes reads the records between them again.  It skips handed-out rows, counts
nothing twice, and ignores marks, because the tracker in the position has them.  So *nothing is complete until every
partition has been read up to its end offset*.
"""

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

from floodmark.schemas.classify import Classified, Data, Mark, Partition, Place, Unreadable
from floodmark.schemas.completeness.position import Position, ReaderState, resume
from floodmark.schemas.counts import RecordCounts
from floodmark.schemas.errors import (
    ChangedEventTimeError,
    CorruptRecordError,
    DeletedRecordsError,
    InvalidEventTimeError,
    UnreadableTopicError,
    UnreadInputError,
    UsageError,
)
from floodmark.schemas.errors.base import iso
from floodmark.schemas.records import TIME_HEADER, header_time
from floodmark.schemas.timestamps import END_OF_TIME, are_seconds, event_time_of, is_late

Item = TypeVar("Item")


class Buffer(Generic[Item]):
    """Rows that wait for the watermark, which are returned row by row or window by window.

    The invariant: *rows returned below a watermark are all rows below it*, as far as the marks are right.  A later one
    is late and counted.
    """

    def __init__(self, watermark: int | None = None) -> None:
        self.late = 0
        self.watermark = watermark  # all rows below it were returned
        self._number = 0
        self._waiting: list[tuple[int, Any, Item]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, event_time: int, row: Item, order: object = None) -> bool:
        """Add a row, unless it is late; return whether it was added.

        ``order`` sorts rows with the same time, and is unique; default: the order of `add`.  Give it for all rows or
        none.
        """
        if is_late(event_time, self.watermark):
            self.late += 1
            return False
        self._number += 1
        heapq.heappush(self._waiting, (event_time, self._number if order is None else order, row))
        return True

    def release(self, watermark: int | None) -> list[tuple[int, Item]]:
        """Remove and return the rows below a watermark, by event time; `END_OF_TIME` releases all."""
        if watermark is None or (self.watermark is not None and watermark < self.watermark):
            return []
        self.watermark = watermark
        released = []
        while self._waiting and (is_late(self._waiting[0][0], watermark) or watermark == END_OF_TIME):
            event_time, _, row = heapq.heappop(self._waiting)
            released.append((event_time, row))
        return released

    def windows(self, width: int, watermark: int | None) -> dict[int, list[Item]]:
        """Remove and return the rows of tumbling windows that end at or below a watermark, by start, earliest first.

        Windows begin at multiples of ``width``, milliseconds, more than 0.  The end of time completes all windows.
        """
        if width <= 0:
            raise UsageError(reason=f"the width of windows is {width} ms, expected more than 0")
        rows: dict[int, list[Item]] = {}
        if watermark is not None and watermark != END_OF_TIME:
            watermark = watermark // width * width
        for event_time, row in self.release(watermark):
            rows.setdefault(event_time // width * width, []).append(row)
        return rows


@dataclass(frozen=True, slots=True)
class Window:
    """All records with ``start <= event time < end``, in the order of their event times; epoch milliseconds."""

    start: int
    end: int
    rows: tuple[Data, ...]
    position: Position
    """Where to resume once this and all earlier windows are stored."""

    def __repr__(self) -> str:
        return f"Window(start={iso(self.start)}, end={iso(self.end)}, rows={len(self.rows)})"


class CompleteItems(Iterator[Item], Generic[Item]):
    """An iterator over complete items, with a length.  Items that no loop has taken come first in the next call."""

    def __init__(self, take: Callable[[], Item], size: Callable[[], int], position: Position) -> None:
        self._take = take
        self._size = size
        self.position: Final = position
        """Where to resume once all of these items, and all earlier ones, are stored."""

    def __next__(self) -> Item:
        return self._take()

    def __len__(self) -> int:
        return self._size()


EventTimeOf = Callable[[Data], int | None]
"""Returns the event time of a record, epoch milliseconds; ``None``: it has none."""

Row = tuple[int, Data]  # event time, epoch milliseconds, and record

_Complete = tuple[tuple[Data, ...], int, Place | None]
"""The records of an item, and the two arguments of `ReaderState.at` for the position after it."""

_UNREAD: Final = "use a consumer without position=, and an empty store"
RECORDS: Final = "records"  # the use of a consumer that returns records as they arrive
NO_EVENT_TIME: Final = (ValueError, TypeError, LookupError, CorruptRecordError, InvalidEventTimeError)

"""What an ``event_time`` function may raise for a record without event time."""


def effective_time(record: Data, event_time: EventTimeOf) -> int:
    """Return the effective event time of a record, epoch milliseconds, or raise one of `NO_EVENT_TIME`."""
    adjusted = header_time(record.headers, TIME_HEADER)
    if adjusted is not None:
        return adjusted
    time = event_time(record)
    if time is None:
        raise InvalidEventTimeError(value=None, reason="event_time gives None for this record")
    return event_time_of(time)


def unit_warning(record: Data, time: int) -> str | None:
    """Return a warning if the event time of a record is probably in seconds."""
    if not are_seconds(time, record.log_time):
        return None
    return f"{record.place}: the event time is {iso(time)}, as if it were in seconds: event_time returns milliseconds"


class Reader:
    """Take the records of some topics, and return complete rows and windows."""

    def __init__(self, topics: Collection[str], event_time: EventTimeOf, position: Position | None = None) -> None:
        resumed = resume(position, topics)
        self.tracker: Final = resumed.tracker
        self.begin: Final = resumed.begin  # the offset to read each partition from; default: its first
        self.applied: Final = resumed.read
        """Below these offsets, the tracker has the marks, and the records are counted."""
        self.ids: Final = resumed.ids
        self.counts: Counter[str] = Counter()
        self.uncounted: Collection[str] = ()  # topics of which Kafka may have deleted any record
        self._event_time = event_time
        self._done, self._last = resumed.done, resumed.last
        self._times, self._record_counts = resumed.times, resumed.record_counts
        self._resumed, self._before, self._again = position, resumed.waiting, 0
        """The given position, how many rows waited there, and how many of these were read again."""
        self._rereading = {place: read for place, read in resumed.read.items() if resumed.begin[place] < read}
        """By partition that is not yet read again: the offset up to which it was read before."""
        self._next = dict(resumed.begin)  # by partition: the offset after the last record taken
        self._buffer: Buffer[Data] = Buffer(resumed.done)
        self._waiting: dict[Partition, OrderedDict[int, int]] = {}  # by partition and offset: the time of the row
        self._queue: deque[tuple[Any, Position]] = deque()
        self._in_hand: Position | None = None  # the position after the item that the caller's loop has taken last
        self._before_call: Position | None = None  # the position before the items of the last call
        self._now: Position | None = None  # the position after all handed-out items; ``None``: not computed yet
        self._use: str | None = None
        self._arrived: list[Data] = []
        self._stored, self._returned = dict(resumed.begin), dict(resumed.begin)
        """For `arrived`, by partition: the offsets that count as stored, and those after the last call."""
        self._judged, self._polled = resumed.judged, resumed.polled
        self._warned: set[str] = set()
        self._judged_at_end = self._all_ended = self._told_of_end = False
        self._ends: dict[Partition, int] = {}  # the end of each partition when it was last read up to there

    def begin_at(self, begins: Mapping[Partition, int]) -> None:
        """Note where partitions begin, so that a position has also those of which nothing was read."""
        if begins:
            self._record_counts = RecordCounts({place for place, begin in begins.items() if begin})
        for place, begin in begins.items():
            self._reach(place, begin, begin)

    def use_for(self, use: str) -> None:
        """Refuse a second use with UsageError: rows that one method has returned would be missing in another."""
        if self._use not in {None, use}:
            reason = f"this consumer gives {self._use}, it cannot give {use}, too; use a second consumer"
            raise UsageError(reason=reason)
        if self._polled and use != RECORDS:
            reason = f"the position is of poll(), and {use} from it on would lack what poll() has returned; {_UNREAD}"
            raise UsageError(reason=reason)
        self._use, self._polled = use, use == RECORDS

    def take(self, record: Classified) -> str | None:
        """Take a record, in the order of its partition; marks must have been applied to the tracker.

        Returns a warning for the log, or ``None``.  Any error of ``event_time`` that is not counted comes out of this
        call, and the record can be taken again.
        """
        place = (record.topic, record.partition)
        again = record.offset < self.applied.get(place, 0)
        said = None
        if isinstance(record, Data):
            if self.tracker.ended and not again and not self._polled:
                raise UnreadInputError(
                    reader="the consumer", records="at least 1", places=str(record.place), advice=_UNREAD
                )
            said = self._take_data(record, again=again)
            if self._all_ended and not (again or self._told_of_end):
                self._told_of_end = True
                rest = "all sources have ended, and rows follow: the end is not reached while more come"
                said = f"{record.place}: {rest}. Find the program that writes them"
        else:
            self._all_ended = False
            self.tracker.advance(to_end=self._note_end)
            if isinstance(record, Mark) and not again and record.topic not in self.uncounted:
                said = self._count_lost(record)
        if isinstance(record, Unreadable) and not again:
            self.counts["unreadable"] += 1
            said = f"{record.place}: {record.reason}"
        self._reach(place, record.offset, record.offset + 1)
        if self._next[place] >= self._rereading.get(place, self._next[place] + 1):
            self._finish_rereading(place)
        self._now = None
        return said

    def _note_end(self) -> bool:
        """Note that all sources have ended; more records may follow."""
        self._all_ended = True
        return False

    def take_ends(self, ends: Iterable[tuple[Partition, int]]) -> None:
        """Note where fully read partitions end; `DeletedRecordsError` if one ends below the offset it was read to."""
        for place, end in ends:
            self._ends[place] = end
            read = self.applied.get(place, 0)
            if end < read:
                topic, number = place
                begin = self.begin[place]
                raise DeletedRecordsError(topic=topic, partition=number, position=read, earliest=begin, end=end)
            self._finish_rereading(place)
            if end > self._next.get(place, -1):
                self._reach(place, end, end)
                self._now = None
        self.tracker.advance(self._is_at_end)

    def _finish_rereading(self, place: Partition) -> None:
        """Note that a partition was read again; refuse an ``event_time`` by which other rows than before wait."""
        ended = self._rereading.pop(place, None) is not None and not self._rereading
        if ended and not self.uncounted and self._before not in {None, self._again}:
            rows = "of the rows that were read and not handed out,"
            raise ChangedEventTimeError(place=rows, before=f"{self._before} waited", now=f"{self._again} do")

    def _is_at_end(self) -> bool:
        """Tell whether every partition was read up to its end."""
        return all(self._ends.get(place, -1) >= next_ for place, next_ in self._next.items())

    def _reach(self, place: Partition, first: int, end: int) -> None:
        """Note that a partition was read from offset ``first`` to ``end``."""
        if place not in self._next:
            self._stored[place] = self._returned[place] = first
        self._next[place] = max(self._next.get(place, 0), end)

    def _take_data(self, record: Data, *, again: bool) -> str | None:
        said, time = None, None
        try:
            time = effective_time(record, self._event_time)
        except NO_EVENT_TIME as error:
            if not again:
                said = self._count_missing_event_time(record, f"{type(error).__name__}: {error}")
        if again:
            self._require_same(record, time)
        else:
            self.counts["data"] += 1
            self._record_counts.on_rows(record.topic, record.partition, 1)
            self.counts["late"] += time is not None and is_late(time, self.tracker.watermark)
            if time is not None:
                self._judged[record.topic] = None
                if record.topic not in self._warned and (said := unit_warning(record, time)):
                    self._warned.add(record.topic)
        if again and time is not None and self._is_done(record, time):
            return said
        self._again += again and time is not None
        if self._polled:
            self._arrived.append(record)
        elif time is not None and self._buffer.add(time, record, record.place):
            self._waiting.setdefault((record.topic, record.partition), OrderedDict())[record.offset] = time
        elif time is not None:
            said = self._count_missed(record, time) or said
        return said

    def _count_missed(self, record: Data, time: int) -> str | None:
        """Count a late row that the results lack; return a warning of the first one."""
        self.counts["missed"] += 1
        if self.counts["missed"] > 1:
            return None
        late = f"event time {iso(time)} is below the watermark {iso(self.tracker.watermark)}"
        return f"{record.place}: {late}, so the results lack this row. Others are only counted, as missed"

    def _count_lost(self, mark: Mark) -> str | None:
        """Count the rows that a mark counts and that were not in the topic before it."""
        found = self._record_counts.take(mark)
        self.counts["lost"] += sum(one.records for one in found)
        return "; ".join(map(str, found)) or None

    def _require_same(self, record: Data, time: int | None) -> None:
        """Refuse an ``event_time`` that does not give the oldest waiting row the time that it had."""
        place = record.topic, record.partition
        if record.offset == self.begin[place] and self._times.get(place, time) != time:
            before, now = iso(self._times[place]), iso(time)
            raise ChangedEventTimeError(place=str(record.place), before=f"had {before}", now=f"has {now}")

    def _count_missing_event_time(self, record: Data, reason: str) -> str | None:
        self.counts["timeless"] += 1
        judged = self._judged.setdefault(record.topic, [0, record.partition, record.offset, reason])
        if judged is not None and record.value is not None:
            judged[0] += 1
        if record.topic in self._warned:
            return None
        self._warned.add(record.topic)
        return f"{record.place}: no event time: {reason}. More records without one are only counted"

    def _is_done(self, record: Data, time: int) -> bool:
        """Tell whether a record that is read again was handed out, or late, before the position."""
        is_last = time == self._done and self._last is not None and record.place <= self._last
        return is_last or is_late(time, self._done)

    def arrived(self) -> list[Data]:
        """Return the data records taken since the last call."""
        arrived, self._arrived = self._arrived, []
        self._stored = self._returned if arrived else dict(self._next)
        self._returned = dict(self._next)
        self._now = None
        return arrived

    def rows(self) -> CompleteItems[Row]:
        """Return the complete rows that are not handed out yet."""

        def complete(watermark: int | None) -> list[_Complete]:
            return [((row,), time, row.place) for time, row in self._buffer.release(watermark)]

        return self._hand_out(complete, lambda rows, time, _: (time, rows[0]))

    def windows(self, width: int) -> CompleteItems[Window]:
        """Return the complete tumbling windows (``width`` in milliseconds) with rows that are not handed out yet.

        `UsageError` if rows of the first window were handed out before the position, in windows of another width or
        alone.
        """
        done = 0 if self._done is None or self._done >= END_OF_TIME else self._done
        if done % width or self._last is not None:
            raise UsageError(
                reason=f"the position is after rows of the window of {timedelta(milliseconds=width)} that begins at "
                f"{iso(done // width * width)}, so this window would lack them. Resume with the method and width that "
                f"gave the position, or {_UNREAD}"
            )

        def complete(watermark: int | None) -> list[_Complete]:
            windows = self._buffer.windows(width, watermark)
            return [(tuple(rows), start + width, None) for start, rows in windows.items()]

        return self._hand_out(complete, lambda rows, end, position: Window(end - width, end, rows, position))

    def _hand_out(
        self,
        complete: Callable[[int | None], list[_Complete]],
        item_of: Callable[[tuple[Data, ...], int, Position], Any],
    ) -> CompleteItems[Any]:
        self._judge_at_end()
        places, done, last = self._places(), self._buffer.watermark, self._last_done()
        waiting = len(self._buffer)
        found = complete(None if self._rereading else self.tracker.watermark)
        before = self._in_hand if self._queue else None
        if found:
            state = self._state(places)
            before = before or state.at(done, last, waiting)
            for rows, end, place in found:
                waiting -= len(rows)
                for row in rows:
                    del self._waiting[row.topic, row.partition][row.offset]
                position = state.at(end, place, waiting)
                self._queue.append((item_of(rows, end, position), position))
        if found or done != self._buffer.watermark:
            self._now = None
        self._before_call = self._in_hand = before
        last_position = self._queue[-1][1] if self._queue else self.position()
        return CompleteItems(self._next_item, self._queue.__len__, last_position)

    def _next_item(self) -> Any:  # noqa: ANN401  # what the queue is of
        if not self._queue:
            self._in_hand = self._before_call  # the caller may have a list of items that are not yet stored
            raise StopIteration
        item, self._in_hand = self._queue.popleft()
        return item

    def _judge_at_end(self) -> None:
        """Fail once, if all sources have ended and no record of a topic had an event time."""
        if self._judged_at_end or self._rereading or not self.tracker.ended:
            return
        self._judged_at_end = True
        for topic, judged in self._judged.items():
            if judged is not None and judged[0]:
                count, partition, offset, reason = judged
                raise UnreadableTopicError(topic=topic, count=count, partition=partition, offset=offset, cause=reason)

    @property
    def ended(self) -> bool:
        """Whether all sources have ended, and all rows were handed out."""
        left = self._rereading or self._queue or self._arrived or len(self._buffer)
        return self.tracker.ended and self._is_at_end() and not left

    def position(self) -> Position:
        """See `WatermarkedConsumer.position`."""
        if self._in_hand is not None:
            return self._in_hand
        if self._rereading and self._resumed is not None and not self._polled:
            return self._resumed
        if self._now is None:
            waiting = None if self._polled else len(self._buffer)
            self._now = self._state(self._places()).at(self._buffer.watermark, self._last_done(), waiting)
        return self._now

    def _last_done(self) -> Place | None:
        return self._last if self._buffer.watermark == self._done else None

    def _state(self, places: dict[Partition, tuple[int, int, int | None]]) -> ReaderState:
        judged = {topic: None if said is None else list(said) for topic, said in self._judged.items()}
        counts = self._record_counts.snapshot()
        return ReaderState(self.tracker.snapshot(), places, judged, self.ids, self._polled, counts)

    def _places(self) -> dict[Partition, tuple[int, int, int | None]]:
        """Return the `ReaderState.places`."""
        places = {}
        for place, next_ in self._next.items():
            begin: tuple[int, int | None] = (self._stored[place] if self._polled else next_, None)
            if place in self._waiting:
                begin = next(iter(self._waiting[place].items()), begin)
            places[place] = begin[0], max(next_, self.applied.get(place, 0)), begin[1]
        return places
