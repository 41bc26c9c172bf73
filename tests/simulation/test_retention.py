"""A pool's sources join, end, fall silent and are killed while retention deletes; readers start at any time.

A reader that starts behind a cut gets a watermark once the living sources have marked, and never one that is too high.
So does a reader that has followed the topic from its first record.
"""

import os
from collections import Counter, deque
from random import Random

import pytest
from floodmark.producers.pool import PoolMembership
from floodmark.producers.strategies.basic import Explicit
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.numbering import Identity
from floodmark.producers.testing import InMemoryLog
from floodmark.schemas import Tracker, is_late
from floodmark.schemas.classify import Data, Mark, classify
from floodmark.schemas.records import Status
from floodmark.schemas.tracker import MarkRouter

ENOUGH = 180
HISTORIES = int(os.environ.get("FLOODMARK_HISTORIES") or ENOUGH)
CHUNKS = 3
RETENTION = 600_000
MINUTE = 60_000
HAPPENINGS = ("join", "end", "idle", "kill", "away", "grow")


class Member:
    """A source of the pool, with a perfect watermark."""

    def __init__(self, name, epoch, membership, partitions, floor):
        """Begin a new epoch."""
        self.name, self.floor, self.generator = name, floor, Explicit()
        self.emitter = Emitter(Identity(name, epoch, membership), self.generator, partitions)
        self.generator.advance(floor)


