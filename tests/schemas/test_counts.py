"""Counts against rows: each loss and each duplicate is reported once, where it is; nothing sound is blamed."""

import json
import random
from dataclasses import replace

import pytest
from floodmark.producers.testing import mark
from floodmark.schemas import Status
from floodmark.schemas.counts import Mismatch, RecordCounts
from floodmark.schemas.errors import CorruptSnapshotError
from hypothesis import given
from hypothesis import strategies as st

LOST, SURPLUS, GAP = Mismatch


def said(source, sequence, records, **more):
    return replace(mark(source, 0, sequence, **more), records=records)


def audit(log, counts=None, **bounds):
    """Audit one partition: ints are so many rows, records are marks."""
    counts = counts or RecordCounts(**bounds)
    found, offset = [], 0
    for entry in log:
        if isinstance(entry, int):
            counts.on_rows("t", 0, entry)
            offset += entry
        else:
            found += counts.on_mark(entry, topic="t", partition=0, offset=offset)
            offset += 1
    return [(one.kind, one.after, one.before, one.source, one.records) for one in found]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param([said("a", 0, 0), 3, said("a", 1, 3), 2, said("a", 2, 5)], [], id="sound"),
        pytest.param([said("a", 0, 0), 2, said("a", 1, 3)], [(LOST, 0, 3, "a", 1)], id="lost"),
        pytest.param([said("a", 0, 0), 5, said("a", 1, 3)], [(SURPLUS, 0, 6, "a", 2)], id="doubled"),
        pytest.param(
            [said("a", 0, 0), 2, said("a", 1, 3), 4, said("a", 2, 6)],
            [(LOST, 0, 3, "a", 1), (SURPLUS, 3, 8, "a", 1)],
            id="lost, then doubled",
        ),
        pytest.param([said("a", 0, 0), said("a", 3, 0)], [(GAP, 0, 1, "a", 2)], id="marks missing"),
        pytest.param([2, said("a", 0, 2), said("a", 0, 9)], [], id="a replay counts for nothing"),
        pytest.param([2, said("a", 0, None), 5], [], id="a source that does not count"),
        pytest.param(
            [said("a", 0, 0), 3, said("a", 1, 2), 0, said("a", 2, 3)],
            [(SURPLUS, 0, 4, "a", 1), (LOST, 4, 5, "a", 1)],
            id="a row before its mark and counted after it is both",
        ),
        pytest.param(
            [said("a", 0, 0, size=2), 2, said("b", 0, 0, size=2), 1, said("a", 1, 3, size=2), said("b", 1, 1, size=2)],
            [(LOST, 3, 6, "b", 1)],
            id="two sources: lost when both have counted",
        ),
        pytest.param(
            [
                *(3, said("a", 0, 2, size=2), said("b", 0, 0, size=2)),
                *(said("a", 1, 2, status=Status.ENDED, size=2), said("b", 1, 0, status=Status.ENDED, size=2)),
            ],
            [(SURPLUS, 4, 6, "b", 1)],
            id="two sources: doubled when all have counted for good",
        ),
        pytest.param(
            [
                *(3, said("a", 0, 2), 2),
                *(said("a", 0, 0, epoch=2), 4, said("a", 1, 4, epoch=2), 1, said("a", 2, 4, epoch=2)),
            ],
            [(SURPLUS, None, 3, "a", 1), (SURPLUS, 11, 13, "a", 1)],
            id="what a crash left uncounted is none",
        ),
        pytest.param(
            [
                *(said("a", 0, 0, size=2), said("b", 0, 0, size=2), 5, said("a", 1, 5, size=2, status=Status.ENDED)),
                *(said("b", 0, 0, epoch=2, size=2), 2, said("b", 1, 2, epoch=2, size=2)),
            ],
            [],
            id="a restart beside a source that has ended",
        ),
        pytest.param(
            [said("a", 0, 0), said("a", 0, 0, epoch=2), said("a", 3, 0, epoch=3)],
            [(GAP, 1, 2, "a", 3)],
            id="the first marks of an epoch missing",
        ),
    ],
)
def test_each_mismatch_is_reported_where_it_is(log, expected):
    assert audit(log) == expected


def test_a_partition_read_from_its_middle_is_judged_from_its_first_mark_on():
    log = [7, said("a", 40, 5_000), 3, said("a", 41, 5_003), 1, said("a", 42, 5_005)]
    assert audit(log, partial={("t", 0)}) == [(LOST, 11, 13, "a", 1)]


def test_a_zombie_whose_successor_began_before_the_first_record_loses_no_row():
    log = [said("a", 9, 40, epoch=1), 2, said("a", 3, 7, epoch=2), 2, said("a", 4, 10, epoch=2)]
    assert [found for found in audit(log, partial={("t", 0)}) if found[0] is LOST] == [(LOST, 3, 6, "a", 1)]


def test_rows_of_a_source_without_a_mark_yet_are_not_taken_for_those_of_another_that_crashed():
    sound = [said("a", 0, 0, size=2), 1, said("a", 0, 0, size=2, epoch=2), said("b", 1, 1, size=2)]
    assert audit(sound) == []
    assert audit([said("c", 0, 0, size=2, status=Status.ENDED), *sound]) == [], "of a membership before"


def test_a_late_start_beside_an_ended_source_tells_no_surplus():
    log = [said("a", 1, 0, status=Status.ENDED, size=2), 1, said("b", 2, 1, size=2)]
    assert audit(log, partial={("t", 0)}) == []


