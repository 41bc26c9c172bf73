"""A small world in which everything goes wrong, on the real cores: `Emitter`, `Tracker`, `Progress`, `Checker`.

Only the surroundings are made up: an in-memory log instead of Kafka, a dictionary instead of Spark's state.  One
seed is one history: sources that crash, lose acknowledgements, send again, fall idle, join and leave; zombies, replayed
marks, growing topics; and two stages that are killed between any two steps of a batch.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from floodmark.producers.emitter import Emitter, Identity
from floodmark.producers.strategies import Explicit
from floodmark.schemas import Membership, Status, Tracker, WatermarkRecord, is_late
from floodmark.spark_jobs.progress import Progress, spark_watermark

WIDTH = 10
STEPS = ("before", "ran", "stored", "committed", "set")


class Killed(Exception):  # noqa: N818  # not an error of anybody
    """A stage was killed between two steps."""


@dataclass(slots=True)
class Row:
    """A data record: an event, or a window of the first stage with its count."""

    event_time: int
    count: int = 1
    window: int | None = None


@dataclass(slots=True)
class Topic:
    """The log of one topic: a list per partition; what is appended stays."""

    name: str
    partitions: list[list[Row | WatermarkRecord]]

    def grow(self) -> None:
        """Add a partition."""
        self.partitions.append([])


class Source:
    """A writer with an explicit, perfect watermark, whose acknowledgements may be lost."""

    def __init__(self, name: str, topic: Topic, chance: Random, floor: int, membership: Membership) -> None:
        """Begin in epoch 1."""
        self.name, self.topic, self.chance, self.floor = name, topic, chance, floor
        self.membership = membership
        self.epoch = 0
        self.unacknowledged: list[tuple[int, object]] = []
        self.ended = self.idling = False
        self.start()

    def start(self) -> None:
        """Begin a new epoch: what was not acknowledged is sent again, and may then stand twice in the log."""
        self.epoch += 1
        self.generator = Explicit()
        identity = Identity(self.name, self.epoch, self.membership)
        self.emitter = Emitter(identity, self.generator, len(self.topic.partitions))
        again, self.unacknowledged = [time for time, _ in self.unacknowledged], []
        self.mark()  # before the first record
        for event_time in again:
            self.send(event_time, lost=False)

    def send(self, event_time: int, *, lost: bool) -> None:
        """Write a record; its acknowledgement is still to come.  ``lost``: Kafka never got it."""
        partition = self.chance.randrange(self.emitter.partitions)
        shipment = self.emitter.send(partition, event_time)
        if lost:
            self.emitter.unsend(partition)
            return
        self.topic.partitions[partition].append(Row(event_time))
        self.unacknowledged.append((event_time, shipment))

    def work(self) -> None:
        """Send some events, not below the floor; move on; perhaps mark."""
        chance = self.chance
        for _ in range(chance.randrange(4)):
            self.send(self.floor + chance.randrange(25), lost=chance.random() < 0.05)
        while self.unacknowledged and chance.random() < 0.8:
            self.unacknowledged.pop(0)[1].land()  # type: ignore[attr-defined]
        if chance.random() < 0.6:
            self.floor += chance.randrange(8)
            self.generator.advance(self.floor)
        if chance.random() < 0.7:
            self.mark()

    def mark(self) -> None:
        """Write marks to every partition it knows."""
        for partition, mark in self.emitter.marks(now=0):
            self.topic.partitions[partition].append(mark)

    def end(self) -> None:
        """Get everything acknowledged, and say it is over."""
        while self.unacknowledged:
            self.unacknowledged.pop(0)[1].land()  # type: ignore[attr-defined]
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
    planned: dict[int, int] | None = None
    snapshots: dict[int, str] = field(default_factory=dict)


class Stage:
    """One job: counts per tumbling window, driven as `spark_jobs.drive` drives Spark."""

    def __init__(self, name: str, given: Topic, out: Topic, chance: Random) -> None:
        """Begin with an empty checkpoint."""
        self.name, self.given, self.out, self.chance = name, given, out, chance
        self.disk = Committed()
        self.in_kafka = -1  # the number of the last batch in the output topic, committed with its rows
        self.late = self.kills = self.epoch = 0
        self.results: Counter[int] = Counter()
        self.progress: Progress | None = None

    def start(self) -> None:
        """Take up what the disk has, under a new epoch."""
        disk = self.disk
        if disk.batch_id == 0:
            self.progress = Progress(Tracker({self.given.name}))
        else:
            self.progress = Progress.restore(json.loads(disk.snapshots[disk.batch_id - 1]), "here")
        self.epoch += 1
        self.generator = Explicit()
        self.emitter = Emitter(Identity(self.name, self.epoch), self.generator, len(self.out.partitions))

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
            disk.planned = {
                number: self.chance.randint(disk.offsets.get(number, 0), len(log))
                for number, log in enumerate(self.given.partitions)
            }
        self._step("before", kill_at)
        ran_with = progress.applied
        windows, late = Counter(disk.windows), 0
        for number, end in disk.planned.items():
            for entry in self.given.partitions[number][disk.offsets.get(number, 0) : end]:
                if isinstance(entry, WatermarkRecord):
                    progress.tracker.apply(entry, topic=self.given.name, partition=number, log_time=0)
                    continue
                late += is_late(entry.event_time, ran_with)
                end_of_window = entry.window or entry.event_time // WIDTH * WIDTH + WIDTH
                if end_of_window > disk.watermark:
                    windows[end_of_window] += entry.count
        closed = {end: windows.pop(end) for end in sorted(windows) if end <= disk.watermark}
        self._step("ran", kill_at)
        output = progress.finish_batch(stateful=True, hold=0)
        disk.snapshots[disk.batch_id] = json.dumps(progress.snapshot())
        self._step("stored", kill_at)
        self._transaction(disk.batch_id, closed, output)
        self._step("committed", kill_at)
        watermark = disk.watermark
        if progress.applied is not None:
            watermark = max(watermark, spark_watermark(progress.applied, "after"))
        self._step("set", kill_at)
        self.late += late
        self.disk = Committed(disk.batch_id + 1, disk.planned, windows, watermark, None, disk.snapshots)
        disk.snapshots.pop(disk.batch_id - 3, None)

    def _transaction(self, batch_id: int, closed: dict[int, int], output: int | None) -> None:
        there = batch_id <= self.in_kafka
        self.emitter.grow(len(self.out.partitions))
        rows = [] if there else [(hash(end) % self.emitter.partitions, end, n) for end, n in closed.items()]
        for partition, _, _ in rows:
            self.emitter.count(partition, 1)
        progress = self.progress
        assert progress is not None
        if output is not None and not progress.ended:
            self.generator.advance(output)
        said_all = self.emitter.ended
        if progress.ended and not said_all:
            self.emitter.end()
        marks = [] if said_all else self.emitter.marks(now=0)
        if there:
            return
        for partition, end, n in rows:
            # Stamped one before the end of the window, as a second stage of the same width would window it.
            self.out.partitions[partition].append(Row(end, n, window=end))
            self.results[end] += n
        for partition, mark in marks:
            self.out.partitions[partition].append(mark)
        self.in_kafka = batch_id

    @property
    def ended(self) -> bool:
        """Whether all input has ended and is worked off."""
        return self.progress is not None and self.progress.ended


class World:
    """One history."""

    def __init__(self, seed: int) -> None:
        """Set it up: two or three sources, one to three partitions, two stages."""
        self.chance = Random(seed)  # noqa: S311  # a repeatable history
        chance = self.chance
        self.topics = [
            Topic("events", [[] for _ in range(chance.randint(1, 3))]),
            Topic("windows", [[] for _ in range(chance.randint(1, 2))]),
            Topic("totals", [[]]),
        ]
        self.membership = Membership(version=1, size=chance.randint(1, 3))
        self.sources = [
            Source(f"source-{number}", self.topics[0], chance, 0, self.membership)
            for number in range(self.membership.size)
        ]
        self.stages = [
            Stage("first", self.topics[0], self.topics[1], chance),
            Stage("second", self.topics[1], self.topics[2], chance),
        ]
        self.faults = Counter[str]()

    def run(self, steps: int = 60) -> None:
        """Let things happen, then let all sources end and both stages finish."""
        for _ in range(steps):
            self.step()
        for source in self.sources:
            if not source.ended:
                source.end()
        for _ in range(400):
            if all(stage.ended for stage in self.stages):
                return
            for stage in self.stages:
                stage.run(None)
        raise AssertionError([stage.progress and stage.progress.tracker.holds() for stage in self.stages])

    def step(self) -> None:
        """One thing happens."""
        chance = self.chance
        alive = [source for source in self.sources if not source.ended]
        for source in alive:
            if chance.random() < 0.7:  # else it pauses
                if source.idling:  # back, but no earlier than where the others are by now
                    source.idling = False
                    source.floor = max(other.floor for other in self.sources)
                    source.emitter.mark_active()
                    source.generator.advance(source.floor)
                    source.mark()
                source.work()
        for stage in self.stages:
            if chance.random() < 0.6:
                stage.run(chance.choice(STEPS) if chance.random() < 0.25 else None)
        happening = chance.choice(["crash", "zombie", "replay", "grow", "join", "leave", "idle", "", "", "", "", ""])
        if happening and alive:
            getattr(self, happening)(chance.choice(alive), alive)

    def crash(self, source: Source, _alive: list[Source]) -> None:
        """A source dies and starts again."""
        self.faults["crash"] += 1
        if source.idling:
            source.idling = False
            source.floor = max(other.floor for other in self.sources)
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
                # Only behind the new epoch's own word is it known for a zombie.
                log = source.topic.partitions[partition]
                if any(
                    isinstance(entry, WatermarkRecord) and entry.source == source.name and entry.epoch == source.epoch
                    for entry in log
                ):
                    log.append(mark)

    def replay(self, source: Source, _alive: list[Source]) -> None:
        """An old mark is delivered once more."""
        log = self.chance.choice(source.topic.partitions)
        marks = [entry for entry in log if isinstance(entry, WatermarkRecord)]
        if marks:
            self.faults["replay"] += 1
            log.append(self.chance.choice(marks))

    def grow(self, source: Source, _alive: list[Source]) -> None:
        """The topics grow; each source learns of it in its own time."""
        if len(self.topics[0].partitions) < 4:
            self.faults["grow"] += 1
            self.topics[0].grow()
            self.topics[1].grow()
        source.emitter.grow(len(source.topic.partitions))

    def join(self, _source: Source, alive: list[Source]) -> None:
        """A source joins: everybody speaks under a new membership."""
        if len(self.sources) < 5:
            self.faults["join"] += 1
            self.membership = Membership(self.membership.version + 1, len(alive) + 1)
            floor = max(source.floor for source in self.sources)
            new = Source(f"source-{len(self.sources)}", self.topics[0], self.chance, floor, self.membership)
            self.sources.append(new)
            self.announce(alive)
            new.mark()

    def leave(self, source: Source, alive: list[Source]) -> None:
        """A source ends for good, and the others go on without it."""
        if len(alive) > 1:
            self.faults["leave"] += 1
            source.end()
            self.membership = Membership(self.membership.version + 1, len(alive) - 1)
            self.announce([other for other in alive if other is not source])

    def announce(self, sources: list[Source]) -> None:
        """Tell sources the new membership."""
        for source in sources:
            source.membership = self.membership
            source.emitter.change_membership(self.membership)

    def idle(self, source: Source, _alive: list[Source]) -> None:
        """A source falls silent."""
        if not source.unacknowledged and source.emitter.status is Status.ACTIVE:
            self.faults["idle"] += 1
            source.emitter.mark_idle()
            source.mark()
            source.idling = True

    def truth(self) -> Counter[int]:
        """Count the windows of all that stands in the input log: the batch computation."""
        return Counter(
            entry.event_time // WIDTH * WIDTH + WIDTH
            for log in self.topics[0].partitions
            for entry in log
            if isinstance(entry, Row)
        )
