"""Detect that a topic was deleted, or deleted and created again, while a client reads it.  A thin shell."""

import logging
import time
from collections.abc import Collection, Mapping
from typing import Final

from confluent_kafka.admin import AdminClient
from floodmark.producers.clients.admin import QUIET, TIMEOUT, Config, described, shared
from floodmark.producers.clients.clock import Deadline
from floodmark.schemas.completeness.position import TopicIds
from floodmark.schemas.errors import BrokerUnavailableError, UnknownTopicError

_log = logging.getLogger(__name__)
_PATIENCE: Final = 1.0
"""Seconds to wait for an answer while reading."""


class TopicWatch:
    """Compares the ids of topics with their ids when they were first read; `RecreatedTopicError` if one differs.

    Records that were read before a successful `check` belong to the same topics, because ids are never used again.
    """

    def __init__(self, config: Config, topics: Collection[str], ids: TopicIds, reader: str) -> None:
        self._client = AdminClient(shared(config), logger=QUIET)
        self._servers = config.get("bootstrap.servers")
        self._topics = topics
        self._ids = ids
        self._reader = reader
        self._missed = False
        deadline = Deadline(TIMEOUT)
        while True:
            try:
                self._compare(described(self._client, topics, self._servers))
            except UnknownTopicError:  # one broker may know a new topic later than others
                if deadline.passed:
                    raise
                time.sleep(0.05)
            else:
                return

    def check(self) -> Mapping[str, int]:
        """Compare the ids again; return the number of partitions of each topic, or nothing if Kafka does not answer.

        `RecreatedTopicError` if one has another id; `UnknownTopicError` if one is missing twice in succession.
        """
        try:
            found = described(self._client, self._topics, self._servers, _PATIENCE)
        except (BrokerUnavailableError, TimeoutError) as error:
            _log.info("%s cannot check whether its topics were created again: %s", self._reader, error)
        except UnknownTopicError:
            if self._missed:
                raise
            self._missed = True
        else:
            self._missed = False
            self._compare(found)
            return {topic: count for topic, (_, count) in found.items()}
        return {}

    def _compare(self, found: Mapping[str, tuple[str | None, int]]) -> None:
        self._ids.compare({topic: id_ for topic, (id_, _) in found.items() if id_ is not None}, self._reader)
