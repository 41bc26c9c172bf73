"""The topics of an injector: its input, and the states in its target.  A thin shell around Kafka clients."""

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition
from floodmark.producers.clients.admin import (
    TIMEOUT,
    Config,
    TopicWatch,
    admin_client,
    answering,
    begin_offsets,
    described,
    existing_topics,
    overwrites_timestamps,
    require_topics,
    written_ends,
)
from floodmark.producers.clients.clock import Clock
from floodmark.producers.clients.consumers import Closing, Record, consume, failure, is_end, reading_consumer
from floodmark.producers.event_times.formats import LogTime
from floodmark.producers.event_times.injection import STATE_HEADER, Injection, InjectorState
from floodmark.producers.injector.partitions import OVERTAKEN
from floodmark.producers.other_runs import last_marks
from floodmark.producers.readers.replay import last_matching, read_until_end
from floodmark.schemas.classify import Classified, Data, Mark, Unreadable, mark_header
from floodmark.schemas.completeness.position import TopicIds, TopicUser
from floodmark.schemas.errors import CorruptSnapshotError, InjectorError, RecreatedTopicError
from floodmark.schemas.records import Status

_log = logging.getLogger(__name__)
LATELY: Final = 1_000
"""How many of the last records of a partition are searched for marks of other sources."""


def sizes_of(config: Config, injection: Injection, *, equal: bool) -> tuple[int, int]:
    """Return the partition counts of input and target; InjectorError if they do not fit (``equal``: if they differ)."""
    source, target = injection.source_topic, injection.target_topic
    sizes = require_topics(config, [source, target, *([injection.dropped_to] if injection.dropped_to else [])])
    if sizes[target] < sizes[source] or (equal and sizes[target] > sizes[source]):
        reason = f"{target!r} has {sizes[target]} partition(s) and {source!r} has {sizes[source]}"
        advice = "a group needs the same number in both" if equal else "give it as many partitions, or more"
        raise InjectorError(source=injection.source, reason=reason, advice=advice)
    return sizes[source], sizes[target]


def _sources_in(config: Config, topic: str) -> str:
    """Return the names of the sources of a topic's last marks, as text; empty if there are none."""
    return ", ".join(map(repr, last_marks(config, topic, Clock().wall(), most=LATELY)))


def require_unmarked_input(config: Config, injection: Injection) -> None:
    """Raise InjectorError if the last records of the input have marks, unless that is allowed."""
    if injection.allow_unreadable:
        return
    topic = injection.source_topic
    if sources := _sources_in(config, topic):
        reason = f"the input {topic!r} has marks already, of {sources}"
        advice = "Read it without an injector, or correct --from. To replace its marks, pass --allow-unreadable"
        raise InjectorError(source=injection.source, reason=reason, advice=f"nothing was written. {advice}")


def require_unmarked_drops(config: Config, injection: Injection) -> None:
    """Raise InjectorError if the topic for dropped records has marks: these records would be surplus there."""
    topic = injection.dropped_to
    if topic is not None and (sources := _sources_in(config, topic)):
        reason = f"the topic {topic!r} for dropped records has marks, of {sources}"
        advice = "nothing was written. Use another topic (--dropped-to)"
        raise InjectorError(source=injection.source, reason=reason, advice=advice)


def require_marked(config: Config, injection: Injection) -> None:
    """Raise InjectorError if the target has records, and no marks among the last 10,000 of each partition."""
    topic = injection.target_topic
    numbers = [number for _, number in begin_offsets(config, [topic])]
    last = last_matching(config, topic, numbers, lambda record: record.place)
    marks = last_matching(config, topic, last, lambda record: not isinstance(record, Data) or None, most=10_000)
    if last and not marks:
        reason = f"the target {topic!r} has records already, such as {next(iter(last.values()))}, and no marks"
        advice = "nothing was written. Use another target topic (--to). Are --from and --to swapped?"
        raise InjectorError(source=injection.source, reason=reason, advice=advice)