class Pool:
    """`SourcePool` without Kafka: what it writes waits for its partition's leader, each in its own time."""

    def __init__(self, world):
        """Begin above what the log has, or with the clock."""
        self.world, self.queues = world, [deque() for _ in world.log.partitions]
        marks = world.marks()
        last = max([world.now // MINUTE, *(mark.membership.version for mark in marks)])
        self.epoch = max([world.now, *(mark.epoch + 1 for mark in marks)])
        self.membership, self.members = PoolMembership("pool", None, last), {}

    def here(self):
        return [member for member in self.members.values() if not member.emitter.ended]

    def adopt(self, membership):
        self.membership.current = membership
        for member in self.here():
            member.emitter.change_membership(membership)

    def join(self, names):
        membership = self.membership.grown(len(self.here()), len(names))
        self.adopt(membership)
        for name in names:
            self.members[name] = Member(name, self.epoch, membership, len(self.queues), self.world.front())
        self.epoch += 1

    def attend(self):
        """Leave out who has ended, and mark for some of the others."""
        smaller = self.membership.shrunk(len(self.here()))
        adopted = all(one.emitter.marked_membership == one.emitter.identity.membership for one in self.here())
        if smaller is not None and adopted and self.world.shrinks:
            self.adopt(smaller)
        for member in self.here():
            if self.world.chance.random() < 0.7:
                self.mark(member)

    def mark(self, member):
        member.emitter.grow(len(self.queues))
        for partition, mark in member.emitter.marks(now=0):
            self.queues[partition].append((mark, None))

    def work(self, member):
        """Send some records, not below the floor, then promise more."""
        emitter, chance = member.emitter, self.world.chance
        if emitter.status is Status.IDLE:
            emitter.mark_active()
            member.floor = self.world.front()
            member.generator.advance(member.floor)
        if not emitter.registered:
            self.mark(member)
        for _ in range(chance.randrange(4)):
            partition, time = chance.randrange(emitter.partitions), member.floor + chance.randrange(25)
            self.queues[partition].append((b"%d" % time, emitter.send(partition, time)))
        member.floor += chance.randrange(20)
        member.generator.advance(member.floor)

    def deliver(self, partition, count):
        """Let a partition take so many of what waits for it."""
        queue = self.queues[partition]
        for _ in range(min(count, len(queue))):
            value, in_flight = queue.popleft()
            self.world.log.append(value, partition=partition, log_time=self.world.now)
            if in_flight is not None:
                in_flight.ack()

    def flush(self):
        for partition, queue in enumerate(self.queues):
            self.deliver(partition, len(queue))

    def end(self, member):
        self.flush()
        member.emitter.grow(len(self.queues))
        member.emitter.end()
        self.mark(member)


class Reader:
    """Reads each partition from where it is cut, at its own pace."""

    def __init__(self, world):
        """Begin at what is left."""
        self.world, self.at = world, dict(enumerate(world.cuts))
        self.tracker = Tracker({world.log.topic})
        self.router = MarkRouter({world.log.topic: self.tracker})
        self.late = 0

    def read(self, *, all_of_it=False):
        chance, world = self.world.chance, self.world
        logs = list(enumerate(world.log.partitions))
        for number, log in chance.sample(logs, len(logs)):
            begin = self.at.get(number, 0)
            self.at[number] = end = len(log) if all_of_it else chance.randint(begin, len(log))
            for record in (self.router.take(classify(*one)) for one in log[begin:end]):
                self.tracker.advance()
                if isinstance(record, Data):
                    self.late += is_late(int(record.value), self.tracker.watermark)

    @property
    def knows(self):
        """Whether it has, in the end, what the living sources have promised."""
        self.tracker.advance()
        live = [one.emitter for one in self.world.pool.here() if one.emitter.status is Status.ACTIVE]
        return (
            (self.tracker.watermark or 0) >= min(one.scope(0).promised for one in live) if live else self.tracker.idle
        )


class World:
    """One history."""

    def __init__(self, seed, *, shrinks=True):
        """Begin with a pool of some sources."""
        self.chance, self.shrinks = Random(seed), shrinks  # noqa: S311  # a repeatable history
        self.log, self.now = InMemoryLog(partitions=self.chance.randint(1, 3)), 1_000 * MINUTE
        self.cuts, self.pool, self.top = [0] * len(self.log.partitions), None, 0
        self.happenings, self.happened = self.chance.choices(HAPPENINGS, k=3), Counter()
        self.start()
        self.first = Reader(self)

    def marks(self):
        """Return the marks that retention has left."""
        left = (one for log, cut in zip(self.log.partitions, self.cuts, strict=True) for one in log[cut:])
        return [mark.record for mark in (classify(*one) for one in left) if isinstance(mark, Mark)]

    def front(self):
        """Return where the farthest source is: no new source may start below it."""
        self.top = max([self.top, *(member.floor for member in self.pool.members.values())])
        return self.top

    def start(self):
        members = {} if self.pool is None else self.pool.members
        self.top = max([self.top, *(member.floor for member in members.values())])
        self.pool = Pool(self)
        self.join(self.chance.randint(1, 3))

    def step(self):
        chance, pool = self.chance, self.pool
        self.now += chance.randrange(20_000)
        for member in pool.here():
            if chance.random() < 0.5:
                pool.work(member)
        pool.attend()
        for partition in range(len(pool.queues)):
            pool.deliver(partition, chance.randrange(12))
        if chance.random() < 0.3:
            what = chance.choice(self.happenings)
            self.happened[what] += 1
            getattr(self, what)()
        self.cut()
        self.first.read()

    def cut(self):
        """Delete what is older than the retention; a partition with a segment that is not full keeps more."""
        for number, log in enumerate(self.log.partitions):
            while self.cuts[number] < len(log) and log[self.cuts[number]].log_time < self.now - RETENTION:
                self.cuts[number] += 1
                if self.chance.random() < 0.2:
                    break

    def cut_anywhere(self):
        """Delete more, in each partition up to any record."""
        logs = zip(self.cuts, self.log.partitions, strict=True)
        self.cuts = [self.chance.randint(cut, len(log)) for cut, log in logs]

    def join(self, count=1):
        """Let sources join, also some that have ended before."""
        self.pool.join(self.chance.sample(sorted({*"abcdef"} - {one.name for one in self.pool.here()} or {"g"}), count))

    def end(self):
        if len(self.pool.here()) > 1:
            self.pool.end(self.chance.choice(self.pool.here()))

    def idle(self):
        member = self.chance.choice(self.pool.here())
        self.pool.flush()
        if member.emitter.status is Status.ACTIVE:
            member.emitter.mark_idle()
            self.pool.mark(member)

    def kill(self):
        """What waits for a leader is lost; the next pool begins at once."""
        self.start()

    def away(self):
        """Nothing writes until retention has deleted all."""
        self.pool.flush()
        self.first.read(all_of_it=True)
        self.now += 3 * RETENTION
        self.cuts = [len(log) for log in self.log.partitions]
        self.start()

    def grow(self):
        if len(self.log.partitions) < 4:
            self.log.grow(len(self.log.partitions) + 1)
            self.cuts.append(0)
            self.pool.queues.append(deque())

    def settle(self):
        """Let all mark, so that the pool can leave out those that have ended, and then mark under the last version."""
        for _ in range(3):
            for member in self.pool.here():
                self.pool.mark(member)
            self.pool.attend()
        self.pool.flush()
        for member in self.pool.here():
            self.pool.mark(member)
        self.pool.flush()


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_reader_behind_any_cut_gets_a_watermark_and_never_one_too_high(chunk):
    happened = Counter()
    for seed in range(chunk, HISTORIES, CHUNKS):
        world = World(seed)
        for _ in range(60):
            world.step()
        readers = [world.first]
        for _ in range(4):
            readers.append(Reader(world))
            readers[-1].read()
            world.cut_anywhere()
        world.settle()
        for reader in readers:
            for _ in range(5):
                reader.read()
            reader.read(all_of_it=True)
            assert reader.late == 0, f"seed {seed}: a watermark was too high"
            assert reader.knows, f"seed {seed}: {reader.tracker.holders()}"
        happened += world.happened
    assert set(happened) == set(HAPPENINGS) or HISTORIES < ENOUGH


def test_a_pool_that_leaves_no_source_out_lets_new_readers_wait_for_ever():
    """So what leaves them out is needed, and the judge sees it."""
    waiting = 0
    for seed in range(50):
        world = World(seed, shrinks=False)
        for _ in range(60):
            world.step()
        world.cut_anywhere()
        reader = Reader(world)
        world.settle()
        reader.read(all_of_it=True)
        waiting += not reader.knows
    assert waiting > 5
