"""Requests to a Kafka cluster, with clear errors.  A thin shell around AdminClient."""

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
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
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]  # public, but not marked as such
from confluent_kafka.cimpl import NewTopic
from floodmark.producers.clients.clock import Deadline
from floodmark.producers.clients.consumers import EXISTING_TOPICS, reading_consumer
from floodmark.schemas.classify import Partition, Place
from floodmark.schemas.completeness.position import TopicIds, TopicUser
from floodmark.schemas.errors import (
    BrokerUnavailableError,
    MissingRightError,
    OpenTransactionError,
    UnknownTopicError,
    UsageError,
)

TIMEOUT: Final = 15.0  # seconds to wait for a broker's answer
LATELY: Final = 60_000  # milliseconds; few writers keep a transaction open for longer
LONGEST_TRANSACTION: Final = 960.0  # seconds; a broker allows 900 by default, and looks for older ones every 10
QUIET: Final = logging.getLogger("floodmark.kafka")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False  # its many lines become one error
_QUICK: Final = {"reconnect.backoff.ms": 10}  # with the default, the first request of each client waits for 50 ms
_NO_ID: Final = str(Uuid(0, 0))
_SECRET: Final = ("password", "secret", "token", "jaas", "ssl.key", "user.info")
_LONG: Final = 6  # a secret with as many characters is in no text by chance
_ELECTING: Final = frozenset({KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION})
_MOVING: Final = _ELECTING | {  # while a leader moves, or a topic is new: what Kafka's own clients ask again
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
}
_UNAUTHORIZED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_INVALID: Final = frozenset(  # what Kafka never accepts
    {
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.POLICY_VIOLATION,
    }
)
COMPACTED: Final = (
    "topic {!r} is compacted: Kafka deletes records that have a newer one with the same key. Rows may be missing, and "
    "no count of lost rows shows it. For complete results, use a topic with cleanup.policy=delete"
)
Answer = TypeVar("Answer")
Config = Mapping[str, Any]  # confluent-kafka settings, passed through
_log = logging.getLogger(__name__)


def redacted(config: Config) -> dict[str, Any]:
    """Replace the values of secrets by stars."""
    return {name: "****" if any(part in name.lower() for part in _SECRET) else value for name, value in config.items()}


def without_secrets(text: str, config: Config) -> str:
    """Replace the values of secrets in a text by stars; short ones only where they are whole words.

    >>> without_secrets("no property: word:or", {"sasl.username": "property", "sasl.password": "or"})
    'no property: word:****'
    """
    for name, shown in redacted(config).items():
        if shown != config[name] and config[name]:
            secret = re.escape(str(config[name]))
            whole = rf"(?<!\w){secret}(?!\w)" if len(str(config[name])) < _LONG else secret
            text = re.sub(whole, str(shown), text)
    return text


_SHARED: Final = (
    *("bootstrap.", "security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl."),
    *("client.", "socket.", "broker.", "metadata.", "topic.metadata.", "reconnect.", "oauth_cb"),
)
"""Prefixes of the settings that producers and consumers share."""


def require_settings(config: Config) -> None:
    """Refuse an address in place of settings with UsageError."""
    UsageError.unless_type("config", config, Mapping, "{'bootstrap.servers': 'localhost:9092'}")


def shared(config: Config) -> dict[str, Any]:
    """Return the settings of a producer that a consumer knows, too.

    >>> shared({"bootstrap.servers": "localhost:9092", "linger.ms": 5})
    {'bootstrap.servers': 'localhost:9092'}
    """
    require_settings(config)
    return {name: value for name, value in config.items() if name.startswith(_SHARED)}


def admin_client(config: Config) -> AdminClient:
    """Return a client for requests that creates no topic unless it is told to."""
    require_settings(config)
    return AdminClient({**_QUICK, **config, **EXISTING_TOPICS}, logger=QUIET)


