"""Run the checker over a real topic, from its beginning to what is its end now.  A thin shell."""

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from floodmark.producers.checker import Checker, Finding
from floodmark.producers.kafka import TIMEOUT, Config, partition_count
from floodmark.schemas.codec import AvroCodec, without_logical_types
from floodmark.schemas.errors import BrokerUnavailableError, SchemaError, UnreadableValueError
from floodmark.schemas.records import is_control_key

_log = logging.getLogger(__name__)
_BATCH: Final = 10_000
EventTimeOf = Callable[[bytes], int | None]
"""From a value to its event time; ``None`` where it cannot be read or has none."""


def event_time_reader(schema: Path, event_time: str) -> EventTimeOf:
    """Return a function that reads one field of single-object Avro values.

    Raises:
        SchemaError: where the file is no Avro schema, or lacks the field.
    """
    try:
        text = schema.read_text(encoding="utf-8")
    except OSError as error:
        raise SchemaError(schema=str(schema), reason=str(error)) from error
    codec = AvroCodec(without_logical_types(text))
    if event_time not in codec.fields:
        raise SchemaError(schema=codec.name, reason=f"it has no field {event_time!r}, only {', '.join(codec.fields)}")

    def read(value: bytes) -> int | None:
        try:
            found = codec.decode(value)[event_time]
        except UnreadableValueError:
            return None
        return found if isinstance(found, int) else None

    return read


def check_topic(
    config: Config, topic: str, event_time_of: EventTimeOf | None, progress: Callable[[int], None] | None = None
) -> tuple[Checker, list[Finding]]:
    """Read all of a topic, and return what is wrong with it.

    Args:
        config: confluent-kafka consumer settings.
        topic: what to check.
        event_time_of: reads the event time of a value; ``None``: lateness is not judged.
        progress: is told how many records have been read.

    Raises:
        UnknownTopicError, BrokerUnavailableError: where it cannot be read.
    """
    fixed = {"enable.auto.commit": False, "enable.partition.eof": True, "isolation.level": "read_committed"}
    consumer = Consumer({"group.id": "floodmark-check", **config, **fixed}, logger=_log)
    try:
        partitions = partition_count(consumer, topic, config.get("bootstrap.servers"))
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        checker = Checker()
        findings: list[Finding] = []
        for message in _all(consumer, partitions, config):
            findings += _judge(checker, message, event_time_of)
            if progress is not None:
                progress(sum(checker.records.values()))
        findings += checker.finish(partitions)
        return checker, findings
    finally:
        consumer.close()


def _all(consumer: Consumer, partitions: int, config: Config) -> Iterator[Message]:
    """Yield the records until every partition has come to its end."""
    open_ = set(range(partitions))
    heard = time.monotonic()
    while open_:
        messages = consumer.consume(_BATCH, 0.2)
        heard = time.monotonic() if messages else heard
        if time.monotonic() - heard > TIMEOUT:
            reason = f"partitions {sorted(open_)} gave nothing more"
            servers = config.get("bootstrap.servers")
            raise BrokerUnavailableError(bootstrap_servers=servers, seconds=TIMEOUT, reason=reason)
        for message in messages:
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
                open_.discard(int(message.partition() or 0))
            elif not error.retriable():
                raise KafkaException(error)


def _judge(checker: Checker, message: Message, event_time_of: EventTimeOf | None) -> Iterator[Finding]:
    key: Any = message.key()
    value: Any = message.value()
    headers: Any = message.headers()
    partition, offset = int(message.partition() or 0), int(message.offset() or 0)
    if is_control_key(key):
        return checker.control(partition, offset, key, value, headers)
    if event_time_of is None or value is None:
        return checker.data(partition, offset, None)
    event_time = event_time_of(value)
    return checker.data(partition, offset, event_time, readable=event_time is not None)
