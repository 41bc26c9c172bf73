"""Run the checker over a topic, from its beginning to its present end.  A thin shell."""

from collections.abc import Callable, Iterator
from typing import Final

from confluent_kafka import OFFSET_BEGINNING
from floodmark.producers.clients.admin import Config, begin_offsets, require_topics, warn_of_compaction
from floodmark.producers.event_times.formats import InputFormat, Resolved
from floodmark.producers.event_times.policy_fit import PolicyFit
from floodmark.producers.event_times.time_policy import Outcome, TimePolicy
from floodmark.producers.readers.replay import read_until_end
from floodmark.schemas.checker import Checker, Finding
from floodmark.schemas.classify import Classified, Data
from floodmark.schemas.errors import InvalidEventTimeError, UnreadableValueError, UsageError
from floodmark.schemas.records import TIME_HEADER, header_time

_DOUBTED: Final = 1_000


def checker_of(config: Config, topic: str) -> Checker:
    """Return a checker that knows which records of a topic Kafka has deleted or compacted; it warns of compaction."""
    partial = [number for (_, number), begin in begin_offsets(config, [topic]).items() if begin > 0]
    return Checker(partial, compacted=topic in warn_of_compaction(config, [topic]))


def findings(
    config: Config,
    topic: str,
    values: InputFormat | None,
    checker: Checker,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Finding]:
    """Read a whole topic, also new partitions, and yield its faults; without ``values``, lateness is not checked.

    It raises `UsageError` if all event times, or the first 1,000, look like a longer unit, such as seconds.
    """
    known, size = 0, require_topics(config, [topic])[topic]
    fit, held = PolicyFit(TimePolicy()), list[Finding]()
    while known < size:
        for record in read_until_end(config, {(topic, number): OFFSET_BEGINNING for number in range(known, size)}):
            held += _judge(checker, record, values, fit)
            if fit.doubted >= _DOUBTED:
                raise _other_unit(values, fit)
            if not fit.looks_like_seconds:
                yield from held
                held = []
            if progress is not None:
                progress(sum(checker.records.values()))
        known, size = size, require_topics(config, [topic])[topic]
    if fit.looks_like_seconds:
        raise _other_unit(values, fit)
    yield from checker.finish(known)


def _other_unit(values: InputFormat | None, fit: PolicyFit) -> UsageError:
    doubt = fit.doubt("" if values is None else values.about)
    return UsageError(reason=f"{doubt}. Pass the --unit that gives the later of these times, or name another field")


def _judge(checker: Checker, record: Classified, values: InputFormat | None, fit: PolicyFit) -> list[Finding]:
    if not isinstance(record, Data):
        return checker.mark(record)
    partition, offset = record.partition, record.offset
    if values is None or record.value is None:
        return checker.data(partition, offset, None)
    try:
        time: int | Resolved | None = header_time(record.headers, TIME_HEADER)
        if time is None:
            time = values.read(record.key, record.value, record.log_time)
            if isinstance(time, int) and (fit.first is None or fit.looks_like_seconds):
                fit.add(Outcome.ON_TIME, time, record.log_time, per_millisecond=values.per_millisecond)
    except (UnreadableValueError, InvalidEventTimeError) as error:
        return checker.data(partition, offset, None, readable=False, reason=str(error))
    return checker.data(partition, offset, time if isinstance(time, int) else None, readable=time is not None)
