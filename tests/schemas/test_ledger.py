"""Counts against rows: each loss and each duplicate is told once, where it is; nothing sound is blamed."""

import json
from dataclasses import replace

import pytest
from floodmark.schemas import Status
from floodmark.schemas.errors import CorruptSnapshotError
from floodmark.schemas.ledger import Discord, Ledger
from harness import mark
from hypothesis import given
from hypothesis import strategies as st

LOST, SURPLUS, GAP = Discord


def said(source, sequence, records, **more):
    return replace(mark(source, 0, sequence, **more), records=records)


def audit(log, ledger=None, **bounds):
    """Audit one partition: ints are so many rows, records are marks."""
    ledger = ledger or Ledger(**bounds)
    found, offset = [], 0
    for entry in log:
        if isinstance(entry, int):
            ledger.read("t", 0, entry)
            offset += entry
        else:
            found += ledger.take(entry, topic="t", partition=0, offset=offset, rows=0)
            offset += 1
    return [(one.discord, one.after, one.before, one.source, one.records) for one in found]


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
    ],
)
def test_what_is_told(log, expected):
    assert audit(log) == expected


def test_a_partition_read_from_its_middle_is_judged_from_its_first_mark_on():
    log = [7, said("a", 40, 5_000), 3, said("a", 41, 5_003), 1, said("a", 42, 5_005)]
    assert audit(log, partial={("t", 0)}) == [(LOST, 11, 13, "a", 1)]


def test_bounds_tell_only_what_they_prove():
    def told(records, **bounds):
        found = Ledger().take(said("a", 0, records), topic="t", partition=0, offset=9, **bounds)
        return [one.records for one in found]

    assert [told(records, rows=4, most=6) for records in (3, 4, 5, 6, 7)] == [[1], [], [], [], [1]]


def test_a_line_says_where():
    ledger = Ledger()
    found = list(ledger.take(said("JFK", 0, 3), topic="flights", partition=2, offset=8, rows=2))
    assert str(found[0]) == (
        "lost rows: flights/2 between the beginning and offset 8: 1 rows, by the marks of source JFK"
    )


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(-1, 1), st.booleans()), max_size=30))
def test_a_snapshot_at_any_point_changes_nothing(steps):
    sequences, counts = {}, {}
    whole, resumed = Ledger(), Ledger()
    for offset, (source, rows, error, restart) in enumerate(steps):
        sequence = sequences[source] = sequences.get(source, -1) + 1
        records = counts[source] = max(0, counts.get(source, 0) + rows + error)
        one = said(source, sequence, records, epoch=1 + restart)
        found = []
        for ledger in (whole, resumed):
            ledger.read("t", 0, rows)
            found.append(list(ledger.take(one, topic="t", partition=0, offset=offset, rows=0)))
        assert found[0] == found[1]
        resumed = Ledger.restore(json.loads(json.dumps(resumed.snapshot())))
    assert resumed.snapshot() == json.loads(json.dumps(whole.snapshot()))


def test_a_damaged_snapshot_is_an_error():
    with pytest.raises(CorruptSnapshotError, match="ledger"):
        Ledger.restore({"format": 99})
    with pytest.raises(CorruptSnapshotError, match="ledger"):
        Ledger.restore({"format": 1, "partial": [], "accounts": [["t", 0, [1]]]})
