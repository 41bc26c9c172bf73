"""Pause a source that is too far ahead (Flink's watermark alignment, FLIP-182, without a coordinator)."""

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaException, Producer, TopicPartition
from floodmark.producers.clients.admin import Config, offset_bounds, partition_count, shared
from floodmark.producers.clients.consumers import Closing, classified, consume, reading_consumer
from floodmark.schemas.classify import Mark, Unreadable
from floodmark.schemas.errors import FloodmarkError, UsageError
from floodmark.schemas.errors.base import iso
from floodmark.schemas.records import Held, Status, WatermarkRecord
from floodmark.schemas.timestamps import duration_of, milliseconds
from floodmark.schemas.tracker import Tracker, apply_mark

_log = logging.getLogger(__name__)
PATIENCE: Final = 60_000  # the default of `Alignment.patience`, milliseconds


@dataclass(frozen=True, slots=True)
class Alignment:
    """How far a source may run ahead before ``produce`` waits.

    Args:
        bound: how far the source's watermark may be ahead.
        topic: the topic to stay near, such as the last one of a chain of jobs, so that slow jobs slow their input
            down. Default: the slowest other source of the source's own topic.
        patience: longest time to wait for a topic whose watermark does not advance, or for a silent source without
            a lease.  Then ``produce`` continues, with a warning, until that watermark advances again.  The bound must
            exceed the usual distance of the two watermarks, or each wait lasts this long.

    >>> Alignment(timedelta(minutes=5), topic="daily").patience
    datetime.timedelta(seconds=60)
    """

    bound: timedelta
    topic: str | None = None
    patience: timedelta = timedelta(milliseconds=PATIENCE)

    def __post_init__(self) -> None:
        duration_of(self.bound, "the bound of alignment")
        duration_of(self.patience, "the patience of alignment")


def require_topic(alignment: object, whose: str) -> Alignment:
    """Return an alignment that names a topic, or raise UsageError.

    >>> require_topic(Alignment(timedelta(minutes=5)), "the pool")
    Traceback (most recent call last):
    floodmark.schemas.errors.UsageError: the pool can only stay near another topic: pass Alignment(bound, topic=...)
    """
    if isinstance(alignment, Alignment) and alignment.topic is not None:
        return alignment
    raise UsageError(reason=f"{whose} can only stay near another topic: pass Alignment(bound, topic=...)")


class Peers:
    """The watermarks of the other sources of a topic.

    A dead source must not hold the others for ever: they wait for a source with a lease until the log times of the
    topic exceed it, for one without until it is silent for ``patience`` milliseconds.
    """

    def __init__(self, source: str, bound: int, patience: int = PATIENCE) -> None:
        self._source = source
        self._bound = bound
        self._patience = patience
        self._last: dict[str, tuple[WatermarkRecord, int, int]] = {}  # last mark, log time, when read
        self._version = 0
        self._log_time = 0

    def take(self, record: WatermarkRecord, log_time: int = 0, now: int = 0) -> None:
        """Apply a mark, unless a newer one is known; ``now``: steady clock, milliseconds."""
        before = self._last.get(record.source)
        self._version = max(self._version, record.membership.version)
        self._log_time = max(self._log_time, log_time)
        if before is None or (record.epoch, record.sequence) > (before[0].epoch, before[0].sequence):
            self._last[record.source] = record, log_time, now

    def read(self, mark: Mark, now: int) -> None:
        """Apply a mark as it was read."""
        self.take(mark.record, mark.log_time, now)

    def slowest(self, now: int = 0) -> tuple[int, str] | None:
        """Return the lowest watermark of the other sources to wait for, and its source; ``None``: there is none."""
        awaited = [
            (record.watermark, f"source {name!r}")
            for name, (record, log_time, heard) in self._last.items()
            if record.watermark is not None and self._is_awaited(record, log_time, now - heard)
        ]
        return min(awaited, default=None)

    def _is_awaited(self, record: WatermarkRecord, log_time: int, silent: int) -> bool:
        if record.source == self._source or record.status is not Status.ACTIVE:
            return False
        if record.membership.version != self._version:
            return False
        return silent <= self._patience if record.lease is None else self._log_time - log_time <= record.lease

    def is_ahead(self, watermark: int | None, now: int = 0, source: str | int = "") -> bool:  # noqa: ARG002  # as of `Downstream`
        """Tell whether a source with this watermark must wait; the slowest never must."""
        slowest = self.slowest(now)
        return watermark is not None and slowest is not None and watermark > slowest[0] + self._bound


