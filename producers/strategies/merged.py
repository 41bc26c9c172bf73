"""Many sources whose marks are those of one source, as in a pool with ``source=``.  Pure.

The invariant: no mark is above the watermark of a joined source that is not idle, nor above the event time of a record
of any joined source that is in flight or has failed.  The watermark does not fall: a source that joins behind it holds
it, and the records of that source below it are late.
"""

from collections.abc import Iterable, Iterator, Mapping

from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.in_flight import InFlight
from floodmark.producers.strategies.interface import Generator
from floodmark.producers.strategies.numbering import Identity, Promise
from floodmark.schemas.partition_state import lowest
from floodmark.schemas.records import Status
from typing_extensions import override


class _Lowest(Generator):
    """The lowest watermark of the joined sources that are active; idle if none is, once one has joined."""

    def __init__(self, joined: list["JoinedEmitter"]) -> None:
        self._joined = joined
        self._used = False

    @property
    def active(self) -> list["JoinedEmitter"]:
        return [one for one in self._joined if one.status is Status.ACTIVE]

    @override
    def on_tick(self, now: int, wall: int | None = None) -> None:
        self._used = self._used or bool(self._joined)
        self._joined[:] = [one for one in self._joined if not one.ended]
        for one in self._joined:
            one.tick(now, wall)

    @override
    def watermark(self) -> int | None:
        return lowest([one.watermark for one in self.active])

    @override
    def percentiles(self) -> Mapping[int, int] | None:
        found = [one.generator.percentiles() or {} for one in self.active]
        common = set(found[0]).intersection(*found) if found else ()
        return {percent: min(each[percent] for each in found) for percent in common}

    @property
    @override
    def idle(self) -> bool:
        return self._used and not self.active


class MergedEmitter(Emitter):
    """The state of one source that others join and leave; until the first has joined, its watermark is unknown.

    >>> from floodmark.producers.strategies.basic import ascending
    >>> merged = MergedEmitter(Identity("gateway-7", epoch=1), partitions=1)
    >>> merged.marks(now=100)[0][1].watermark  # readers wait
    >>> one, two = (JoinedEmitter(Identity(name, epoch=1), ascending().build(), merged) for name in ("one", "two"))
    >>> merged.join([one, two])
    >>> one.send(0, event_time=30).ack(), two.send(0, event_time=12).ack()
    (None, None)
    >>> mark = merged.marks(now=200)[0][1]
    >>> mark.source, mark.watermark, mark.records
    ('gateway-7', 12, 2)
    >>> two.end()
    >>> merged.marks(now=300)[0][1].watermark
    30
    """

    def __init__(self, identity: Identity, partitions: int) -> None:
        self._joined: list[JoinedEmitter] = []
        self._lowest = _Lowest(self._joined)
        super().__init__(identity, self._lowest, partitions)

    def join(self, sources: Iterable["JoinedEmitter"]) -> None:
        """Wait for more sources from the next marks on; `EndedError` after the end."""
        self._check_not_ended("let sources join")
        self._joined += sources
        if self.status is Status.IDLE:
            self.mark_active()

    @property
    def active(self) -> list["JoinedEmitter"]:
        """The joined sources that the watermark waits for."""
        return self._lowest.active

    @override
    def groups(self) -> Iterator[InFlight]:
        return (group for one in self._joined for group in one.groups())

    @override
    def _promises(self) -> list[Promise]:
        held = {one.watermark: one.held for one in self.active}
        promises = super()._promises()
        watermark = promises[0]["watermark"]
        self.held = held.get(watermark)
        for one in self._joined:
            one.follow(watermark)
        return promises

    @override
    def grow(self, partitions: int) -> bool:
        grew = super().grow(partitions)
        self.registered = self.registered and not grew  # no joined source may write there before the next marks
        return grew

    @override
    def end(self) -> None:
        super().end()
        for one in self._joined:
            if not one.ended:
                one.end()


class JoinedEmitter(Emitter):
    """The state of a source that joins a `MergedEmitter`; records below the watermark of those marks are late."""

    def __init__(self, identity: Identity, generator: Generator, merged: MergedEmitter) -> None:
        self._merged = merged
        super().__init__(identity, generator, merged.partitions)
        self.counter = merged.counter
        self._scopes[0].promised = merged.scope(0).promised

    def follow(self, promised: int | None) -> None:
        """Note the watermark of marks, which count all records sent so far."""
        self._rounds += 1
        self._scopes[0].in_flight.close(self._rounds)
        self._scopes[0].promised = promised

    @override
    def next_watermark(self, partition: int) -> int | None:
        return lowest([self.watermark, *(one.watermark for one in self._merged.active)])

    @property
    def registered(self) -> bool:
        """Whether it may send records without marks before them; for other sources an attribute, which is faster."""
        return self.status is Status.ACTIVE and self._merged.registered

    @registered.setter
    def registered(self, value: bool) -> None:
        """Ignore it: the marks decide."""

    @property
    def partitions(self) -> int:
        """The last known number of partitions of the topic."""
        return self._merged.partitions

    @partitions.setter
    def partitions(self, value: int) -> None:
        """Ignore it, as above."""

    @property
    @override
    def end_marked(self) -> bool:
        return self.ended

    @override
    def grow(self, partitions: int) -> bool:
        return self._merged.grow(partitions)

    @override
    def mark_active(self) -> None:
        super().mark_active()
        if self._merged.status is Status.IDLE:
            self._merged.mark_active()
