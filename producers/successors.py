"""Whether a later run of a source writes to its topic: two processes have one name, or this one is a zombie."""

import logging
import threading
from collections.abc import Mapping
from contextlib import closing
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition
from floodmark.producers.clients.admin import QUIET, TIMEOUT, Config, shared
from floodmark.producers.clients.clock import Clock
from floodmark.producers.readers.replay import read_until_end
from floodmark.schemas.classify import Mark
from floodmark.schemas.errors import FloodmarkError

_log = logging.getLogger(__name__)
_INTERVAL: Final = 60_000
_MOST: Final = 10_000


class Successors:
    """The epochs of the sources of a topic, read from their marks once a minute and beside the caller.

    Every source marks partition 0, so each look reads there what has come since the last one, but at most 10,000
    records.  In a busier partition a look may miss a source, and a later one finds it.
    """

    def __init__(self, config: Config, topic: str, clock: Clock) -> None:
        self.epochs: Mapping[str, int] = {}
        """The highest epoch of each source that was seen."""
        self._config = {**shared(config), "group.id": "floodmark-successors"}
        self._topic = topic
        self._next = clock.steady() + _INTERVAL
        self._thread: threading.Thread | None = None
        self._read = 0

    def look_beside(self, now: int) -> None:
        """Look in a thread, where it is time to; without an answer nothing changes.

        Args:
            now: the steady clock, milliseconds.
        """
        if now >= self._next and (self._thread is None or not self._thread.is_alive()):
            self._next = now + _INTERVAL
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()

    def _look(self) -> None:
        place = self._topic, 0
        try:
            with closing(Consumer(self._config, logger=QUIET)) as consumer:
                low, high = consumer.get_watermark_offsets(TopicPartition(*place), timeout=TIMEOUT)
            start, epochs = max(low, high - _MOST, self._read), dict(self.epochs)
            for one in read_until_end(self._config, {place: start}, {place: high}):
                if isinstance(one, Mark):
                    epochs[one.record.source] = max(one.record.epoch, epochs.get(one.record.source, 0))
            self._read, self.epochs = high, epochs
        except (FloodmarkError, KafkaException) as error:
            _log.info("whether later runs write to topic %r is not known: %s", self._topic, error)
