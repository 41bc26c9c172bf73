"""Many sources of a topic in one process, with one Kafka client; they join and end while it runs."""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Literal, Self

from floodmark.producers.channel import Channel, check_settings
from floodmark.producers.clients.admin import Config
from floodmark.producers.clients.clock import Clock
from floodmark.producers.other_runs import last_marks, last_membership_version
from floodmark.producers.producer import WatermarkedProducer
from floodmark.producers.readers.alignment import Alignment, AlignmentReader, require_topic
from floodmark.producers.sender import MergedSender, Sender
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.interface import Strategy
from floodmark.producers.strategies.merged import MergedEmitter
from floodmark.producers.strategies.numbering import Identity
from floodmark.producers.strategies.scopes import PerPartition
from floodmark.schemas.errors import BrokerUnavailableError, DeliveryError, UnknownTopicError, UsageError
from floodmark.schemas.records import Membership, check_versioned
from floodmark.schemas.timestamps import duration_of

_log = logging.getLogger(__name__)


class PoolMembership:
    """The membership of a pool; an ended source leaves it, or new readers would wait for its deleted marks.

    >>> counted = PoolMembership("pool", None, last=7)
    >>> counted.grown(now=0, more=3), counted.current
    (Membership(version=8, size=3), Membership(version=7, size=0))
    >>> counted.current = counted.grown(now=0, more=3)
    >>> counted.shrunk(now=3), counted.shrunk(now=2), counted.shrunk(now=0)
    (None, Membership(version=9, size=2), None)
    >>> PoolMembership("pool", Membership(version=1, size=2)).grown(now=2, more=1)
    Traceback (most recent call last):
      ...
    floodmark.schemas.errors.UsageError: pool: 3 sources would be in it, and Membership(version=1, size=2) counts \
fewer; call change_membership() with a higher version before
    """

    def __init__(self, pool: str, given: Membership | None, last: int = 0) -> None:
        self._pool = pool
        self.counts = given is None  # whether the pool counts its own sources
        self.current = Membership(last, 0) if given is None else given

    def grown(self, now: int, more: int) -> Membership:
        """Return the membership after ``more`` sources join; a `UsageError` if a given one counts fewer."""
        size = now + more
        if self.counts:
            return Membership(self.current.version + 1, size)
        if size > self.current.size:
            reason = f"{size} sources would be in it, and {self.current} counts fewer"
            raise UsageError(reason=f"{self._pool}: {reason}; call change_membership() with a higher version before")
        return self.current

    def shrunk(self, now: int) -> Membership | None:
        """Return the membership of the ``now`` sources that have not ended; ``None``: no change."""
        smaller = self.counts and 0 < now < self.current.size
        return Membership(self.current.version + 1, now) if smaller else None

    def change(self, membership: Membership, now: int) -> None:
        """Replace a given membership by a newer one; `UsageError` if it is not, counts too few, or none was given."""
        check_versioned(membership, self.current, self._pool)
        if self.counts:
            raise UsageError(reason=f"{self._pool} counts its sources itself; give it membership= to count them for it")
        if membership.version <= self.current.version:
            reason = f"membership {membership} after {self.current}, expected a higher version"
            raise UsageError(reason=f"{self._pool}: {reason}")
        if membership.size < now:
            raise UsageError(reason=f"{self._pool}: it has {now} sources, and {membership} counts fewer")
        self.current = membership


