"""What an injector has left in its output topic: its state, its decisions, and a way to take all of it back.

A thin shell around `replay` and confluent-kafka's AdminClient.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from floodmark.producers.clients.admin import QUIET, TIMEOUT, Config, begin_offsets
from floodmark.producers.event_times.injection import STATE_HEADER, Injection, InjectorState
from floodmark.producers.readers.replay import last_matching, read_until_end
from floodmark.schemas.classify import Classified, Data, Unreadable, mark_header
from floodmark.schemas.errors import CorruptSnapshotError, InjectorError


def _state_of(record: Classified, source: str) -> InjectorState | None:
    value = mark_header(record, source, STATE_HEADER)
    try:
        return None if value is None else InjectorState.unpack(value)
    except CorruptSnapshotError as error:
        raise replace(error, where=f"of an injector at {record.place}") from error


def states_of(config: Config, topic: str, source: str, partitions: Collection[int]) -> dict[int, InjectorState]:
    """Return by partition the state that an injector wrote last.

    Raises:
        BrokerUnavailableError: if the topic cannot be read.
        CorruptSnapshotError: if a state cannot be read.
    """
    return last_matching(config, topic, partitions, lambda record: _state_of(record, source))


def decisions_of(config: Config, topic: str, source: str) -> dict[int, list[tuple[int, int]]]:
    """Read what an earlier injection decided: per partition, before which input offset which watermark was in force.

    Raises:
        UnknownTopicError, BrokerUnavailableError: if it cannot be read.
        CorruptSnapshotError: if a state cannot be read.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    for record in read_until_end(config, begin_offsets(config, [topic])):
        state = _state_of(record, source)
        if state is not None and state.partition["watermark"] is not None:
            step = (state.next_offset, int(state.partition["watermark"]))
            found.setdefault(record.partition, []).append(step)
    return found


def reset_target(config: Config, injection: Injection) -> int:
    """Delete every record of the target topic, if all are this injector's; return its highest epoch, 0 for none.

    All are its own where every mark is, and no partition holds more data than its marks count.  No instance may be
    writing: fence it first.

    Raises:
        InjectorError: if something else is there, or Kafka refuses; then nothing has been deleted.
    """
    topic = injection.target_topic
    counted: dict[int, dict[int, int]] = {}
    data: Counter[int] = Counter()
    begins = begin_offsets(config, [topic])
    for record in read_until_end(config, begins):
        if isinstance(record, Data):
            data[record.partition] += 1
        elif record.source != injection.source:
            raise _refusal(injection, f"{record.place} is a mark of {record.source!r}")
        elif isinstance(record, Unreadable):
            raise _refusal(injection, f"{record.place} is a mark that cannot be read")
        else:
            counted.setdefault(record.partition, {})[record.record.epoch] = record.record.records or 0
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
    advice = "--reset needs an output topic without other records; use a new topic"
    return InjectorError(source=injection.source, reason=reason, advice=advice)
