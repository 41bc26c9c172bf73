"""Read topics as anyone may: data on one side, watermark records on the other, with a tracker between.

A thin shell around confluent-kafka's Consumer: no group, no commits, every partition, also those that are added later.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
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
from floodmark.producers.clients.admin import Config, partition_count
from floodmark.producers.clients.closing import Closing
from floodmark.schemas.classify import Data, Mark, Place, Sorter, Unreadable
from floodmark.schemas.errors import BrokerUnavailableError
from floodmark.schemas.tracker import Tracker

__all__ = ["Data", "Mark", "Observer", "Unreadable"]

_log = logging.getLogger(__name__)
_BATCH: Final = 10_000
_REFRESH: Final = 5.0
"""Seconds between questions for new partitions."""
_SOON: Final = 0.5
"""The same, while a mark names more partitions than are read."""
_PATIENCE: Final = 1.0
"""Seconds to wait for the answer; without one, the next question comes in its turn."""


class Observer(Closing):
    """Follow some topics, with all partitions that they have and will have.

    Args:
        config: confluent-kafka consumer settings; all pass through.
        topics: what to read; each must exist.
        trackers: what takes in the marks of each topic; default: a new one per topic.
        offsets: where to begin (topic and partition to offset); default, and for all others: the beginning.
        applied: offsets below which the trackers hold the marks already.

    Raises:
        UnknownTopicError, BrokerUnavailableError: at once.
    """

    def __init__(
        self,
        config: Config,
        topics: list[str],
        *,
        trackers: Mapping[str, Tracker] | None = None,
        offsets: Mapping[Place, int] | None = None,
        applied: Mapping[Place, int] | None = None,
    ) -> None:
        """Assign every partition of every topic."""
        self.trackers: Final = trackers or {topic: Tracker({topic}) for topic in topics}
        self.ends: dict[Place, int] = {}
        """Where each partition ended when its end was last read: the offset that comes next."""
        self._sorter = Sorter(self.trackers, applied)
        self.counts = self._sorter.counts
        self._offsets = offsets or {}
        self._servers = config.get("bootstrap.servers")
        defaults = {"group.id": "floodmark-observer", "isolation.level": "read_committed"}
        fixed = {"enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "earliest"}
        self._consumer = Consumer({**defaults, **config, **fixed}, logger=_log)
        self._fetched: deque[Message] = deque()
        self._assigned: dict[str, int] = {}
        for topic in topics:
            self._assign(topic, partition_count(self._consumer, topic, self._servers))
        self._refreshed = time.monotonic()

    def refresh(self) -> None:
        """Take in partitions that were added since; where no broker answers, another time."""
        for topic in self._assigned:
            try:
                found = self._consumer.list_topics(topic, timeout=_PATIENCE).topics[topic]
            except KafkaException as error:
                _log.info("%s: no answer on its partitions: %s", topic, error.args[0].str())
            else:
                self._assign(topic, len(found.partitions or {}))
        self._refreshed = time.monotonic()

    def _assign(self, topic: str, count: int) -> None:
        known = self._assigned.setdefault(topic, 0)
        if count > known:
            offsets = {number: self._offsets.get((topic, number), OFFSET_BEGINNING) for number in range(known, count)}
            self._consumer.incremental_assign([TopicPartition(topic, *place) for place in offsets.items()])
            self._assigned[topic] = count

    def _refresh_in_time(self) -> None:
        more = any(self._sorter.named[topic] > count for topic, count in self._assigned.items())
        if time.monotonic() - self._refreshed > (_SOON if more else _REFRESH):
            self.refresh()

    def poll(self, timeout: float = 0.2) -> Iterator[Data | Mark | Unreadable]:
        """Yield what has come, at most some thousands; waits up to ``timeout`` seconds for the first.

        Each mark is applied to its topic's tracker as it is yielded; ask ``trackers[topic].advance()``.  A loop that is
        left early loses nothing: the rest comes with the next call.
        """
        self._refresh_in_time()
        if not self._fetched:
            self._fetched.extend(self._consumer.consume(_BATCH, timeout))
        while self._fetched:
            message = self._fetched.popleft()
            error = message.error()
            if error is None:
                yield self._read(message)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
                self.ends[str(message.topic()), int(message.partition() or 0)] = int(message.offset() or 0)
            elif error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001  # its public name
                raise BrokerUnavailableError(bootstrap_servers=self._servers, seconds=timeout, reason=error.str())
            elif not error.retriable():
                raise KafkaException(error)

    def _read(self, message: Message) -> Data | Mark | Unreadable:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if topic is None or partition is None or offset is None:
            raise AssertionError  # a message without error has a place
        kind, log_time = message.timestamp()
        key, value = message.key(), message.value()
        return self._sorter.take(
            topic,
            partition,
            offset,
            log_time=0 if kind == TIMESTAMP_NOT_AVAILABLE else log_time,
            key=key.encode() if isinstance(key, str) else key,
            value=value.encode() if isinstance(value, str) else value,
            headers=message.headers(),  # type: ignore[arg-type]  # raw values are bytes
        )

    def close(self) -> None:
        """Let go of the consumer."""
        self._consumer.close()
