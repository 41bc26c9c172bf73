"""For tests of programs that write or read watermarks: a clock moved by hand, a topic in memory, marks in one line.

Nothing here waits, and none of it needs a broker.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from floodmark.producers.clients.clock import Clock
from floodmark.producers.strategies.numbering import Identity
from floodmark.schemas.classify import Classified, Headers, classify, mark_record
from floodmark.schemas.records import Membership, Status, WatermarkRecord
from floodmark.schemas.timestamps import duration_of, event_time_of
from floodmark.schemas.tracker import MarkRouter, Tracker


class ManualClock(Clock):
    """A clock that stands still until a test moves it: ``WatermarkedProducer(..., clock=ManualClock())``.

    Args:
        wall: where the wall clock begins: epoch milliseconds or an aware datetime.
        steady: where the steady clock begins, milliseconds.

    >>> clock = ManualClock(wall=1_000)
    >>> clock.advance(timedelta(seconds=5))
    >>> clock.wall(), clock.steady()
    (6000, 5000)
    >>> clock.set(2_000)
    >>> clock.wall(), clock.steady()
    (2000, 5000)
    """

    def __init__(self, wall: int | datetime = 0, steady: int = 0) -> None:
        self._wall, self._steady = event_time_of(wall), steady
        super().__init__(wall=lambda: self._wall, steady=lambda: self._steady)

    def advance(self, duration: timedelta) -> None:
        """Let time pass, on both clocks.

        Raises:
            UsageError: where the duration is negative: time goes on, and `set` alone puts the wall clock back.
        """
        passed = duration_of(duration, "the time that is to pass")
        self._wall += passed
        self._steady += passed

    def set(self, wall: int | datetime) -> None:
        """Set the wall clock, also back, as people and NTP do; the steady clock stays where it is."""
        self._wall = event_time_of(wall)


def mark(  # noqa: PLR0913  # a test names what matters and leaves the rest
    source: str = "a",
    watermark: int | None = 0,
    sequence: int = 0,
    *,
    epoch: int = 1,
    status: Status = Status.ACTIVE,
    version: int = 1,
    size: int = 1,
    partitions: int = 1,
    records: int | None = None,
    lease: int | None = None,
    emitted_at: int = 0,
) -> WatermarkRecord:
    """Return a watermark record; every field has a default but those that the test is about.

    Args:
        source: whose promise it is.
        watermark: epoch milliseconds; ``None``: unknown.
        sequence: its number within the epoch, in its partition.
        epoch: generation of the source.
        status: active, idle or ended.
        version: of the membership.
        size: of the membership: how many sources write to the topic.
        partitions: how many the source knows.
        records: how many of its records stand before the mark; ``None``: not stated.
        lease: after how much silence readers may leave the source out, milliseconds; ``None``: never.
        emitted_at: wall clock, epoch milliseconds.

    Raises:
        InvalidRecordError: where a field is out of its range.

    >>> mark("web", watermark=25).watermark
    25
    """
    return Identity(source, epoch, Membership(version, size), lease).mark(
        partitions=partitions, now=emitted_at, sequence=sequence, records=records, watermark=watermark, status=status
    )


class LogRecord(NamedTuple):
    """A record as Kafka would hold it: data, or a mark in its bytes."""

    topic: str
    partition: int
    offset: int
    log_time: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class InMemoryLog:
    """A topic in memory: what is appended stays, in the bytes that Kafka would hold.

    >>> log = InMemoryLog("clicks", partitions=2)
    >>> log.append(b'{"at": 12}', key=b"user-1")
    0
    >>> log.append_marks({partition: mark("web", watermark=10, partitions=2) for partition in range(2)}.items())
    >>> tracker = Tracker({"clicks"})
    >>> [type(record).__name__ for record in log.read(tracker)]
    ['Data', 'Mark', 'Mark']
    >>> tracker.advance()
    10
    """

    def __init__(self, topic: str = "t", partitions: int = 1) -> None:
        self.topic = topic
        self.partitions: list[list[LogRecord]] = [[] for _ in range(partitions)]
        """The records of each partition, in their order."""

    def append(
        self,
        value: bytes | WatermarkRecord | None,
        *,
        partition: int = 0,
        key: bytes | None = None,
        headers: Headers = (),
        log_time: int = 0,
    ) -> int:
        """Append data, or a mark with its own key and header; returns its offset.

        Args:
            value: the bytes of the data, or a mark.
            partition: where to.
            key: of data; with a mark key (`mark_key`), ``value`` is taken for a mark in bytes, readable or not.
            headers: of data.
            log_time: epoch milliseconds.
        """
        if isinstance(value, WatermarkRecord):
            key, value, headers = mark_record(value)
        records = self.partitions[partition]
        records.append(LogRecord(self.topic, partition, len(records), log_time, key, value, list(headers)))
        return len(records) - 1

    def append_marks(self, marks: Iterable[tuple[int, WatermarkRecord]], log_time: int = 0) -> None:
        """Append a round of marks: pairs of a partition and its mark."""
        for partition, record in marks:
            self.append(record, partition=partition, log_time=log_time)

    def grow(self, partitions: int) -> None:
        """Add partitions, until there are so many; a topic never shrinks."""
        self.partitions += [[] for _ in range(partitions - len(self.partitions))]

    def read(self, tracker: Tracker, begin: Mapping[int, int] | None = None) -> list[Classified]:
        """Return every record as readers see it, partition by partition, and apply the marks to a tracker."""
        router = MarkRouter({self.topic: tracker})
        return [
            router.take(classify(*record))
            for partition, records in enumerate(self.partitions)
            for record in records[(begin or {}).get(partition, 0) :]
        ]
