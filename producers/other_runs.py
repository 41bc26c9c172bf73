"""The other runs and the other sources of a topic: their marks before a new source starts, and later runs."""

import logging
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final

from confluent_kafka import KafkaException
from floodmark.producers.clients.admin import Config, first_since, offset_bounds, shared
from floodmark.producers.clients.clock import Clock
from floodmark.producers.readers.replay import last_matching, read_until_end
from floodmark.schemas.classify import Classified, Mark, Offsets
from floodmark.schemas.errors import FloodmarkError
from floodmark.schemas.records import Membership, Status, WatermarkRecord

_log = logging.getLogger(__name__)
_RECENT: Final = 60_000  # milliseconds
_INTERVAL: Final = 60_000  # milliseconds
_FAR: Final = 10_000  # records


class Predecessors:
    """The last mark of each source that wrote to a topic before a new source.

    >>> mark_of_web = WatermarkRecord(source="web", epoch=7, sequence=0, watermark=5, partitions=1, emitted_at=0)
    >>> mark_of_app = WatermarkRecord(source="app", epoch=1, sequence=0, watermark=5, partitions=1, emitted_at=0)
    >>> before = Predecessors("web", {"web": mark_of_web, "app": mark_of_app})
    >>> before.next_epoch(wall=3), before.next_epoch(wall=90), before.watermark, before.membership
    (8, 90, 5, Membership(version=1, size=1))
    >>> print(before.advice(Membership(version=1, size=3), wall=90))
    it counts 3 sources, and the topic has marks of the same membership version that count 1; readers wait for the \
larger number: give all sources membership=Membership(version=2, size=...) with the number that write now
    >>> print(before.advice(Membership(version=0, size=1), wall=90))
    the topic has marks of membership version 1, so readers ignore the marks of this source, whose version is 0: give \
all sources membership=Membership(version=2, size=...) with the number that write now
    """

    def __init__(self, source: str, marks: Mapping[str, WatermarkRecord], lowest_epoch: int = 0) -> None:
        self._lowest_epoch = lowest_epoch
        self._own = marks.get(source)
        self.epoch = -1 if self._own is None else self._own.epoch  # the source's last epoch; -1: unknown
        memberships = [mark.membership for mark in marks.values()]
        self.membership = max(memberships, key=attrgetter("version", "size"), default=Membership(0, 0))
        """The one that readers follow: the highest version, and of that the largest size."""
        self.marks = list(marks.values())
        self._others = [mark for name, mark in sorted(marks.items()) if name != source]

    @property
    def others(self) -> list[str]:
        """The other sources that wrote to the topic."""
        return [mark.source for mark in self._others]

    @property
    def watermark(self) -> int | None:
        """The watermark of the source's last run."""
        return None if self._own is None else self._own.watermark

    def next_epoch(self, wall: int) -> int:
        """Return the wall clock, or an epoch above the last run's if the clock was set back."""
        return max(wall, self._lowest_epoch, self.epoch + 1)

    def advice(self, membership: Membership, wall: int) -> str | None:
        """Return why readers may not wait for all sources of a membership, and what to do; ``None``: they wait."""
        last = self.membership
        lately = [
            mark for mark in self._others if mark.status is not Status.ENDED and wall - mark.emitted_at <= _RECENT
        ]
        counted = f"give all sources membership=Membership(version={last.version + 1}, size=...)"
        counted += " with the number that write now"
        if last.version > membership.version:
            may_count = f"if {last} counts this source, give it that; otherwise, " if len(lately) < last.size else ""
            return (
                f"the topic has marks of membership version {last.version}, so readers ignore the marks of this "
                f"source, whose version is {membership.version}: {may_count}{counted}"
            )
        if last.version == membership.version and last.size != membership.size:
            return (
                f"it counts {membership.size} sources, and the topic has marks of the same membership version that "
                f"count {last.size}; readers wait for the larger number: {counted}"
            )
        # Those that have ended stay counted: readers may not wait for a new one in their place.
        ended = [mark for mark in self._others if mark.status is Status.ENDED and self._own is None]
        same = [mark.source for mark in [*lately, *ended] if mark.membership.version == membership.version]
        if len(same) >= membership.size and self.end_advice is None:
            write = "one source writes" if membership.size == 1 else f"{membership.size} sources write"
            size = max(membership.size, len(lately) + 1)
            others, more = ", ".join(map(repr, sorted(same))), Membership(membership.version + 1, size)
            return (
                f"the membership says that {write} to the topic, but {others} wrote to it, too; readers may not wait "
                f"for one of them, or wait for one that has stopped: give each membership={more} (size: the number "
                "that write now), or give this source the name that it had before"
            )
        return self.end_advice

    @property
    def end_advice(self) -> str | None:
        """What a new run does to readers, if all sources of the topic have ended; ``None``: some have not."""
        members = [mark for mark in self.marks if mark.membership.version == self.membership.version]
        if len(members) < self.membership.size or {mark.status for mark in members} != {Status.ENDED}:
            return None
        return (
            "all sources of the topic have ended. This start takes the end back: readers wait for a new end, and those "
            "that have seen the old one fail with UnreadInputError at the next record. Start them over, and do not "
            "end a source that will write again"
        )


