"""Where the records stand that came to Kafka from some time on.  A thin shell around confluent-kafka's Consumer."""

from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition
from floodmark.producers.clients.admin import QUIET, TIMEOUT, Config, offset_bounds
from floodmark.schemas.classify import Partition
from floodmark.schemas.errors import BrokerUnavailableError


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
    with closing(
        Consumer({**config, "group.id": "floodmark-arrivals", "enable.auto.commit": False}, logger=QUIET)
    ) as c:
        asked = [TopicPartition(*place, max(0, time)) for place in bounds]
        try:
            answered = {(found.topic, found.partition): found for found in c.offsets_for_times(asked, timeout=TIMEOUT)}
        except KafkaException as error:
            servers, reason = config.get("bootstrap.servers"), error.args[0].str()
            raise BrokerUnavailableError(bootstrap_servers=servers, seconds=TIMEOUT, reason=reason) from error
    return {place: Kept(*bound, _since(answered[place], bound)) for place, bound in bounds.items()}


def _since(found: TopicPartition, bound: tuple[int, int]) -> int:
    first, end = bound
    return end if found.offset in {OFFSET_END, -1} else min(max(found.offset, first), end)
