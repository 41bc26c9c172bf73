"""How many partitions a topic has, asked beside the caller: who produces must neither wait for the answer nor fail."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaException, Producer
from floodmark.producers.clients.admin import partition_count
from floodmark.producers.clients.clock import Clock
from floodmark.schemas.errors import FloodmarkError
from typing_extensions import override

_log = logging.getLogger(__name__)
_SHARED_INTERVAL: Final = 10_000


class PartitionWatch:
    """The last known number of partitions of a topic.

    Args:
        client: the producer that asks.
        topic: the topic.
        bootstrap_servers: for errors.

    Raises:
        UnknownTopicError, BrokerUnavailableError: where there is no first answer.
    """

    def __init__(self, client: Producer, topic: str, bootstrap_servers: object) -> None:
        """Ask once, and wait for the answer."""
        self._client = client
        self._topic = topic
        self._servers = bootstrap_servers
        self._thread: threading.Thread | None = None
        self.partitions = partition_count(client, topic, bootstrap_servers)

    def ask(self, timeout: float | None = None) -> int:
        """Return how many there are now; waits for the answer.

        Raises:
            UnknownTopicError, BrokerUnavailableError: where there is none.
        """
        self.partitions = max(self.partitions, partition_count(self._client, self._topic, self._servers, timeout))
        return self.partitions

    def ask_beside(self, on_growth: Callable[[], None]) -> None:
        """Ask in a thread, unless one is asking; without an answer nothing changes.

        Args:
            on_growth: called in that thread, once `partitions` is higher than before.
        """
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._ask_quietly, args=(on_growth,), daemon=True)
            self._thread.start()

    def _ask_quietly(self, on_growth: Callable[[], None]) -> None:
        before = self.partitions
        try:
            if self.ask() > before:
                on_growth()
        except (FloodmarkError, KafkaException) as error:
            _log.info("the partitions of topic %r are not known to have grown: %s", self._topic, error)


class SharedWatch(PartitionWatch):
    """Asks for all sources of a pool at once, every 10 seconds; each takes the answer up with its next marks.

    Args:
        client: the producer that asks.
        topic: the topic.
        bootstrap_servers: for errors.
        clock: where the time comes from.
    """

    def __init__(self, client: Producer, topic: str, bootstrap_servers: object, clock: Clock) -> None:
        super().__init__(client, topic, bootstrap_servers)
        self._clock = clock
        self._next = clock.steady() + _SHARED_INTERVAL
        self._seen = self.partitions

    @override
    def ask_beside(self, on_growth: Callable[[], None]) -> None:
        now = self._clock.steady()
        if now >= self._next:
            self._next = now + _SHARED_INTERVAL
            super().ask_beside(on_growth)

    def has_grown(self) -> bool:
        """Ask, where it is time to, and tell whether there are more partitions than when this was called last."""
        self.ask_beside(lambda: None)
        before, self._seen = self._seen, self.partitions
        return self._seen > before