def last_marks(config: Config, topic: str, now: int, *, most: int = 100) -> dict[str, WatermarkRecord]:
    """Return the newest mark of each source: of each partition's last ``most`` records, and of those since ``now``.

    If all of these have ended, it reads further back in partition 0, which each source marks: one that has not may have
    marked before.
    """
    settings = {**shared(config), "group.id": "floodmark-predecessors", "fetch.wait.max.ms": 10}
    try:
        bounds = offset_bounds(settings, topic)
        since = first_since(settings, bounds, now)
        starts = {place: max(low, min(high - most, since[place])) for place, (low, high) in bounds.items()}
        marks = _marks(settings, starts, {place: high for place, (_, high) in bounds.items()})
        if {mark.status for mark in _newest(marks).values()} == {Status.ENDED}:
            place = topic, 0
            far = max(bounds[place][0], starts[place] - _FAR)
            marks += _marks(settings, {place: far}, {place: starts[place]})
    except (KafkaException, FloodmarkError) as error:
        _log.warning(
            "the last marks of topic %r cannot be read, so other runs and sources are unknown: %s", topic, error
        )
        return {}
    return _newest(marks)


def _marks(config: Config, starts: Offsets, ends: Offsets) -> list[WatermarkRecord]:
    return [record.record for record in read_until_end(config, starts, ends) if isinstance(record, Mark)]


def _newest(marks: Iterable[WatermarkRecord]) -> dict[str, WatermarkRecord]:
    return {mark.source: mark for mark in sorted(marks, key=attrgetter("epoch", "sequence"))}


def last_membership_version(config: Config, topic: str, partitions: int) -> int:
    """Return the highest membership version of the last marks; a killed pool may have marked only some partitions."""
    versions = [0]

    def note(record: Classified) -> bool | None:
        if not isinstance(record, Mark):
            return None
        versions.append(record.record.membership.version)
        return True

    last_matching(shared(config), topic, range(partitions), note, most=100_000)
    return max(versions)


class Successors:
    """The last marks of a topic's sources, by the last 10,000 records of partition 0 (each marks it), once a minute."""

    def __init__(self, config: Config, topic: str, clock: Clock) -> None:
        self.marks: Mapping[str, WatermarkRecord] = {}  # the last one of the highest known epoch of each source
        self._config = {**shared(config), "group.id": "floodmark-successors"}
        self._topic = topic
        self._next = clock.steady()
        self._read = 0
        self._told = False  # whether the first failure was logged

    def refresh(self, now: int) -> bool:
        """As `read`, once a minute; return whether it was time."""
        is_due = now >= self._next
        if is_due:
            self._next = now + _INTERVAL
            self.read()
        return is_due

    def read(self) -> None:
        """Read new marks; if that fails, nothing changes."""
        place = self._topic, 0
        try:
            low, high = offset_bounds(self._config, self._topic)[place]
            start, marks = max(low, high - 10_000, self._read), dict(self.marks)
            for record in read_until_end(self._config, {place: start}, {place: high}):
                if isinstance(record, Mark):
                    mark = record.record
                    marks[mark.source] = max(marks.get(mark.source, mark), mark, key=attrgetter("epoch", "sequence"))
            self._read, self.marks = high, marks
        except (FloodmarkError, KafkaException) as error:
            level, self._told = logging.INFO if self._told else logging.WARNING, True
            _log.log(level, "whether a second process writes to topic %r is not known: %s", self._topic, error)
