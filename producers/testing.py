"""For tests of programs that write or read watermarks, without a broker: a clock, a topic in memory, marks."""

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
    """A clock that a test moves, from ``wall`` and ``steady`` on: ``WatermarkedProducer(..., clock=ManualClock())``.

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
        """Advance both clocks; `UsageError` if the duration is negative: `set` puts the wall clock back."""
        passed = duration_of(duration, "the time that is to pass")
        self._wall += passed
        self._steady += passed

    def set(self, wall: int | datetime) -> None:
        """Set the wall clock, also back, as NTP may do; the steady clock does not change."""
        self._wall = event_time_of(wall)


def mark(  # noqa: PLR0913  # all have defaults
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
    """Return a watermark record; name only the fields that matter to the test, as in `WatermarkRecord`.

    ``version`` and ``size`` make the membership: ``size`` is the number of sources of the topic.

    >>> mark("web", watermark=25).watermark
    25
    """
    return Identity(source, epoch, Membership(version, size), lease).mark(
        partitions=partitions, now=emitted_at, sequence=sequence, records=records, watermark=watermark, status=status
    )


class LogRecord(NamedTuple):
    """A data record or mark, with the bytes that Kafka would store."""

    topic: str
    partition: int
    offset: int
    log_time: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class InMemoryLog:
    """A topic in memory, with the bytes that Kafka would store.

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
        """The records of each partition, by offset."""

    def append(
        self,
        value: bytes | WatermarkRecord | None,
        *,
        partition: int = 0,
        key: bytes | None = None,
        headers: Headers = (),
        log_time: int = 0,
    ) -> int:
        """Append data, or a mark with its key and header; return its offset.

        With a mark key (`mark_key`), readers decode the bytes ``value`` as a mark.  ``log_time``: epoch milliseconds.
        """
        if isinstance(value, WatermarkRecord):
            key, value, headers = mark_record(value)
        records = self.partitions[partition]
        records.append(LogRecord(self.topic, partition, len(records), log_time, key, value, list(headers)))
        return len(records) - 1

    def append_marks(self, marks: Iterable[tuple[int, WatermarkRecord]], log_time: int = 0) -> None:
        """Append pairs of a partition and its mark."""
        for partition, record in marks:
            self.append(record, partition=partition, log_time=log_time)

    def grow(self, partitions: int) -> None:
        """Add partitions, up to this number; a topic never shrinks."""
        self.partitions += [[] for _ in range(partitions - len(self.partitions))]

    def read(self, tracker: Tracker, begin: Mapping[int, int] | None = None) -> list[Classified]:
        """Return the records of each partition from ``begin`` on, classified, and apply the marks to a tracker."""
        router = MarkRouter({self.topic: tracker})
        return [
            router.take(classify(*record))
            for partition, records in enumerate(self.partitions)
            for record in records[(begin or {}).get(partition, 0) :]
        ]