class Downstream:
    """The watermark of another topic, which sources must stay near, each known by its ``source``.

    That topic may wait for the source itself, or its job may be dead: the wait ends after ``patience`` milliseconds
    without a higher watermark.  Before the first marks, the source does not wait.
    """

    def __init__(self, topic: str, bound: int, patience: int) -> None:
        self._topic = topic
        self._bound = bound
        self._patience = patience
        self._tracker = Tracker([topic])
        self._since: dict[str | int, int] = {}  # by source: when its wait began, or that watermark advanced
        self._given_up: int | None = None  # the watermark for which sources no longer wait

    def read(self, mark: Mark, now: int) -> None:
        """Apply a mark; ``now``: steady clock, milliseconds."""
        apply_mark(self._tracker, mark)
        if self._tracker.advance() is not None:  # it is higher than before
            self._since = dict.fromkeys(self._since, now)

    def slowest(self, now: int = 0) -> tuple[int, str] | None:  # noqa: ARG002  # as of `Peers`
        """Return the topic's watermark and its name; ``None``: unknown."""
        watermark = self._tracker.watermark
        return None if watermark is None else (watermark, f"topic {self._topic!r}")

    def is_ahead(self, watermark: int | None, now: int = 0, source: str | int = "") -> bool:
        """Tell whether a source with this watermark must wait."""
        reached = self._tracker.watermark
        if reached is None or watermark is None or watermark <= reached + self._bound:
            self._since.pop(source, None)
            return False
        if now - self._since.setdefault(source, now) <= self._patience:
            return True
        if self._given_up != reached:
            self._given_up = reached
            _log.warning(
                "alignment: the watermark of topic %r has been %s for %d s; the source no longer waits for it.  Either "
                "its job has stopped, or it waits for this source: then raise the bound",
                *(self._topic, iso(reached), self._patience // 1000),
            )
        return False


class AlignmentReader(Closing):
    """Read the marks that a source of a topic, or all sources of a pool, must stay near.

    Of the source's own topic it reads partition 0: every source marks all partitions.  Of another topic, it begins with
    the last records: a slow job marks rarely.  Only the last mark of a source counts, so deleted ones do not matter.
    """

    def __init__(self, config: Config, alignment: Alignment, *, topic: str, source: str = "") -> None:
        self.bound: Final = milliseconds(alignment.bound)
        patience = milliseconds(alignment.patience)
        self._config = config
        self._consumer = reading_consumer(shared(config), "floodmark-alignment", __name__, reset="latest")
        self._topic = alignment.topic
        self.peers: Peers | Downstream = Peers(source, self.bound, patience)
        starts = {0: OFFSET_END}
        if alignment.topic is not None:
            topic, self.peers = alignment.topic, Downstream(alignment.topic, self.bound, patience)
            bounds = offset_bounds(config, topic)
            starts = {number: max(low, high - 1_000) for (_, number), (low, high) in bounds.items()}
        self._read = self._found = len(starts)
        self._next_poll: int | None = None
        self._consumer.assign([TopicPartition(topic, *start) for start in starts.items()])

    def begin_with(self, marks: Iterable[WatermarkRecord], wall: int, now: int) -> None:
        """Apply the marks that were in the source's topic before its start, in milliseconds (``now``: steady clock)."""
        if isinstance(self.peers, Peers):
            for mark in marks:
                self.peers.take(mark, mark.emitted_at, now - max(0, wall - mark.emitted_at))

    def look_for_partitions(self, client: Producer) -> None:
        """Ask Kafka for new partitions of the other topic, which `poll` then reads; it may run in a thread."""
        if self._topic is not None:
            try:
                found = partition_count(client, self._topic, self._config.get("bootstrap.servers"))
                self._found = max(self._found, found)
            except (FloodmarkError, KafkaException) as error:
                _log.info("cannot check whether topic %r has more partitions: %s", self._topic, error)

    def _read_new_partitions(self, topic: str) -> None:
        """Read new partitions from their first record: marks in the others already wait for theirs."""
        with suppress(KafkaException):  # the consumer learns of them now, not minutes later
            self._consumer.list_topics(topic, timeout=1.0)
        new, self._read = range(self._read, self._found), self._found
        self._consumer.incremental_assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in new])

    def held(self, watermark: int | None, now: int, source: str | int = "") -> Held | None:
        """Return what a source with this watermark must wait for; ``None``: nothing."""
        slowest = self.peers.slowest(now)
        if slowest is None or not self.peers.is_ahead(watermark, now, source):
            return None
        return Held(slowest[0], slowest[1], self._topic)

    def poll(self, now: int) -> None:
        """Apply new marks, every 20 ms, without waiting; ``now``: steady clock, milliseconds."""
        if self._next_poll is not None and now < self._next_poll:
            return
        self._next_poll = now + 20
        if self._topic is not None and self._found > self._read:
            self._read_new_partitions(self._topic)
        for mark in (classified(record) for record in consume(self._consumer, 0) if record.error() is None):
            if isinstance(mark, Mark):
                self.peers.read(mark, now)
            elif isinstance(mark, Unreadable):
                _log.warning("alignment: %s", mark.reason)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