def require_timestamps(config: Config, injection: Injection) -> None:
    """Raise InjectorError if event times are Kafka's timestamps, and the target replaces them."""
    if isinstance(injection.fmt, LogTime) and overwrites_timestamps(config, injection.target_topic):
        reason = f"{injection.target_topic!r} has message.timestamp.type=LogAppendTime, so it keeps no event times"
        raise InjectorError(source=injection.source, reason=reason, advice="set CreateTime there")


def watch_topics(config: Config, injection: Injection, topics: Collection[str], ids: TopicIds) -> TopicWatch:
    """Watch the ids of topics; InjectorError if the target holds records of another input."""
    try:
        return TopicWatch(config, topics, ids, TopicUser.injector(injection.source, injection.target_topic))
    except RecreatedTopicError as error:
        found = described(admin_client(config), existing_topics(config), config.get("bootstrap.servers"))
        for other, (topic_id, _) in found.items():
            if topic_id == error.known:
                reason = f"topic {injection.target_topic!r} holds its records of {other!r}"
                reason = f"{reason}, and --from is {injection.source_topic!r}"
                advice = "nothing was written. Correct --from, or use another target topic (--to)"
                raise InjectorError(source=injection.source, reason=reason, advice=advice) from error
        raise


class InputTopic(Closing):
    """The partitions of the input, from the stored offsets."""

    def __init__(self, injection: Injection, config: Config, begins: Mapping[int, int], watch: TopicWatch) -> None:
        self._injection, self._watch = injection, watch
        self.consumer: Final = reading_consumer(config, f"floodmark-{injection.source}", __name__)
        self.consumer.assign([TopicPartition(injection.source_topic, *start) for start in begins.items()])

    def add(self, number: int, offset: int) -> None:
        """Read a new partition, from an offset."""
        self.consumer.incremental_assign([TopicPartition(self._injection.source_topic, number, offset)])

    def take(self, seconds: float) -> list[Record]:
        """Return the next records, after at most ``seconds``; an end of a partition is among them, as an error."""
        return consume(self.consumer, seconds)

    def ends(self, numbers: Collection[int]) -> dict[int, int]:
        """Ask Kafka for the ends of partitions, see `admin.written_ends`."""
        return written_ends(self._watch.client, self._injection.source_topic, numbers)

    def is_at_end(self, error: KafkaError) -> bool:
        """Tell whether an error means the end of a partition; InjectorError if Kafka has deleted the next records."""
        if is_end(error):
            return True
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001  # its public name
            self._watch.require_same()
            reason = f"Kafka no longer has what comes next: {error.str()}"
            raise InjectorError(source=self._injection.source, reason=reason, advice=OVERTAKEN)
        if not error.retriable():
            raise failure(error, self._injection.source_topic)
        return False

    def hold(self, number: int, *, paused: bool) -> None:
        """Pause or resume a partition."""
        place = TopicPartition(self._injection.source_topic, number)
        (self.consumer.pause if paused else self.consumer.resume)([place])

    def close(self) -> None:
        """Close the client."""
        self.consumer.close()


def _state_of(record: Classified, source: str) -> InjectorState | None:
    value = mark_header(record, source, STATE_HEADER)
    try:
        return None if value is None else InjectorState.unpack(value)
    except CorruptSnapshotError as error:
        raise replace(error, where=f"of an injector at {record.place}") from error


def states_of(config: Config, topic: str, source: str, partitions: Collection[int]) -> dict[int, InjectorState]:
    """Return the last state of an injector in each partition; CorruptSnapshotError if one cannot be read."""
    return last_matching(config, topic, partitions, lambda record: _state_of(record, source))


def has_ended(config: Config, injection: Injection) -> bool:
    """Tell whether the last run of an injector has ended."""

    def status(record: Classified) -> Status | None:
        return record.record.status if isinstance(record, Mark) and record.source == injection.source else None

    return last_matching(config, injection.target_topic, [0], status).get(0) is Status.ENDED


