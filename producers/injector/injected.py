"""What an injector has left in its output topic: its state, its decisions, and a way to take all of it back.

A thin shell around `backlog` and confluent-kafka's AdminClient.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from confluent_kafka import OFFSET_END, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from floodmark.producers.clients.admin import QUIET, TIMEOUT, Config, begin_offsets
from floodmark.producers.event_times.injection import STATE_HEADER, Injection, LaneState
from floodmark.producers.readers.replay import newest, read_to_end
from floodmark.schemas.codec import decode_watermark
from floodmark.schemas.errors import CorruptSnapshotError, InjectorError, UnreadableMarkError
from floodmark.schemas.records import is_mark_key, mark_key


def _state_of(message: Message, key: bytes) -> LaneState | None:
    if message.key() != key:
        return None
    headers: Any = message.headers()
    value = dict(headers or []).get(STATE_HEADER)
    try:
        return None if value is None else LaneState.unpack(value)
    except CorruptSnapshotError as error:
        place = f"of an injector at {message.topic()}/{message.partition()}@{message.offset()}"
        raise replace(error, where=place) from error


def states_of(config: Config, topic: str, source: str, partitions: Iterable[int]) -> dict[int, LaneState]:
    """Return by partition the state that an injector wrote last.

    Args:
        config: confluent-kafka consumer settings.
        topic: the target topic of the injection.
        source: its source id.
        partitions: where to look.

    Raises:
        BrokerUnavailableError: where the topic cannot be read.
        CorruptSnapshotError: where a state cannot be read.
    """
    key = mark_key(source)
    return newest(config, topic, partitions, lambda message: _state_of(message, key))


def decisions_of(config: Config, topic: str, source: str) -> dict[int, list[tuple[int, int]]]:
    """Read what an earlier injection decided: per partition, before which input offset which watermark was in force.

    Args:
        config: confluent-kafka consumer settings.
        topic: the target topic of that injection.
        source: its source id.

    Raises:
        UnknownTopicError, BrokerUnavailableError: where it cannot be read.
        CorruptSnapshotError: where a state cannot be read.
    """
    key, found = mark_key(source), dict[int, list[tuple[int, int]]]()
    for message in read_to_end(config, begin_offsets(config, [topic])):
        state = _state_of(message, key)
        if state is not None and state.lane["watermark"] is not None:
            step = (state.next, int(state.lane["watermark"]))
            found.setdefault(int(message.partition() or 0), []).append(step)
    return found


def take_back(config: Config, injection: Injection) -> int:
    """Delete every record of the target topic, if all are this injector's; return its highest epoch, 0 for none.

    All are its own where every mark is, and no partition holds more data than its marks count.  No instance may be
    writing: fence it first.

    Args:
        config: confluent-kafka settings.
        injection: whose target.

    Raises:
        InjectorError: where something else is there, or Kafka refuses; then nothing has been deleted.
    """
    topic, key = injection.target_topic, mark_key(injection.source)
    counted: dict[int, dict[int, int]] = {}
    data: Counter[int] = Counter()
    begins = begin_offsets(config, [topic])
    for message in read_to_end(config, begins):
        number, found, value = int(message.partition() or 0), message.key(), message.value()
        if not is_mark_key(found):
            data[number] += 1
            continue
        place = f"{topic}/{number}@{message.offset()}"
        if found != key:
            raise _refusal(injection, f"{place} is a mark of {found!r}")
        try:
            record = decode_watermark(found, value)
        except UnreadableMarkError as error:
            raise _refusal(injection, f"{place} is a mark that cannot be read") from error
        counted.setdefault(number, {})[record.epoch] = record.records or 0
    for number, count in data.items():
        own = sum(counted.get(number, {}).values())
        if count > own:
            raise _refusal(injection, f"partition {number} of {topic!r} holds {count:,} records, and it wrote {own:,}")
    client = AdminClient(dict(config), logger=QUIET)
    places = [TopicPartition(topic, number, OFFSET_END) for _, number in begins]
    try:
        for future in client.delete_records(places, request_timeout=TIMEOUT).values():
            future.result(TIMEOUT + 5)
    except KafkaException as error:
        raise _refusal(injection, f"Kafka does not delete records of {topic!r}: {error.args[0].str()}") from error
    return max((epoch for epochs in counted.values() for epoch in epochs), default=0)


def _refusal(injection: Injection, reason: str) -> InjectorError:
    advice = "only a target with nothing else in it can begin anew; inject into a new topic"
    return InjectorError(source=injection.source, reason=reason, advice=advice)
