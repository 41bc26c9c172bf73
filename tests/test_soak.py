"""A million events: what is kept of them, measured to the last object, does not grow.

Each part takes its share of the events.  What it keeps is measured on the way: in the second half it is not notably
more than in the first.
"""

import gc
import random
import sys
from collections import deque
from datetime import timedelta
from types import BuiltinFunctionType, FunctionType, ModuleType

import pytest
from floodmark.producers import TimePolicy, adaptive, percentile, with_idleness
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.event_times.input_partition import InputPartition
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.growing_logs import GrowingLogs
from floodmark.producers.strategies.numbering import Identity
from floodmark.producers.testing import mark
from floodmark.schemas import Tracker
from floodmark.schemas.checker import Checker
from floodmark.schemas.classify import Mark, classify, mark_record
from floodmark.schemas.completeness.complete_rows import Reader
from floodmark.schemas.counts import RecordCounts
from floodmark.schemas.tracker import MarkRouter
from support.strategies import MS, one_of_each

SAMPLES = 40
SLACK = 4_096
"""Bytes: numbers get longer, and dictionaries round up."""
STRATEGIES = one_of_each(50 * MS) | {
    "percentile": percentile(500 * MS),
    "adaptive": with_idleness(adaptive(0.99), 10 * MS),
}


def deep_size(root):
    """Return the bytes of all objects that can be reached, without code."""
    seen, found, size = set(), [root], 0
    while found:
        one = found.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType | BuiltinFunctionType):
            continue
        seen.add(id(one))
        size += sys.getsizeof(one)
        if hasattr(one, "get_serialized_size_bytes"):  # a digest, whose memory Python does not see
            size += one.get_serialized_size_bytes()
        found += gc.get_referents(one)
    return size


def soak(kept, step, events):
    """Run all steps; what is kept may not grow with their number: then the second half would have twice as much."""
    sizes, every = [], events // SAMPLES - 7  # no round number: sizes rise and fall with those
    for number in range(events):
        step(number)
        if number % every == 0:
            sizes.append(deep_size(kept))
    half = len(sizes) // 2
    assert max(sizes[half:]) <= 1.4 * max(sizes[:half]) + SLACK, sizes


def test_the_measure_sees_what_grows():
    kept = {"deep": [deque()]}
    with pytest.raises(AssertionError):
        soak(kept, lambda number: kept["deep"][0].append(str(number)), 10_000)


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_emitter_forgets_what_is_acknowledged(name):
    """One record in a thousand fails and is sent again much later, so that what is behind it holds for long."""
    chance = random.Random(1)  # noqa: S311  # repeatable
    generator = STRATEGIES[name].build()
    emitter = Emitter(Identity("a", 1), generator, 4)
    in_flight, failed = deque(), deque()

    def step(number):
        partition = number % 4
        time = generator.stamp(number) if generator.stamps else number - chance.randrange(50)
        in_flight.append((partition, emitter.send(partition, time, number, b"%d" % time if number % 9 == 0 else None)))
        if len(in_flight) > 1_000:
            partition, one = in_flight.popleft()
            if number % 1_000 == 0:
                emitter.fail(one, partition)
                failed.append((partition, one))
            else:
                one.ack()
        if len(failed) > 3:
            partition, one = failed.popleft()
            in_flight.append((partition, emitter.resend(one, partition, number)))
        if number % 100 == 0:
            if name == "explicit":
                generator.advance(max(0, number - 50))
            emitter.marks(number)

    soak((emitter, generator), step, 65_000)


def test_a_tracker_forgets_sources_that_are_replaced():
    """Every ten marks a source leaves and another one joins under a new membership; epochs go on, too."""
    tracker = Tracker({"t"})

    def step(number):
        version = number // 10
        source = f"source-{version + number % 3}"
        record = mark(source, number, number, epoch=1 + number // 1_000, version=version + 1, size=3, partitions=2)
        tracker.apply(record, topic="t", partition=number // 3 % 2, log_time=number)
        if number % 5 == 0:
            tracker.advance()
            tracker.holders()

    soak(tracker, step, 80_000)


@pytest.mark.parametrize("keys", [False, True], ids=["without keys", "with ever new keys"])
def test_a_time_policy_forgets_keys_and_estimates(keys):
    chance = random.Random(2)  # noqa: S311  # repeatable
    policy = TimePolicy(late=500 * MS, out_of_order=20 * MS, max_keys=300).build()

    def step(number):
        key = b"%d" % (number // 20 + chance.randrange(500)) if keys else None
        policy.decide(number - chance.randrange(700), number, key)
        if number % 10 == 0:
            policy.estimate(chance.randrange(5))

    soak(policy, step, 100_000)


def test_an_injected_partition_keeps_no_record():
    chance = random.Random(4)  # noqa: S311  # repeatable
    partition = InputPartition(JsonField("at"), TimePolicy(late=500 * MS))

    def step(number):
        value = b'{"at": %d}' % (number - chance.randrange(700)) if number % 100 else b"garbage %d" % number
        partition.take(b"key-%d" % number, value, number)

    soak(partition, step, 25_000)


def stream(count):
    """Give the records of one partition: rows out of order, and a mark behind every nine of them."""
    chance = random.Random(3)  # noqa: S311  # repeatable
    rows = 0
    for number in range(count):
        if number % 10 == 9:
            record = mark("a", max(0, rows - 20), number // 10, records=rows)
            yield classify("t", 0, number, number, *mark_record(record))
        else:
            yield classify("t", 0, number, number, None, b"%d" % max(0, rows - chance.randrange(20)))
            rows += 1


def test_a_reader_forgets_windows_that_were_handed_out():
    reader = Reader(["t"], lambda record: int(record.value))
    router = MarkRouter({"t": reader.tracker}, reader.applied)
    records = stream(70_000)

    def step(number):
        reader.take(router.take(next(records)))
        if number % 100 == 0:
            list(reader.windows(50))

    soak((reader, router), step, 70_000)


def test_checks_keep_counts_and_no_records():
    checker, counts, records = Checker(), RecordCounts(), stream(70_000)

    def step(number):
        record = next(records)
        if isinstance(record, Mark):
            assert checker.mark(record) == []
            assert counts.on_mark(record.record, topic="t", partition=0, offset=number, rows=0) == []
        else:
            assert checker.data(0, number, int(record.value)) == []
            counts.on_rows("t", 0, 1)

    soak((checker, counts), step, 70_000)


def test_growing_logs_keep_nothing_of_deleted_logs():
    logs = GrowingLogs(timedelta(seconds=1))

    def step(number):
        logs.look({f"{number + later}.log": number + 1 for later in range(7)}, 1)
        logs.read(f"{number}.log", number + 1, number)
        assert logs.watermark is None or logs.holders()

    soak(logs, step, 100_000)
