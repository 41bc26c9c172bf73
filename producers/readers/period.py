"""The rows of a closed period of a topic, in one call.  A thin shell around `read_until_end` and the tracker."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from floodmark.producers.clients.admin import (
    COMPACTED,
    Config,
    TopicWatch,
    compacted_topics,
    offset_bounds,
)
from floodmark.producers.clients.clock import Clock
from floodmark.producers.readers.replay import read_until_end, retained_since
from floodmark.schemas.classify import Classified, Data, Mark, Offsets, Place
from floodmark.schemas.completeness.complete_rows import NO_EVENT_TIME, EventTimeOf, effective_time, unit_warning
from floodmark.schemas.completeness.position import TopicIds, TopicUser
from floodmark.schemas.counts import Discrepancy, RecordCounts
from floodmark.schemas.errors import IncompletePeriodError, RetentionError, UnreadableTopicError, UsageError
from floodmark.schemas.errors.base import iso
from floodmark.schemas.records import TIME_HEADER, Status, header_time
from floodmark.schemas.timestamps import are_seconds, duration_of, event_time_of
from floodmark.schemas.tracker import Tracker, apply_mark, sentences

if TYPE_CHECKING:
    from pyarrow import Table

_log = logging.getLogger(__name__)
_SHOWN: Final = 20


class _Row(NamedTuple):
    time: int
    place: Place
    record: Data


def complete(
    config: Config,
    topic: str,
    start: int | datetime,
    end: int | datetime,
    event_time: EventTimeOf,
    *,
    decode: Callable[[Data], Mapping[str, Any]] | None = None,
    early: timedelta = timedelta(minutes=5),
) -> "Table":
    """Return the rows of a closed period of a topic with marks, as a ``pyarrow.Table``.

    Closed: the watermark of the topic has reached ``end``.  The rows are in the order of their event times.  The call
    reads from the records that Kafka received ``early`` before ``start``, up to where each source has passed ``end``.
    While a source is idle or has not reported since then, it reads up to the topic's present end, or all of the topic.
    Late rows may be missing.  Records without event time are left out, and a warning in the log counts them.  Another
    one counts rows that are not in the topic, by its marks.

    Args:
        config: confluent-kafka consumer settings; all pass through except ``isolation.level``, which is
            ``read_committed``.
        topic: a topic without compaction.
        start: the first event time, epoch milliseconds or an aware datetime.
        end: the first event time after the period.
        event_time: as in `WatermarkedConsumer`.
        decode: returns the columns of a row; without rows, the table has none.  Default: ``event_time``,
            ``partition``, ``offset``, ``key``, ``value``.
        early: how far the event time of a record may be ahead of its Kafka timestamp; of a target of ``inject``, its
            ``--early``.

    Raises:
        IncompletePeriodError: if the period is not closed yet; the message names who is missing.
        RetentionError: if Kafka has deleted records that may be of the period.
        UnreadableTopicError: if no record that was read has an event time.
        UnknownTopicError, BrokerUnavailableError, RecreatedTopicError: as `WatermarkedConsumer`.
        UsageError: if the topic is compacted, the period is empty or in seconds, all event times but adjusted ones look
            like seconds, a time has no time zone, ``decode`` returns no mapping, or pyarrow is not installed.
    """
    reading = _Reading(topic, event_time_of(start), event_time_of(end), event_time)
    if are_seconds(reading.end, Clock().wall()):
        raise UsageError(reason=f"the period ends at {iso(reading.end)}: epoch milliseconds are expected, not seconds")
    if reading.start >= reading.end:
        raise UsageError(reason=f"the period from {iso(reading.start)} to {iso(reading.end)} is empty")
    if find_spec("pyarrow") is None:
        raise UsageError(reason="complete() returns a pyarrow.Table: pip install pyarrow")
    since = reading.start - duration_of(early, "early")
    watch = TopicWatch(config, [topic], TopicIds(), TopicUser("complete()", "Call it again"))
    if compacted_topics(config, [topic]):
        raise UsageError(reason=f"complete() cannot return all rows: {COMPACTED.format(topic)}")
    retained = retained_since(config, [topic], since)
    ends = {place: found.end for place, found in retained.items()}
    begins = {place: found.since for place, found in retained.items()}
    _require(topic, since, {place: found.first for place, found in retained.items() if not found.is_complete})
    firsts = {place: found.first for place, found in retained.items()}
    for offsets in [begins] if begins == firsts else [begins, firsts]:
        counts, lost = RecordCounts({place for place, offset in offsets.items() if offset}), list[Discrepancy]()
        reading = _Reading(topic, reading.start, reading.end, event_time)
        reading.take(_counted(read_until_end(config, offsets, ends), counts, lost))
        if reading.tracker.watermark is not None:
            break
    kept = offset_bounds(config, topic)
    _require(topic, since, {place: first for place, (first, _) in kept.items() if first > begins.get(place, first)})
    watch.check()
    rows = reading.rows()
    if lost:
        count = sum(one.records for one in lost)
        _log.warning("%d row(s) are lost, and some may be of the period; the first: %s", count, lost[0])
    return _table(rows, decode)


def _counted(records: Iterable[Classified], counts: RecordCounts, lost: list[Discrepancy]) -> Iterator[Classified]:
    """Yield records, and add to ``lost`` the rows that their marks count and that are not among them."""
    for record in records:
        lost += counts.take(record)
        yield record


def _require(topic: str, since: int, cut: Offsets) -> None:
    """Raise RetentionError for partitions of which Kafka has deleted records since a time; by their first offset."""
    for (_, partition), first in cut.items():
        raise RetentionError(
            reader="complete()",
            place=f"{topic}/{partition}",
            since=f"that came since {iso(since)}",
            first=first,
            advice="give a later start, or increase retention.ms of the topic",
        )


class _Reading:
    """The records of one period, up to where it is complete."""

    def __init__(self, topic: str, start: int, end: int, event_time: EventTimeOf) -> None:
        self._topic, self.start, self.end = topic, start, end
        self._event_time = event_time
        self.tracker = Tracker({topic})
        self._promised = Tracker({topic})
        """The same without idle sources: rows below its watermark break the promise of their own source."""
        self._rows: list[_Row] = []
        self._doubt: str | None = None
        """Why the first event time looks like seconds; empty: another one does not; ``None``: there is none."""
        self._is_adjusted = False  # whether an injector adjusted the time of a row: to milliseconds
        self._timeless: tuple[int, Data, str] | None = None  # the number of rows without a time, the first, and why

    def take(self, records: Iterable[Classified]) -> None:
        """Take records until no more are needed."""
        for record in records:
            if isinstance(record, Data):
                self._take_data(record)
                continue
            apply_mark(self.tracker, record)
            self.tracker.advance(to_end=lambda: False)  # a new run may follow
            if isinstance(record, Mark):
                said = record.record
                status = Status.ACTIVE if said.status is Status.IDLE else said.status
                apply_mark(self._promised, replace(record, record=replace(said, status=status, lease=None)))
            else:
                apply_mark(self._promised, record)
            self._promised.advance(to_end=lambda: False)
            if self._is_closed(self._promised) and self._is_closed(self.tracker):
                return
        self.tracker.advance()

    def _is_closed(self, tracker: Tracker) -> bool:
        return tracker.watermark is not None and tracker.watermark >= self.end

    def _take_data(self, record: Data) -> None:
        try:
            time = effective_time(record, self._event_time)
        except NO_EVENT_TIME as error:
            count, first, cause = self._timeless or (0, record, f"{type(error).__name__}: {error}")
            self._timeless = count + 1, first, cause
            return
        if self._doubt != "" and header_time(record.headers, TIME_HEADER) is not None:
            self._is_adjusted = True
        elif self._doubt != "":
            doubt = unit_warning(record, time) or ""
            if self._doubt and not doubt:
                _log.warning("%s", self._doubt)
            self._doubt = doubt and (self._doubt or doubt)
        if self.start <= time < self.end:
            self._rows.append(_Row(time, record.place, record))

    def rows(self) -> list[_Row]:
        """Return the rows of the period, or raise why it is not complete."""
        if self._timeless is not None:
            count, record, cause = self._timeless
            if self._doubt is None and not self._is_adjusted:
                raise UnreadableTopicError(
                    topic=self._topic,
                    count=count,
                    partition=record.partition,
                    offset=record.offset,
                    cause=cause,
                )
            _log.warning("%s record(s) have no event time; the first: %s: %s", count, record.place, cause)
        if self._doubt:
            raise UsageError(reason=f"{self._doubt}. No other time is plausible")
        if not self._is_closed(self.tracker):
            raise IncompletePeriodError(
                topic=self._topic,
                watermark=self.tracker.watermark,
                end=self.end,
                missing=sentences(self.tracker.holders(self.end), _SHOWN),
            )
        return sorted(self._rows)


def _table(rows: Sequence[_Row], decode: Callable[[Data], Mapping[str, Any]] | None) -> "Table":
    import pyarrow as pa  # noqa: PLC0415  # an extra

    if decode is not None:
        decoded: list[Any] = [decode(row.record) for row in rows]  # whatever the function returns
        for row, found in zip(rows, decoded, strict=True):
            if not isinstance(found, Mapping):
                reason = f"decode= returned {found!r} for {row.place}, expected a mapping of columns to values"
                raise UsageError(reason=reason)
        names = dict.fromkeys(name for row in decoded for name in row)
        return pa.table({name: [row.get(name) for row in decoded] for name in names})
    return pa.table(
        {
            "event_time": pa.array([row.time for row in rows], pa.timestamp("ms", "UTC")),
            "partition": pa.array([row.record.partition for row in rows], pa.int32()),
            "offset": pa.array([row.record.offset for row in rows], pa.int64()),
            "key": pa.array([row.record.key for row in rows], pa.binary()),
            "value": pa.array([row.record.value for row in rows], pa.binary()),
        }
    )
