"""A small world in which everything goes wrong, on the real cores: `Emitter`, `Tracker`, `Progress`, `Checker`.

Only the surroundings are made up: an in-memory log instead of Kafka, a dictionary instead of Spark's state.  One
seed is one history: sources that crash, lose acknowledgements, send again, fall idle, join, leave and die; clocks that
disagree, leases, brokers that go away, epochs that begin lower, marks in a format of the future, records without a
readable time, zombies, replayed marks, topics that grow before and after a source has ended; two stages that are
killed between any two steps of a batch, and a consumer that stops at any window.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from random import Random

from floodmark.producers.strategies.basic import Explicit
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.numbering import Identity, MarkWriter
from floodmark.producers.testing import InMemoryLog, LogRecord, ManualClock
from floodmark.schemas import Membership, Status, Tracker, WatermarkRecord, decode_watermark, is_late, mark_key
from floodmark.schemas.classify import Data, Partition, classify
from floodmark.schemas.completeness.complete_rows import Reader
from floodmark.schemas.completeness.position import Position
from floodmark.schemas.timestamps import promisable
from floodmark.schemas.tracker import MarkRouter
from floodmark.spark_jobs.lookahead.marks_ahead import MarksAhead
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.watermarks import spark_watermark

WIDTH = 10
STEP = timedelta(seconds=1)
"""How long a step of the world takes."""
LEASE = 30_000
"""Far longer than a source that lives is ever silent."""
STEPS = ("before", "ran", "stored", "committed", "set", "looked", "foreseen")


class Killed(Exception):  # noqa: N818  # not an error of anybody
    """A stage was killed between two steps."""


@dataclass(frozen=True, slots=True)
class Row:
    """A data record: an event, or a window of the first stage with its count."""

    event_time: int
    count: int = 1
    window: int | None = None

    def encode(self) -> bytes:
        """Return the value that stands in the log."""
        return json.dumps([self.event_time, self.count, self.window]).encode()


WRITER = "writer"
"""The header of a data record that says who wrote it."""
POISON = b"poison"
"""A value whose event time cannot be read."""
FUTURE = b"a later format"
"""A mark that no reader of this version can read; its key names the source."""

decoded = lru_cache(1_000)(decode_watermark)


@lru_cache(1_000)
def row_of(value: bytes) -> Row | None:
    """Return the row in a value; ``None``: it cannot be read."""
    return None if value == POISON else Row(*json.loads(value))


class Source:
    """A writer with an explicit, perfect watermark, whose acknowledgements may be lost."""

    def __init__(  # a writer and its surroundings
        self, name: str, topic: InMemoryLog, chance: Random, floor: int, membership: Membership, clock: ManualClock
    ) -> None:
        """Begin in epoch 1."""
        self.name, self.topic, self.chance, self.floor, self.clock = name, topic, chance, floor, clock
        self.writer = name.encode()
        self.membership = membership
        self.skew = chance.choice([0, 0, 90_000, -90_000])
        self.lease = chance.choice([None, LEASE])
        self.epoch = 0
        self.unacknowledged: list[tuple[int, object]] = []
        self.queued: list[tuple[int, bytes | WatermarkRecord]] | None = None
        """What waits in the client while the broker is away; else ``None``."""
        self.away_since = 0
        self.ended = self.idling = self.dead = self.upgraded = False
        self.start()

    def start(self, *, upgraded: bool = False) -> None:
        """Begin a new epoch: what was not acknowledged is sent again, and may then stand twice in the log."""
        self.epoch += 1
        self.queued, self.dead, self.upgraded = None, False, upgraded
        self.generator = Explicit()
        identity = Identity(self.name, self.epoch, self.membership, self.lease)
        self.emitter = Emitter(identity, self.generator, len(self.topic.partitions))
        again, self.unacknowledged = [time for time, _ in self.unacknowledged], []
        self.mark()  # before the first record
        for event_time in again:
            self.send(event_time, lost=False)

    def _write(self, partition: int, value: bytes | WatermarkRecord) -> None:
        if self.queued is not None:
            self.queued.append((partition, value))
        elif isinstance(value, WatermarkRecord) and self.upgraded:
            key = mark_key(self.name)
            self.topic.append(FUTURE, key=key, partition=partition, log_time=self.clock.wall() + self.skew)
        else:
            now = self.clock.wall() + self.skew
            self.topic.append(value, partition=partition, headers=[(WRITER, self.writer)], log_time=now)

    def send(self, event_time: int, *, lost: bool) -> None:
        """Write a record; its acknowledgement is still to come.  ``lost``: Kafka never got it."""
        partition = self.chance.randrange(self.emitter.partitions)
        if lost:
            self.emitter.unsend(partition, self.emitter.begin(partition, event_time, None, None))
            return
        in_flight = self.emitter.send(partition, event_time)
        self._write(partition, Row(event_time).encode())
        self.unacknowledged.append((event_time, in_flight))

    def work(self) -> None:
        """Send some events, not below the floor; move on; perhaps mark."""
        chance = self.chance
        for _ in range(chance.randrange(4)):
            self.send(self.floor + chance.randrange(25), lost=chance.random() < 0.05)
        while self.queued is None and self.unacknowledged and chance.random() < 0.8:
            self.unacknowledged.pop(0)[1].ack()  # type: ignore[attr-defined]
        if chance.random() < 0.6:
            self.floor += chance.randrange(8)
            self.generator.advance(self.floor)
        if chance.random() < 0.7:
            self.mark()

    def mark(self) -> None:
        """Write marks to every partition it knows."""
        for partition, mark in self.emitter.marks(now=0):
            self._write(partition, mark)

    def reconnect(self) -> None:
        """The broker is back: what was queued is written, in its order."""
        queued, self.queued = self.queued or [], None
        for partition, value in queued:
            self._write(partition, value)

    def end(self) -> None:
        """Get everything acknowledged, and say it is over."""
        if self.dead or self.upgraded:
            self.start()
        self.reconnect()
        while self.unacknowledged:
            self.unacknowledged.pop(0)[1].ack()  # type: ignore[attr-defined]
        self.emitter.grow(len(self.topic.partitions))
        self.emitter.end()
        self.mark()
        self.ended = True


@dataclass(slots=True)
class Committed:
    """What survives a kill: Spark's checkpoint and Floodmark's snapshots."""

    batch_id: int = 0
    offsets: dict[int, int] = field(default_factory=dict)
    windows: Counter[int] = field(default_factory=Counter)
    watermark: int = 0
    late_watermark: int = 0
    """That of the batch before: Spark judges late rows by it."""
    planned: dict[int, int] | None = None
    snapshots: dict[int, str] = field(default_factory=dict)


class Stage:
    """One job: counts per tumbling window, driven as `batch.handler` drives Spark."""

    def __init__(self, name: str, given: InMemoryLog, out: InMemoryLog, chance: Random) -> None:
        """Begin with an empty checkpoint."""
        self.name, self.given, self.out, self.chance = name, given, out, chance
        self.disk = Committed()
        self.in_kafka = -1  # the number of the last batch in the output topic, committed with its rows
        self.late = self.kills = self.epoch = self.foresaw = self.settled = 0
        self.looks_ahead = chance.random() < 0.7
        self.careless = False
        """Whether it takes a watermark ahead for granted without reading what that rests on."""
        self.marks_ahead, self.seen = MarksAhead(), dict[int, int]()
        self.results: Counter[int] = Counter()
        self.progress: Progress | None = None

    def start(self) -> None:
        """Take up what the disk has, under a new epoch."""
        disk = self.disk
        self.marks_ahead, self.seen = MarksAhead(), {}
        if disk.batch_id == 0:
            self.progress = Progress(Tracker({self.given.topic}))
        else:
            self.progress = Progress.restore(json.loads(disk.snapshots[disk.batch_id - 1]), "here")
            if self.progress.withdraw_ahead(None if disk.planned is None else self._offsets(disk.planned)):
                self.settled += 1
                disk.watermark = self._spark_watermark(disk.late_watermark)
                disk.snapshots[disk.batch_id - 1] = json.dumps(self.progress.snapshot())
        self.epoch += 1
        self.generator = Explicit()
        self.writer = MarkWriter(Identity(self.name, self.epoch), len(self.out.partitions))
        self.said_all = False

    def _offsets(self, ends: dict[int, int]) -> dict[Partition, int]:
        return {(self.given.topic, number): end for number, end in ends.items()}

    def _spark_watermark(self, least: int) -> int:
        """Return what Spark's watermark becomes with what the job knows; never less than some."""
        assert self.progress is not None
        watermark = self.progress.next_watermark
        return least if watermark is None else max(least, spark_watermark(watermark, "after"))

    def run(self, kill_at: str | None) -> None:
        """Run one batch, or be killed in the middle of it."""
        if self.progress is None:
            self.start()
        try:
            self._batch(kill_at)
        except Killed:
            self.kills += 1
            self.progress = None

    def _step(self, step: str, kill_at: str | None) -> None:
        if step == kill_at:
            raise Killed

    def _batch(self, kill_at: str | None) -> None:
        progress, disk = self.progress, self.disk
        assert progress is not None
        if disk.planned is None:  # Spark's offset log: the same offsets when the batch is run again
            # What was looked at is there, so it is read; but a plan that is not made yet may end anywhere after a kill.
            least = {} if progress.ahead is None or self.careless else progress.ahead.positions
            disk.planned = {
                number: self.chance.randint(
                    max(disk.offsets.get(number, 0), least.get((self.given.topic, number), 0)), len(log)
                )
                for number, log in enumerate(self.given.partitions)
            }
        self._step("before", kill_at)
        before, batch_watermark, ahead = progress.watermark, progress.next_watermark, progress.ahead
        assert ahead is None or self.careless or ahead.is_covered(self._offsets(disk.planned))
        windows, late, marks = Counter(disk.windows), 0, []
        for number, end in disk.planned.items():
            for written in self.given.partitions[number][disk.offsets.get(number, 0) : end]:
                record = classify(*written)
                if not isinstance(record, Data):
                    marks.append(record)
                    continue
                row = row_of(record.value or b"")
                if row is None:
                    continue
                late += is_late(row.event_time, before)
                end_of_window = row.window or row.event_time // WIDTH * WIDTH + WIDTH
                if end_of_window > disk.late_watermark:
                    windows[end_of_window] += row.count
        closed = {end: windows.pop(end) for end in sorted(windows) if end <= disk.watermark}
        self._step("ran", kill_at)
        progress.apply(marks)
        assert ahead is None or self.careless or progress.is_at_least(ahead.watermark)
        output = progress.finish_batch(batch_watermark)
        disk.snapshots[disk.batch_id] = json.dumps(progress.snapshot())
        self._step("stored", kill_at)
        self._transaction(disk.batch_id, closed, output)
        self._step("committed", kill_at)
        watermark = self._spark_watermark(disk.watermark)
        self._step("set", kill_at)
        if self.looks_ahead:
            watermark = self._look_ahead(disk, watermark, kill_at)
        self.late += late
        self.disk = Committed(disk.batch_id + 1, disk.planned, windows, watermark, disk.watermark, None, disk.snapshots)
        disk.snapshots.pop(disk.batch_id - 3, None)
        self._step("foreseen", kill_at)

    def _look_ahead(self, disk: Committed, watermark: int, kill_at: str | None) -> int:
        """Read on, some of each partition and in turns, as `batch.lookahead` does."""
        progress, planned = self.progress, disk.planned
        assert progress is not None
        assert planned is not None
        self.marks_ahead.start_from(progress.tracker_copy(), self._offsets(planned))
        for _ in range(self.chance.randrange(3)):
            for number, log in enumerate(self.given.partitions):
                seen = max(self.seen.get(number, 0), planned.get(number, 0))
                self.seen[number] = self.chance.randint(seen, len(log))
                for record in (classify(*written) for written in log[seen : self.seen[number]]):
                    if not isinstance(record, Data):
                        self.marks_ahead.add_mark(record)
        ahead = self.marks_ahead.ahead()
        if ahead is None or progress.ended:
            return watermark
        self.foresaw += 1
        progress.look_ahead(ahead)
        disk.snapshots[disk.batch_id] = json.dumps(progress.snapshot())
        self._step("looked", kill_at)
        return self._spark_watermark(watermark)

    def _transaction(self, batch_id: int, closed: dict[int, int], output: int | None) -> None:
        if batch_id <= self.in_kafka:  # there already: no mark takes a number of the sequence
            return
        self.writer.grow(len(self.out.partitions))
        rows = [(hash(end) % self.writer.partitions, end, n) for end, n in closed.items()]
        for partition, _, _ in rows:
            self.writer.count(partition, 1)
        progress = self.progress
        assert progress is not None
        if output is not None and not progress.ended:
            self.generator.advance(output)
        watermark = self.generator.watermark()
        promise = None if watermark is None else promisable(watermark)
        status = Status.ENDED if progress.ended else Status.ACTIVE
        marks = [] if self.said_all else self.writer.marks(now=0, watermark=promise, status=status)
        self.said_all = progress.ended
        for partition, end, n in rows:
            # Stamped one before the end of the window, as a second stage of the same width would window it.
            self.out.append(Row(end, n, window=end).encode(), partition=partition)
            self.results[end] += n
        self.out.append_marks(marks)
        self.in_kafka = batch_id

    @property
    def ended(self) -> bool:
        """Whether all input has ended and is worked off."""
        return self.progress is not None and self.progress.ended


