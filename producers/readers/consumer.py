"""A consumer without Spark: data only, and complete.  A thin shell around `observer` and `complete_rows`."""

import logging
from collections import Counter
from datetime import timedelta

from floodmark.producers.clients.admin import Config
from floodmark.producers.clients.closing import Closing
from floodmark.producers.readers.observer import Observer
from floodmark.schemas.classify import Classified, Data
from floodmark.schemas.completeness.complete_rows import CompleteItems, EventTimeOf, Reader, Row, Window
from floodmark.schemas.completeness.position import Position
from floodmark.schemas.timestamps import duration_of
from floodmark.schemas.tracker import Hold

_log = logging.getLogger(__name__)


class WatermarkedConsumer(Closing):
    """Follow topics with watermark records: `rows` and `windows` give what is complete, `poll` gives data as it comes.

    Every partition is read, also those that are added later (there is no consumer group: completeness needs all of
    them); watermark records are taken in and never handed out.  Rows wait in memory until the watermark has passed
    them.
    One consumer is for one of `poll`, `rows`, and `windows` of one width.  Not thread-safe.

    **Exactly once:** store the results of a window in one transaction with ``window.position`` (of rows: with the
    `position` of what `rows` returned, or with `position` inside the loop), and start again with the position stored
    last.  Then each row is in the results once, unless it is late (``missed`` counts those) or without event time
    (``timeless``).  This needs topics that are not compacted, and an ``event_time`` that gives a record the same time
    each time.
    **At least once:** `position` at any other time; see there.

    Rows that Kafka deletes before they are read are an error.  So is a topic that is deleted or created again: at
    startup, or some seconds after it happens; a window returned in these seconds may lack rows, and its position is
    refused at the next start.  Brokers before Kafka 2.8 have no topic ids: there a topic that was created again is
    noticed only where it is shorter than the position.

    Args:
        config: confluent-kafka consumer settings; all pass through but ``isolation.level``, which is
            ``read_committed``.
        topics: what to read; each must exist.
        event_time: reads a record's event time; a record for which it gives ``None``, or raises ValueError, TypeError,
            LookupError or CorruptRecordError, is counted (``timeless``) and only `poll` hands it out.  Any other error
            comes out of the call, and the next call begins with the same record.  It is not asked where a header
            ``floodmark-time`` says which time counts.
        position: where to go on, as stored before; default: from the beginning.

    Raises:
        UnknownTopicError: if a topic does not exist; also by a call that reads, where it was deleted.
        BrokerUnavailableError: if no broker answers.
        CorruptSnapshotError: if the position is not one of these topics.
        RecreatedTopicError: if a topic was deleted and created again; also by a call that reads.
        DeletedRecordsError: by a call that reads, where Kafka has deleted records before they were read.
    """

    def __init__(
        self, config: Config, topics: list[str], event_time: EventTimeOf, *, position: Position | None = None
    ) -> None:
        self._reader = Reader(topics, event_time, position)
        trackers = dict.fromkeys(topics, self._reader.tracker)
        self._observer = Observer(
            config,
            topics,
            trackers=trackers,
            offsets=self._reader.begin,
            applied=self._reader.applied,
            ids=self._reader.ids,
        )
        self._unfinished: list[Classified] = []

    @property
    def counts(self) -> Counter[str]:
        """Return what was counted; a record that is read again after a restart is not counted again.

        ``data``; ``late``: behind the watermark as they were read; ``missed``: those of them that `rows` or `windows`
        cannot hand out any more; ``timeless``: without readable event time; ``unreadable`` (marks).
        """
        return self._reader.counts

    def poll(self, timeout: float = 0.2) -> list[Data]:
        """Return the data records that came, at most some thousands; waits up to ``timeout`` seconds for the first."""
        self._reader.use_for("records")
        self._read(timeout)
        return self._reader.arrived()

    def rows(self, timeout: float = 0.2) -> CompleteItems[Row]:
        """Poll for ``timeout`` seconds, and return the rows that are complete now, in the order of their event times.

        Rows of one event time come in the order of topic, partition and offset.

        Raises:
            UnreadableTopicError: once, where all sources have ended and no record of a topic had an event time.
            UsageError: if the consumer is in use for something else.
        """
        self._reader.use_for("rows")
        self._read(timeout)
        return self._reader.rows()

    def windows(self, width: timedelta, timeout: float = 0.2) -> CompleteItems[Window]:
        """Poll for ``timeout`` seconds, and return the complete tumbling windows that have rows, the earliest first.

        Raises:
            UnreadableTopicError, UsageError: as `rows`; and where the width is not more than 0.
        """
        milliseconds = duration_of(width, "the width of windows", 1)
        self._reader.use_for(f"windows of {width}")
        self._read(timeout)
        return self._reader.windows(milliseconds)

    def _read(self, timeout: float) -> None:
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
        """Whether all sources have ended, and all rows have been handed out."""
        return self._reader.ended

    def holders(self) -> list[Hold]:
        """Say why the watermark is where it is."""
        return self._reader.tracker.holders()

    def position(self) -> Position:
        """Return where to go on so that nothing is lost, whatever became of the rows.

        Inside a loop over `rows` or `windows`: after the item in hand, exactly.  Once such a loop has run out, what the
        last call gave may still stand in a list, so it is not counted as stored: it would come again.  The same holds
        for the records of the last `poll`.  After a call that gave nothing: after all that was handed out before.
        """
        return self._reader.position()

    def close(self) -> None:
        """Let go of the consumer."""
        self._observer.close()
