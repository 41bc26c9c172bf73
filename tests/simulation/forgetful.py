"""A world whose input forgets: retention deletes, the topic is deleted and created again, a source runs twice.

Newcomers begin at what Kafka still has, at any time.  Some are slow, and retention overtakes them: they read on behind
what is deleted, as a job does with ``failOnDataLoss=false``.
"""

import copy
from collections import Counter, defaultdict
from collections.abc import Iterable
from random import Random

from floodmark.producers.testing import InMemoryLog, LogRecord
from floodmark.schemas import Membership, Status, WatermarkRecord, is_late
from floodmark.schemas.classify import Data, Mark, classify
from floodmark.schemas.completeness.complete_rows import Reader
from floodmark.schemas.counts import Mismatch, RecordCounts
from floodmark.schemas.tracker import MarkRouter
from simulation.world import (
    HAPPENINGS,
    WIDTH,
    WRITER,
    Follower,
    Source,
    Stage,
    World,
    decoded,
    event_time_of,
    is_mark,
    row_of,
)

ELDER = b"elder"
"""Writer of the rows that an older process writes while a newer one runs under its name."""


class Topic(InMemoryLog):
    """A topic of which Kafka deletes the oldest records, and that may be created again."""

    def __init__(self, topic: str, partitions: int) -> None:
        """Begin whole."""
        super().__init__(topic, partitions)
        self.begins = Counter[int]()
        """The first offset that Kafka still has, by partition."""

    def kept(self, partition: int) -> list[LogRecord]:
        """Return what Kafka still has of a partition."""
        return self.partitions[partition][self.begins[partition] :]

    def create_again(self) -> None:
        """Delete it, and create it with as many partitions."""
        self.partitions = [[] for _ in self.partitions]
        self.begins.clear()

    def says_that_all_ended(self) -> bool:
        """Tell whether the marks that Kafka still has show all sources of the last membership ended everywhere."""
        last: list[dict[str, WatermarkRecord]] = []
        for number in range(len(self.partitions)):
            last.append({})
            for record in self.kept(number):
                if is_mark(record):
                    mark = decoded(record.key, record.value)
                    before = last[-1].get(mark.source)
                    if before is None or (mark.epoch, mark.sequence) > (before.epoch, before.sequence):
                        last[-1][mark.source] = mark
        memberships = [mark.membership for marks in last for mark in marks.values()]
        version = max((membership.version for membership in memberships), default=0)
        size = max((membership.size for membership in memberships if membership.version == version), default=0)
        current = [[mark for mark in marks.values() if mark.membership.version == version] for marks in last]
        return size > 0 and all(
            len(marks) >= size and all(mark.status is Status.ENDED for mark in marks) for marks in current
        )


