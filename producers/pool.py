"""Many sources of a topic in one process, over one Kafka client: they join and leave while it runs."""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Final, Literal, Self

from confluent_kafka import Producer
from floodmark.producers.background import Background
from floodmark.producers.clients.admin import Config, client_log
from floodmark.producers.clients.clock import Clock
from floodmark.producers.forks import Guarded
from floodmark.producers.partition_watch import SharedWatch
from floodmark.producers.pooled_source import PooledSource, Shared
from floodmark.producers.predecessors import last_marks, last_membership_version
from floodmark.producers.settings import check_settings
from floodmark.producers.source import Link
from floodmark.producers.strategies.agenda import Agenda
from floodmark.producers.strategies.generator import Strategy
from floodmark.producers.strategies.pool_membership import PoolMembership, check_joining
from floodmark.producers.successors import Successors
from floodmark.schemas.errors import BrokerUnavailableError, DeliveryError, UnknownTopicError, UsageError
from floodmark.schemas.records import Membership
from floodmark.schemas.timestamps import duration_of
from typing_extensions import override

_log = client_log(__name__)
_MINUTE: Final = 60_000


class SourcePool(Guarded):
    """Sources of one topic that share a Kafka client, a lock and a thread, which sends their marks.

    The pool owns the topic's membership.  Its first version is the clock's minute, or above the last version in the
    topic if that is higher.  Each `join` takes the next version, and so does the pool after a source has ended.  All
    sources use the new version from their next marks on.  So the pool must be the topic's only writer; if it is not,
    give the ``membership`` that counts all sources.

    What fails in the thread is raised by the next call of the pool or of one of its sources.  The end of the process
    closes the pool; a process forked from this one may not use it.

    Args:
        config: confluent-kafka settings; all pass through.  Idempotence is on and must stay on.
        topic: the topic; it must exist.
        membership: how many sources write to the topic, in this process and elsewhere; default: those of the pool.
        interval: time between the marks of each source.
        clock: where the time comes from; tests pass a `ManualClock`.

    Raises:
        UnknownTopicError, BrokerUnavailableError: at once, not at the first record.
        UsageError: for settings that cannot be right.
    """

    def __init__(
        self,
        config: Config,
        *,
        topic: str,
        membership: Membership | None = None,
        interval: timedelta = timedelta(seconds=1),
        clock: Clock = Clock(),  # noqa: B008  # frozen
    ) -> None:
        check_settings(config, f"pool of {topic}", Membership() if membership is None else membership, "send")
        milliseconds = duration_of(interval, f"the pool of {topic!r}: the interval of marks", 1)
        self.topic = topic
        self._sources: dict[str, PooledSource] = {}
        self._agenda: Agenda[PooledSource] = Agenda()
        client = Producer({**config, "enable.idempotence": True}, logger=_log)
        self._watch = SharedWatch(client, topic, config.get("bootstrap.servers"), clock)
        super().__init__(threading.RLock())
        marks = last_marks(config, topic, clock.wall())
        version = 0
        if membership is None:  # the clock counts where retention has deleted all marks: running readers know them
            version = max(clock.wall() // _MINUTE, last_membership_version(config, topic, self._watch.partitions))
        self._membership = PoolMembership(f"the pool of {topic!r}", membership, version)
        with self._lock:
            self._background = Background(self, self._attend, milliseconds)
            self._shared = Shared(
                config,
                topic,
                interval,
                clock,
                Link(client, self._watch, Successors(config, topic, clock), self._lock),
                self._background,
                marks,
                floor=max((mark.epoch + 1 for mark in marks.values()), default=0),
                leave=self._leave,
            )

    def __repr__(self) -> str:
        """Show what it writes to; never a setting, which may be a secret."""
        return f"SourcePool(topic={self.topic!r}, sources={len(self._sources)})"

    @property
    def sources(self) -> dict[str, PooledSource]:
        """The sources that have joined and not ended, by id."""
        with self._lock:
            return dict(self._sources)

    @property
    def membership(self) -> Membership:
        """How many sources write to the topic."""
        with self._lock:
            return self._membership.current

    def join(
        self,
        *sources: str,
        strategy: Strategy,
        lease: timedelta | None = None,
        on_late: Literal["send", "raise"] = "send",
        early: timedelta | None = None,
    ) -> list[PooledSource]:
        """Add sources, all in one step; readers wait for them from the next mark of any source on.

        What is there from the beginning must join in one call: a source that is alone may promise what makes the first
        records of the next ones late.

        Args:
            sources: their ids.
            strategy: how each of them knows its watermark.
            lease: as for `WatermarkedProducer`, and so are the others.
            on_late: what to do with a record behind the source's own promise.
            early: refuse records whose event time is further ahead of the clock.

        Returns:
            The sources, in the order of their ids.

        Raises:
            UsageError: a source has joined already, or none is given, or a given membership has no room.  After this or
                any other error the pool is as it was before.
        """
        with self._lock:
            self._background.raise_failure()
            if self._background.stopped:
                raise UsageError(reason=f"{self!r} is closed: make a new one")
            check_joining(repr(self), sources, self._sources.keys())
            membership = self._membership.grown(len(self._here()), len(sources))
            new = [
                PooledSource(self._shared, name, strategy, membership, lease=lease, on_late=on_late, early=early)
                for name in sources
            ]
            self._adopt(membership)
            for source in new:
                self._sources[source.source] = source
                self._agenda.add(source)
            self._shared.floor = max(source.epoch for source in new) + 1
            return new

    def _here(self) -> list[PooledSource]:
        """Return the sources that have not ended; those that are left have marks on their way that say so."""
        return [source for source in self._sources.values() if not source.ended]

    def _shrink(self) -> None:
        """Leave sources that have ended out of the membership, or a reader that starts later may wait for their marks.

        Wait until each source has marked under the last version: a version that comes too soon is never complete.
        """
        here = self._here()
        smaller = self._membership.shrunk(len(here))
        if smaller is None:
            self._shared.ending = False
        elif all(source.has_adopted for source in here):
            self._shared.ending = False
            self._adopt(smaller)

    def _adopt(self, membership: Membership) -> None:
        self._membership.current = membership
        for source in self._sources.values():
            source.adopt(membership)

    def change_membership(self, membership: Membership) -> None:
        """Use a newer membership, where the pool was given one; all sources speak under it with their next marks.

        Raises:
            UsageError: its version is not higher, it counts fewer sources than the pool has, or the pool counts its
                sources itself.
        """
        with self._lock:
            self._membership.change(membership, len(self._here()))
            self._adopt(membership)

    def _leave(self, source: PooledSource) -> None:
        self._sources.pop(source.source, None)
        self._agenda.remove(source)

    def _attend(self) -> None:
        """Serve reports, and the marks that are due, with the lock for one source at a time: others can go on."""
        with self._lock:
            if self._background.stopped:
                return
            self._shared.link.client.poll(0)
            if self._shared.ending:
                self._shrink()
            if self._watch.has_grown():
                self._each(self._sources.values(), PooledSource.mark_soon)
                self._agenda.hurry()
            due = self._agenda.due(self._shared.clock.steady())
        self._each(due, PooledSource.attend)

    def _each(self, sources: Iterable[PooledSource], do: Callable[[PooledSource], None]) -> None:
        """Do something with each source; an error of one must not silence the others."""
        for source in sources:
            try:
                do(source)
            except Exception as failure:  # noqa: BLE001  # of a strategy, for example
                self._background.keep(failure)

    def flush(self, timeout: float = 60) -> int:
        """Wait until all is acknowledged, then send marks of all sources that promise it, and wait for those.

        Args:
            timeout: of each wait, seconds.

        Returns:
            0, as `WatermarkedProducer.flush`.

        Raises:
            DeliveryError: that of the first source of which Kafka did not accept all; the others have promised.
        """
        with self._lock:
            sources = list(self._sources.values())
            errors = self._settle(sources, timeout)
            with suppress(BrokerUnavailableError, UnknownTopicError):
                self._watch.ask(timeout)
            self._each(sources, PooledSource.emit)
            errors += self._settle(sources, timeout, marks=True)
            if errors:
                raise errors[0]
            self._raise_kept(sources)
            return 0

    def end(self, timeout: float = 60) -> None:
        """Let all sources end, and close the pool.

        Args:
            timeout: of each wait, seconds.

        Raises:
            DeliveryError: that of the first source of which Kafka did not accept all; it has not ended, others have.
                Call its ``resend``, and then this again.
            BrokerUnavailableError: where the topic's partitions cannot be learnt; no source has ended.
        """
        with self._lock:
            sources = list(self._sources.values())
            errors = self._settle(sources, timeout)
            failed = {error.source for error in errors}
            ending = [source for source in sources if source.source not in failed]
            try:
                self._watch.ask(timeout)
            except (BrokerUnavailableError, UnknownTopicError):
                if errors:
                    raise errors[0] from None
                raise
            self._each(ending, PooledSource.announce_end)
            errors += self._settle(ending, timeout, marks=True)
            for source in ending:
                if source.settled:
                    self._leave(source)
            if errors:
                raise errors[0]
            self._background.stop()
            self._raise_kept(sources)

    def _settle(self, sources: Iterable[PooledSource], timeout: float, *, marks: bool = False) -> list[DeliveryError]:
        """Wait once, for all sources; returns the errors of those of which Kafka did not accept all."""
        self._shared.link.client.flush(timeout)
        errors = []
        for source in sources:
            try:
                source.check(timeout, marks=marks)
            except DeliveryError as error:
                errors.append(error)
        return errors

    @override
    def close(self, timeout: float = 10) -> bool:
        """Wait for what is in flight, send marks that promise it, as far as there is room, and end the thread.

        No source ends: readers go on to wait for them.

        Args:
            timeout: of each wait, seconds.

        Returns:
            Whether all was acknowledged or has failed.
        """
        return self._close(timeout, promise=not self._background.stopped)

    def _close(self, timeout: float, *, promise: bool) -> bool:
        with self._lock:
            client, sources = self._shared.link.client, list(self._sources.values())
            try:
                client.flush(timeout)
                if promise:
                    self._each(sources, PooledSource.announce)
                    client.flush(timeout)
                closed = all(source.unacknowledged == 0 for source in sources)
            finally:
                self._background.stop()
            if promise:
                self._raise_kept(sources)
            return closed

    def _raise_kept(self, sources: Iterable[PooledSource]) -> None:
        self._background.raise_failure()
        for source in sources:
            source.raise_kept()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Flush and close; after an error no promise is made.  In a fork: nothing."""
        if self.forked:
            return
        try:
            if kind is None:
                self.flush()
        finally:
            self._close(10, promise=False)