class History:
    """An honest log of one partition: sources that write, mark, crash, end, begin again and join."""

    def __init__(self, chance, *, crashes=True):
        self.chance, self.crashes = chance, crashes
        self.log, self.version = [], 1
        self.names = [f"source-{number}" for number in range(chance.randint(1, 3))]
        self.state = {name: [0, 0, 0, Status.ACTIVE] for name in self.names}  # epoch, sequence, records, status
        self.marked = dict.fromkeys(self.names, False)
        for _ in range(chance.randint(5, 40)):
            self.step(chance.choice(self.names))
        for name in self.names:
            self.end(name)

    def mark(self, name):
        epoch, sequence, records, status = self.state[name]
        more = {"epoch": epoch, "status": status, "version": self.version, "size": len(self.names)}
        self.log.append(said(name, sequence, records, **more))
        self.state[name][1] += 1
        self.marked[name] = True

    def step(self, name):
        what = self.chance.choice(["write", "write", "write", "mark", "mark", "end", "crash", "join"])
        ended = self.state[name][3] is Status.ENDED
        if what == "join" and len(self.names) < 5:
            self.version += 1
            name = f"source-{len(self.names)}"
            self.names.append(name)
            self.state[name], self.marked[name] = [0, 0, 0, Status.ACTIVE], False
        elif what == "crash" and (self.crashes or ended):
            self.state[name], self.marked[name] = [self.state[name][0] + 1, 0, 0, Status.ACTIVE], False
            self.mark(name)
        elif what == "end":
            self.end(name)
        elif not ended:
            if what == "mark" or not self.marked[name]:
                self.mark(name)
            if what == "write":
                self.state[name][2] += 1
                self.log.append(name)

    def end(self, name):
        if self.state[name][3] is not Status.ENDED:
            self.state[name][3] = Status.ENDED
            self.mark(name)


def batches(chance, log, begin=0, *, holes=False):
    """Audit a log from an offset on, cut into batches; with holes, only bounds of the rows before a mark are known."""
    counts, found, at = RecordCounts({("t", 0)} if begin else ()), [], begin
    while at < len(log):
        batch, rows = log[at : at + chance.randint(1, 9)], 0
        for offset, entry in enumerate(batch, start=at):
            if isinstance(entry, str):
                rows += 1
                continue
            least = rows - chance.randint(0, rows) if holes else rows
            most = rows + chance.randint(0, 3) if holes else rows
            found += counts.on_mark(entry, topic="t", partition=0, offset=offset, rows=least, most=most)
        counts.on_rows("t", 0, rows)
        counts = RecordCounts.restore(json.loads(json.dumps(counts.snapshot())))
        at += len(batch)
    return found


@pytest.mark.parametrize("holes", [False, True])
def test_an_honest_history_accuses_nobody(holes):
    for seed in range(1_500):
        chance = random.Random(seed)  # noqa: S311  # a repeatable history
        log = History(chance).log
        begin = chance.choice([0, chance.randrange(len(log))])
        assert batches(chance, log, begin, holes=holes) == [], f"seed {seed}"


@pytest.mark.parametrize(("discord", "how"), [(LOST, "remove"), (SURPLUS, "double"), (GAP, "unmark")])
def test_a_fault_in_an_honest_history_is_found(discord, how):
    for seed in range(500):
        chance = random.Random(seed)  # noqa: S311  # a repeatable history
        log = History(chance, crashes=False).log
        rows = [at for at, entry in enumerate(log) if isinstance(entry, str)]
        marks = [at for at, one in enumerate(log) if not isinstance(one, str) and any(_follows(one, m) for m in log)]
        at = chance.choice((marks if how == "unmark" else rows) or [-1])
        if at >= 0:
            log[at : at + 1] = [log[at]] * 2 if how == "double" else []
            assert discord in {one.kind for one in batches(chance, log)}, f"seed {seed}"


def _follows(one, other):
    """Tell whether a mark of the same source and epoch comes later, and one before it."""
    if isinstance(other, str) or (one.source, one.epoch) != (other.source, other.epoch):
        return False
    return other.sequence > one.sequence > 0


def test_bounds_report_only_what_they_prove():
    def reported(records, **bounds):
        found = RecordCounts().on_mark(said("a", 0, records), topic="t", partition=0, offset=9, **bounds)
        return [one.records for one in found]

    assert [reported(records, rows=4, most=6) for records in (3, 4, 5, 6, 7)] == [[1], [], [], [], [1]]


def test_a_line_says_where():
    counts = RecordCounts()
    found = list(counts.on_mark(said("JFK", 0, 3), topic="flights", partition=2, offset=8, rows=2))
    assert str(found[0]) == (
        "lost rows: flights/2 between the beginning and offset 8: 1 rows, by the marks of source JFK"
    )


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(-1, 1), st.booleans()), max_size=30))
def test_a_snapshot_at_any_point_changes_nothing(steps):
    sequences, totals = {}, {}
    whole, resumed = RecordCounts(), RecordCounts()
    for offset, (source, rows, error, restart) in enumerate(steps):
        sequence = sequences[source] = sequences.get(source, -1) + 1
        records = totals[source] = max(0, totals.get(source, 0) + rows + error)
        one = said(source, sequence, records, epoch=1 + restart)
        found = []
        for counts in (whole, resumed):
            counts.on_rows("t", 0, rows)
            found.append(list(counts.on_mark(one, topic="t", partition=0, offset=offset)))
        assert found[0] == found[1]
        resumed = RecordCounts.restore(json.loads(json.dumps(resumed.snapshot())))
    assert resumed.snapshot() == json.loads(json.dumps(whole.snapshot()))


def test_a_damaged_snapshot_is_an_error():
    with pytest.raises(CorruptSnapshotError, match="counts"):
        RecordCounts.restore({"format": 99})
    with pytest.raises(CorruptSnapshotError, match="counts"):
        RecordCounts.restore({"format": 1, "partial": [], "partitions": [["t", 0, [1]]]})
