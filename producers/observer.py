"""Read topics as anyone may: data on one side, watermark records on the other, with a tracker between.

A thin shell around confluent-kafka's Consumer: no group, no commits, every partition.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from floodmark.producers.closing import Closing
from floodmark.producers.kafka import Config, partition_count
from floodmark.schemas.codec import decode_watermark
from floodmark.schemas.errors import BrokerUnavailableError, UnreadableControlRecordError
from floodmark.schemas.records import WatermarkRecord, is_control_key, source_of
from floodmark.schemas.tracker import Tracker, Verdict

_log = logging.getLogger(__name__)
_BATCH: Final = 10_000


@dataclass(frozen=True, slots=True)
class Data:
    """A data record as it stands in Kafka."""

    topic: str
    partition: int
    offset: int
    log_time: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A watermark record, and what became of it."""

    topic: str
    partition: int
    offset: int
    log_time: int
    record: WatermarkRecord
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A control key whose value cannot be read: counted, no watermark moves, and its source is waited for."""

    topic: str
    partition: int
    offset: int
    reason: str


class Observer(Closing):
    """Follow some topics.

    Args:
        config: confluent-kafka consumer settings; all pass through.
        topics: what to read; each must exist.
        trackers: what takes in the marks of each topic; default: a new one per topic.
        offsets: where to begin (topic and partition to offset); default, and for all others: the beginning.

    Raises:
        UnknownTopicError, BrokerUnavailableError: at once.
    """

    def __init__(
        self,
        config: Config,
        topics: list[str],
        *,
        trackers: Mapping[str, Tracker] | None = None,
        offsets: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        """Assign every partition of every topic."""
        self.trackers: Final = trackers or {topic: Tracker({topic}) for topic in topics}
        self._offsets = offsets or {}
        self.counts: dict[str, Counter[str]] = {topic: Counter() for topic in topics}
        """Per topic: ``data``, ``marks``, ``unreadable``."""
        self._servers = config.get("bootstrap.servers")
        defaults = {"group.id": "floodmark-observer", "isolation.level": "read_committed"}
        fixed = {"enable.auto.commit": False, "enable.partition.eof": False, "auto.offset.reset": "earliest"}
        self._consumer = Consumer({**defaults, **config, **fixed}, logger=_log)
        self._topics = topics
        self._assigned: dict[str, int] = {}
        self.refresh()

    def refresh(self) -> None:
        """Take in partitions that were added since."""
        for topic in self._topics:
            count = partition_count(self._consumer, topic, self._servers)
            known = self._assigned.get(topic, 0)
            if count > known:
                new = [
                    TopicPartition(topic, number, self._offsets.get((topic, number), OFFSET_BEGINNING))
                    for number in range(known, count)
                ]
                self._consumer.incremental_assign(new)
                self._assigned[topic] = count

    def poll(self, timeout: float = 0.2) -> Iterator[Data | Mark | Unreadable]:
        """Yield what has come, at most some thousands; waits up to ``timeout`` seconds for the first.

        Each mark is applied to its topic's tracker as it is yielded; ask ``trackers[topic].advance()``.
        """
        for message in self._consumer.consume(_BATCH, timeout):
            error = message.error()
            if error is None:
                yield self._read(message)
            elif error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001  # its public name
                raise BrokerUnavailableError(bootstrap_servers=self._servers, seconds=timeout, reason=error.str())
            elif not error.retriable():
                raise KafkaException(error)

    def _read(self, message: Message) -> Data | Mark | Unreadable:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if topic is None or partition is None or offset is None:
            raise AssertionError  # a message without error has a place
        kind, time = message.timestamp()
        log_time = 0 if kind == TIMESTAMP_NOT_AVAILABLE else time
        key, value = message.key(), message.value()
        raw_key = key.encode() if isinstance(key, str) else key
        raw_value = value.encode() if isinstance(value, str) else value
        counts = self.counts[topic]
        if raw_key is None or not is_control_key(raw_key):
            counts["data"] += 1
            return Data(topic, partition, offset, log_time, raw_key, raw_value, message.headers())  # type: ignore[arg-type]
        try:
            record = decode_watermark(raw_key, raw_value)
        except UnreadableControlRecordError as error:
            counts["unreadable"] += 1
            self.trackers[topic].apply_unreadable(
                source_of(raw_key), topic=topic, partition=partition, offset=offset, log_time=log_time
            )
            return Unreadable(topic, partition, offset, str(error))
        counts["marks"] += 1
        verdict = self.trackers[topic].apply(record, topic=topic, partition=partition, log_time=log_time)
        return Mark(topic, partition, offset, log_time, record, verdict)

    def close(self) -> None:
        """Let go of the consumer."""
        self._consumer.close()
