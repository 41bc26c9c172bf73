"""The topic without watermarks, as an injector reads it.  A thin shell around confluent-kafka's Consumer."""

import logging
from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from floodmark.producers.clients.admin import Config, require_topics
from floodmark.producers.clients.closing import Closing
from floodmark.producers.clients.consumers import BATCH, Record, consume, is_end, reading_consumer
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.partitions import OVERTAKEN
from floodmark.schemas.errors import InjectorError

_log = logging.getLogger(__name__)


def sizes_of(config: Config, injection: Injection, *, equal: bool) -> tuple[int, int]:
    """Return how many partitions the input and the target have.

    Args:
        config: confluent-kafka settings.
        injection: whose topics.
        equal: whether the target may have no more than the input: a group marks no partition that the input lacks.

    Raises:
        UnknownTopicError, BrokerUnavailableError: if they cannot be asked.
        InjectorError: if the target has too few, or too many.
    """
    source, target = injection.source_topic, injection.target_topic
    sizes = require_topics(config, [source, target, *([injection.dropped_to] if injection.dropped_to else [])])
    if sizes[target] < sizes[source] or (equal and sizes[target] > sizes[source]):
        reason = f"{target!r} has {sizes[target]} partitions and {source!r} has {sizes[source]}"
        advice = "a group needs the same number in both" if equal else "give it as many partitions, or more"
        raise InjectorError(source=injection.source, reason=reason, advice=advice)
    return sizes[source], sizes[target]


class InputTopic(Closing):
    """The partitions of the input, from where the last instance stopped."""

    def __init__(self, injection: Injection, config: Config, begins: Mapping[int, int]) -> None:
        self._injection = injection
        self.drained = False
        """Whether the last `take` has left nothing behind in the client."""
        self.consumer: Final = reading_consumer(config, f"floodmark-{injection.source}", _log)
        self.consumer.assign([self._place(number, offset) for number, offset in begins.items()])

    def _place(self, number: int, offset: int | None = None) -> TopicPartition:
        topic = self._injection.source_topic
        return TopicPartition(topic, number) if offset is None else TopicPartition(topic, number, offset)

    def add(self, number: int, offset: int) -> None:
        """Read a partition that was added to the topic, from an offset."""
        self.consumer.incremental_assign([self._place(number, offset)])

    def take(self, seconds: float) -> list[Record]:
        """Return the next records, after so many seconds at most; ends of partitions are among them, as errors."""
        found = consume(self.consumer, seconds)
        self.drained = len(found) < BATCH
        return found

    def is_at_end(self, error: KafkaError) -> bool:
        """Tell whether an error only says that a partition has been read to its end.

        Raises:
            InjectorError: if retention has deleted what comes next.
            KafkaException: for another error that trying again does not help.
        """
        if is_end(error):
            return True
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001  # its public name
            reason = f"Kafka no longer has what comes next: {error.str()}"
            raise InjectorError(source=self._injection.source, reason=reason, advice=OVERTAKEN)
        if not error.retriable():
            raise KafkaException(error)
        return False

    def hold(self, number: int, *, paused: bool) -> None:
        """Read nothing of a partition for now, or go on with it."""
        (self.consumer.pause if paused else self.consumer.resume)([self._place(number)])

    def close(self) -> None:
        """Release the client."""
        self.consumer.close()
