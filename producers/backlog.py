"""Read what a topic holds, up to its end, and no further.  A thin shell around confluent-kafka's Consumer."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from floodmark.producers.kafka import TIMEOUT, Config
from floodmark.schemas.errors import BrokerUnavailableError

_log = logging.getLogger(__name__)
_BATCH: Final = 10_000
_REACH: Final = 1_000
_FIXED: Final = {"enable.auto.commit": False, "enable.partition.eof": True, "isolation.level": "read_committed"}

Found = TypeVar("Found")
Places = Mapping[tuple[str, int], int]
"""Topic and partition to offset."""


def read_to_end(config: Config, starts: Places, ends: Places | None = None) -> Iterator[Message]:
    """Yield the records from some offsets on, until every partition has come to its end.

    Args:
        config: confluent-kafka consumer settings.
        starts: where to begin.
        ends: where a partition ends before its end; default: with its last record.

    Raises:
        BrokerUnavailableError: where nothing comes for too long.
        KafkaException: where Kafka answers with an error.
    """
    open_ = {place for place, start in starts.items() if ends is None or ends.get(place, start + 1) > start}
    with closing(Consumer({"group.id": "floodmark-backlog", **config, **_FIXED}, logger=_log)) as consumer:
        consumer.assign([TopicPartition(topic, part, starts[topic, part]) for topic, part in open_])
        quiet = 0.0
        while open_:
            began = time.monotonic()  # the time that the caller takes for a record does not count
            messages = consumer.consume(_BATCH, 0.2)
            quiet = 0.0 if messages else quiet + time.monotonic() - began
            if quiet > TIMEOUT:
                reason = f"{sorted(open_)} gave nothing more"
                servers = config.get("bootstrap.servers")
                raise BrokerUnavailableError(bootstrap_servers=servers, seconds=TIMEOUT, reason=reason)
            for message in messages:
                place = (str(message.topic()), int(message.partition() or 0))
                if _is_behind(message, None if ends is None else ends.get(place)):
                    open_.discard(place)
                elif message.error() is None:
                    yield message


def _is_behind(message: Message, end: int | None) -> bool:
    """Tell whether a message, or the word that a partition has ended, is behind what was asked for."""
    error = message.error()
    if error is None:
        return end is not None and int(message.offset() or 0) >= end
    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
        return True
    if not error.retriable():
        raise KafkaException(error)
    return False


def newest(config: Config, topic: str, partition: int, read: Callable[[Message], Found | None]) -> Found | None:
    """Return what ``read`` gives for the last record of a partition for which it gives something.

    It looks from the end backwards, ten times further each time, so that it is quick where that record is near the end.
    """
    with closing(Consumer({"group.id": "floodmark-backlog", **config, **_FIXED}, logger=_log)) as consumer:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT)
    reach, end = _REACH, high
    while end > low:
        start = max(low, high - reach)
        found = None
        for message in read_to_end(config, {(topic, partition): start}, {(topic, partition): end}):
            said = read(message)
            found = found if said is None else said
        if found is not None:
            return found
        end, reach = start, reach * 10
    return None
