"""Topics written record by record from a script, and an output topic read back batch by batch.

A script places every record and every mark, so a test knows which batch reads what.  Times are epoch milliseconds.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from confluent_kafka import Producer
from floodmark.producers import Data, Mark
from floodmark.producers.strategies.basic import Explicit
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.numbering import Identity
from floodmark.schemas import AvroCodec, Membership, WatermarkRecord
from floodmark.schemas.classify import Headers, mark_record
from floodmark.schemas.codec import without_logical_types
from support.harness import TIME, grow, read_to_end, record_schema

ROW = record_schema("Row", k="string", at=TIME, n="long")  # what stands in all topics, in and out
_codec = AvroCodec(without_logical_types(ROW))

Values = tuple[str, int, int]  # a row as a value: key, event time, number


@dataclass(frozen=True, slots=True)
class Put:
    """A source writes a row into a partition."""

    source: str
    values: Values
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Say:
    """A source marks every partition: a new watermark, the old one again, idle or ended."""

    source: str
    what: int | Literal["again", "idle", "end"]


@dataclass(frozen=True, slots=True)
class Grow:
    """The topic gets more partitions, and all sources mark them."""

    partitions: int


@dataclass(slots=True)
class Log:
    """What is written to one topic, in this order."""

    partitions: int = 1
    entries: list[Put | Say | Grow] = field(default_factory=list)
    record: Callable[[Values], tuple[bytes, Headers]] = lambda values: (encode(values), [])
    """How a row is written: value and headers."""

    @property
    def sources(self) -> list[str]:
        return sorted({entry.source for entry in self.entries if not isinstance(entry, Grow)})

    @property
    def rows(self) -> list[Values]:
        return [entry.values for entry in self.entries if isinstance(entry, Put)]

    def write(self, config: Mapping[str, Any], topic: str, epoch: int = 1) -> None:
        list(self.writing(config, topic, max(1, len(self.entries)), epoch))

    def writing(self, config: Mapping[str, Any], topic: str, size: int, epoch: int = 1) -> Iterator[int]:
        """Write it, so many entries at a time; yield how many records stand in the topic."""
        writer = _Writer(self, config, topic, epoch)
        for number, entry in enumerate(self.entries, 1):
            writer.write(entry)
            if number % size == 0 or number == len(self.entries):
                assert writer.producer.flush(30) == 0
                yield writer.written


class _Writer:
    """Writes entries of a log, every mark with its counts."""

    def __init__(self, log: Log, config: Mapping[str, Any], topic: str, epoch: int) -> None:
        self.log, self.config, self.topic, self.written = log, config, topic, 0
        self.latest = 1  # Kafka's timestamps are event times: each record came when it happened, its mark no earlier
        membership = Membership(version=1, size=len(log.sources))
        self.emitters = {
            name: Emitter(Identity(name, epoch=epoch, membership=membership), Explicit(name), log.partitions)
            for name in log.sources
        }
        self.producer = Producer({**config, "enable.idempotence": True})

    def write(self, entry: Put | Say | Grow) -> None:
        match entry:
            case Grow(partitions):
                self._grow(partitions)
            case Put(source, (_, time, _) as values, partition):
                emitter = self.emitters[source]
                self.latest = max(self.latest, time)
                if not emitter.registered:
                    emitter.mark_active()
                    self._say(source)
                emitter.send(partition, time).ack()  # one idempotent client keeps the order
                value, headers = self.log.record(values)
                self._produce(partition, value, headers=headers, timestamp=time)
            case Say(source, what):
                emitter = self.emitters[source]
                if what == "idle":
                    emitter.mark_idle()
                elif what == "end":
                    emitter.end()
                elif what != "again":
                    emitter.generator.advance(what)
                self._say(source)

    def _grow(self, partitions: int) -> None:
        assert self.producer.flush(30) == 0
        grow(self.config, self.topic, partitions)
        self.producer = Producer({**self.config, "enable.idempotence": True})  # one that knows them
        for name, emitter in self.emitters.items():
            emitter.grow(partitions)
            if emitter.registered:
                self._say(name)

    def _say(self, name: str) -> None:
        for partition, record in self.emitters[name].marks(now=0):
            key, value, headers = mark_record(record)
            self._produce(partition, value, key=key, headers=headers, timestamp=self.latest)

    def _produce(self, partition: int, value: bytes, **more: Any) -> None:
        self.producer.produce(self.topic, value, partition=partition, **more)
        self.written += 1


def encode(values: Values) -> bytes:
    return _codec.encode(dict(zip(("k", "at", "n"), values, strict=True)))


def decode(value: bytes) -> Values:
    row = _codec.decode(value)
    return row["k"], row["at"], row["n"]


@dataclass(slots=True)
class Written:
    """What one batch wrote: its rows, and the watermark of its marks."""

    rows: Counter[Values] = field(default_factory=Counter)
    marks: list[WatermarkRecord] = field(default_factory=list)


def batches_of(config: Mapping[str, Any], topic: str, seconds: float = 60) -> list[Written]:
    """Read an output topic of one job: the rows of each batch stand between its marks and those before."""
    found, promised = defaultdict(Written), {}
    seen = Counter()  # marks of each partition, so the number of its batch
    for record in read_to_end(config, topic, seconds)[0]:
        if isinstance(record, Mark):
            found[seen[record.partition]].marks.append(record.record)
            seen[record.partition] += 1
            if record.record.watermark is not None:
                promised[record.partition] = max(record.record.watermark, promised.get(record.partition, 0))
        elif isinstance(record, Data) and record.value is not None:
            values = decode(record.value)
            before = promised.get(record.partition, values[1])
            assert values[1] >= before, f"{values} is behind the mark {before} before it"
            found[seen[record.partition]].rows[values] += 1
    return [found[number] for number in sorted(found)]


def total(batches: Iterable[Written]) -> Counter[Values]:
    return sum((batch.rows for batch in batches), Counter())
