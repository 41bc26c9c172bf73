"""Any history of a topic's sources, and a model of `SPEC.md` that is too simple to be wrong."""

import json
import random
from dataclasses import replace

from floodmark.producers.testing import mark
from floodmark.schemas import END_OF_TIME, Holder, Status, Tracker
from floodmark.schemas.timestamps import EARLIEST


class Model:
    """One topic by the letter of SPEC.md: keeps all that was ever read, and works everything out from it each time."""

    def __init__(self):
        self.version = self.size = 0
        self.records = []  # (partition, record) accepted, of sources that are not forgotten
        self.unread = set()  # (partition, source) with an unreadable mark behind its last accepted record
        self.offsets = {}
        self.epochs = {}  # of the forgotten
        self.silent = set()  # (partition, source) that have not spoken since the reader was started again
        self.clocks = {}  # partition: what moved clocks: (record, log time), or the name of a source that was forgotten

    def last(self, partition, source):
        return next((r for p, r in reversed(self.records) if (p, r.source) == (partition, source)), None)

    def names(self):
        return {record.source for _, record in self.records}

    def current(self):
        return {r.source for _, r in self.records if r.membership.version == self.version}

    def partitions(self):
        named = [record.partitions for _, record in self.records]
        return max([0, *named, *(partition + 1 for partition, _ in [*self.records, *self.unread])])

    def unreadable(self, partition, source, offset):
        if offset > self.offsets.get(partition, -1):
            self.offsets[partition] = offset
            if source in self.names():
                self.unread.add((partition, source))

    def read(self, partition, record, log_time):
        last, version, size = self.last(partition, record.source), record.membership.version, record.membership.size
        zombie = record.epoch < (self.epochs.get(record.source, 0) if last is None else last.epoch)
        same = last is not None and record.epoch == last.epoch
        if zombie or (same and (record.sequence <= last.sequence or last.status is Status.ENDED)):
            return
        self.unread.discard((partition, record.source))
        if version < self.version:
            return
        self.version, self.size = version, max(size, self.size) if version == self.version else size
        self.records.append((partition, record))
        self.silent.discard((partition, record.source))
        self.clocks.setdefault(partition, []).append((record, log_time))
        if all(len(self.reported(number)) >= self.size for number in range(self.partitions())):
            self.forget()

    def reported(self, partition):
        return {n for n in self.names() if (r := self.last(partition, n)) and r.membership.version == self.version}

    def forget(self):
        for name in self.names() - self.current() - {source for _, source in self.unread}:
            epochs = [record.epoch for _, record in self.records if record.source == name]
            self.epochs[name] = max(self.epochs.get(name, 0), *epochs)
            self.records = [(p, record) for p, record in self.records if record.source != name]
            for moves in self.clocks.values():
                moves.append(name)

    def has_run_out(self, partition, name):
        lease = self.last(partition, name).lease
        leases, clock, hands, heard, epochs = {}, 0, {}, {}, {}
        for move in self.clocks[partition]:
            if isinstance(move, str):
                for values in (leases, hands, heard, epochs):
                    values.pop(move, None)
            else:
                record, time = move
                source = record.source
                leases[source] = record.lease
                if lease in leases.values():
                    level, before = hands.get(source, (None, None))
                    known = level is not None and epochs[source] == record.epoch
                    if known and 0 < time - before <= lease:
                        clock = max(clock, level + time - before)
                    if not known or time > before or before - time > lease:
                        hands[source] = (clock, time)
                    heard[source] = clock
                epochs[source] = record.epoch
            if lease not in leases.values():
                clock, hands, heard = 0, {}, {}
        return clock - heard[name] > 2 * lease

    def is_active_anywhere(self, name):
        return any(
            last.status is Status.ACTIVE and (last.lease is None or not self.has_run_out(number, name))
            for number in range(self.partitions())
            if (last := self.last(number, name)) is not None
        )

    def watermark(self, partition, name):
        last = self.last(partition, name)
        mine = [r for p, r in self.records if p == partition and r.source == name and r.epoch == last.epoch]
        return max((min(r.watermark, END_OF_TIME - 1) for r in mine if r.watermark is not None), default=None)

    def absent(self, partition):
        return {
            name
            for name in self.current()
            if all(max(record.partitions, p + 1) <= partition for p, record in self.records if record.source == name)
            and not self.is_active_anywhere(name)
        }

    def partition(self, number):
        reported, absent = self.reported(number), self.absent(number)
        waited_for = {n for n in reported if self.is_active_anywhere(n)}
        if len(reported | absent) < self.size or any(p == number for p, _ in self.unread):
            return "unknown"
        if waited_for:
            watermarks = [self.watermark(number, name) for name in waited_for]
            return "unknown" if None in watermarks else min(watermarks)
        lasts = [self.last(number, name) for name in reported]
        lasts += [self.last(p, name) for name in absent for p in range(self.partitions()) if self.last(p, name)]
        return "ended" if all(last.status is Status.ENDED for last in lasts) else "idle"

    def processing_times(self):
        """Give up to when each source that counts has worked off what came to it, where it was read."""
        for number in range(self.partitions()):
            for name in self.reported(number):
                if self.is_active_anywhere(name):
                    last = self.last(number, name)
                    said = last.processing_time_watermark
                    if said is None and last.holder is None:
                        said = last.emitted_at
                    yield None if said == EARLIEST or (number, name) in self.silent else said

    def topic(self):
        return least([self.partition(number) for number in range(self.partitions())] or ["unknown"])


