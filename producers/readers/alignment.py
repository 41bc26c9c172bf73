"""Pause a source that is too far ahead of the slowest, so that readers keep fewer rows in memory.

`Peers` decides and is pure.  `Alignment` reads the marks of the other sources from partition 0: every source marks all
partitions.  The idea is Flink's watermark alignment (FLIP-182), which needs a coordinator.
"""

import logging
from typing import Final

from confluent_kafka import OFFSET_END, TopicPartition
from floodmark.producers.clients.admin import Config, shared
from floodmark.producers.clients.consumers import classified, consume, reading_consumer
from floodmark.schemas.classify import Mark, Unreadable
from floodmark.schemas.records import Status, WatermarkRecord

_log = logging.getLogger(__name__)
PATIENCE: Final = 60_000
"""How long to wait for a silent source without a lease, milliseconds."""


class Peers:
    """The watermarks of the other sources of a topic.

    A source that has died must not hold the others for ever.  Peers wait for a source with a lease until the log times
    of the topic are more than the lease after its last mark; for one without, until it is silent for ``patience``.  A
    source that is not paused never makes a record late; it only costs readers memory.

    Args:
        source: the own id.
        bound: how far the own watermark may be ahead of the slowest other one, milliseconds.
        patience: how long to wait for a silent source without a lease, milliseconds.

    >>> peers = Peers("fast", bound=100)
    >>> peers.take(WatermarkRecord(source="slow", epoch=1, sequence=0, watermark=50, partitions=1, emitted_at=0))
    >>> peers.is_ahead(150), peers.is_ahead(151)
    (False, True)
    >>> peers.is_ahead(151, now=PATIENCE + 1)
    False
    """

    def __init__(self, source: str, bound: int, patience: int = PATIENCE) -> None:
        self._source = source
        self._bound = bound
        self._patience = patience
        self._last: dict[str, tuple[WatermarkRecord, int, int]] = {}
        """By source: its last mark, the mark's log time, and when it was read."""
        self._version = 0
        self._log_time = 0

    def take(self, record: WatermarkRecord, log_time: int = 0, now: int = 0) -> None:
        """Apply a mark, unless a newer one is known; ``now``: steady clock, milliseconds."""
        before = self._last.get(record.source)
        self._version = max(self._version, record.membership.version)
        self._log_time = max(self._log_time, log_time)
        if before is None or (record.epoch, record.sequence) > (before[0].epoch, before[0].sequence):
            self._last[record.source] = record, log_time, now

    def slowest(self, now: int = 0) -> tuple[int, str] | None:
        """Return the lowest watermark of the other sources to wait for, and its source; ``None``: there is none."""
        awaited = [
            (record.watermark, name)
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

    def is_ahead(self, watermark: int | None, now: int = 0) -> bool:
        """Tell whether a source with this watermark must wait; the slowest never must."""
        slowest = self.slowest(now)
        return watermark is not None and slowest is not None and watermark > slowest[0] + self._bound


class Alignment:
    """Read the marks of a topic for one source, which may be ``bound`` milliseconds ahead of the slowest other one.

    If Kafka deletes marks before they are read, it continues with the next ones: only the last mark of a source counts.
    """

    def __init__(self, config: Config, *, topic: str, source: str, bound: int) -> None:
        self.peers = Peers(source, bound)
        self._consumer = reading_consumer(shared(config), "floodmark-alignment", _log, reset="latest")
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_END)])

    def poll(self, now: int) -> None:
        """Apply new marks, without waiting; ``now``: steady clock, milliseconds."""
        for mark in (classified(record) for record in consume(self._consumer, 0) if record.error() is None):
            if isinstance(mark, Mark):
                self.peers.take(mark.record, mark.log_time, now)
            elif isinstance(mark, Unreadable):
                _log.warning("alignment: %s", mark.reason)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
