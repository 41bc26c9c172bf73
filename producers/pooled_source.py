"""A source that shares its Kafka client, its lock and its thread with the others of a pool."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from floodmark.producers.background import Background
from floodmark.producers.clients.admin import Config
from floodmark.producers.clients.clock import Clock
from floodmark.producers.predecessors import Predecessors
from floodmark.producers.producer import WatermarkedProducer
from floodmark.producers.source import Link
from floodmark.producers.strategies.generator import Strategy
from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import Membership, WatermarkRecord
from typing_extensions import override


@dataclass(slots=True)
class Shared:
    """What the sources of a pool have in common."""

    config: Config
    topic: str
    interval: timedelta
    clock: Clock
    link: Link
    background: Background
    marks: Mapping[str, WatermarkRecord]
    """The last marks before the pool, by source."""
    floor: int
    """The lowest epoch that the next source may have."""
    leave: Callable[["PooledSource"], None]
    """Is told of a source that has ended."""
    ending: bool = False
    """Whether a source may have ended since the pool last looked."""
    keeps_timestamps: bool = False
    """Whether the topic is known to keep the timestamps of records."""


class PooledSource(WatermarkedProducer):
    """A source of a `SourcePool`, which makes it by `SourcePool.join`.

    It has the methods of a `WatermarkedProducer`, but `change_membership` belongs to the pool.  `end` takes it out of
    the pool.  `close`, and the end of a ``with``, wait and promise, and leave it in the pool, which keeps marking it.
    """

    def __init__(
        self,
        shared: Shared,
        source: str,
        strategy: Strategy,
        membership: Membership,
        *,
        lease: timedelta | None,
        on_late: Literal["send", "raise"],
        early: timedelta | None,
    ) -> None:
        self._shared = shared
        super().__init__(
            shared.config,
            topic=shared.topic,
            source=source,
            strategy=strategy,
            membership=membership,
            interval=shared.interval,
            lease=lease,
            on_late=on_late,
            early=early,
            clock=shared.clock,
        )
        self._background = shared.background
        self._schedule.polled = False

    @override
    def _link(self, config: Config) -> Link:
        return self._shared.link

    @override
    def _require_timestamps(self, config: Config) -> None:
        if not self._shared.keeps_timestamps:
            super()._require_timestamps(config)
            self._shared.keeps_timestamps = True

    @override
    def _predecessors(self, config: Config, source: str, wall: int) -> Predecessors:
        return Predecessors(source, self._shared.marks, self._shared.floor)

    @override
    def _release(self) -> None:
        """Leave the client and the thread to the others."""

    @override
    def end(self, timeout: float = 60) -> None:
        with self._lock:
            self._shared.ending = True
            super().end(timeout)
            self._shared.leave(self)

    @property
    def source(self) -> str:
        """Its id."""
        return self._emitter.identity.source

    @property
    def epoch(self) -> int:
        """The generation of this writer."""
        return self._emitter.identity.epoch

    @property
    def ended(self) -> bool:
        """Whether it sends no records any more."""
        return self._emitter.ended

    @override
    def change_membership(self, membership: Membership) -> None:
        """Refuse: all sources of a pool use one membership.

        Raises:
            UsageError: always.
        """
        raise UsageError(reason=f"{self!r} uses the membership of its pool: call the pool's change_membership()")

    @property
    def has_adopted(self) -> bool:
        """Whether its last marks have the membership that it adopted.  For the pool, as all that follows."""
        return self._emitter.marked == self._emitter.identity.membership

    def adopt(self, membership: Membership) -> None:
        """Use another membership from the next marks on."""
        if not self._emitter.ended:
            self._emitter.change_membership(membership)

    def announce(self) -> None:
        """Send marks now, as far as there is room for them."""
        self._schedule.emit(wait=False)

    def announce_end(self) -> None:
        """Send marks that say that the source has ended; waits for room."""
        if not self._emitter.ended:
            self._shared.ending = True
            self._emitter.grow(self._watch.partitions)
            self._emitter.end()
        self.emit()

    @property
    def due_at(self) -> int:
        """When its marks are due, by the steady clock, milliseconds; not later than that."""
        return self._schedule.due_at

    def mark_soon(self) -> None:
        """Let its marks be due at once."""
        self._schedule.mark_soon()

    def attend(self) -> None:
        """Send the marks that are due."""
        with self._lock:
            if not self._shared.background.stopped:
                self._serve()

    def check(self, waited: float, *, marks: bool = False) -> None:
        """Raise what is missing after a wait of so many seconds; with ``marks``, those that failed count, too.

        Raises:
            DeliveryError: an acknowledgement is missing, or a record has failed.
        """
        self._outbox.check(waited, marks=marks)

    @property
    def settled(self) -> bool:
        """Whether nothing of it is in flight, and no mark has failed."""
        return self._outbox.settled

    @property
    def unacknowledged(self) -> int:
        """How many of its records and marks are in flight."""
        return self._outbox.unacknowledged

    def raise_kept(self) -> None:
        """Raise what a delivery report has raised, or what the background has."""
        self._raise_kept()
