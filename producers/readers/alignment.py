"""Hold a source that runs ahead of the slowest, so that readers need not keep what it brings too early.

`Peers` decides and is pure; `Alignment` reads the other sources' marks in-band, from one partition: every source marks
all of them.  The idea is Flink's watermark alignment (FLIP-182); there a coordinator compares, here the topic does.
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
"""How long a source without a lease is waited for after its last mark, milliseconds."""


class Peers:
    """What the other sources of a topic have promised.

    Args:
        source: the own id.
        bound: how far the own watermark may be ahead of the slowest other one, milliseconds.
        patience: how long a source without a lease is waited for after its last mark, milliseconds.

    A source that has died must not hold the others for ever.  With a lease it is not waited for once the topic's log
    times have left its last mark behind by more than that, as for readers; without one, once it was not heard for
    ``patience``.  A wait for too few costs readers memory; it never makes a record late.

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
        """By source: its last mark, the log time of that, and when it was read."""
        self._version = 0
        self._log_time = 0

    def take(self, record: WatermarkRecord, log_time: int = 0, now: int = 0) -> None:
        """Learn from a mark; those of an older epoch, sequence or membership teach nothing.

        Args:
            record: the mark.
            log_time: of the mark, epoch milliseconds.
            now: milliseconds of a clock that is never set (monotonic).
        """
        before = self._last.get(record.source)
        self._version = max(self._version, record.membership.version)
        self._log_time = max(self._log_time, log_time)
        if before is None or (record.epoch, record.sequence) > (before[0].epoch, before[0].sequence):
            self._last[record.source] = record, log_time, now

    def slowest(self, now: int = 0) -> tuple[int, str] | None:
        """Return the lowest watermark of the other sources that are waited for, and whose it is; ``None``: nobody's."""
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
        """Tell whether a source with this watermark must wait; the slowest of all never must."""
        slowest = self.slowest(now)
        return watermark is not None and slowest is not None and watermark > slowest[0] + self._bound


class Alignment:
    """Follow the marks of a topic, for one producer.

    Where Kafka has deleted marks before they were read, it continues with the next ones: the last mark of a
    source counts.

    Args:
        config: confluent-kafka consumer settings; all pass through.
        topic: the topic that the sources share.
        source: the own id.
        bound: how far the own watermark may be ahead of the slowest other one, milliseconds.
    """

    def __init__(self, config: Config, *, topic: str, source: str, bound: int) -> None:
        self.peers = Peers(source, bound)
        self._consumer = reading_consumer(shared(config), "floodmark-alignment", _log, reset="latest")
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_END)])

    def poll(self, now: int) -> None:
        """Take in what has come, without waiting; ``now``: milliseconds of a clock that is never set."""
        for mark in (classified(record) for record in consume(self._consumer, 0) if record.error() is None):
            if isinstance(mark, Mark):
                self.peers.take(mark.record, mark.log_time, now)
            elif isinstance(mark, Unreadable):
                _log.warning("alignment: %s", mark.reason)

    def close(self) -> None:
        """Let go of the consumer."""
        self._consumer.close()
