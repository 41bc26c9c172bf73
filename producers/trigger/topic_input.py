"""The topics of a trigger: their watermark, what holds it back, and late rows.  A thin shell around `Observer`."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from floodmark.producers.clients.admin import Config, begin_offsets, compacted_topics, offset_bounds
from floodmark.producers.clients.consumers import Closing
from floodmark.producers.event_times.formats import InputFormat
from floodmark.producers.readers.observer import Observer
from floodmark.producers.trigger.outlook import Row
from floodmark.schemas.classify import Classified, Data, Offsets, Unreadable
from floodmark.schemas.completeness.position import Position, ReaderState, TopicUser, resume
from floodmark.schemas.counts import RecordCounts
from floodmark.schemas.errors import (
    InvalidEventTimeError,
    UnreadableTopicError,
    UnreadableValueError,
    UnreadInputError,
    UsageError,
)
from floodmark.schemas.errors.base import iso
from floodmark.schemas.records import TIME_HEADER, header_time
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME, are_seconds
from floodmark.schemas.tracker import Hold

_log = logging.getLogger(__name__)


class _RowTimes:
    """The event times of rows, with a warning for the first row that has none."""

    def __init__(self, times: InputFormat) -> None:
        self._times = times
        self.unreadable = 0
        """The number of rows without a readable event time."""
        self._first: tuple[Data, str] | None = None  # of them, and why
        self._is_confirmed = False  # whether a row had one
        self._doubted: tuple[Data, str] | None = None  # the first row whose time looks like a longer unit, and why
        self._fits = False  # whether a time was read that does not; times that an injector adjusted have no unit

    def of(self, record: Data, watermark: int | None) -> int | None:
        """Return the event time of a row; ``None``: it has none that can be read, or it is in 1970 by a wrong unit."""
        time = header_time(record.headers, TIME_HEADER)
        if time is not None or record.value is None:
            self._is_confirmed |= time is not None
            return time
        try:
            found = self._times.read(record.key, record.value, record.log_time)
        except (UnreadableValueError, InvalidEventTimeError) as error:
            self._count(record, str(error))
            return None
        if isinstance(found, int) and are_seconds(found, record.log_time, self._times.per_millisecond):
            cause = f"read as {self._times.about}, its event time is {iso(found)}: pass a longer --unit"
            self._doubted = self._doubted or (record, cause)
            self._count(record, cause)
            return found if watermark is not None and are_seconds(watermark, record.log_time) else None
        self._is_confirmed = self._fits = True
        return found if isinstance(found, int) else None

    def _count(self, record: Data, cause: str) -> None:
        if self._first is None:
            _log.warning("%s: no event time: %s. More rows without one are only counted", record.place, cause)
            self._first = record, cause
        self.unreadable += 1

    def require_one(self) -> None:
        """Raise `UnreadableTopicError` if rows were read, and none had an event time; `UsageError`: by its unit."""
        if self._is_confirmed and self._doubted is not None and not self._fits:
            first, cause = self._doubted
            raise UsageError(reason=f"{first.place}: {cause}. No time that an injector did not adjust is plausible")
        if self._first is not None and not self._is_confirmed:
            (first, cause), count = self._first, self.unreadable
            raise UnreadableTopicError(
                topic=first.topic, count=count, partition=first.partition, offset=first.offset, cause=cause
            )


class TopicInput(Closing):
    """All records of some topics, from the first one or a stored place.

    Args:
        config: confluent-kafka settings.
        topics: what to read; each must exist.
        times: reads the event times of rows; ``None``: rows are not judged.
        stored: of `state`; ``None``: read from the beginning.

    Raises:
        CorruptSnapshotError: if what is stored is of other topics.
        UnreadableTopicError: when reading, if no row that existed at the first start has a readable event time.
        UsageError: when reading, if all of their event times but adjusted ones look like another unit.
        DeletedRecordsError: when reading, if Kafka has deleted records before they were read.
        RecreatedTopicError, UnknownTopicError, BrokerUnavailableError: as `Observer`.
    """

    def __init__(
        self, config: Config, topics: list[str], times: InputFormat | None, stored: Mapping[str, Any] | None
    ) -> None:
        resumed = resume(None if stored is None else Position(stored["position"]), topics)
        self._config, self._topics = config, topics
        self._times = None if times is None else _RowTimes(times)
        self._next = dict(resumed.begin) if stored is not None else begin_offsets(config, topics)
        if stored is None:
            partial = {place for place, offset in self._next.items() if offset}
            resumed = replace(resumed, record_counts=RecordCounts(partial))
        self._read = resumed
        self._uncounted = compacted_topics(config, topics)
        self._lowest: dict[bool, int] = {}
        """The lowest event time of rows (true), and the lowest before a watermark (false)."""
        self.highest: int | None = None if stored is None else stored["highest"]
        """The highest event time that is known from rows and marks, until the end of the input; epoch milliseconds."""
        trackers = dict.fromkeys(topics, resumed.tracker)
        self._until = None if stored is not None else self.end()
        """Up to here, at least one row must have a readable event time."""
        user = TopicUser("the trigger", "Start it with a new --name")
        self._observer = Observer(config, topics, trackers=trackers, offsets=resumed.begin, ids=resumed.ids, user=user)

    @property
    def watermark(self) -> int | None:
        """The minimum over all topics, epoch milliseconds; ``None``: unknown."""
        return self._read.tracker.watermark

    @property
    def lowest(self) -> int | None:
        """The lowest event time that was read: of rows, or else of the times before watermarks; ``None``: unknown."""
        return self._lowest.get(True, self._lowest.get(False))

    @property
    def ended(self) -> bool:
        """Whether all sources have ended."""
        return self._read.tracker.ended

    @property
    def unreadable(self) -> int:
        """The number of rows without a readable event time that this process has read."""
        return 0 if self._times is None else self._times.unreadable

    def holders(self, below: int | None = None) -> list[Hold]:
        """Return what holds back the watermark; ``below``: all that has not reached this time."""
        return self._read.tracker.holders(below)

    def poll(self, seconds: float, row: Row) -> None:
        """Read new records, at most some thousands; wait up to ``seconds`` for the first."""
        for record in self._observer.poll(seconds):
            self._take(record, row)
            self._next[record.topic, record.partition] = record.offset + 1
        self._read.tracker.advance(lambda: self.has_read(self.end()))  # no source has begun a new run
        if self._until is not None and self.has_read(self._until):
            self._until = None
            if self._times is not None:
                self._times.require_one()

    def _take(self, record: Classified, row: Row) -> None:
        for lost in () if record.topic in self._uncounted else self._read.record_counts.take(record):
            _log.warning("%s: their periods lack them", lost)
        if isinstance(record, Data):
            if self.ended:
                place, advice = str(record.place), "start a trigger with another --name and --from"
                raise UnreadInputError(reader="the trigger", records="at least 1", places=place, advice=advice)
            time = None if self._times is None else self._times.of(record, self.watermark)
            if time is not None:
                self._extend(time, time, row=True)
                row(time, self.watermark)
            return
        if isinstance(record, Unreadable):
            _log.warning("%s: %s", record.place, record.reason)
        elif record.record.watermark is not None:
            # Rows before the mark are earlier; a row at the watermark may follow, unless rows show their times.
            watermark = record.record.watermark
            self._extend(watermark - 1, watermark - (self._times is not None), row=False)
        self._read.tracker.advance(to_end=lambda: False)

    def _extend(self, low: int, high: int, *, row: bool) -> None:
        if not self.ended and low >= EARLIEST and high < END_OF_TIME - 1:
            self._lowest[row] = min(low, self._lowest.get(row, low))
            self.highest = high if self.highest is None else max(self.highest, high)

    def end(self) -> Offsets:
        """Return the present end of each partition."""
        return {place: end for topic in self._topics for place, (_, end) in offset_bounds(self._config, topic).items()}

    def has_read(self, ends: Offsets) -> bool:
        """Tell whether all records before these offsets were read."""
        return all(max(self._next.get(at, 0), self._observer.ends.get(at, 0)) >= end for at, end in ends.items())

    def state(self) -> dict[str, Any]:
        """Return what has been read, as JSON values."""
        places = {place: (offset, offset, None) for place, offset in self._next.items()}
        read, counts = self._read, self._read.record_counts.snapshot()
        position = ReaderState(read.tracker.snapshot(), places, {}, read.ids, record_counts=counts).at(None)
        return {"position": position.text, "highest": self.highest}

    def close(self) -> None:
        """Close the consumer."""
        self._observer.close()
