"""Read what a topic holds, up to its end, and no further.  A thin shell around confluent-kafka's Consumer."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from floodmark.producers.clients.admin import TIMEOUT, Config
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


def newest(
    config: Config, topic: str, partitions: Iterable[int], read: Callable[[Message], Found | None]
) -> dict[int, Found]:
    """Return by partition what ``read`` gives for the last record for which it gives something.

    It looks from the ends backwards, in all partitions at once and ten times further each time, so that it is quick
    where those records are near the ends.
    """
    with closing(Consumer({"group.id": "floodmark-backlog", **config, **_FIXED}, logger=_log)) as consumer:
        bounds = {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT)
            for number in partitions
        }
    found: dict[int, Found] = {}
    ends = {number: high for number, (low, high) in bounds.items() if high > low}
    reach = _REACH
    while ends:
        starts = {number: max(bounds[number][0], bounds[number][1] - reach) for number in ends}
        places = [{(topic, number): at for number, at in offsets.items()} for offsets in (starts, ends)]
        for message in read_to_end(config, *places):
            said = read(message)
            if said is not None:
                found[int(message.partition() or 0)] = said
        ends = {number: start for number, start in starts.items() if number not in found and start > bounds[number][0]}
        reach *= 10
    return found
