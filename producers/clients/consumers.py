"""Consumers that read without committing offsets, their records, what closes such clients, and the logs of clients."""

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol, Self, cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException
from floodmark.schemas.classify import Classified, Headers, classify
from typing_extensions import override

_log = logging.getLogger(__name__)
BATCH: Final = 10_000  # number of records per request to the client
EXISTING_TOPICS: Final = {"allow.auto.create.topics": False}
"""Settings of all clients: a request for a topic that does not exist must not create it, as it does by default."""

UNREADABLE_HEADERS: Final = (SystemError, UnicodeDecodeError)
"""Raised by `Record.headers` if a name is not UTF-8: the client then returns no header at all."""
_CLIENT: Final = r"\[[^]]*#(?:consumer|producer)-\d+\]"  # begins with its client.id, by default rdkafka
# What differs between two equal messages: the client, and how long it has tried.
_VARYING: Final = re.compile(rf"{_CLIENT}|\(after \d+ms.*\)")


class _WithoutRepeats(logging.Filter):
    """Drops what a client tells several times a second while a broker is away, and what a new broker tells all."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: dict[str, float] = {}

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if message.endswith("Coordinator load in progress: retrying"):
            return False
        if re.search(_CLIENT, message) is None:  # Floodmark's own
            return True
        text, now = _VARYING.sub("", message), record.created
        if now < self._logged.get(text, now):
            return False
        self._logged = {known: until for known, until in self._logged.items() if now < until}
        self._logged[text] = now + 60.0
        return True


def client_log(name: str) -> logging.Logger:
    """Return the logger that a module gives to its Kafka client; it logs the same failure once a minute."""
    log = logging.getLogger(name)
    if not any(isinstance(existing, _WithoutRepeats) for existing in log.filters):
        log.addFilter(_WithoutRepeats())
    return log


def failure(error: KafkaError, topic: str | None) -> KafkaException:
    """Return the error that a consumer gives in place of a record, with the name of the topic."""
    return KafkaException(KafkaError(error.code(), f"topic {topic!r}: {error.str()}"))


def reading_consumer(
    config: Mapping[str, Any],
    group: str,
    log: str,
    *,
    reset: Literal["earliest", "error", "latest"] = "error",
) -> Consumer:
    """Return a consumer that reads committed records, notices the ends of partitions, and joins no group."""
    fixed = {
        "auto.offset.reset": reset,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        **EXISTING_TOPICS,
    }
    return Consumer({"group.id": group, **config, **fixed}, logger=client_log(log))


class Record(Protocol):
    """A message of confluent-kafka: a record, or an `error`; its own type also allows ``None`` and text."""

    def error(self) -> KafkaError | None: ...  # noqa: D102  # as confluent-kafka's Message
    def topic(self) -> str: ...  # noqa: D102
    def partition(self) -> int: ...  # noqa: D102
    def offset(self) -> int: ...  # noqa: D102
    def timestamp(self) -> tuple[int, int]: ...  # noqa: D102
    def key(self) -> bytes | None: ...  # noqa: D102
    def value(self) -> bytes | None: ...  # noqa: D102
    def headers(self) -> Headers | None: ...  # noqa: D102


def consume(consumer: Consumer, seconds: float, most: int = BATCH) -> list[Record]:
    """Return at most ``most`` records and errors; wait up to ``seconds`` for the first."""
    found = cast("list[Record]", consumer.consume(most, seconds))
    # librdkafka asks for the coordinator of the group, which you may not be allowed to use; no consumer here joins it.
    errors = ((record, record.error()) for record in found)
    return [r for r, error in errors if error is None or error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED]


def is_end(error: KafkaError) -> bool:
    """Tell whether an error only says that the consumer has reached the end of a partition."""
    return error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001  # its public name


def classified(record: Record) -> Classified:
    """Return a record as data, mark or unreadable mark; unreadable headers are dropped and logged."""
    kind, log_time = record.timestamp()
    topic, partition, offset = record.topic(), record.partition(), record.offset()
    try:
        headers = record.headers()
    except UNREADABLE_HEADERS as error:
        headers = None
        reason = error.__cause__ or error
        _log.warning("%s/%d@%d: its headers cannot be read, and count as none: %s", topic, partition, offset, reason)
    log_time = 0 if kind == TIMESTAMP_NOT_AVAILABLE else log_time
    return classify(topic, partition, offset, log_time, record.key(), record.value(), headers)


class Closing(ABC):
    """A context manager that closes itself at the end of the block."""

    @abstractmethod
    def close(self) -> None:
        """Release clients, files or threads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
