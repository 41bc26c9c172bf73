"""A consumer without Spark: data only, and complete.  A thin shell around `observer` and `completeness`."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from floodmark.producers.closing import Closing
from floodmark.producers.completeness import Buffer, Window
from floodmark.producers.kafka import Config
from floodmark.producers.observer import Data, Observer, Unreadable
from floodmark.schemas.errors import CorruptRecordError, CorruptSnapshotError, InvalidEventTimeError, UsageError
from floodmark.schemas.timestamps import event_time_of, is_late, milliseconds
from floodmark.schemas.tracker import Hold, Tracker

_log = logging.getLogger(__name__)
_FORMAT: Final = 1
EventTimeOf = Callable[[Data], int | None]
"""From a record to its event time, epoch milliseconds; ``None``: it has none."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a consumer stands: a value that can be stored with the results, and begun from again."""

    text: str
    """JSON."""


class WatermarkedConsumer(Closing):
    """Follow topics with watermark records: `poll` gives data as it comes, `rows` and `windows` what is complete.

    Every partition is read (there is no consumer group: completeness needs all of them), watermark records are taken
    in and never handed out.  Rows wait in memory until the watermark has passed them.  Not thread-safe.

    Args:
        config: confluent-kafka consumer settings; all pass through.
        topics: what to read; each must exist.
        event_time: reads a record's event time; a record for which it gives ``None``, or raises ValueError, TypeError,
            LookupError or CorruptRecordError, is counted (``timeless``) and only `poll` hands it out.
        position: where to go on, as `position` returned it; default: from the beginning.

    Raises:
        UnknownTopicError, BrokerUnavailableError: at once.
        CorruptSnapshotError: where the position is not one of these topics.
    """

    def __init__(
        self, config: Config, topics: list[str], event_time: EventTimeOf, *, position: Position | None = None
    ) -> None:
        """Assign every partition."""
        tracker, offsets, ahead, done = _resume(position, topics)
        self._event_time = event_time
        self._tracker = tracker
        self._observer = Observer(config, topics, trackers=dict.fromkeys(topics, tracker), offsets=offsets)
        self._buffer: Buffer[Data] = Buffer(done)
        self._ahead = ahead
        self._next: _Places = dict(offsets)
        self.counts: Counter[str] = Counter()
        """``data``; ``late``: behind the watermark as they were read; ``missed``: those of them that `rows` or
        `windows` cannot hand out any more; ``timeless``; ``unreadable`` (marks)."""

    def poll(self, timeout: float = 0.2) -> list[Data]:
        """Return the data records that came, at most some thousands; waits up to ``timeout`` seconds for the first."""
        came = []
        for record in self._observer.poll(timeout):
            if isinstance(record, Unreadable):
                self.counts["unreadable"] += 1
                _log.warning("%s/%d@%d: %s", record.topic, record.partition, record.offset, record.reason)
            if not isinstance(record, Data):
                self._tracker.advance()
                continue
            place = (record.topic, record.partition)
            again = record.offset < self._ahead.get(place, 0)
            self._next[place] = max(self._next.get(place, 0), record.offset + 1)
            came += [] if self._is_done(record, again=again) else [record]
        return came

    def _is_done(self, record: Data, *, again: bool) -> bool:
        """Put a record into the buffer; tells whether it was handed out before the position we began from."""
        try:
            event_time = self._event_time(record)
            event_time = None if event_time is None else event_time_of(event_time)
        except (ValueError, TypeError, LookupError, CorruptRecordError, InvalidEventTimeError):
            event_time = None
        if again and (event_time is None or is_late(event_time, self._buffer.watermark)):
            return True
        self.counts["data"] += 1
        if event_time is None:
            self.counts["timeless"] += 1
        else:
            self.counts["late"] += is_late(event_time, self._tracker.watermark)
            self.counts["missed"] += not self._buffer.add(event_time, record)
        return False

    def rows(self, timeout: float = 0.2) -> Iterator[tuple[int, Data]]:
        """Poll once, and give the rows that are complete now, with their event times and in their order."""
        self.poll(timeout)
        yield from self._buffer.release(self.watermark)

    def windows(self, width: timedelta, timeout: float = 0.2) -> Iterator[Window[Data]]:
        """Poll once, and give the tumbling windows that are complete now and have rows.

        Use either this, with one width, or `rows`.
        """
        if width <= timedelta(0):
            raise UsageError(reason=f"the width of windows is {width}, expected more than 0")
        self.poll(timeout)
        yield from self._buffer.windows(milliseconds(width), self.watermark)

    @property
    def watermark(self) -> int | None:
        """The minimum over all topics, partitions and sources, epoch milliseconds."""
        return self._tracker.watermark

    @property
    def ended(self) -> bool:
        """Whether all sources have ended; then all rows have been handed out by the next `rows` or `windows`."""
        return self._tracker.ended

    def holds(self) -> list[Hold]:
        """Say why the watermark is where it is."""
        return self._tracker.holds()

    def position(self) -> Position:
        """Return where to go on after what has been handed out; store it together with the results."""
        offsets = dict(self._next)
        for row in self._buffer.waiting():
            place = (row.topic, row.partition)
            offsets[place] = min(offsets[place], row.offset)
        state = {
            "format": _FORMAT,
            "done": self._buffer.watermark,
            "tracker": self._tracker.snapshot(),
            "places": [[*place, offset, self._next[place]] for place, offset in sorted(offsets.items())],
        }
        return Position(json.dumps(state))

    def close(self) -> None:
        """Let go of the consumer."""
        self._observer.close()


_Places = dict[tuple[str, int], int]


def _resume(position: Position | None, topics: list[str]) -> tuple[Tracker, _Places, _Places, int | None]:
    """Return the tracker, where to begin, up to where records came before, and below what they were handed out."""
    if position is None:
        return Tracker(topics), {}, {}, None
    advice = "begin without a position, or with one of these topics"
    try:
        state: Mapping[str, Any] = json.loads(position.text)
        if state["format"] != _FORMAT:
            reason = f"its format is {state['format']}, expected {_FORMAT}"
            raise CorruptSnapshotError(where="of the consumer", reason=reason, advice=advice)
        tracker = Tracker.restore(state["tracker"])
        begin = {(topic, partition): offset for topic, partition, offset, _ in state["places"]}
        ahead = {(topic, partition): next_ for topic, partition, _, next_ in state["places"]}
        done = state["done"]
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CorruptSnapshotError(where="of the consumer", reason=reason, advice=advice) from error
    if tracker.topics != frozenset(topics):
        reason = f"it is of topics {', '.join(sorted(tracker.topics))}, expected {', '.join(sorted(topics))}"
        raise CorruptSnapshotError(where="of the consumer", reason=reason, advice=advice)
    return tracker, begin, ahead, done
