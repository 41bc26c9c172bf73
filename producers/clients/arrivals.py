"""Where the records stand that came to Kafka from some time on.  A thin shell around confluent-kafka's Consumer."""

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import Consumer
from floodmark.producers.clients.admin import QUIET, Config, offset_bounds, offsets_since
from floodmark.schemas.classify import Partition


@dataclass(frozen=True, slots=True)
class Kept:
    """What Kafka still has of a partition, as offsets: the first record, the end, and the first since some time."""

    first: int
    end: int
    since: int
    """The first record with Kafka's timestamp at that time or later; where there is none, ``end``."""

    @property
    def reaches_back(self) -> bool:
        """Whether all records since that time are there: none was deleted, or an earlier one is still there."""
        return self.first == 0 or self.since > self.first


def kept_since(config: Config, topics: Collection[str], time: int) -> dict[Partition, Kept]:
    """Ask what Kafka has of each partition.

    Every record before ``since`` has a timestamp before ``time``, in whatever order the timestamps stand.

    Args:
        config: confluent-kafka consumer settings.
        topics: the topics.
        time: epoch milliseconds; before 1970 counts as 1970.

    Raises:
        BrokerUnavailableError: where nobody answers.
    """
    bounds = {place: bound for topic in topics for place, bound in offset_bounds(config, topic).items()}
    since = first_since(config, bounds, time)
    return {place: Kept(*bound, since[place]) for place, bound in bounds.items()}


def first_since(config: Config, bounds: Mapping[Partition, tuple[int, int]], time: int) -> dict[Partition, int]:
    """Return the first offset of each partition whose Kafka timestamp is not before a time.

    Args:
        config: confluent-kafka consumer settings.
        bounds: of each partition its first offset and its end, which is returned where nothing has come since.
        time: epoch milliseconds; before 1970 counts as 1970.

    Raises:
        BrokerUnavailableError: where nobody answers.
    """
    settings = {**config, "group.id": "floodmark-arrivals", "enable.auto.commit": False}
    with closing(Consumer(settings, logger=QUIET)) as consumer:
        since = offsets_since(consumer, dict.fromkeys(bounds, time), config.get("bootstrap.servers"))
    return {
        place: end if since[place] < 0 else min(max(since[place], first), end) for place, (first, end) in bounds.items()
    }
