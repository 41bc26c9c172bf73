"""Hold a source that runs ahead of the slowest, so that readers need not keep what it brings too early.

`Peers` decides and is pure; `Alignment` reads the other sources' marks in-band, from one partition: every source marks
all of them.  The idea is Flink's watermark alignment (FLIP-182); there a coordinator compares, here the topic does.
"""

import logging
from datetime import timedelta
from typing import Final

from confluent_kafka import OFFSET_END, Consumer, TopicPartition
from floodmark.producers.kafka import Config
from floodmark.schemas.codec import decode_watermark
from floodmark.schemas.errors import UnreadableControlRecordError, UsageError
from floodmark.schemas.records import Status, WatermarkRecord, is_control_key
from floodmark.schemas.timestamps import milliseconds

_log = logging.getLogger(__name__)
_BATCH: Final = 10_000
_SHARED: Final = (
    *("bootstrap.", "security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl."),
    *("client.", "socket.", "broker.", "metadata.", "topic.metadata.", "reconnect.", "oauth_cb"),
)
"""What a producer's settings and a consumer's have in common."""


class Peers:
    """What the other sources of a topic have promised.

    Args:
        source: the own id.
        bound: how far the own watermark may be ahead of the slowest other one, milliseconds.

    >>> peers = Peers("fast", bound=100)
    >>> peers.take(WatermarkRecord(source="slow", epoch=1, sequence=0, watermark=50, partitions=1, emitted_at=0))
    >>> peers.is_ahead(150), peers.is_ahead(151)
    (False, True)
    """

    def __init__(self, source: str, bound: int) -> None:
        """Begin with nobody known: then nothing is held."""
        self._source = source
        self._bound = bound
        self._last: dict[str, WatermarkRecord] = {}
        self._version = 0

    def take(self, record: WatermarkRecord) -> None:
        """Learn from a mark; those of an older epoch, sequence or membership teach nothing."""
        before = self._last.get(record.source)
        self._version = max(self._version, record.membership.version)
        if before is None or (record.epoch, record.sequence) > (before.epoch, before.sequence):
            self._last[record.source] = record

    def slowest(self) -> int | None:
        """Return the lowest watermark of the other sources that are active; ``None``: there is none."""
        return min(
            (
                record.watermark
                for name, record in self._last.items()
                if name != self._source and record.status is Status.ACTIVE and record.watermark is not None
                if record.membership.version == self._version
            ),
            default=None,
        )

    def is_ahead(self, watermark: int | None) -> bool:
        """Tell whether a source with this watermark must wait; the slowest of all never must."""
        slowest = self.slowest()
        return watermark is not None and slowest is not None and watermark > slowest + self._bound


class Alignment:
    """Follow the marks of a topic, for one producer.

    Args:
        config: confluent-kafka consumer settings; all pass through.
        topic: the topic that the sources share.
        source: the own id.
        bound: how far the own watermark may be ahead of the slowest other one.

    Raises:
        UsageError: where the bound is negative.
    """

    def __init__(self, config: Config, *, topic: str, source: str, bound: timedelta) -> None:
        """Begin with the marks that come from now on."""
        if bound < timedelta(0):
            raise UsageError(reason=f"source {source!r}: the bound of alignment is {bound}, expected 0 or more")
        self.peers = Peers(source, milliseconds(bound))
        defaults = {"group.id": "floodmark-alignment", "isolation.level": "read_committed"}
        own = {name: value for name, value in config.items() if name.startswith(_SHARED)}
        self._consumer = Consumer({**defaults, **own, "enable.auto.commit": False}, logger=_log)
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_END)])

    def poll(self) -> None:
        """Take in what has come, without waiting."""
        for message in self._consumer.consume(_BATCH, 0):
            key, value = message.key(), message.value()
            if message.error() is None and isinstance(key, bytes) and is_control_key(key):
                try:
                    self.peers.take(decode_watermark(key, value if isinstance(value, bytes) else None))
                except UnreadableControlRecordError as error:
                    _log.warning("alignment: %s", error)

    def close(self) -> None:
        """Let go of the consumer."""
        self._consumer.close()
