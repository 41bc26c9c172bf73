"""A consumer without Spark, which returns complete data.  A thin shell around `observer` and `complete_rows`."""

import logging
from collections import Counter
from datetime import timedelta

from floodmark.producers.clients.admin import Config, begin_offsets, warn_of_compaction
from floodmark.producers.clients.consumers import Closing
from floodmark.producers.readers.observer import Observer
from floodmark.schemas.classify import Classified, Data, Place
from floodmark.schemas.completeness.complete_rows import RECORDS, CompleteItems, EventTimeOf, Reader, Row, Window
from floodmark.schemas.completeness.position import Position
from floodmark.schemas.timestamps import duration_of
from floodmark.schemas.tracker import Hold

_log = logging.getLogger(__name__)


class WatermarkedConsumer(Closing):
    """Read topics with marks: `rows` and `windows` return complete results, `poll` returns data as it arrives.

    It reads all partitions, including new ones, and joins no consumer group.  Rows wait in memory until the watermark
    has passed them.  One consumer is for one of `poll`, `rows`, and `windows` of one width.  It is not thread-safe.

    **Exactly once:** store the results of a window in one transaction with ``window.position``.  For rows, store the
    `position` of the value of `rows`, or call `position` inside the loop.  Start again with the position stored last.
    Then each row is in the results once, unless it is late (counted as ``missed``) or has no event time (``timeless``).
    This needs topics without compaction, and an ``event_time`` that always gives a record the same time.

    Rows that Kafka deletes before they are read are an error.  So is a topic that is deleted or created again: at
    startup, or some seconds after it happens.  Before Kafka 2.8, a recreated topic is noticed only if it is shorter.

    Args:
        config: confluent-kafka consumer settings, passed through, except ``isolation.level`` (``read_committed``).
        topics: what to read; each must exist.
        event_time: returns a record's event time.  If it returns ``None``, or raises ValueError, TypeError,
            LookupError or CorruptRecordError, the record is counted (``timeless``), and only `poll` returns it.  Any
            other error comes out of the call, and the next call begins with the same record.  It is not called for a
            record with a header ``floodmark-time``.
        position: a stored position to resume from; default: the beginning.

    Raises:
        UnknownTopicError, RecreatedTopicError: if a topic does not exist, or was created again; also when reading.
        BrokerUnavailableError: if no broker answers.
        CorruptSnapshotError: if the position is of other topics.
        ChangedEventTimeError: when reading, if a row that waited at the position has another event time now, or none.
        DeletedRecordsError: when reading, if Kafka has deleted records before they were read.
    """

    def __init__(
        self, config: Config, topics: list[str], event_time: EventTimeOf, *, position: Position | None = None
    ) -> None:
        self._reader = Reader(topics, event_time, position)
        trackers = dict.fromkeys(topics, self._reader.tracker)
        begins = begin_offsets(config, topics) if position is None else {}
        self._reader.begin_at(begins)
        self._cut = [str(Place(*one, begin)) for one, begin in begins.items() if begin]  # for a warning
        self._observer = Observer(
            config,
            topics,
            trackers=trackers,
            offsets=self._reader.begin,
            applied=self._reader.applied,
            ids=self._reader.ids,
        )
        self._unfinished: list[Classified] = []
        self._reader.uncounted = warn_of_compaction(config, topics)

    @property
    def counts(self) -> Counter[str]:
        """Return the counts; a record that is read again after a restart is not counted again.

        ``data``; ``late``: behind the watermark when read; ``missed``: those of them that `rows` or `windows` cannot
        return; ``timeless``: without a readable event time; ``unreadable`` (marks); ``lost``: counted in marks, but not
        in the topic before them.
        """
        return self._reader.counts

    def poll(self, timeout: float = 0.2) -> list[Data]:
        """Return new data records, at most some thousands; waits up to ``timeout`` seconds for the first."""
        self._reader.use_for(RECORDS)
        self._read(timeout)
        return self._reader.arrived()

    def rows(self, timeout: float = 0.2) -> CompleteItems[Row]:
        """Poll for ``timeout`` seconds, and return the rows that are complete now, in the order of their event times.

        Rows with the same event time are in the order of topic, partition and offset.  `UnreadableTopicError`, once, if
        all sources have ended and no record of a topic had an event time.  `UsageError`, if the position is of `poll`.

        If Kafka had deleted the first records of a partition when a consumer without position started, the first call,
        also of `windows`, logs a warning: the first windows may lack rows.
        """
        self._reader.use_for("rows")
        self._read(timeout)
        return self._reader.rows()

    def windows(self, width: timedelta, timeout: float = 0.2) -> CompleteItems[Window]:
        """Poll for ``timeout`` seconds, and return the complete tumbling windows that have rows, the earliest first.

        Errors are as of `rows`; also a `UsageError` if the width is not more than 0, or if rows of the first window
        were handed out before the stored position, with another width or by `rows`.
        """
        milliseconds = duration_of(width, "the width of windows", 1)
        self._reader.use_for(f"windows of {width}")
        self._read(timeout)
        return self._reader.windows(milliseconds)

    def _read(self, timeout: float) -> None:
        cut, self._cut = ", ".join(self._cut), []
        if cut:
            _log.warning(
                "Kafka has deleted the records before %s (inject --reset?): the first windows may lack rows", cut
            )
        for record in self._unfinished or self._observer.poll(timeout):
            self._unfinished = [record]  # still there where the caller's event_time raises
            said = self._reader.take(record)
            self._unfinished = []
            if said is not None:
                _log.warning("%s", said)
        self._reader.take_ends(self._observer.ends.items())

    @property
    def watermark(self) -> int | None:
        """The minimum over all topics, partitions and sources, epoch milliseconds."""
        return self._reader.tracker.watermark

    @property
    def ended(self) -> bool:
        """Whether all sources have ended, and all rows were handed out."""
        return self._reader.ended

    def holders(self) -> list[Hold]:
        """Return what holds back the watermark."""
        return self._reader.tracker.holders()

    def position(self) -> Position:
        """Return a position to resume from without losing rows.

        Inside a loop over `rows` or `windows`, it is exactly after the current item.  When the loop ends, the items of
        the last call may not be stored yet, so they are delivered again; so are the records of the last `poll`.
        """
        return self._reader.position()

    def close(self) -> None:
        """Close the consumer."""
        self._observer.close()