def event_time_of(record: Data) -> int:
    """Return the event time of a row, as a consumer reads it."""
    row = row_of(record.value or b"")
    if row is None:
        raise ValueError(record)
    return row.event_time


def is_mark(record: LogRecord) -> bool:
    """Tell whether a record is a mark that this version can read."""
    return record.key is not None and record.value != FUTURE


class Follower:
    """A consumer without Spark: windows counted from what it is handed; it stops anywhere and goes on from there."""

    def __init__(self, topic: InMemoryLog, chance: Random) -> None:
        """Begin at the beginning."""
        self.topic, self.chance = topic, chance
        self.results: Counter[int] = Counter()
        self.position: Position | None = None
        self.stops = 0
        self.start()

    def start(self) -> None:
        """Go on from what was stored."""
        self.reader = Reader([self.topic.topic], event_time_of, self.position)
        self.reader.use_for("windows")
        self.router = MarkRouter({self.topic.topic: self.reader.tracker}, self.reader.applied)
        self.at: dict[int, int] = {}

    def needs(self, number: int) -> int:
        """Return the offset from which it reads a partition when it starts again."""
        return Reader([self.topic.topic], event_time_of, self.position).begin.get((self.topic.topic, number), 0)

    def run(self, *, stops: bool) -> None:
        """Read some of each partition, and take windows; ``stops``: perhaps stop before or after one is stored."""
        chance, reader, name = self.chance, self.reader, self.topic.topic
        for number, log in enumerate(self.topic.partitions):
            begin = self.at.setdefault(number, reader.begin.get((name, number), 0))
            end = chance.randint(begin, len(log))
            for record in log[begin:end]:
                reader.take(self.router.take(classify(*record)))
            self.at[number] = end
            if end == len(log):
                reader.take_ends([((name, number), end)])
        for window in reader.windows(WIDTH):
            if stops and chance.random() < 0.2:
                self.stops += 1
                self.start()
                return
            self.results[window.end] += len(window.rows)
            self.position = window.position


