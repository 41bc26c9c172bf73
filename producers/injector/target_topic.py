"""The stored states and decisions in an injector's target topic, and its reset.  A thin shell around `replay`."""

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
    """Return the last state of an injector in each partition.

    Raises:
        BrokerUnavailableError: if the topic cannot be read.
        CorruptSnapshotError: if a state cannot be read.
    """
    return last_matching(config, topic, partitions, lambda record: _state_of(record, source))


def decisions_of(config: Config, topic: str, source: str) -> dict[int, list[tuple[int, int]]]:
    """Return, by partition, pairs of an input offset and the watermark of the records before it, of an earlier run.

    Raises:
        UnknownTopicError, BrokerUnavailableError: if the topic cannot be read.
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
    """Delete all records of the target topic, if all are this injector's; return its highest epoch, or 0.

    They are if every mark is, and no partition has more data records than its marks count.  Fence other instances
    first.

    Raises:
        InjectorError: if there are other records, or Kafka refuses.  No record was deleted then.
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
