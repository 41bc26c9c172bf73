"""Which records are not acknowledged yet, and the earliest event time among them.  Pure.

Acknowledgements come in any order.  Records are not kept one by one: those sent one after another share an `InFlight`,
so that a delivery report costs one call and no memory.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from floodmark.schemas.timestamps import EARLIEST

IN_FLIGHT_SIZE: Final = 256
"""Records per `InFlight`: few enough that a mark is held no further back than the records really in flight."""


@dataclass(slots=True, eq=False)
class InFlight:
    """Records sent one after the other, not all of them acknowledged: one counter and the earliest event time.

    It holds the watermark at its earliest event time until every record is acknowledged; one that has failed, until it
    was sent again in a later one.
    """

    round: int = 0
    """How many rounds of marks were sent before its first record."""
    sent: int = 0
    pending: int = 0
    failed: int = 0
    earliest: int | None = None
    since: int | None = None
    """When the first of those that hold may have been sent, by the clock that `Emitter.send` is called with."""

    def send(self, event_time: int, now: int | None = None) -> None:
        """Count a record as pending, since ``now``."""
        if not self.holds:
            self.since, self.earliest = now, event_time
        elif now is not None and self.since is not None and now < self.since:
            self.since = now
        self.sent += 1
        self.pending += 1
        if self.earliest is None or event_time < self.earliest:
            self.earliest = event_time

    def ack(self, *, failed: bool = False) -> None:
        """Count a record as acknowledged; or as failed: then it holds until `Emitter.resend`."""
        self.pending -= 1
        self.failed += failed

    def resend(self, failed: "InFlight", now: int | None) -> None:
        """Count a record that has failed in another one as pending here: it waits since it was sent first."""
        failed.failed -= 1
        # Which of the event times the record has is not known; the earliest is never too high.
        self.send(
            EARLIEST if failed.earliest is None else failed.earliest, now if failed.since is None else failed.since
        )

    @property
    def holds(self) -> bool:
        """Whether a record of it is not acknowledged."""
        return self.pending > 0 or self.failed > 0


class InFlights:
    """Every `InFlight` that holds, ordered by event time; those that are acknowledged are forgotten on the way.

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
        self.open = InFlight()
        """The one that the next record belongs to."""
        self._closed: list[tuple[int, int, InFlight]] = []
        self._number = 0
        self._limit = 64

    def close(self, round_: int) -> InFlight:
        """Open another one; returns the one until now, which takes no more records."""
        closed, self.open = self.open, InFlight(round_)
        if closed.earliest is not None and closed.holds:
            self._number += 1
            heapq.heappush(self._closed, (closed.earliest, self._number, closed))
        if len(self._closed) > self._limit:  # one that holds for long must not keep all that is acknowledged behind it
            self._closed = [entry for entry in self._closed if entry[2].holds]
            heapq.heapify(self._closed)
            self._limit = 2 * len(self._closed) + 64
        return closed

    def earliest(self) -> int | None:
        """Return the earliest event time that is not acknowledged; ``None``: there is none."""
        while self._closed and not self._closed[0][2].holds:  # one that holds no more never does again
            heapq.heappop(self._closed)
        closed = self._closed[0][0] if self._closed else None
        open_ = self.open.earliest if self.open.holds else None
        return closed if open_ is None or (closed is not None and closed < open_) else open_

    @property
    def pending(self) -> int:
        """How many records are neither acknowledged nor failed."""
        return sum(one.pending for one in self)

    def __iter__(self) -> Iterator[InFlight]:
        yield self.open
        yield from (in_flight for _, _, in_flight in self._closed)