def least(parts):
    if "unknown" in parts:
        return "unknown"
    numbers = [part for part in parts if isinstance(part, int)]
    return min(numbers) if numbers else "idle" if "idle" in parts else "ended"


def apply(tracker, topic, partition, entry, offset, log_time):
    """Apply a mark, or the source of an unreadable one; returns the verdict on the mark."""
    if isinstance(entry, str):
        return tracker.apply_unreadable(entry, topic=topic, partition=partition, offset=offset, log_time=log_time)
    return tracker.apply(entry, topic=topic, partition=partition, log_time=log_time)


class History:
    """Sources that do all that sources can do, also with clocks apart and wrong, and marks that nobody can read.

    Members and partitions come and go, and each source learns of them in its own time.  What happens, and how often, is
    drawn once per history: a few things, many times, find more than all things, rarely.
    """

    def __init__(self, seed):
        self.chance = chance = random.Random(seed)  # noqa: S311  # a repeatable history
        self.waits = random.Random(~seed)  # noqa: S311  # of its own, so that the rest of a history stays what it was
        self.topics = ("t", "u")[: chance.choice([1, 1, 1, 2])]
        self.tracker = Tracker(self.topics)
        self.models = {topic: Model() for topic in self.topics}
        self.sources = "abc"[: chance.choice([1, 2, 2, 3])]
        self.next, self.knows, self.history = {}, {}, []
        self.epochs = dict.fromkeys(self.sources, 1)
        self.memberships = dict.fromkeys(self.topics, (1, len(self.sources)))
        self.partitions = {topic: chance.choice([1, 1, 2]) for topic in self.topics}
        self.skews = {source: chance.choice([0, -70, 1_000]) for source in self.sources}
        self.leases = {source: chance.choice([None, 5, 10, 30]) for source in self.sources}
        others = [status for status in (Status.IDLE, Status.ENDED) if chance.choice([False, True, True])]
        self.statuses = [Status.ACTIVE] * 4 + others
        self.now, self.highest = 2_000, None
        self.pace = chance.choice([0, 3, 8, 20])
        self.wrong = chance.choice([0, 0, 0.1])
        self.gone = set()
        rare = ["restart", "zombie", "ignored", "join", "grow", "notice"]
        rare += ["unreadable", "replay", "die", "lease", "restore"]
        self.happenings = ["statement"] * 12 + chance.sample(rare, chance.randint(0, 5))

    def run(self, steps=60):
        for _ in range(steps):
            happening, source, topic = map(self.chance.choice, (self.happenings, self.sources, self.topics))
            getattr(self, happening)(source, topic)
            self.check()

    def write(self, topic, partition, entry, log_time):
        offset, model = len(self.history), self.models[topic]
        self.history.append((topic, partition, entry, offset, log_time))
        apply(self.tracker, *self.history[-1])
        self.tracker.advance()
        if isinstance(entry, str):
            model.unreadable(partition, entry, offset)
        else:
            model.read(partition, entry, log_time)

    def check(self):
        combined = least([model.topic() for model in self.models.values()])
        number = END_OF_TIME if combined == "ended" else combined
        if isinstance(number, int):
            self.highest = max(number, self.highest or 0)
        assert self.tracker.watermark == self.highest
        assert self.tracker.ended == (self.highest == END_OF_TIME)
        reasons = [hold.reason for hold in self.tracker.holders()]
        assert bool(reasons) == (combined != "ended"), "every stuck state has a named holder"
        for topic, model in self.models.items():
            for number, name in model.unread:
                assert any(f"unreadable mark of {name} at {topic}/{number}@" in reason for reason in reasons)
        said = [time for model in self.models.values() for time in model.processing_times()]
        known = said and None not in said and all(model.topic() != "unknown" for model in self.models.values())
        assert self.tracker.processing_time == (min(said) if known else None)

    def statement(self, source, topic):
        chance = self.chance
        if source in self.gone:
            return
        knows = self.knows.setdefault((topic, source), self.partitions[topic])
        partition = chance.randrange(knows)
        place = (topic, partition, source, self.epochs[source])
        sequence = self.next.get(place, 0)
        self.next[place] = sequence + chance.choice([1, 1, 1, 3])
        watermark = chance.choice([*range(len(self.history), len(self.history) + 9), None, END_OF_TIME])
        version, size = self.memberships[topic]
        epoch, status, lease = self.epochs[source], chance.choice(self.statuses), self.leases[source]
        record = mark(source, watermark, sequence, epoch=epoch, status=status, version=version, size=size, lease=lease)
        waits = self.waits.choice([None, None, self.now, self.now - self.waits.randint(0, 40), EARLIEST])
        holder = self.waits.choice([None, None, Holder("before")])
        record = replace(record, partitions=knows, emitted_at=self.now, processing_time_watermark=waits, holder=holder)
        self.now += chance.randint(0, self.pace)
        wrong = chance.random() < self.wrong
        self.write(topic, partition, record, chance.choice([0, 99_999]) if wrong else self.now + self.skews[source])

    def die(self, source, _topic):
        self.gone.add(source)

    def lease(self, source, _topic):
        self.leases[source] = self.chance.choice([None, 5, 10, 30])

    def unreadable(self, source, topic):
        source = self.chance.choice([source, source, "stranger"])
        self.write(topic, self.chance.randrange(self.partitions[topic]), source, self.now)

    def restart(self, source, _topic):
        self.epochs[source] += 1
        self.skews[source] = self.chance.choice([0, -70, 1_000])
        self.gone.discard(source)
        for topic in self.topics:
            self.knows.pop((topic, source), None)

    def zombie(self, source, topic):
        version, size = self.memberships[topic]
        epoch = max(1, self.epochs[source] - 1)
        self.write(topic, 0, mark(source, 99, 999, epoch=epoch, version=version, size=size), self.now)

    def ignored(self, source, topic):
        """A mark of an epoch long past, with another membership."""
        more = {"version": self.chance.randint(1, 9), "size": self.chance.randint(1, 4), "partitions": 4}
        if self.models[topic].last(0, source) is not None:
            self.write(topic, 0, mark(source, 99, 0, epoch=0, **more), self.now)

    def join(self, _source, topic):
        self.memberships[topic] = (self.memberships[topic][0] + 1, self.chance.randint(1, len(self.sources)))

    def grow(self, _source, topic):
        self.partitions[topic] = min(3, self.partitions[topic] + 1)

    def notice(self, source, topic):
        self.knows[topic, source] = self.partitions[topic]

    def replay(self, _source, _topic):
        """Read a stretch of the past again: nothing may change."""
        before = (self.tracker.watermark, json.dumps(self.tracker.snapshot()["topics"], sort_keys=True))
        for entry in self.history[: self.chance.randint(0, len(self.history))]:
            apply(self.tracker, *entry)
            self.tracker.advance()
        assert (self.tracker.watermark, json.dumps(self.tracker.snapshot()["topics"], sort_keys=True)) == before

    def restore(self, _source, _topic):
        self.tracker = Tracker.restore(json.loads(json.dumps(self.tracker.snapshot())))
        for model in self.models.values():
            model.silent |= {(partition, record.source) for partition, record in model.records}
        self.tracker.advance()
