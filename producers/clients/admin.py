"""Questions to a Kafka cluster, with clear errors, and the logs of its clients.  A thin shell around AdminClient."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not marked as such
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic
from floodmark.producers.clients.clock import Deadline
from floodmark.producers.clients.consumers import reading_consumer
from floodmark.schemas.classify import Partition
from floodmark.schemas.errors import BrokerUnavailableError, UnknownTopicError
from typing_extensions import override

TIMEOUT: Final = 15.0
"""Seconds to wait for a broker's answer before saying that there is none."""

_NO_ID: Final = str(Uuid(0, 0))
_SECRET: Final = ("password", "secret", "token", "jaas", "ssl.key", "user.info", "username")
QUIET: Final = logging.getLogger("floodmark.kafka")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False  # what it would say in many lines comes as one error

_MOVING: Final = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""What brokers answer while the leader of a partition moves, or right after a topic was created."""

Answer = TypeVar("Answer")
Config = Mapping[str, Any]
"""confluent-kafka settings; every one of them passes through."""


def redacted(config: Config) -> dict[str, Any]:
    """Return settings that may be shown: secrets are stars.

    >>> redacted({"sasl.password": "hunter2", "acks": "all"})
    {'sasl.password': '****', 'acks': 'all'}
    """
    return {name: "****" if any(part in name.lower() for part in _SECRET) else value for name, value in config.items()}


_SHARED: Final = (
    *("bootstrap.", "security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl."),
    *("client.", "socket.", "broker.", "metadata.", "topic.metadata.", "reconnect.", "oauth_cb"),
)
"""What a producer's settings and a consumer's have in common."""


def shared(config: Config) -> dict[str, Any]:
    """Return those settings of a producer that a consumer understands, too.

    >>> shared({"bootstrap.servers": "localhost:9092", "linger.ms": 5})
    {'bootstrap.servers': 'localhost:9092'}
    """
    return {name: value for name, value in config.items() if name.startswith(_SHARED)}


@contextmanager
def answering(
    bootstrap_servers: object, seconds: float = TIMEOUT, but: int | None = None, about: str = ""
) -> Iterator[None]:
    """Turn what Kafka refuses within the block into one error; a refusal with the code ``but`` is none.

    Raises:
        BrokerUnavailableError: if Kafka does not answer, or refuses, for lack of a right, too.
    """
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() != but:
            reason = f"{about}: {error.args[0].str()}" if about else error.args[0].str()
            raise BrokerUnavailableError(bootstrap_servers=bootstrap_servers, seconds=seconds, reason=reason) from error


def answered(ask: Callable[[], Answer], bootstrap_servers: object) -> Answer:
    """Return what Kafka answers to a question about partitions; asks again while the leader of one moves.

    Raises:
        BrokerUnavailableError: if Kafka does not answer, or refuses, for lack of a right, too.
    """
    deadline = Deadline(TIMEOUT)
    while True:
        with answering(bootstrap_servers):
            try:
                return ask()
            except KafkaException as error:
                if error.args[0].code() not in _MOVING or deadline.passed:
                    raise
        time.sleep(0.05)


def partition_count(
    client: AdminClient | Producer | Consumer, topic: str, bootstrap_servers: object, timeout: float | None = None
) -> int:
    """Return how many partitions a topic has.

    Args:
        client: who asks.
        topic: the topic.
        bootstrap_servers: for errors.
        timeout: seconds to wait for an answer; default: `TIMEOUT`.

    Raises:
        UnknownTopicError: if it does not exist.
        BrokerUnavailableError: if no broker answers.
    """
    # The first answer after creation can still lack the topic's leaders, so ask until the deadline.
    timeout = TIMEOUT if timeout is None else timeout
    deadline = Deadline(timeout)
    while True:
        with answering(bootstrap_servers, timeout):
            found = client.list_topics(topic, timeout=timeout).topics[topic]
        if found.error is None and found.partitions:
            return len(found.partitions)
        code = None if found.error is None else found.error.code()
        retriable = code in {None, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION}
        if not retriable or deadline.passed:
            raise UnknownTopicError(topic=topic, bootstrap_servers=bootstrap_servers)
        time.sleep(0.02)


def existing_topics(config: Config) -> set[str]:
    """Return the names of all topics.

    Raises:
        BrokerUnavailableError: if no broker answers.
    """
    with answering(config.get("bootstrap.servers")):
        return set(AdminClient(dict(config), logger=QUIET).list_topics(timeout=TIMEOUT).topics)


def require_topics(config: Config, topics: list[str]) -> dict[str, int]:
    """Return the partition count of each topic, or say which one is missing."""
    client = AdminClient(dict(config), logger=QUIET)
    return {topic: partition_count(client, topic, config.get("bootstrap.servers")) for topic in topics}


def described(
    client: AdminClient, topics: Collection[str], bootstrap_servers: object, timeout: float = TIMEOUT
) -> dict[str, tuple[str | None, int]]:
    """Return the id of each topic, and how many partitions it has; brokers before Kafka 2.8 give no ids.

    Args:
        client: who asks.
        topics: the topics, at least one.
        bootstrap_servers: for errors.
        timeout: seconds to wait for an answer.

    Raises:
        UnknownTopicError: if one does not exist.
        BrokerUnavailableError: if no broker answers.
    """
    found = dict[str, tuple[str | None, int]]()
    asked = client.describe_topics(TopicCollection(list(topics)), request_timeout=timeout)
    for topic, future in asked.items():
        with answering(bootstrap_servers, timeout):
            try:
                one = future.result(timeout=timeout + TIMEOUT)
                number = str(one.topic_id)
                found[topic] = None if number == _NO_ID else number, len(one.partitions)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise UnknownTopicError(topic=topic, bootstrap_servers=bootstrap_servers) from error
                raise
    return found


def create_topics(config: Config, topics: Mapping[str, int], settings: Mapping[str, str] | None = None) -> None:
    """Create topics that are not there yet, each with its number of partitions; waits until they can be used.

    Raises:
        BrokerUnavailableError: if no broker answers.
    """
    client = AdminClient(dict(config), logger=QUIET)
    servers = config.get("bootstrap.servers")
    new = [
        NewTopic(name, num_partitions=count, replication_factor=-1, config=dict(settings or {}))
        for name, count in topics.items()
    ]
    for future in client.create_topics(new, request_timeout=TIMEOUT).values():
        with answering(servers, but=KafkaError.TOPIC_ALREADY_EXISTS):
            future.result(timeout=TIMEOUT + 5)
    deadline = Deadline(TIMEOUT)
    while True:
        with suppress(UnknownTopicError):
            for name in topics:
                partition_count(client, name, servers)
            return
        if deadline.passed:
            raise UnknownTopicError(topic=", ".join(topics), bootstrap_servers=servers)


def begin_offsets(config: Config, topics: Collection[str]) -> dict[Partition, int]:
    """Return the offset of the first record that Kafka still has of each partition."""
    return {place: begin for topic in topics for place, (begin, _) in offset_bounds(config, topic).items()}


def compacted_topics(config: Config, topics: Collection[str]) -> set[str]:
    """Return which topics are compacted; one whose settings may not be read counts as not compacted."""
    return {topic for topic, found in _settings(config, topics).items() if "compact" in found.get("cleanup.policy", "")}


def overwrites_timestamps(config: Config, topic: str) -> bool:
    """Tell whether the brokers replace the timestamps of records; no, where the topic's settings may not be read."""
    return _settings(config, [topic]).get(topic, {}).get("message.timestamp.type") == "LogAppendTime"