def windows_of(records: Iterable[LogRecord]) -> Counter[int]:
    """Count the rows of some records by the end of their window."""
    rows = (row_of(record.value) for record in records if record.key is None)
    return Counter(row.event_time // WIDTH * WIDTH + WIDTH for row in rows if row is not None)


def writer_of(record: LogRecord) -> bytes | None:
    """Return who wrote a data record."""
    return dict(record.headers).get(WRITER)


class Newcomer:
    """A reader that begins at what Kafka still has."""

    def __init__(self, topic: Topic, chance: Random) -> None:
        """Begin now."""
        self.topic, self.chance, name = topic, chance, topic.topic
        self.at = Counter(topic.begins)
        self.whole = not any(topic.begins.values())
        self.slow = chance.random() < 0.3
        self.reader = Reader([name], event_time_of)
        self.reader.use_for("windows")
        self.router = MarkRouter({name: self.reader.tracker})
        self.counts = RecordCounts({(name, number) for number, begin in topic.begins.items() if begin})
        self.read: list[LogRecord] = []
        self.late: list[LogRecord] = []
        self.results = Counter[int]()
        self.overtaken = False
        self.lost = self.deleted = 0
        """Rows that the marks miss, and rows that were deleted before it could read them."""
        self.untold: dict[int, set[bytes | None]] = defaultdict(set)
        """By partition, who wrote rows and has left no mark behind the last place where records are missing."""

    def run(self, *, to_the_end: bool = False) -> None:
        """Read some of each partition, and take the windows that are complete."""
        for number, log in enumerate(self.topic.partitions):
            first = self.topic.begins[number]
            if self.at[number] < first:
                self.overtaken = True
                rows = [record for record in log[self.at[number] : first] if record.key is None]
                self.deleted += len(rows)
                self.untold[number] = {writer_of(row) for row in log[:first] if row.key is None}
                self.at[number] = first
            end = len(log) if to_the_end else self.chance.randint(self.at[number], len(log))
            for written in log[self.at[number] : end]:
                self._take(written)
            self.at[number] = end
            if end == len(log):
                self.reader.take_ends([((self.topic.topic, number), end)])
        for window in self.reader.windows(WIDTH):
            self.results[window.end] += len(window.rows)

    def _take(self, written: LogRecord) -> None:
        record = self.router.take(classify(*written))
        if isinstance(record, Mark):
            found = self.counts.on_mark(
                record.record, topic=record.topic, partition=record.partition, offset=record.offset
            )
            self.lost += sum(one.records for one in found if one.kind is Mismatch.LOST)
            self.untold[record.partition].discard(record.record.source.encode())
        elif isinstance(record, Data):
            self.counts.on_rows(record.topic, record.partition, 1)
            row = row_of(written.value)
            if row is not None:
                self.read.append(written)
                if is_late(row.event_time, self.reader.tracker.watermark):
                    self.late.append(written)
        self.reader.take(record)

    def mistakes(self, forged: set[bytes], *, plain: bool, exact: bool) -> list[str]:
        """Say what it has found out that is not so.

        Args:
            forged: who wrote rows that may be late.
            plain: whether each mark stands once, and all that its count tells of stands in this topic.
            exact: whether the marks count each row in the topic.
        """
        found, reader, tracker = [], self.reader, self.reader.tracker
        if not self.overtaken:
            wrong = [record for record in self.late if writer_of(record) not in forged]
            found += [f"the row at {one.partition}@{one.offset} is late" for one in wrong]
        if not tracker.ended and not tracker.holders():
            found.append("it waits, and does not say for whom")
        if not tracker.ended and self.topic.says_that_all_ended():
            found.append(f"it waits for {tracker.holders()}, and all have ended")
        read = windows_of(self.read)
        if extra := self.results - read:
            found.append(f"windows have too many rows: {extra}")
        if reader.ended and (gone := read.total() - self.results.total()) != reader.counts["missed"]:
            found.append(f"{gone} rows are in no window, {reader.counts['missed']} of them are counted")
        if reader.counts["missed"] > reader.counts["late"]:
            found.append("rows are in no window that are not counted as late")
        if plain and self.lost > self.deleted:
            found.append(f"{self.lost} rows are called lost, {self.deleted} were deleted")
        if exact and self.whole and not any(self.untold.values()) and self.lost != self.deleted:
            found.append(f"{self.lost} rows are called lost, and {self.deleted} were deleted")
        return found


class Elder(Source):
    """The process of a source that runs on after another one has begun under its name."""

    def __init__(self, source: Source) -> None:
        """Be what the source was."""
        self.__dict__.update(copy.copy(source.__dict__))
        self.writer = ELDER


NEW = ("retain", "arrive", "double", "recreate")
UNCOUNTED = ("crash", "die", "double", "recreate", "come_back", "upgrade", "replay", "zombie", "poison")
"""Happenings that leave rows in the topic that no mark counts, or hide marks that do."""


class ForgetfulWorld(World):
    """One history."""

    input = Topic

    def __init__(self, seed: int) -> None:
        """Set it up, with a reader from the first record on; a few things happen often, the others never."""
        super().__init__(seed)
        self.given: Topic = self.topics[0]
        self.happenings = (*NEW[:2], *NEW, *self.chance.sample(HAPPENINGS, self.chance.randint(0, len(HAPPENINGS))))
        if self.chance.random() < 0.5:
            self.happenings = tuple(name for name in self.happenings if name not in {"double", "recreate"})
        self.newcomers = [Newcomer(self.given, self.chance)]
        self.elders: list[Elder] = []
        self.doubled: set[tuple[str, int]] = set()
        """The epochs of all elders."""
        self.forged = {ELDER}
        """Who wrote rows that may be late where a reader has not seen who is the elder: see `double`."""
        self.restarted = True
        """Whether all sources began a new epoch in the topic as it is."""

    def run(self, steps: int = 60) -> None:
        """Let things happen, then let all sources end, and everybody read all."""
        super().run(steps)
        self.newcomers.append(Newcomer(self.given, self.chance))
        for newcomer in self.newcomers:
            newcomer.run(to_the_end=True)

    def mistakes(self) -> list[str]:
        """Say what a reader has found out that is not so."""
        plain = self.restarted and not self.faults["replay"]
        exact = not any(self.faults[name] for name in UNCOUNTED)
        found = [said for one in self.newcomers for said in one.mistakes(self.forged, plain=plain, exact=exact)]
        records = [record for log in self.given.partitions for record in log]
        truth, sure = windows_of(records), windows_of(one for one in records if writer_of(one) != ELDER)
        first, second = self.stages
        if second.results != first.results:
            found.append("the second stage differs from the first one")
        for name, results in (("first stage", first.results), ("consumer", self.follower.results)):
            if sure - results:
                found.append(f"the {name} lacks rows: {sure - results}")
            if results - truth:
                found.append(f"the {name} has too many rows: {results - truth}")
        if (gone := truth.total() - first.results.total()) > first.late:
            found.append(f"the first stage lacks {gone} rows, and counts {first.late} as late")
        return found

    def step(self) -> None:
        """One thing happens."""
        super().step()
        for elder in self.elders:
            elder.work()
        for newcomer in self.newcomers:
            if self.chance.random() < (0.1 if newcomer.slow else 0.4):
                newcomer.run()

    def retain(self, _source: Source, _alive: list[Source]) -> None:
        """Kafka deletes the oldest records of a partition, so far as the jobs and the consumer have no need of them."""
        number = self.chance.randrange(len(self.given.partitions))
        needed = [self.stages[0].disk.offsets.get(number, 0), self.follower.needs(number)]
        needed += [newcomer.at[number] for newcomer in self.newcomers if not newcomer.slow]
        before = self.chance.randint(0, min(needed))
        if before > self.given.begins[number]:
            self.faults["retain"] += 1
            self.given.begins[number] = before

    def arrive(self, _source: Source, _alive: list[Source]) -> None:
        """Start a reader."""
        self.faults["arrive"] += 1
        self.newcomers.append(Newcomer(self.given, self.chance))

    def double(self, source: Source, _alive: list[Source]) -> None:
        """A source is started a second time, and the first process runs on for a while."""
        if source.idling or source.upgraded or source.queued is not None:
            return
        self.faults["double"] += 1
        self.forged.add(source.writer)
        self.doubled.add((source.name, source.epoch))
        elder = Elder(source)
        self.restart(source)
        self.elders = [*self.elders[-1:], elder]

    def zombie(self, source: Source, alive: list[Source]) -> None:
        """Where the mark is deleted that tells a zombie, readers believe it: in what its own source writes."""
        if (source.name, source.epoch - 1) in self.doubled:
            return  # that epoch has a process; the zombie would number its marks from 0 again
        super().zombie(source, alive)
        self.forged.add(source.writer)

    def replay(self, source: Source, alive: list[Source]) -> None:
        """The same where an old mark is the first one of its source that is not deleted."""
        super().replay(source, alive)
        self.forged |= {other.writer for other in self.sources}

    def recreate(self, _source: Source, alive: list[Source]) -> None:
        """The topic is deleted and created again: the sources go on or begin new epochs, all readers begin again."""
        if self.chance.random() < 0.7:
            return
        self.faults["recreate"] += 1
        self.given.create_again()
        self.elders = []
        windows, totals = InMemoryLog("windows", len(self.topics[1].partitions)), InMemoryLog("totals")
        self.topics[1:] = [windows, totals]
        self.stages = [Stage("first", self.given, windows, self.chance), Stage("second", windows, totals, self.chance)]
        self.follower = Follower(self.given, self.chance)
        self.newcomers = [Newcomer(self.given, self.chance)]
        self.membership = Membership(self.membership.version + 1, len(alive))
        self.announce(alive)
        self.restarted = True
        for source in alive:
            if self.chance.random() < 0.5:
                self.restart(source)
            else:
                self.restarted = False
