"""Read data and marks of all partitions of topics, also new ones, and apply the marks to trackers, without a group."""

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition
from floodmark.producers.clients.admin import Config, TopicWatch, partition_bounds, partition_count
from floodmark.producers.clients.clock import Clock
from floodmark.producers.clients.consumers import (
    Closing,
    Record,
    classified,
    consume,
    failure,
    is_end,
    reading_consumer,
)
from floodmark.schemas.classify import Classified, Partition, Place
from floodmark.schemas.completeness.position import TopicIds, TopicUser, topic_names
from floodmark.schemas.errors import BrokerUnavailableError, DeletedRecordsError
from floodmark.schemas.tracker import UNMARKED, MarkRouter, Tracker

_log = logging.getLogger(__name__)
_REFRESH: Final = 5_000  # milliseconds between two checks for new partitions
_SOON: Final = 500  # the same, while a mark names more partitions than are read

_CONSUMER: Final = TopicUser("the consumer", "Start it without a position")


class Observer(Closing):
    """Follow some topics, with all their present and future partitions; marks of aborted transactions are not read.

    Args:
        config: confluent-kafka consumer settings, passed through, except ``isolation.level`` (``read_committed``).
        topics: what to read; each must exist.
        trackers: the tracker of each topic; default: a new one per topic.
        offsets: where to begin, by topic and partition; default: the first record.  Partitions that are not in it, and
            those that a topic gets later, are new: they begin at offset 0, and deleted records are an error.
        applied: offsets below which the trackers already have the marks.
        ids: the known ids of the topics; new ones are added.
        clock: for tests, a `ManualClock`.

    Raises:
        UnknownTopicError, BrokerUnavailableError, RecreatedTopicError: at startup.
    """

    def __init__(
        self,
        config: Config,
        topics: list[str],
        *,
        trackers: Mapping[str, Tracker] | None = None,
        offsets: Mapping[Partition, int] | None = None,
        applied: Mapping[Partition, int] | None = None,
        ids: TopicIds | None = None,
        user: TopicUser = _CONSUMER,
        clock: Clock = Clock(),
    ) -> None:
        self.trackers: Final = trackers or {topic: Tracker({topic}) for topic in topic_names(topics)}
        self.ends: dict[Partition, int] = {}
        """The end offset of each partition when it was last read to its end."""
        self._applied = applied or {}
        self._router = MarkRouter(self.trackers, self._applied)
        self.counts = self._router.counts
        self._offsets = offsets or {}
        self._servers = config.get("bootstrap.servers")
        self._clock = clock
        self._consumer = reading_consumer(config, "floodmark-observer", __name__)
        self._fetched: deque[Record] = deque()
        self._assigned: dict[str, int] = {}
        self._unread: set[Partition] = set()  # those that begin with what is left, of which nothing was read yet
        self._unmarked = set(topics) if trackers else set()  # topics to warn of, if they have no marks
        sizes = {topic: partition_count(self._consumer, topic, self._servers) for topic in topics}
        self._watch = TopicWatch(config, topics, TopicIds() if ids is None else ids, user)
        for topic, count in sizes.items():
            self._assign(topic, count)
        self._refreshed = self._clock.steady()

    def refresh(self) -> None:
        """Add new partitions; if no broker answers, the next call does."""
        for topic, count in self._watch.check().items():
            if count > self._assigned[topic]:
                with suppress(KafkaException):  # the consumer learns of new partitions now, not minutes later
                    self._consumer.list_topics(topic, timeout=1.0)
                self._assign(topic, count)
        self._refreshed = self._clock.steady()

    def _assign(self, topic: str, count: int) -> None:
        known = self._assigned.setdefault(topic, 0)
        if count > known:
            default = 0 if known or self._offsets else OFFSET_BEGINNING
            offsets = {number: self._offsets.get((topic, number), default) for number in range(known, count)}
            self._unread.update((topic, number) for number, offset in offsets.items() if offset == OFFSET_BEGINNING)
            self._consumer.incremental_assign([TopicPartition(topic, *place) for place in offsets.items()])
            self._assigned[topic] = count

    def poll(self, timeout: float = 0.2) -> Iterator[Classified]:
        """Yield new records, at most some thousands; waits up to ``timeout`` seconds for the first.

        Each mark is applied to its topic's tracker when it is yielded; then call ``trackers[topic].advance()``.  After
        a loop that ends early, the next call yields the rest.  `DeletedRecordsError` if Kafka has deleted records
        before they were read.
        """
        more = any(self._router.named[topic] > count for topic, count in self._assigned.items())
        if self._clock.steady() - self._refreshed > (_SOON if more else _REFRESH):
            self.refresh()
        if not self._fetched:
            self._fetched.extend(consume(self._consumer, timeout))
        while self._fetched:
            record = self._fetched.popleft()
            error = record.error()
            if error is None:
                self._unread.discard((record.topic(), record.partition()))
                yield self._router.take(classified(record))
            elif is_end(error):
                place = record.topic(), record.partition()
                self._unread.discard(place)
                if record.offset() < self._applied.get(place, 0):  # the caller raises DeletedRecordsError
                    self._watch.require_same()
                self.ends[place] = record.offset()
                self._warn_of_unmarked(record.topic())
            elif error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001  # its public name
                raise BrokerUnavailableError(bootstrap_servers=self._servers, seconds=timeout, reason=error.str())
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001  # the same
                self._overtaken(record)
            elif not error.retriable():
                raise failure(error, record.topic())

    def _warn_of_unmarked(self, topic: str) -> None:
        """Warn once of a topic without marks that was read to its end."""
        if topic not in self._unmarked:
            return
        places = {(topic, number) for number in range(self._assigned[topic])}
        if self.ends.keys() >= places:
            self._unmarked.discard(topic)
            for hold in self.trackers[topic].holders():
                if hold.reason == UNMARKED and hold.holder.topic == topic:
                    _log.warning("%s", hold)

    def _overtaken(self, record: Record) -> None:
        """Raise DeletedRecordsError; or warn and read what is left, if the partition begins with that."""
        place = topic, number = record.topic(), record.partition()
        self._fetched.appendleft(record)  # the next call raises again
        if place in self._unread:
            earliest, _ = partition_bounds(self._consumer, place, self._servers)
            self._fetched.popleft()
            cut = Place(topic, number, earliest)
            _log.warning("Kafka has deleted the records before %s: the first windows or periods may lack rows", cut)
            self._consumer.incremental_unassign([TopicPartition(topic, number)])
            self._consumer.incremental_assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
            return
        self._watch.require_same()
        earliest, end = partition_bounds(self._consumer, place, self._servers)
        raise DeletedRecordsError(topic=topic, partition=number, position=record.offset(), earliest=earliest, end=end)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
