"""Run the checker over a real topic, from its beginning to what is its end now.  A thin shell."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Message
from floodmark.producers.backlog import read_to_end
from floodmark.producers.checker import Checker, Finding
from floodmark.producers.kafka import Config, require_topics
from floodmark.schemas.codec import AvroCodec, without_logical_types
from floodmark.schemas.errors import SchemaError, UnreadableValueError
from floodmark.schemas.records import is_control_key

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
    sizes = require_topics(config, [topic])
    checker = Checker()
    findings: list[Finding] = []
    for message in read_to_end(config, {(topic, number): OFFSET_BEGINNING for number in range(sizes[topic])}):
        findings += _judge(checker, message, event_time_of)
        if progress is not None:
            progress(sum(checker.records.values()))
    findings += checker.finish(sizes[topic])
    return checker, findings


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