class SourcePool:
    """Sources of one topic that share a Kafka client, a lock and a background thread, which sends their marks.

    The pool manages the topic's membership, whose version grows with each `join`, and after a source has ended.  So the
    pool must be the topic's only writer; otherwise, pass a ``membership`` that counts all sources.

    With ``source``, the pool writes the marks of one source.  Its watermark is the lowest of all sources that have
    joined and are not idle, and a failed record of any of them holds it.  Sources join and end without a new
    membership.  Records of a source that joins behind the watermark are late.  Readers wait for the pool until the
    first source has joined.  When all are idle or have ended, the pool is idle; `end` ends it.

    The next call raises errors of the thread.  The end of the process closes the pool.  In a forked process, its calls
    raise `ForkedError`.

    Args:
        config: confluent-kafka settings, passed through.  Idempotence is on and must stay on.
        topic: must exist.
        membership: number of sources that write to the topic, in this process and elsewhere, or a `Membership` once it
            has changed; default: the pool counts its sources.
        source: id of the pool as one source of the topic, the same after a restart; its marks are sent every
            ``interval``, also with `punctuated`.  Default: each source that joins has marks of its own.
        interval: time between the marks of each source.
        alignment: how far each source may be ahead of another topic, before its ``produce`` blocks; give each source a
            thread then, or a bound above how far the sources are apart.
        clock: for tests, a `ManualClock`.

    Raises:
        UnknownTopicError, BrokerUnavailableError: at once, not at the first record.
        UsageError: a setting is wrong.
    """

    def __init__(
        self,
        config: Config,
        *,
        topic: str,
        membership: Membership | int | None = None,
        source: str | None = None,
        interval: timedelta = timedelta(seconds=1),
        alignment: Alignment | None = None,
        clock: Clock = Clock(),
    ) -> None:
        name = f"pool of {topic}" if source is None else source
        given = check_settings(config, name, 1 if membership is None else membership, "send")
        milliseconds = duration_of(interval, f"the pool of {topic!r}: the interval of marks", 1)
        self.topic = topic
        self._config, self._clock, self._interval = config, clock, interval
        self._sources: dict[str, WatermarkedProducer] = {}
        self._senders: dict[str, Sender] = {}
        channel = self._channel = Channel(config, topic, clock, on_source_ended=self._remove)
        channel.last_marks = last_marks(config, topic, clock.wall())
        channel.lowest_epoch = max((mark.epoch + 1 for mark in channel.last_marks.values()), default=0)
        version = 0
        if membership is None:  # running readers may know marks that retention has deleted: use the clock, too
            version = max(clock.wall() // 60_000, last_membership_version(config, topic, channel.partitions))
        self._membership = PoolMembership(f"the pool of {topic!r}", None if membership is None else given, version)
        if alignment is not None:
            channel.alignment = AlignmentReader(config, require_topic(alignment, repr(self)), topic=topic)
        if source is None:
            channel.tell(repr(self), channel.predecessors("", clock.wall()).end_advice)
            channel.tell(repr(self), None)  # a source that joins may need other advice
        self._speaker = None if source is None else self._speak_as(source, milliseconds)
        channel.owner = repr(self)
        channel.start_background(self._background_step, self.close, milliseconds)

    def __repr__(self) -> str:
        """Show no setting: it may be a secret."""
        return f"SourcePool(topic={self.topic!r}, sources={len(self._sources)})"

    def _speak_as(self, source: str, interval: int) -> MergedSender:
        """Return the sender of the one source that the topic has."""
        wall = self._clock.wall()
        before = self._channel.predecessors(source, wall)
        if self._membership.counts:
            self._membership.current = self._membership.grown(0, 1)
        membership = self._membership.current
        self._channel.tell(f"source {source!r}", before.advice(membership, wall))
        identity = Identity(source, before.next_epoch(wall), membership)
        return MergedSender(self._channel, MergedEmitter(identity, self._channel.partitions), self._clock, interval)

    @property
    def _speakers(self) -> list[Sender]:
        """Return the senders whose marks the topic has."""
        return list(self._senders.values()) if self._speaker is None else [self._speaker]

    @property
    def sources(self) -> dict[str, WatermarkedProducer]:
        """The sources that have joined and not ended, by id."""
        with self._channel.lock:
            return dict(self._sources)

    @property
    def membership(self) -> Membership:
        """The number of sources that write to the topic, with its version."""
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
        """Add sources in one step; readers wait for all of them from the next mark of any source on.

        At startup, add all sources in one call, or the watermark of one may make the first records of the others late.
        ``lease``, ``on_late`` and ``early`` are as for `WatermarkedProducer`.  A pool with ``source`` refuses ``lease``
        and `per_partition`.

        Returns:
            The sources, in the order of their ids in the call.

        Raises:
            UsageError: a source has already joined, no id is given, or ``membership`` counts fewer sources.  After this
                or any other error the pool is unchanged.
        """
        with self._channel.lock:
            self._channel.raise_failure()
            if self._channel.stopped:
                raise UsageError(reason=f"{self!r} is closed: make a new one")
            if not sources or not all(isinstance(one, str) for one in sources) or len(set(sources)) < len(sources):
                expected = 'one or more different ids, as join("a", "b")'
                raise UsageError(reason=f"{self!r}: {list(sources)} are to join, expected {expected}")
            joined = sorted(set(sources) & self._sources.keys())
            if joined:
                raise UsageError(reason=f"{self!r}: {joined} have joined already; end() them before they join again")
            membership, epoch = self._membership.current, None
            if self._speaker is None:
                membership = self._membership.grown(len(self._open_emitters()), len(sources))
            elif lease is None and not isinstance(strategy, PerPartition):
                epoch = self._speaker.emitter.identity.epoch
            else:
                raise UsageError(
                    reason=f"{self!r} writes as one source, without lease= and per_partition(): leave them out"
                )
            new = [
                WatermarkedProducer(
                    self._config,
                    topic=self.topic,
                    source=name,
                    strategy=strategy,
                    membership=membership,
                    epoch=epoch,
                    interval=self._interval,
                    lease=lease,
                    on_late=on_late,
                    early=early,
                    clock=self._clock,
                    channel=self._channel,
                    speaker=self._speaker,
                )
                for name in sources
            ]
            senders = {source.source: source._sender for source in new}  # noqa: SLF001  # the pool sends their marks
            if self._speaker is None:
                self._use_membership(membership)
            else:
                self._speaker.join(senders.values())
            self._sources |= {source.source: source for source in new}
            self._senders |= senders
            self._channel.lowest_epoch = max(source.epoch for source in new) + 1
            return new

    def _open_emitters(self) -> list[Emitter]:
        """Return the emitters of sources that have not ended."""
        return [sender.emitter for sender in self._speakers if not sender.emitter.ended]

    def _shrink_membership(self) -> None:
        """Remove ended sources from the membership, once all others have marked under its current version."""
        emitters = self._open_emitters()
        smaller = self._membership.shrunk(len(emitters))
        if smaller is None:
            self._channel.source_ended = False
        elif all(emitter.marked_membership == emitter.identity.membership for emitter in emitters):
            self._channel.source_ended = False
            self._use_membership(smaller)

    def _use_membership(self, membership: Membership) -> None:
        self._membership.current = membership
        for emitter in self._open_emitters():
            emitter.change_membership(membership)

    def change_membership(self, membership: Membership) -> None:
        """Use a newer membership, if the pool was given one; all sources use it from their next marks on.

        `UsageError` if its version is not higher, it counts too few sources, or the pool counts its sources itself.
        """
        with self._channel.lock:
            self._membership.change(membership, len(self._open_emitters()))
            self._use_membership(membership)

    def _remove(self, source: str) -> None:
        self._sources.pop(source, None)
        self._senders.pop(source, None)

    def _background_step(self) -> None:
        """Serve delivery reports and send marks, with the lock for one source at a time."""
        with self._channel.lock:
            channel, now = self._channel, self._clock.steady()
            if channel.stopped:
                return
            channel.client.poll(0)
            if channel.alignment is not None:
                channel.alignment.poll(now)
            if self._channel.source_ended:
                self._shrink_membership()
            if now >= channel.next_refresh:
                channel.refresh_in_background(now)
            due = [sender for sender in self._speakers if sender.due_at <= now]
        self._for_each(due, Sender.send_due_marks_in_background)

    def _for_each(self, senders: Iterable[Sender], do: Callable[[Sender], None]) -> None:
        """Call a function for each source; after an error of one, continue with the others."""
        for sender in senders:
            try:
                do(sender)
            except Exception as failure:  # noqa: BLE001  # of a strategy, for example
                self._channel.keep_failure(failure)

    def flush(self, timeout: float = 60) -> int:
        """Wait until Kafka has acknowledged all records, then send marks of all sources, and wait for them; return 0.

        ``timeout``: of each wait, seconds.  `DeliveryError` is that of the first source with a rejected record or mark;
        the other sources were marked.
        """
        with self._channel.lock:
            senders = list(self._senders.values())
            errors = self._flush_and_check(senders, timeout)
            with suppress(BrokerUnavailableError, UnknownTopicError):
                self._channel.ask_partitions(timeout)
            self._for_each(self._speakers, Sender.emit_unless_fenced)
            errors += self._flush_and_check(self._speakers, timeout, marks=True)
            if errors:
                raise errors[0]
            self._raise_failures([*senders, *self._speakers])
            return 0

    def end(self, timeout: float = 60) -> None:
        """End all sources, and close the pool; ``timeout``: of each wait, seconds.

        Raises:
            DeliveryError: of the first source with a rejected record or mark.  That source has not ended, others have:
                call its ``resend``, then ``end`` again.  With ``source``, none has ended.
            BrokerUnavailableError: Kafka does not return the topic's partitions; no source has ended.

        Another error, as of a strategy: a source may have not ended.  Call ``end`` again.
        """
        with self._channel.lock:
            senders = list(self._senders.values())
            errors = self._flush_and_check(senders, timeout)
            failed = {error.source for error in errors}
            ending = [sender for sender in senders if sender.emitter.identity.source not in failed]
            if self._speaker is not None:
                ending = [] if failed else [self._speaker]
            try:
                self._channel.ask_partitions(timeout)
                self._channel.successors.read()
            except (BrokerUnavailableError, UnknownTopicError):
                if errors:
                    raise errors[0] from None
                raise
            self._for_each(ending, Sender.emit_end)
            errors += self._flush_and_check(ending, timeout, marks=True)
            for name, sender in list(self._senders.items()):
                if sender.emitter.ended and sender.outbox.settled:
                    self._remove(name)
            if errors:
                raise errors[0]
            if all(sender.outbox.settled for sender in ending):
                self._channel.stop_background()
            self._raise_failures([*senders, *self._speakers])

    def _flush_and_check(
        self, senders: Iterable[Sender], timeout: float, *, marks: bool = False
    ) -> list[DeliveryError]:
        """Wait for all sources at once; return the error of each source with a rejected record or mark."""
        self._channel.client.flush(timeout)
        errors = []
        for sender in senders:
            try:
                sender.outbox.check(timeout, marks=marks)
            except DeliveryError as error:
                errors.append(error)
        return errors

    def close(self, timeout: float = 10) -> bool:
        """Wait until Kafka has acknowledged all records, send marks if the queue has room, and stop the thread.

        No source ends: readers continue to wait for them.  ``timeout``: seconds.  Returns whether each record and
        mark was acknowledged or has failed.
        """
        return self._close(timeout, promise=not self._channel.stopped)

    def _close(self, timeout: float, *, promise: bool) -> bool:
        def emit() -> None:
            self._for_each(self._speakers, lambda sender: sender.emit(wait=False))

        def unacknowledged() -> int:
            return sum(sender.outbox.unacknowledged for sender in self._speakers)

        with self._channel.lock:
            senders = list(self._senders.values())
            try:
                closed = self._channel.settle(timeout, emit if promise else None, unacknowledged)
            finally:
                self._channel.stop_background()
            if promise:
                self._raise_failures([*senders, *self._speakers])
            return closed

    def _raise_failures(self, senders: Iterable[Sender]) -> None:
        self._channel.raise_failure()
        for sender in senders:
            sender.raise_failures()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Flush and close, or after an error only close, without marks.  In a forked process, do nothing."""
        if self._channel.forked:
            return
        try:
            if kind is None:
                self.flush()
        finally:
            self._close(10, promise=False)