@contextmanager
def answering(
    bootstrap_servers: object, seconds: float = TIMEOUT, but: int | None = None, about: str = ""
) -> Iterator[None]:
    """Turn a `KafkaException` in the block into an error of Floodmark, and ignore the error code ``but``.

    `UsageError` for a request that Kafka never accepts, such as an invalid setting; else `BrokerUnavailableError`.
    """
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() != but:
            reason = f"{about}: {error.args[0].str()}" if about else error.args[0].str()
            place = bootstrap_servers or "an unknown address (set bootstrap.servers)"
            if error.args[0].code() in _INVALID:
                raise UsageError(reason=f"Kafka at {place} refused: {reason}") from error
            kind: type[BrokerUnavailableError] = BrokerUnavailableError
            if error.args[0].code() in _UNAUTHORIZED:
                kind, reason = MissingRightError, f"{reason.removesuffix('.')}."
            elif error.args[0].code() < 0:  # of the client: no broker has answered
                reason = f"{reason}. Check the address, security.protocol, user, password, and whether the broker runs"
            raise kind(bootstrap_servers=place, seconds=seconds, reason=reason) from error


def answered(ask: Callable[[], Answer], bootstrap_servers: object) -> Answer:
    """Return the answer of ``ask``; retry while a leader moves, or a topic is new to a broker, then raise an error."""
    deadline = Deadline(TIMEOUT)
    while True:
        with answering(bootstrap_servers):
            try:
                return ask()
            except UnknownTopicError:
                if deadline.passed:
                    raise
            except KafkaException as error:
                if error.args[0].code() not in _MOVING or deadline.passed:
                    raise
        time.sleep(0.05)


def partition_count(
    client: AdminClient | Producer | Consumer, topic: str, bootstrap_servers: object, timeout: float = TIMEOUT
) -> int:
    """Return the number of partitions of a topic; `UnknownTopicError` if it does not exist; ``timeout``: seconds."""
    # Right after its creation, a topic may have no leaders yet, and Kafka may restart: ask until the deadline.
    deadline = Deadline(timeout)
    while True:
        try:
            with answering(bootstrap_servers, timeout):
                found = client.list_topics(topic, timeout=max(0.1, deadline.left)).topics[topic]
        except BrokerUnavailableError as error:
            if isinstance(error, MissingRightError) or deadline.passed:
                raise
        else:
            if found.error is None and found.partitions:
                return len(found.partitions)
            if (found.error is not None and found.error.code() not in _ELECTING) or deadline.passed:
                raise UnknownTopicError(topic=topic, bootstrap_servers=bootstrap_servers)
        time.sleep(0.02)


def existing_topics(config: Config) -> set[str]:
    """Return the names of all topics."""
    with answering(config.get("bootstrap.servers")):
        return set(admin_client(config).list_topics(timeout=TIMEOUT).topics)


def require_topics(config: Config, topics: list[str]) -> dict[str, int]:
    """Return the number of partitions of each topic; an `UnknownTopicError` names a missing one."""
    client = admin_client(config)
    return {topic: partition_count(client, topic, config.get("bootstrap.servers")) for topic in topics}


def described(
    client: AdminClient, topics: Collection[str], bootstrap_servers: object, timeout: float = TIMEOUT
) -> dict[str, tuple[str | None, int]]:
    """Return the id (``None`` before Kafka 2.8) and the number of partitions of each topic, or `UnknownTopicError`."""
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
    """Create the topics that do not exist, with their numbers of partitions, and wait until all can be used.

    ``settings``: of the new topics, such as ``retention.ms``.  `UsageError` if Kafka refuses a topic.
    """
    client = admin_client(config)
    servers = config.get("bootstrap.servers")
    new = [
        NewTopic(name, num_partitions=count, replication_factor=-1, config=dict(settings or {}))
        for name, count in topics.items()
    ]
    for name, future in client.create_topics(new, request_timeout=TIMEOUT).items():
        with answering(servers, but=KafkaError.TOPIC_ALREADY_EXISTS, about=f"topic {name!r}"):
            future.result(timeout=TIMEOUT + 5)
    answered(lambda: [partition_count(client, name, servers) for name in topics], servers)


def begin_offsets(config: Config, topics: Collection[str]) -> dict[Partition, int]:
    """Return the offset of the first record in each partition."""
    return {place: begin for topic in topics for place, (begin, _) in offset_bounds(config, topic).items()}


def cleanup_policy(config: Config, topic: str) -> str | None:
    """Return how Kafka deletes old records of a topic; ``None``: you may not read the topic's settings."""
    return _settings(config, [topic]).get(topic, {}).get("cleanup.policy")


def compacted_topics(config: Config, topics: Collection[str]) -> set[str]:
    """Return the compacted topics, without those whose settings you may not read."""
    return {topic for topic, found in _settings(config, topics).items() if "compact" in found.get("cleanup.policy", "")}