def timestamp_tolerances(config: Config, topic: str) -> tuple[int | None, int | None]:
    """Return how many milliseconds a record's timestamp may be behind and ahead of the clock, for a topic to take it.

    ``None``: any number, or the topic's settings may not be read.
    """
    found = _settings(config, [topic]).get(topic, {})
    if found.get("message.timestamp.type") == "LogAppendTime":
        return None, None
    behind, ahead = (found.get(f"message.timestamp.{side}.max.ms") for side in ("before", "after"))
    return (None if behind is None else int(behind)), (None if ahead is None else int(ahead))


def _settings(config: Config, topics: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the settings of topics, of each that may be asked for them."""
    client = AdminClient(dict(config), logger=QUIET)
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    found: dict[str, dict[str, str]] = {}
    for resource, future in client.describe_configs(resources, request_timeout=TIMEOUT).items():
        with suppress(KafkaException):
            entries = future.result(timeout=TIMEOUT + 5)
            found[str(resource.name)] = {name: str(entry.value) for name, entry in entries.items()}
    return found


def end_offsets(config: Config, topic: str) -> dict[int, int]:
    """Return the offset after the last readable record of each partition (`read_committed`)."""
    return {number: end for (_, number), (_, end) in offset_bounds(config, topic).items()}


def offset_bounds(config: Config, topic: str) -> dict[Partition, tuple[int, int]]:
    """Return of each partition the offset of its first record, and that after its last readable one.

    Raises:
        UnknownTopicError, BrokerUnavailableError: if Kafka cannot say.
    """
    client, servers = AdminClient(shared(config), logger=QUIET), config.get("bootstrap.servers")
    numbers = range(partition_count(client, topic, servers))

    def ask(spec: OffsetSpec) -> list[int]:
        """Ask for an offset of all partitions in one request to each broker."""
        asked = client.list_offsets(
            {TopicPartition(topic, number): spec for number in numbers},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=TIMEOUT,
        )
        found = {place.partition: future.result(TIMEOUT + 5).offset for place, future in asked.items()}
        return [found[number] for number in numbers]

    specs = (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]  # Confluent has no types here
    begins, ends = (answered(partial(ask, spec), servers) for spec in specs)
    return {(topic, number): bounds for number, bounds in enumerate(zip(begins, ends, strict=True))}


def partition_bounds(consumer: Consumer, place: Partition, bootstrap_servers: object) -> tuple[int, int]:
    """Return the offset of the first record of a partition, and the one after the last that the consumer may read.

    Raises:
        BrokerUnavailableError: if Kafka cannot say.
    """
    asked = TopicPartition(*place)
    return answered(lambda: consumer.get_watermark_offsets(asked, timeout=TIMEOUT), bootstrap_servers)


def offsets_since(
    consumer: Consumer, times: Mapping[Partition, int], bootstrap_servers: object
) -> dict[Partition, int]:
    """Return the first offset of each partition whose Kafka timestamp is not before a time; negative: there is none.

    Raises:
        BrokerUnavailableError: if Kafka cannot say of every partition.
    """

    def ask() -> dict[Partition, int]:
        asked = [TopicPartition(*place, max(0, time)) for place, time in times.items()]
        answers = consumer.offsets_for_times(asked, timeout=TIMEOUT)
        for one in answers:
            if one.error is not None:
                raise KafkaException(one.error)
        return {(one.topic, one.partition): one.offset for one in answers}

    return answered(ask, bootstrap_servers)


@dataclass(frozen=True, slots=True)
class RetainedOffsets:
    """What Kafka still has of a partition, as offsets: the first record, the end, and the first since some time."""

    first: int
    end: int
    since: int
    """The first record with Kafka's timestamp at that time or later; where there is none, ``end``."""

    @property
    def is_complete(self) -> bool:
        """Whether all records since that time are there: none was deleted, or an earlier one is still there."""
        return self.first == 0 or self.since > self.first


def retained_since(config: Config, topics: Collection[str], time: int) -> dict[Partition, RetainedOffsets]:
    """Ask what Kafka has of each partition.

    Every record before ``since`` has a timestamp before ``time``, in whatever order the timestamps stand.

    Args:
        config: confluent-kafka consumer settings.
        topics: the topics.
        time: epoch milliseconds; before 1970 counts as 1970.

    Raises:
        BrokerUnavailableError: if nobody answers.
    """
    bounds = {place: bound for topic in topics for place, bound in offset_bounds(config, topic).items()}
    since = first_since(config, bounds, time)
    return {place: RetainedOffsets(*bound, since[place]) for place, bound in bounds.items()}


def first_since(config: Config, bounds: Mapping[Partition, tuple[int, int]], time: int) -> dict[Partition, int]:
    """Return the first offset of each partition whose Kafka timestamp is not before a time.

    Args:
        config: confluent-kafka consumer settings.
        bounds: of each partition its first offset and its end, which is returned where nothing has come since.
        time: epoch milliseconds; before 1970 counts as 1970.

    Raises:
        BrokerUnavailableError: if nobody answers.
    """
    with closing(reading_consumer(config, "floodmark-arrivals", QUIET)) as consumer:
        since = offsets_since(consumer, dict.fromkeys(bounds, time), config.get("bootstrap.servers"))
    return {
        place: end if since[place] < 0 else min(max(since[place], first), end) for place, (first, end) in bounds.items()
    }


_RETRIED: Final = "Coordinator load in progress: retrying"
"""A broker's answer to the first producers after its start; the client asks again, and loses nothing."""


class _Meaningful(logging.Filter):
    @override
    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().endswith(_RETRIED)


def client_log(name: str) -> logging.Logger:
    """Return the logger of a module that gives it to a client.

    >>> log = client_log("floodmark.example")
    >>> log.warning("GETPID: Failed to acquire idempotence PID: Broker: Coordinator load in progress: retrying")
    """
    log = logging.getLogger(name)
    if not any(isinstance(one, _Meaningful) for one in log.filters):
        log.addFilter(_Meaningful())
    return log
