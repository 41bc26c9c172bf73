"""Consumers that read and commit nothing, and their records with the types that they really have."""

import logging
from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol, cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError
from floodmark.schemas.classify import Classified, Headers, classify

_log = logging.getLogger(__name__)
BATCH: Final = 10_000
"""So many records are asked for at once."""

UNREADABLE_HEADERS: Final = (SystemError, UnicodeDecodeError)
"""What `Record.headers` raises where a name is no UTF-8: this client can then read none of the headers."""


def reading_consumer(
    config: Mapping[str, Any],
    group: str,
    log: logging.Logger,
    *,
    reset: Literal["earliest", "error", "latest"] = "error",
) -> Consumer:
    """Return a consumer that reads committed records, notices the ends of partitions, and commits no offsets.

    Args:
        config: confluent-kafka settings; all pass through but those that make it such a consumer.
        group: its consumer group, where the settings name none: librdkafka wants one, although none is joined.
        log: where the client logs.
        reset: what it does where Kafka has deleted the record with which it would start.
    """
    fixed = {
        "auto.offset.reset": reset,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    return Consumer({"group.id": group, **config, **fixed}, logger=log)


class Record(Protocol):
    """A message of confluent-kafka: a record, or an `error` in the place of one.

    Its own type allows ``None`` and text everywhere, for messages that come from elsewhere than a consumer.
    """

    def error(self) -> KafkaError | None: ...  # noqa: D102  # as confluent-kafka's Message
    def topic(self) -> str: ...  # noqa: D102
    def partition(self) -> int: ...  # noqa: D102
    def offset(self) -> int: ...  # noqa: D102
    def timestamp(self) -> tuple[int, int]: ...  # noqa: D102
    def key(self) -> bytes | None: ...  # noqa: D102
    def value(self) -> bytes | None: ...  # noqa: D102
    def headers(self) -> Headers | None: ...  # noqa: D102


def consume(consumer: Consumer, seconds: float, most: int = BATCH) -> list[Record]:
    """Return the next records and errors, at most so many; waits up to so many seconds for the first."""
    found = cast("list[Record]", consumer.consume(most, seconds))
    return [record for record in found if not _is_of_group(record.error())]


def _is_of_group(error: KafkaError | None) -> bool:
    """Tell whether an error only says that a consumer group may not be used.

    librdkafka looks for the coordinator of every group; our consumers are told their partitions, and need none.
    """
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def is_end(error: KafkaError) -> bool:
    """Tell whether an error only says that a partition has been read to its end."""
    return error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001  # its public name


def classified(record: Record) -> Classified:
    """Return what a record is; headers that cannot be read are left out, and a log line says so."""
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