def warn_of_compaction(config: Config, topics: Collection[str]) -> set[str]:
    """Return the `compacted_topics`, and log a warning for each: rows may be missing, whatever the marks say."""
    found = compacted_topics(config, topics)
    for topic in sorted(found):
        _log.warning("%s", COMPACTED.format(topic))
    return found


def overwrites_timestamps(config: Config, topic: str) -> bool:
    """Tell whether the brokers replace the timestamps of records; no, if you may not read the topic's settings."""
    return _settings(config, [topic]).get(topic, {}).get("message.timestamp.type") == "LogAppendTime"


def timestamp_tolerances(config: Config, topic: str) -> tuple[int | None, int | None]:
    """Return how many milliseconds behind and ahead of the clock a timestamp may be; ``None``: no limit is known."""
    found = _settings(config, [topic]).get(topic, {})
    if found.get("message.timestamp.type") == "LogAppendTime":
        return None, None
    behind, ahead = (found.get(f"message.timestamp.{side}.max.ms") for side in ("before", "after"))
    return (None if behind is None else int(behind)), (None if ahead is None else int(ahead))


def _settings(config: Config, topics: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the settings of the topics whose settings you may read."""
    client = admin_client(config)
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    found: dict[str, dict[str, str]] = {}
    for resource, future in client.describe_configs(resources, request_timeout=TIMEOUT).items():
        with suppress(KafkaException):
            entries = future.result(timeout=TIMEOUT + 5)
            found[str(resource.name)] = {name: str(entry.value) for name, entry in entries.items()}
    return found


def end_offsets(
    config: Config, topic: str, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
) -> dict[int, int]:
    """Return the offset after the last readable record of each partition."""
    return {number: end for (_, number), (_, end) in offset_bounds(config, topic, isolation).items()}


def open_transactions(
    config: Config, topic: str, partitions: Iterable[int], written: Mapping[int, int] | None = None
) -> dict[int, int]:
    """Return where open transactions begin, in some partitions; ``written``: only before these offsets."""
    written = written or end_offsets(config, topic, IsolationLevel.READ_UNCOMMITTED)
    ends = end_offsets(config, topic)  # asked later: a transaction that has ended since then hides nothing
    return {number: ends[number] for number in partitions if number in ends and ends[number] < written.get(number, 0)}


def await_transactions(config: Config, topic: str, reader: str, partitions: Collection[int] | None = None) -> None:
    """Wait until the transactions that are open now have ended, in some partitions (default: all).

    Until then, readers of committed records see nothing behind their first records, also not what has been committed.
    So a writer that resumes from its last record in the topic waits, after `init_transactions`, before it reads.

    Raises:
        OpenTransactionError: if one is open after `LONGEST_TRANSACTION`.
    """
    written = end_offsets(config, topic, IsolationLevel.READ_UNCOMMITTED)
    deadline, quiet, told = Deadline(LONGEST_TRANSACTION), Deadline(1), False
    while True:
        behind = open_transactions(config, topic, written if partitions is None else partitions, written)
        if not behind:
            return
        partition, offset = next(iter(behind.items()))
        if deadline.passed:
            raise OpenTransactionError(reader=reader, topic=topic, partition=partition, offset=offset)
        if quiet.passed and not told:
            told = True
            _log.warning(
                "%s waits for an open transaction, of another writer or of its own earlier process, in partition %d of "
                "topic %r, for %d minutes at most: it hides the records from offset %d on",
                *(reader, partition, topic, LONGEST_TRANSACTION // 60, offset),
            )
        time.sleep(1.0 if told else 0.05)


def offset_bounds(
    config: Config, topic: str, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
) -> dict[Partition, tuple[int, int]]:
    """Return, for each partition, the offset of its first record, and the offset after its last readable record."""
    client, servers = admin_client(shared(config)), config.get("bootstrap.servers")
    numbers = range(partition_count(client, topic, servers))

    def ask(spec: OffsetSpec) -> list[int]:
        """Send one request to each broker, for all its partitions."""
        asked = client.list_offsets(
            {TopicPartition(topic, number): spec for number in numbers},
            isolation_level=isolation,
            request_timeout=TIMEOUT,
        )
        found = {place.partition: future.result(TIMEOUT + 5).offset for place, future in asked.items()}
        return [found[number] for number in numbers]

    specs = (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]  # Confluent has no types here
    begins, ends = (answered(partial(ask, spec), servers) for spec in specs)
    return {(topic, number): bounds for number, bounds in enumerate(zip(begins, ends, strict=True))}


def written_ends(
    client: AdminClient,
    topic: str,
    numbers: Collection[int],
    level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    timeout: float = 1,
) -> dict[int, int]:
    """Return the offset after the last record of each partition that answers in time.

    ``level``: by default, the records of open transactions count.  ``timeout``: seconds.
    """
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # Confluent has no types here
    places = {TopicPartition(topic, number): latest for number in numbers}
    found = dict[int, int]()
    asked = client.list_offsets(places, isolation_level=level, request_timeout=timeout) if places else {}
    for place, future in asked.items():
        with suppress(KafkaException, TimeoutError):
            found[place.partition] = future.result(TIMEOUT + 5).offset
    return found


def hidden_records(
    client: AdminClient, config: Config, topic: str, since: Mapping[int, int], timeout: float = 1
) -> dict[int, Place]:
    """Return from where on an open transaction hides records, of each partition that answers in time.

    ``since``: by partition, epoch milliseconds.  If a record from then on can be read, the transaction is newer.
    ``timeout``: seconds for each of two requests.
    """
    written = written_ends(client, topic, since, timeout=timeout)
    # Asked later: a transaction that has ended since then hides nothing.
    readable = written_ends(client, topic, since, IsolationLevel.READ_COMMITTED, timeout)
    ends = {(topic, number): end for number, end in readable.items() if end < written.get(number, 0)}
    if not ends:
        return {}
    first = _offsets_since(config, {place: since[place[1]] for place in ends})
    return {place[1]: Place(*place, end) for place, end in ends.items() if not 0 <= first[place] < end}


def partition_bounds(consumer: Consumer, place: Partition, bootstrap_servers: object) -> tuple[int, int]:
    """Return the offset of a partition's first record, and the offset after the last that the consumer may read."""
    asked = TopicPartition(*place)
    return answered(lambda: consumer.get_watermark_offsets(asked, timeout=TIMEOUT), bootstrap_servers)


def offsets_since(
    consumer: Consumer, times: Mapping[Partition, int], bootstrap_servers: object
) -> dict[Partition, int]:
    """Return, for each partition, the first offset with Kafka's timestamp at the time or later; negative: none."""

    def ask() -> dict[Partition, int]:
        asked = [TopicPartition(*place, max(0, time)) for place, time in times.items()]
        answers = consumer.offsets_for_times(asked, timeout=TIMEOUT)
        for one in answers:
            if one.error is not None:
                raise KafkaException(one.error)
        return {(one.topic, one.partition): one.offset for one in answers}

    return answered(ask, bootstrap_servers)


def _offsets_since(config: Config, times: Mapping[Partition, int]) -> dict[Partition, int]:
    with closing(reading_consumer(config, "floodmark-arrivals", QUIET.name)) as consumer:
        return offsets_since(consumer, times, config.get("bootstrap.servers"))


def first_since(config: Config, bounds: Mapping[Partition, tuple[int, int]], time: int) -> dict[Partition, int]:
    """Return each partition's first offset with a timestamp of ``time`` (epoch milliseconds) or later, or its end."""
    since = _offsets_since(config, dict.fromkeys(bounds, time))
    return {
        place: end if since[place] < 0 else min(max(since[place], first), end) for place, (first, end) in bounds.items()
    }


class TopicWatch:
    """Compares the ids of topics with their ids when they were first read; `RecreatedTopicError` if one differs."""

    def __init__(self, config: Config, topics: Collection[str], ids: TopicIds, user: TopicUser) -> None:
        self.client: Final = admin_client(shared(config))
        self._servers = config.get("bootstrap.servers")
        self._topics = topics
        self._ids = ids
        self._user = user
        self._missed = False
        self.require_same()

    def require_same(self) -> None:
        """Compare the ids when Kafka answers, also before an error of an offset: it may be of an earlier topic."""
        self._compare(answered(lambda: described(self.client, self._topics, self._servers), self._servers))

    def check(self, timeout: float = 1.0) -> Mapping[str, int]:
        """Compare the ids; return the partition count of each topic, or nothing if Kafka does not answer in time."""
        try:
            found = described(self.client, self._topics, self._servers, timeout)
        except (BrokerUnavailableError, TimeoutError) as error:
            _log.info("%s cannot check whether its topics were created again: %s", self._user.name, error)
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
        ids = {topic: id_ for topic, (id_, _) in found.items() if id_ is not None}
        self._ids.compare(ids, self._user)