def require_states(
    config: Config, injection: Injection, states: Mapping[int, InjectorState], partitions: Collection[int]
) -> None:
    """Raise InjectorError if Kafka has deleted all records of a partition; warn if others may have deleted a state."""
    topic, source = injection.target_topic, injection.source
    begins = begin_offsets(config, [topic]).items()
    cut = [number for (_, number), begin in begins if begin and number in partitions and number not in states]
    others = last_matching(config, topic, cut, lambda _: True) if cut else {}
    emptied, unsure = (
        ", ".join(f"{topic}/{number}" for number in cut if (number in others) is known) for known in (False, True)
    )
    if emptied:
        reason = f"Kafka has deleted all records of {emptied}, also the position to continue from"
        advice = "to copy the input again, add --reset (without --group). Jobs that have read the deleted records"
        raise InjectorError(source=source, reason=reason, advice=f"{advice} then count them twice")
    if unsure:
        _log.warning(
            "injector %r: Kafka has deleted records of %s. If this injector's marks were among them, it copies its "
            "input again, and jobs that have read the deleted records count them twice",
            *(source, unsure),
        )


def decisions_of(config: Config, topic: str, source: str) -> dict[int, list[tuple[int, int]]]:
    """Return, by partition, pairs of an input offset and the watermark of the records before it, of an earlier run.

    InjectorError if the topic has no state of this injector.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    for record in read_until_end(config, begin_offsets(config, [topic])):
        state = _state_of(record, source)
        if state is not None:
            steps = found.setdefault(record.partition, [])
            if state.partition["watermark"] is not None:
                steps.append((state.next_offset, int(state.partition["watermark"])))
    if not found:
        advice = "pass the output topic of the earlier run, and its --source"
        raise InjectorError(source=source, reason=f"topic {topic!r} has no decisions of it to repeat", advice=advice)
    return found


def reset_target(config: Config, injection: Injection) -> int:
    """Delete all records of the target topic, and return its highest epoch, or 0.  Fence other instances first.

    InjectorError, before anything is deleted, if a mark is another writer's, or there are more records than marks
    count.
    """
    topic = injection.target_topic
    counted: dict[int, dict[int, int]] = {}
    data: Counter[int] = Counter()
    begins = begin_offsets(config, [topic])
    missing: Counter[int] = Counter()
    """By partition: how many of the counted records Kafka has deleted."""
    for record in read_until_end(config, begins):
        if isinstance(record, Data):
            data[record.partition] += 1
        elif record.source != injection.source:
            raise _refusal(injection, f"{record.place} is a mark of {record.source!r}")
        elif isinstance(record, Unreadable):
            raise _refusal(injection, f"{record.place} is a mark that cannot be read")
        else:
            own = record.record.records or 0
            if record.partition not in counted and begins[topic, record.partition]:
                missing[record.partition] = max(0, own - data[record.partition])
            counted.setdefault(record.partition, {})[record.record.epoch] = own
    for number, count in data.items():
        own = sum(counted.get(number, {}).values()) - missing[number]
        if count > own:
            raise _refusal(injection, f"partition {number} of {topic!r} holds {count:,} records, and it wrote {own:,}")
    _delete(config, injection, [number for _, number in begins])
    if data:
        _log.warning(
            "injector %r: --reset deleted %s records of %r, and copies its input again. Jobs that have read the "
            "deleted records count them twice. Start these jobs over, with a new checkpoint_location and an empty "
            "output; consumers without a position (others with a new group), triggers with a new --name",
            *(injection.source, f"{data.total():,}", topic),
        )
    return max((epoch for epochs in counted.values() for epoch in epochs), default=0)


def _delete(config: Config, injection: Injection, numbers: Collection[int]) -> None:
    topic, client = injection.target_topic, admin_client(config)  # which answers only while it is referenced
    places = [TopicPartition(topic, number, OFFSET_END) for number in numbers]
    try:
        for future in client.delete_records(places, request_timeout=TIMEOUT).values():
            future.result(TIMEOUT + 5)
    except KafkaException as error:
        _require_right(error, config, topic)
        raise _refusal(injection, f"Kafka does not delete records of {topic!r}: {error.args[0].str()}") from error


def _require_right(error: KafkaException, config: Config, topic: str) -> None:
    if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        with answering(config.get("bootstrap.servers"), about=f"deleting the records of {topic!r}"):
            raise error


def _refusal(injection: Injection, reason: str) -> InjectorError:
    advice = "--reset needs an output topic without other records; use a new topic"
    return InjectorError(source=injection.source, reason=reason, advice=advice)
