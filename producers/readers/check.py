"""Run the checker over a topic, from its beginning to its present end.  A thin shell."""

from collections.abc import Callable, Iterator

from confluent_kafka import OFFSET_BEGINNING
from floodmark.producers.clients.admin import Config, begin_offsets, compacted_topics, require_topics
from floodmark.producers.event_times.formats import InputFormat, Resolved
from floodmark.producers.readers.replay import read_until_end
from floodmark.schemas.checker import Checker, Finding
from floodmark.schemas.classify import Classified, Data
from floodmark.schemas.errors import InvalidEventTimeError, UnreadableValueError
from floodmark.schemas.records import TIME_HEADER, header_time


def checker_of(config: Config, topic: str) -> Checker:
    """Return a checker that knows which records of a topic Kafka has deleted or compacted."""
    partial = [number for (_, number), begin in begin_offsets(config, [topic]).items() if begin > 0]
    return Checker(partial, compacted=topic in compacted_topics(config, [topic]))


def findings(
    config: Config,
    topic: str,
    values: InputFormat | None,
    checker: Checker,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Finding]:
    """Read a whole topic, also new partitions, and yield its faults; without ``values``, lateness is not checked."""
    known, size = 0, require_topics(config, [topic])[topic]
    while known < size:
        for record in read_until_end(config, {(topic, number): OFFSET_BEGINNING for number in range(known, size)}):
            yield from _judge(checker, record, values)
            if progress is not None:
                progress(sum(checker.records.values()))
        known, size = size, require_topics(config, [topic])[topic]
    yield from checker.finish(known)


def _judge(checker: Checker, record: Classified, values: InputFormat | None) -> list[Finding]:
    if not isinstance(record, Data):
        return checker.mark(record)
    partition, offset = record.partition, record.offset
    if values is None or record.value is None:
        return checker.data(partition, offset, None)
    try:
        time: int | Resolved | None = header_time(record.headers, TIME_HEADER)
        if time is None:
            time = values.read(record.key, record.value, record.log_time)
    except (UnreadableValueError, InvalidEventTimeError) as error:
        return checker.data(partition, offset, None, readable=False, reason=str(error))
    return checker.data(partition, offset, time if isinstance(time, int) else None, readable=time is not None)
