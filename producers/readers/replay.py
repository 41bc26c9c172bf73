"""Read what a topic holds, up to its end, and no further.  A thin shell around confluent-kafka's Consumer."""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from typing import Final, TypeVar

from confluent_kafka import Consumer, KafkaException, TopicPartition
from floodmark.producers.clients.admin import TIMEOUT, Config, offset_bounds
from floodmark.producers.clients.consumers import Record, classified, consume, is_end
from floodmark.schemas.classify import Classified, Partition
from floodmark.schemas.errors import BrokerUnavailableError

_log = logging.getLogger(__name__)
_REACH: Final = 1_000
_FIXED: Final = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
}

Found = TypeVar("Found")
Offsets = Mapping[Partition, int]


def read_until_end(config: Config, starts: Offsets, ends: Offsets | None = None) -> Iterator[Classified]:
    """Yield the records from some offsets on, until every partition has come to its end.

    Args:
        config: confluent-kafka consumer settings.
        starts: where to begin; where Kafka has deleted that record, with the first one that is left.
        ends: where a partition ends before its end; default: with its last record.

    Raises:
        BrokerUnavailableError: where nothing comes for too long.
        KafkaException: where Kafka answers with an error.
    """
    open_ = {place for place, start in starts.items() if ends is None or ends.get(place, start + 1) > start}
    with closing(Consumer({"group.id": "floodmark-replay", **config, **_FIXED}, logger=_log)) as consumer:
        consumer.assign([TopicPartition(topic, part, starts[topic, part]) for topic, part in open_])
        quiet = 0.0
        while open_:
            began = time.monotonic()  # the time that the caller takes for a record does not count
            records = consume(consumer, 0.2)
            quiet = 0.0 if records else quiet + time.monotonic() - began
            if quiet > TIMEOUT:
                reason = f"{sorted(open_)} gave nothing more"
                servers = config.get("bootstrap.servers")
                raise BrokerUnavailableError(bootstrap_servers=servers, seconds=TIMEOUT, reason=reason)
            for record in records:
                partition = (record.topic(), record.partition())
                if _is_behind(record, None if ends is None else ends.get(partition)):
                    open_.discard(partition)
                elif record.error() is None:
                    yield classified(record)


def _is_behind(record: Record, end: int | None) -> bool:
    """Tell whether a record, or the word that a partition has ended, is behind what was asked for."""
    error = record.error()
    if error is None:
        return end is not None and record.offset() >= end
    if not (is_end(error) or error.retriable()):
        raise KafkaException(error)
    return is_end(error)


def last_matching(
    config: Config,
    topic: str,
    partitions: Collection[int],
    read: Callable[[Classified], Found | None],
    *,
    most: float = math.inf,
) -> dict[int, Found]:
    """Return by partition what ``read`` gives for the last record for which it gives something.

    It looks from the ends backwards, in all partitions at once and ten times further each time, so that it is quick
    where those records are near the ends.

    Args:
        config: confluent-kafka consumer settings.
        topic: the topic.
        partitions: those to look at.
        read: what to look for; it is given every record, from the first of a stretch to its last.
        most: how many records of a partition to look at.

    Raises:
        BrokerUnavailableError, KafkaException: as `read_until_end`.
    """
    bounds = {place: bound for place, bound in offset_bounds(config, topic).items() if place[1] in partitions}
    found: dict[int, Found] = {}
    ends = {place: high for place, (low, high) in bounds.items() if high > low}
    reach = _REACH
    while ends and reach <= most:
        starts = {place: max(bounds[place][0], bounds[place][1] - reach) for place in ends}
        for record in read_until_end(config, starts, ends):
            match = read(record)
            if match is not None:
                found[record.partition] = match
        ends = {p: start for p, start in starts.items() if p[1] not in found and start > bounds[p][0]}
        reach *= 10
    return found
