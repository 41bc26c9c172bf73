"""Many sources of a topic in one process, over one Kafka client: they join and leave while it runs."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Final, Literal, Self

from floodmark.producers.channel import Channel, check_settings
from floodmark.producers.clients.admin import Config
from floodmark.producers.clients.clock import Clock
from floodmark.producers.predecessors import last_marks, last_membership_version
from floodmark.producers.producer import WatermarkedProducer
from floodmark.producers.sender import Sender
from floodmark.producers.strategies.agenda import Agenda
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.interface import Strategy
from floodmark.producers.strategies.pool_membership import PoolMembership, check_joining
from floodmark.schemas.errors import BrokerUnavailableError, DeliveryError, UnknownTopicError, UsageError
from floodmark.schemas.records import Membership
from floodmark.schemas.timestamps import duration_of

_MINUTE: Final = 60_000


class SourcePool:
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
        membership: how many sources write to the topic, in this process and elsewhere: a number, or a `Membership`
            once it has changed; default: those of the pool.
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
        membership: Membership | int | None = None,
        interval: timedelta = timedelta(seconds=1),
        clock: Clock = Clock(),  # noqa: B008  # frozen
    ) -> None:
        given = check_settings(config, f"pool of {topic}", 1 if membership is None else membership, "send")
        milliseconds = duration_of(interval, f"the pool of {topic!r}: the interval of marks", 1)
        self.topic = topic
        self._config, self._clock, self._interval = config, clock, interval
        self._sources: dict[str, WatermarkedProducer] = {}
        self._senders: dict[str, Sender] = {}
        self._agenda: Agenda[Sender] = Agenda()
        channel = self._channel = Channel(config, topic, clock, leave=self._leave)
        self._partitions = channel.partitions
        channel.marks = last_marks(config, topic, clock.wall())
        channel.floor = max((mark.epoch + 1 for mark in channel.marks.values()), default=0)
        version = 0
        if membership is None:  # the clock counts where retention has deleted all marks: running readers know them
            version = max(clock.wall() // _MINUTE, last_membership_version(config, topic, channel.partitions))
        self._membership = PoolMembership(f"the pool of {topic!r}", None if membership is None else given, version)
        channel.owner = repr(self)
        channel.start(self._attend, self.close, milliseconds)

    def __repr__(self) -> str:
        """Show what it writes to; never a setting, which may be a secret."""
        return f"SourcePool(topic={self.topic!r}, sources={len(self._sources)})"

    @property
    def sources(self) -> dict[str, WatermarkedProducer]:
        """The sources that have joined and not ended, by id."""
        with self._channel.lock:
            return dict(self._sources)

    @property
    def membership(self) -> Membership:
        """How many sources write to the topic."""
        with self._channel.lock:
            return self._membership.current

    def join(
        self,
        *sources: str,
        strategy: Strategy,
        lease: timedelta | None = None,
        on_late: Literal["send", "raise"] = "send",
        early: timedelta | None = None,
    ) -> list[WatermarkedProducer]:
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
        with self._channel.lock:
            self._channel.raise_failure()
            if self._channel.stopped:
                raise UsageError(reason=f"{self!r} is closed: make a new one")
            check_joining(repr(self), sources, self._sources.keys())
            membership = self._membership.grown(len(self._here()), len(sources))
            new = [
                WatermarkedProducer(
                    self._config,
                    topic=self.topic,
                    source=name,
                    strategy=strategy,
                    membership=membership,
                    interval=self._interval,
                    lease=lease,
                    on_late=on_late,
                    early=early,
                    clock=self._clock,
                    channel=self._channel,
                )
                for name in sources
            ]
            self._adopt(membership)
            for source in new:
                sender = source._sender  # noqa: SLF001  # the pool sends the marks of its sources; users need not
                self._sources[source.source], self._senders[source.source] = source, sender
                self._agenda.add(sender)
            self._channel.floor = max(source.epoch for source in new) + 1
            return new

    def _here(self) -> list[Emitter]:
        """Return what the sources that have not ended promise; the other ones wait for their last marks."""
        return [sender.emitter for sender in self._senders.values() if not sender.emitter.ended]

    def _shrink(self) -> None:
        """Leave sources that have ended out of the membership, or a reader that starts later may wait for their marks.

        Wait until each source has marked under the last version: a version that comes too soon is never complete.
        """
        here = self._here()
        smaller = self._membership.shrunk(len(here))
        if smaller is None:
            self._channel.ending = False
        elif all(emitter.marked == emitter.identity.membership for emitter in here):
            self._channel.ending = False
            self._adopt(smaller)

    def _adopt(self, membership: Membership) -> None:
        self._membership.current = membership
        for emitter in self._here():
            emitter.change_membership(membership)

    def change_membership(self, membership: Membership) -> None:
        """Use a newer membership, where the pool was given one; all sources speak under it with their next marks.

        Raises:
            UsageError: its version is not higher, it counts fewer sources than the pool has, or the pool counts its
                sources itself.
        """
        with self._channel.lock:
            self._membership.change(membership, len(self._here()))
            self._adopt(membership)

    def _leave(self, source: str) -> None:
        self._sources.pop(source, None)
        sender = self._senders.pop(source, None)
        if sender is not None:
            self._agenda.remove(sender)

    def _attend(self) -> None:
        """Serve reports, and the marks that are due, with the lock for one source at a time: others can go on."""
        with self._channel.lock:
            channel, now = self._channel, self._clock.steady()
            if channel.stopped:
                return
            channel.client.poll(0)
            if self._channel.ending:
                self._shrink()
            if now >= channel.next_look:
                channel.look_beside(now)
            if channel.partitions > self._partitions:
                self._partitions = channel.partitions
                self._agenda.hurry()
            due = self._agenda.due(now)
        self._each(due, Sender.attend)

    def _each(self, senders: Iterable[Sender], do: Callable[[Sender], None]) -> None:
        """Do something with each source; an error of one must not silence the others."""
        for sender in senders:
            try:
                do(sender)
            except Exception as failure:  # noqa: BLE001  # of a strategy, for example
                self._channel.keep(failure)

    def flush(self, timeout: float = 60) -> int:
        """Wait until all is acknowledged, then send marks of all sources that promise it, and wait for those.

        Args:
            timeout: of each wait, seconds.

        Returns:
            0, as `WatermarkedProducer.flush`.

        Raises:
            DeliveryError: that of the first source of which Kafka did not accept all; the others have promised.
        """
        with self._channel.lock:
            senders = list(self._senders.values())
            errors = self._settle(senders, timeout)
            with suppress(BrokerUnavailableError, UnknownTopicError):
                self._channel.ask_partitions(timeout)
            self._each(senders, _emit)
            errors += self._settle(senders, timeout, marks=True)
            if errors:
                raise errors[0]
            self._raise_kept(senders)
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
        with self._channel.lock:
            senders = list(self._senders.values())
            errors = self._settle(senders, timeout)
            failed = {error.source for error in errors}
            ending = {name: sender for name, sender in self._senders.items() if name not in failed}
            try:
                self._channel.ask_partitions(timeout)
            except (BrokerUnavailableError, UnknownTopicError):
                if errors:
                    raise errors[0] from None
                raise
            self._each(ending.values(), Sender.emit_end)
            errors += self._settle(ending.values(), timeout, marks=True)
            for name, sender in ending.items():
                if sender.outbox.settled:
                    self._leave(name)
            if errors:
                raise errors[0]
            self._channel.stop()
            self._raise_kept(senders)

    def _settle(self, senders: Iterable[Sender], timeout: float, *, marks: bool = False) -> list[DeliveryError]:
        """Wait once, for all sources; returns the errors of those of which Kafka did not accept all."""
        self._channel.client.flush(timeout)
        errors = []
        for sender in senders:
            try:
                sender.outbox.check(timeout, marks=marks)
            except DeliveryError as error:
                errors.append(error)
        return errors

    def close(self, timeout: float = 10) -> bool:
        """Wait for what is in flight, send marks that promise it, as far as there is room, and end the thread.

        No source ends: readers go on to wait for them.

        Args:
            timeout: of each wait, seconds.

        Returns:
            Whether all was acknowledged or has failed.
        """
        return self._close(timeout, promise=not self._channel.stopped)

    def _close(self, timeout: float, *, promise: bool) -> bool:
        with self._channel.lock:
            client, senders = self._channel.client, list(self._senders.values())
            try:
                client.flush(timeout)
                if promise:
                    self._each(senders, lambda sender: sender.emit(wait=False))
                    client.flush(timeout)
                closed = all(sender.outbox.unacknowledged == 0 for sender in senders)
            finally:
                self._channel.stop()
            if promise:
                self._raise_kept(senders)
            return closed

    def _raise_kept(self, senders: Iterable[Sender]) -> None:
        self._channel.raise_failure()
        for sender in senders:
            sender.raise_kept()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Flush and close; after an error no promise is made.  In a fork: nothing."""
        if self._channel.forked:
            return
        try:
            if kind is None:
                self.flush()
        finally:
            self._close(10, promise=False)


def _emit(sender: Sender) -> None:
    sender.check_fenced()
    sender.emit()