HAPPENINGS = (
    *("crash", "zombie", "replay", "grow", "join", "leave", "idle", "outage", "poison", "die", "upgrade", "come_back"),
)


class World:
    """One history."""

    happenings: tuple[str, ...] = HAPPENINGS
    input: type[InMemoryLog] = InMemoryLog

    def __init__(self, seed: int) -> None:
        """Set it up: two or three sources, one to three partitions, two stages."""
        self.chance = Random(seed)  # noqa: S311  # a repeatable history
        chance = self.chance
        self.topics = [
            self.input("events", chance.randint(1, 3)),
            InMemoryLog("windows", chance.randint(1, 2)),
            InMemoryLog("totals"),
        ]
        self.clock = ManualClock()
        self.membership = Membership(version=1, size=chance.randint(1, 3))
        self.sources = [
            Source(f"source-{number}", self.topics[0], chance, 0, self.membership, self.clock)
            for number in range(self.membership.size)
        ]
        self.stages = [
            Stage("first", self.topics[0], self.topics[1], chance),
            Stage("second", self.topics[1], self.topics[2], chance),
        ]
        self.follower = Follower(self.topics[0], chance)
        self.faults = Counter[str]()

    def run(self, steps: int = 60) -> None:
        """Let things happen, then let all sources end and both stages finish."""
        for _ in range(steps):
            self.step()
        for source in self.sources:
            if not source.ended:
                source.end()
        for _ in range(400):
            if all(stage.ended for stage in self.stages) and self.follower.reader.ended:
                return
            for stage in self.stages:
                stage.run(None)
            self.follower.run(stops=False)
        raise AssertionError([stage.progress and stage.progress.holders() for stage in self.stages])

    def step(self) -> None:
        """One thing happens."""
        chance = self.chance
        self.clock.advance(STEP)
        alive = [source for source in self.sources if not source.ended and not source.dead]
        for source in alive:
            if chance.random() < 0.7:  # else it pauses
                if source.idling:  # back, but no earlier than where the others are by now
                    source.idling = False
                    source.floor = self.front()
                    source.emitter.mark_active()
                    source.generator.advance(source.floor)
                    source.mark()
                source.work()
            if source.queued is not None and (
                chance.random() < 0.3 or self.clock.wall() > source.away_since + LEASE // 3
            ):
                source.reconnect()
        for stage in self.stages:
            if chance.random() < 0.6:
                stage.run(chance.choice(STEPS) if chance.random() < 0.25 else None)
        if chance.random() < 0.4:
            self.follower.run(stops=True)
        if chance.random() < 0.6 and alive:
            getattr(self, chance.choice(self.happenings))(chance.choice(alive), alive)

    def front(self) -> int:
        """Return where the farthest source is: nobody who was away may begin below it."""
        return max(source.floor for source in self.sources)

    def crash(self, source: Source, _alive: list[Source]) -> None:
        """A source dies and starts again."""
        self.faults["crash"] += 1
        self.restart(source)
        if self.chance.random() < 0.5:
            source.generator.advance(source.floor)
        else:
            self.faults["lower"] += 1  # the new epoch promises less than the old one did, and keeps that

    def restart(self, source: Source, *, upgraded: bool = False) -> None:
        """Begin a new epoch; who was idle comes back no earlier than where the others are by now."""
        if source.idling:
            source.idling = False
            source.floor = self.front()
        source.start(upgraded=upgraded)

    def upgrade(self, source: Source, _alive: list[Source]) -> None:
        """A source restarts with a version whose marks nobody here can read; a crash brings the old version back."""
        self.faults["upgrade"] += 1
        self.restart(source, upgraded=True)

    def outage(self, source: Source, _alive: list[Source]) -> None:
        """The broker is away for one source: what it writes waits in the client, and is lost with a crash."""
        if source.queued is None:
            self.faults["outage"] += 1
            source.queued, source.away_since = [], self.clock.wall()

    def poison(self, source: Source, _alive: list[Source]) -> None:
        """Somebody writes a record whose time nobody can read."""
        self.faults["poison"] += 1
        partition, log_time = self.chance.randrange(len(source.topic.partitions)), self.chance.choice([0, 10**15])
        source.topic.append(POISON, partition=partition, log_time=log_time)

    def die(self, source: Source, alive: list[Source]) -> None:
        """A source with a lease dies, perhaps in the middle of its marks; it comes back, or is ended, much later."""
        if source.lease is not None and len(alive) > 1 and source.queued is None and not source.unacknowledged:
            self.faults["die"] += 1
            marks = list(source.emitter.marks(now=0))[: self.chance.randrange(3)]
            source.topic.append_marks(marks, self.clock.wall() + source.skew)
            source.dead = True

    def come_back(self, _source: Source, alive: list[Source]) -> None:
        """A source that died starts again, no earlier than where the others are by now."""
        dead = [source for source in self.sources if source.dead and not source.ended]
        if dead:
            self.faults["come_back"] += 1
            source = self.chance.choice(dead)
            source.idling, source.floor = False, self.front()
            if source.membership != self.membership:  # the others have gone on without it
                self.membership = Membership(self.membership.version + 1, len(alive) + 1)
                source.membership = self.membership
                self.announce(alive)
            source.start()
            source.generator.advance(source.floor)

    def zombie(self, source: Source, _alive: list[Source]) -> None:
        """An instance of an older epoch still marks, and promises far too much."""
        if source.epoch > 1:
            self.faults["zombie"] += 1
            identity = Identity(source.name, source.epoch - 1, source.membership)
            generator = Explicit()
            generator.advance(source.floor + 1000)
            for partition, mark in Emitter(identity, generator, source.emitter.partitions).marks(now=0):
                # Only behind a mark of the new epoch is it known for a zombie.
                if any(known.epoch == source.epoch for known in self.marks_of(source.name, partition)):
                    source.topic.append(mark, partition=partition, log_time=self.clock.wall())

    def replay(self, source: Source, _alive: list[Source]) -> None:
        """An old mark is delivered once more."""
        number = self.chance.randrange(len(source.topic.partitions))
        marks = [record for record in source.topic.partitions[number] if is_mark(record)]
        if marks:
            self.faults["replay"] += 1
            old = self.chance.choice(marks)
            source.topic.append(old.value, key=old.key, partition=number, log_time=self.clock.wall())

    def grow(self, source: Source, _alive: list[Source]) -> None:
        """The topics grow; each source learns of it in its own time."""
        if len(self.topics[0].partitions) < 4:
            self.faults["grow"] += 1
            for topic in self.topics[:2]:
                topic.grow(len(topic.partitions) + 1)
        source.emitter.grow(len(source.topic.partitions))

    def join(self, _source: Source, alive: list[Source]) -> None:
        """A source joins: everybody speaks under a new membership."""
        if len(self.sources) < 5:
            self.faults["join"] += 1
            self.membership = Membership(self.membership.version + 1, len(alive) + 1)
            name = f"source-{len(self.sources)}"
            new = Source(name, self.topics[0], self.chance, self.front(), self.membership, self.clock)
            self.sources.append(new)
            self.announce(alive)
            new.mark()

    def leave(self, source: Source, alive: list[Source]) -> None:
        """A source ends for good; the others go on without it, and may or may not speak of it."""
        if len(alive) > 1:
            self.faults["leave"] += 1
            source.end()
            if self.chance.random() < 0.5:
                return
            self.membership = Membership(self.membership.version + 1, len(alive) - 1)
            self.announce([other for other in alive if other is not source])

    def announce(self, sources: list[Source]) -> None:
        """Tell sources the new membership."""
        for source in sources:
            source.membership = self.membership
            source.emitter.change_membership(self.membership)

    def idle(self, source: Source, _alive: list[Source]) -> None:
        """A source falls silent."""
        if not source.unacknowledged and source.queued is None and source.emitter.status is Status.ACTIVE:
            self.faults["idle"] += 1
            source.emitter.mark_idle()
            source.mark()
            source.idling = True

    def marks_of(self, source: str, partition: int) -> list[WatermarkRecord]:
        """Return the marks of a source in a partition."""
        key = mark_key(source)
        log = self.topics[0].partitions[partition]
        return [decoded(key, record.value) for record in log if record.key == key and is_mark(record)]

    def truth(self) -> Counter[int]:
        """Count the windows of all that stands in the input log: the batch computation."""
        rows = [row_of(record.value) for log in self.topics[0].partitions for record in log if record.key is None]
        return Counter(row.event_time // WIDTH * WIDTH + WIDTH for row in rows if row is not None)
