"""Records that Kafka has not acknowledged, and the earliest event time among them.  Pure."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from floodmark.schemas.timestamps import EARLIEST

IN_FLIGHT_SIZE: Final = 256  # records per `InFlight`; with more, acknowledged ones would hold the watermark


@dataclass(slots=True, eq=False)
class InFlight:
    """Consecutive records, which hold the watermark at their earliest event time until Kafka has acknowledged all."""

    round: int = 0  # number of rounds of marks before its first record
    sent: int = 0
    pending: int = 0
    failed: int = 0
    earliest: int = EARLIEST  # the earliest event time since the group last began to hold
    since: int | None = None  # when the first unacknowledged record may have been sent, by the clock of `Emitter.send`

    def send(self, event_time: int, now: int | None = None, records: int = 1) -> None:
        """Count a record as pending, since ``now``; or several, of which ``event_time`` is the earliest."""
        if not self.pending and not self.failed:
            self.since, self.earliest = now, event_time
        elif event_time < self.earliest:
            self.earliest = event_time
        self.sent += records
        self.pending += records

    def ack(self, *, failed: bool = False) -> None:
        """Count a record as acknowledged or as failed."""
        self.pending -= 1
        self.failed += failed

    def resend(self, failed: "InFlight", now: int | None) -> None:
        """Count a record that failed in another group as pending in this one, since it was first sent."""
        failed.failed -= 1
        since = now if failed.since is None else failed.since
        self.send(failed.earliest, since)  # the record's own event time is not known, and is not earlier
        if since is not None and self.since is not None:
            self.since = min(self.since, since)

    @property
    def holds(self) -> bool:
        """Whether a record of the group is unacknowledged or failed."""
        return self.pending > 0 or self.failed > 0


class InFlights:
    """All groups that hold the watermark, in a heap by event time, and the open group.

    >>> all_ = InFlights()
    >>> all_.open.send(event_time=12)
    >>> first = all_.close(round_=1)
    >>> all_.open.send(event_time=30)
    >>> all_.earliest()
    12
    >>> first.ack()
    >>> all_.earliest()
    30
    """

    def __init__(self) -> None:
        self.open = InFlight()  # the group of the next record
        self._closed: list[tuple[int, int, InFlight]] = []
        self._number = 0
        self._limit = 64

    def close(self, round_: int) -> InFlight:
        """Open a new group; return the closed one, which gets no more records."""
        closed, self.open = self.open, InFlight(round_)
        if closed.holds:
            self._number += 1
            heapq.heappush(self._closed, (closed.earliest, self._number, closed))
        if len(self._closed) > self._limit:  # one old group must not keep acknowledged ones in memory
            self._closed = [entry for entry in self._closed if entry[2].holds]
            heapq.heapify(self._closed)
            self._limit = 2 * len(self._closed) + 64
        return closed

    def earliest(self) -> int | None:
        """Return the earliest event time of all groups that hold; ``None``: there is none."""
        while self._closed and not self._closed[0][2].holds:
            heapq.heappop(self._closed)
        closed = self._closed[0][0] if self._closed else None
        open_ = self.open.earliest if self.open.holds else None
        return closed if open_ is None or (closed is not None and closed < open_) else open_

    def __iter__(self) -> Iterator[InFlight]:
        yield self.open
        yield from (group for _, _, group in self._closed)
