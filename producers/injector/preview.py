"""The first records of an injection, routed through its input partitions, with nothing written."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from floodmark.producers.clients.admin import Config, begin_offsets, existing_topics, require_topics
from floodmark.producers.clients.clock import Deadline
from floodmark.producers.clients.consumers import BATCH, Record, consume, is_end, reading_consumer
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.event_times.input_partition import InputPartition
from floodmark.producers.event_times.policy_fit import PolicyFit
from floodmark.producers.injector.topics import states_of, watch_topics
from floodmark.schemas.classify import Place
from floodmark.schemas.completeness.position import TopicIds
from floodmark.schemas.errors import InjectorError
from floodmark.schemas.errors.base import printable
from floodmark.schemas.records import TIME_HEADER
from floodmark.schemas.timestamps import to_datetime

_PATIENCE: Final = 30.0
_SHOWN: Final = 60
_FEW: Final = 0.01  # of the events may lose their times before other options are advised


@dataclass(slots=True)
class Preview:
    """The outcomes of the first records."""

    injection: Injection
    partitions: dict[int, InputPartition]
    fit: PolicyFit
    records: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)  # the first record of each outcome
    has_event_time: bool = False
    lacks_event_time: bool = False  # whether any record should have an event time, and has none that is readable

    def add(self, record: Record) -> None:
        """Route one record."""
        value = record.value()
        partition = self.partitions[record.partition()]
        before, partition.has_event_time = partition.outcomes.copy(), False
        _, headers = partition.take(record.key(), value, record.timestamp()[1])
        self.records += 1
        self.has_event_time = self.has_event_time or partition.has_event_time
        trouble = partition.pop_trouble()
        self.lacks_event_time = self.lacks_event_time or not (
            partition.has_event_time or value is None or (trouble is None and partition.fmt.promises)
        )
        adjusted = dict(headers).get(TIME_HEADER)
        told = trouble or ("" if adjusted is None else f"counts at {to_datetime(int(adjusted)).isoformat()}")
        for outcome in partition.outcomes - before:
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
            place = Place(record.topic(), record.partition(), record.offset())
            self.examples.setdefault(outcome, printable(f"{place} {_shown(value)}{told and ': '}{told}"))

    def add_all(self, records: Iterable[Record]) -> None:
        """Route records up to one with a plausible time: the rest need not be judged."""
        for record in records:
            if record.error() is None and not self.has_plausible_time:
                self.add(record)

    @property
    def has_plausible_time(self) -> bool:
        """Whether any record has an event time that does not look like seconds."""
        return self.has_event_time and not self.fit.looks_like_seconds

    def require_time(self) -> None:
        """Raise InjectorError if no record has a readable event time, or all look like seconds."""
        require_plausible(self.injection, self.fit)
        if self.has_event_time or not self.lacks_event_time or self.injection.allow_unreadable:
            return
        first = self.examples.get("unreadable") or next(iter(self.examples.values()))
        about, topic = self.injection.fmt.about, self.injection.source_topic
        none = f"none of the first {self.records:,} records of {topic!r} has a readable time"
        correct = "Correct the field, unit, schema or format (--dry-run shows what would happen)"
        raise InjectorError(
            source=self.injection.source,
            reason=f"{none}, read as {about}: {first}",
            advice=f"nothing was written. {correct}, or pass --allow-unreadable",
        )

    def lines(self) -> list[str]:
        """Return the preview as lines of text."""
        width = max(map(len, self.outcomes), default=0)
        lines = [
            f"{outcome.replace('_', ' '):{width}} {count:>8,}  for example {self.examples[outcome]}"
            for outcome, count in sorted(self.outcomes.items())
        ]
        for number, partition in sorted(self.partitions.items()):
            reached = "unknown" if partition.watermark is None else to_datetime(partition.watermark).isoformat()
            lines.append(f"partition {number}: watermark {reached}")
        self.fit.judge()
        advice = self.fit.pop_advice()
        return [*lines, advice] if advice else lines


def _shown(value: bytes | None) -> str:
    """Return the beginning of a value, as text."""
    if value is None:
        return "without a value"
    text = value[: 4 * _SHOWN].decode(errors="backslashreplace")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."


def require_plausible(injection: Injection, fit: PolicyFit) -> None:
    """Raise InjectorError if all event times look like seconds, unless that is allowed."""
    if fit.looks_like_seconds and not injection.allow_unreadable:
        advice = "none of these records was written; correct --unit, or pass --allow-unreadable if the times are right"
        raise InjectorError(source=injection.source, reason=fit.doubt(injection.fmt.about), advice=advice)


def look_ahead(consumer: Consumer, preview: Preview, limit: int) -> list[Record]:
    """Read until a preview has a plausible time, ``limit`` records or all records; return the records."""
    deadline, open_, found = Deadline(_PATIENCE), set(preview.partitions), list[Record]()
    while open_ and preview.records < limit and not preview.has_plausible_time and not deadline.passed:
        records = consume(consumer, 0.2, limit - preview.records)
        found += records
        preview.add_all(records)
        open_ -= {record.partition() for record in records if (error := record.error()) is not None and is_end(error)}
    return found


def _sample(consumer: Consumer, preview: Preview) -> None:
    """Take the same number of records from each partition, 1,000 in all, but at least one; fewer from a shorter one."""
    left = dict.fromkeys(preview.partitions, max(1, 1_000 // len(preview.partitions)))
    deadline = Deadline(_PATIENCE)
    while left and not deadline.passed:
        for record in consume(consumer, 0.2, sum(left.values())):
            number, error = record.partition(), record.error()
            if error is None and number in left:
                preview.add(record)
                left[number] -= 1
            if left.get(number) == 0 or (error is not None and is_end(error)):
                left.pop(number, None)
                consumer.pause([TopicPartition(preview.injection.source_topic, number)])


def preview_injection(injection: Injection, config: Config, *, reset: bool = False) -> Preview:
    """Return a preview of the next records of an injection; ``reset``: of the first.  It fences no writer."""
    preview, starts, _ = _begin(injection, config, reset=reset)
    with _reading(preview, config, starts) as consumer:
        _sample(consumer, preview)
    return preview


def require_start(injection: Injection, config: Config) -> None:
    """Raise what the next start would raise if an option is wrong, before it fences an injector that runs."""
    preview, starts, read_as = _begin(injection, config, reset=False)
    if read_as and injection.fmt.about not in read_as:
        _require_time(preview, config, starts)


def _begin(injection: Injection, config: Config, *, reset: bool) -> tuple[Preview, dict[int, int], set[str]]:
    """Return an empty preview, the offsets where it begins, and the formats in which event times were read before."""
    begins = begin_offsets(config, [injection.source_topic])
    starts = {number: begin for (_, number), begin in begins.items()}
    fit = injection.policy_fit(_FEW)
    partitions = {number: injection.input_partition(fit) for number in starts}
    target, ids, read_as = injection.target_topic, TopicIds(), set[str]()
    if target in existing_topics(config) and not reset:
        numbers = range(min(require_topics(config, [target])[target], len(starts)))
        for number, state in states_of(config, target, injection.source, numbers).items():
            starts[number] = max(starts[number], state.next_offset)
            partitions[number].restore(state.partition)
            ids |= state.ids(injection)
            read_as |= {state.input_format} if partitions[number].has_event_time else set()
    if ids:
        watch_topics(config, injection, ids, ids)
    return Preview(injection, partitions, fit), starts, read_as


def require_input(injection: Injection, config: Config) -> bool:
    """Raise InjectorError if the first records show that an option is wrong, and tell whether one has a plausible time.

    It reads all partitions, and writes nothing.
    """
    preview, starts, _ = _begin(injection, config, reset=True)
    _require_time(preview, config, starts)
    return preview.has_plausible_time


def _require_time(preview: Preview, config: Config, starts: Mapping[int, int]) -> None:
    with _reading(preview, config, starts) as consumer:
        look_ahead(consumer, preview, BATCH)
    preview.require_time()


@contextmanager
def _reading(preview: Preview, config: Config, starts: Mapping[int, int]) -> Iterator[Consumer]:
    """Read the input from these offsets of its partitions."""
    group, topic = f"floodmark-{preview.injection.source}", preview.injection.source_topic
    with closing(reading_consumer(config, group, __name__, reset="earliest")) as consumer:
        consumer.assign([TopicPartition(topic, number, start) for number, start in starts.items()])
        yield consumer
