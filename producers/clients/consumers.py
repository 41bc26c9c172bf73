"""Consumers that read without committing offsets, their records with exact types, and what closes such clients."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol, Self, cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError
from floodmark.schemas.classify import Classified, Headers, classify

_log = logging.getLogger(__name__)
BATCH: Final = 10_000
"""Number of records per request to the client."""

UNREADABLE_HEADERS: Final = (SystemError, UnicodeDecodeError)
"""Raised by `Record.headers` if a name is not UTF-8: the client then returns no header at all."""


def reading_consumer(
    config: Mapping[str, Any],
    group: str,
    log: logging.Logger,
    *,
    reset: Literal["earliest", "error", "latest"] = "error",
) -> Consumer:
    """Return a consumer that reads committed records, notices the ends of partitions, and commits no offsets.

    librdkafka requires a ``group``, although the consumer joins none.  ``reset``: what to do if Kafka has deleted the
    first record.
    """
    fixed = {
        "auto.offset.reset": reset,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    return Consumer({"group.id": group, **config, **fixed}, logger=log)


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
