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
_INTERVAL: Final = 60_000  # milliseconds
_MOST_RECORDS: Final = 10_000


class Successors:
    """The epochs of a topic's sources, read from their marks once a minute, in a thread.

    Every source marks partition 0, so it is enough to read the new records there, 10,000 at most.  In a busier
    partition a source may be missed once, and found a minute later.
    """

    def __init__(self, config: Config, topic: str, clock: Clock) -> None:
        self.epochs: Mapping[str, int] = {}
        """The highest known epoch of each source."""
        self._config = {**shared(config), "group.id": "floodmark-successors"}
        self._topic = topic
        self._next = clock.steady() + _INTERVAL
        self._thread: threading.Thread | None = None
        self._read = 0

    def refresh_in_background(self, now: int) -> None:
        """Read new marks in a thread, once a minute; if that fails, nothing changes."""
        if now >= self._next and (self._thread is None or not self._thread.is_alive()):
            self._next = now + _INTERVAL
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()

    def _look(self) -> None:
        place = self._topic, 0
        try:
            with closing(Consumer(self._config, logger=QUIET)) as consumer:
                low, high = consumer.get_watermark_offsets(TopicPartition(*place), timeout=TIMEOUT)
            start, epochs = max(low, high - _MOST_RECORDS, self._read), dict(self.epochs)
            for record in read_until_end(self._config, {place: start}, {place: high}):
                if isinstance(record, Mark):
                    mark = record.record
                    epochs[mark.source] = max(mark.epoch, epochs.get(mark.source, 0))
            self._read, self.epochs = high, epochs
        except (FloodmarkError, KafkaException) as error:
            _log.info("whether later runs write to topic %r is not known: %s", self._topic, error)
