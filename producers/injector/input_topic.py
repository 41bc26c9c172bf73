"""The input of an injector.  A thin shell around confluent-kafka's Consumer."""

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
    """Return the partition counts of input and target; ``equal``: refuse partitions that only the target has.

    Raises:
        UnknownTopicError, BrokerUnavailableError: if Kafka does not return them.
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
    """The partitions of the input, from the stored offsets."""

    def __init__(self, injection: Injection, config: Config, begins: Mapping[int, int]) -> None:
        self._injection = injection
        self.drained = False
        """Whether the last `take` returned all records of the client."""
        self.consumer: Final = reading_consumer(config, f"floodmark-{injection.source}", _log)
        self.consumer.assign([self._place(number, offset) for number, offset in begins.items()])

    def _place(self, number: int, offset: int | None = None) -> TopicPartition:
        topic = self._injection.source_topic
        return TopicPartition(topic, number) if offset is None else TopicPartition(topic, number, offset)

    def add(self, number: int, offset: int) -> None:
        """Read a new partition, from an offset."""
        self.consumer.incremental_assign([self._place(number, offset)])

    def take(self, seconds: float) -> list[Record]:
        """Return the next records, after at most ``seconds``; an end of a partition is among them, as an error."""
        found = consume(self.consumer, seconds)
        self.drained = len(found) < BATCH
        return found

    def is_at_end(self, error: KafkaError) -> bool:
        """Tell whether an error only means that a partition was read to its end.

        Raises:
            InjectorError: if Kafka has deleted the next records.
            KafkaException: for any other error that is not retriable.
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
        """Pause or resume a partition."""
        (self.consumer.pause if paused else self.consumer.resume)([self._place(number)])

    def close(self) -> None:
        """Close the client."""
        self.consumer.close()
