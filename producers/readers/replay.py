"""Read the records of a topic up to its end, forwards or from the end backwards.  A thin shell around a consumer."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final, TypeVar

from confluent_kafka import TopicPartition
from floodmark.producers.clients.admin import TIMEOUT, Config, first_since, offset_bounds
from floodmark.producers.clients.clock import Clock
from floodmark.producers.clients.consumers import classified, consume, failure, is_end, reading_consumer
from floodmark.schemas.classify import Classified, Mark, Offsets, Partition
from floodmark.schemas.errors import BrokerUnavailableError
from floodmark.schemas.records import FIRST_HEADER

REACHES: Final = (200, 2_000, 20_000, 200_000)  # how many records before the end of a partition each step begins

Found = TypeVar("Found")


def read_until_end(config: Config, starts: Offsets, ends: Offsets | None = None) -> Iterator[Classified]:
    """Yield the records from ``starts`` (or the next that exist) to ``ends`` (default: the last), by partition."""
    open_ = {place for place, start in starts.items() if ends is None or ends.get(place, start + 1) > start}
    # At the end of a transaction the broker would keep the client's question for 500 ms.
    quick = {"fetch.wait.max.ms": 10, **config}
    with closing(reading_consumer(quick, "floodmark-replay", __name__, reset="earliest")) as consumer:
        consumer.assign([TopicPartition(topic, part, starts[topic, part]) for topic, part in open_])
        quiet, clock = 0, Clock()
        while open_:
            began = clock.steady()  # the time that the caller takes for a record does not count
            first = consume(consumer, 0.2, 1)  # it would wait for more
            records = [*first, *consume(consumer, 0)] if first else []
            quiet = 0 if records else quiet + clock.steady() - began
            if quiet > TIMEOUT * 1_000:
                reason = f"{sorted(open_)} gave nothing more"
                servers = config.get("bootstrap.servers")
                raise BrokerUnavailableError(bootstrap_servers=servers, seconds=TIMEOUT, reason=reason)
            for record in records:
                place, error = (record.topic(), record.partition()), record.error()
                end = None if ends is None else ends.get(place)
                if error is None and (end is None or record.offset() < end):
                    yield classified(record)
                elif error is None or is_end(error):
                    open_.discard(place)
                elif not error.retriable():
                    raise failure(error, record.topic())


class BackwardReader:
    """Reads partitions from their ends backwards: the marks that matter are near the ends."""

    def __init__(self, config: Config, bounds: Mapping[Partition, tuple[int, int]]) -> None:
        self._config = config
        self._bounds = bounds
        self._starts = {place: high for place, (_, high) in bounds.items()}

    def stretch(self, places: Iterable[Partition], reach: int) -> Iterator[Classified]:
        """Yield the records of some partitions from ``reach`` before their ends to where earlier calls began."""
        ends = {place: self._starts[place] for place in places}
        starts = {place: max(self._bounds[place][0], self._bounds[place][1] - reach) for place in ends}
        self._starts |= starts
        return read_until_end(self._config, starts, ends)

    def unread(self, place: Partition) -> bool:
        """Tell whether a partition has earlier records that are not read."""
        return self._starts[place] > self._bounds[place][0]

    @property
    def whole(self) -> bool:
        """Whether all records that were ever written are read."""
        return all(self._starts[place] == low == 0 for place, (low, _) in self._bounds.items())


def last_matching(
    config: Config,
    topic: str,
    partitions: Collection[int],
    read: Callable[[Classified], Found | None],
    *,
    most: float = math.inf,
) -> dict[int, Found]:
    """Return, by partition, the last value of ``read`` that is not ``None``; read ``most`` records of each at most."""
    bounds = {place: bound for place, bound in offset_bounds(config, topic).items() if place[1] in partitions}
    past, found, reach = BackwardReader(config, bounds), dict[int, Found](), REACHES[0]
    while places := [p for p in bounds if p[1] not in found and past.unread(p)]:
        for record in past.stretch(places, reach):
            match = read(record)
            if match is not None:
                found[record.partition] = match
        if reach >= most:
            break
        reach = int(min(reach * 10, most))
    return found


@dataclass(frozen=True, slots=True)
class RetainedOffsets:
    """The offsets of a partition's first record, of its end, and of its first record since some time."""

    first: int
    end: int
    since: int  # the first record with Kafka's timestamp at that time or later; ``end`` if there is none
    begins: bool  # whether its first record says that it replaces all earlier ones (`FIRST_HEADER`)

    @property
    def is_complete(self) -> bool:
        """Whether Kafka has deleted no record since that time that was not replaced."""
        return self.first == 0 or self.since > self.first or self.begins


def retained_since(config: Config, topics: Collection[str], time: int) -> dict[Partition, RetainedOffsets]:
    """Return the offsets of each partition; all records before ``since`` have timestamps before ``time`` (epoch ms)."""
    bounds = {place: bound for topic in topics for place, bound in offset_bounds(config, topic).items()}
    since = first_since(config, bounds, time)
    cut = {place: first for place, (first, end) in bounds.items() if 0 < first == since[place] < end}
    firsts = read_until_end(config, cut, {place: first + 1 for place, first in cut.items()}) if cut else ()
    begin = {(record.topic, record.partition) for record in firsts if _replaces(record)}
    return {place: RetainedOffsets(*bound, since[place], place in begin) for place, bound in bounds.items()}


def _replaces(record: Classified) -> bool:
    return isinstance(record, Mark) and FIRST_HEADER in dict(record.headers or ())
