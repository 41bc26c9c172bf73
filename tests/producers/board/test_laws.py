"""The laws of the board, over any history of sources that follow the rules for writers, and of some that do not."""

import random

from floodmark.producers.board.causes import Cause
from floodmark.producers.board.fold import Fold
from floodmark.producers.board.model import State
from floodmark.producers.board.source_history import Health, is_failure, severity
from floodmark.producers.board.why import trace
from floodmark.producers.testing import mark
from floodmark.schemas.classify import Mark, Unreadable
from floodmark.schemas.records import Status
from hypothesis import given
from hypothesis import strategies as st

NOW = 100_000


@st.composite
def chains(draw):
    """Draw per partition what stands in it: marks of some sources in two topics, in the order of their log."""
    partitions, size = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    logs = {}
    for topic in ("a", "b"):
        for number in range(partitions):
            logs[topic, number] = draw(_partition(topic, number, partitions, size))
    return logs


@st.composite
def _partition(draw, topic, number, partitions, size):
    state = {f"s{index}": [1, -1, None] for index in range(size)}
    records, time = [], draw(st.integers(0, 1_000))
    for offset in range(draw(st.integers(0, 30))):
        time += draw(st.integers(0, 3_000))
        source = draw(st.sampled_from(sorted(state)))
        one = state[source]
        kind = draw(st.sampled_from(["mark"] * 12 + ["restart", "replay", "unreadable"]))
        if kind == "unreadable":
            records.append(Unreadable(topic, number, offset, time, "damaged", source))
            continue
        if kind == "restart":
            one[0], one[1], one[2] = one[0] + 1, -1, None
        one[1] += kind != "replay" or one[1] < 0
        one[2] = draw(st.sampled_from([one[2], (one[2] or 0) + draw(st.integers(0, 5_000))]))
        status = draw(st.sampled_from([Status.ACTIVE] * 6 + [Status.IDLE, Status.ENDED]))
        written = mark(source, one[2], one[1], epoch=one[0], status=status, size=size, partitions=partitions)
        records.append(Mark(topic, number, offset, time, written))
    return records


def interleaved(logs, seed):
    """Return all records in one order: each partition's own is kept."""
    chance, left, found = random.Random(seed), {place: list(log) for place, log in logs.items() if log}, []  # noqa: S311
    while left:
        place = chance.choice(sorted(left))
        found.append(left[place].pop(0))
        if not left[place]:
            del left[place]
    return found


def folded(records, fold=None):
    fold = fold or Fold(["a", "b"])
    for record in records:
        fold.take(record)
    return fold


def readable(logs):
    """Leave unreadable marks out: which source they make unknown depends on what was read before."""
    return {place: [record for record in log if isinstance(record, Mark)] for place, log in logs.items()}


@given(chains(), st.integers(), st.integers())
def test_the_order_of_arrival_across_partitions_does_not_matter(logs, one, other):
    logs = readable(logs)
    assert folded(interleaved(logs, one)).board(NOW) == folded(interleaved(logs, other)).board(NOW)


@given(chains(), st.integers(), st.integers(0, 200))
def test_a_prefix_and_then_the_rest_is_the_same_as_all_at_once(logs, seed, cut):
    records = interleaved(logs, seed)
    fold = folded(records[:cut])
    fold.board(NOW)  # looking changes nothing
    assert folded(records[cut:], fold).board(NOW) == folded(records).board(NOW)


@given(chains(), st.integers(), st.integers(0, 200))
def test_a_record_that_is_read_again_changes_nothing(logs, seed, cut):
    records = interleaved(readable(logs), seed)
    assert folded(records[cut:], folded(records)).board(NOW) == folded(records).board(NOW)


@given(chains(), st.integers())
def test_a_watermark_never_exceeds_what_its_members_have_promised(logs, seed):
    board = folded(interleaved(logs, seed)).board(NOW)
    for topic in board.topics():
        if topic.watermark is not None:
            active = [row for row in topic.sources() if row.state in {State.ACTIVE, State.CATCHING_UP, State.SILENT}]
            assert topic.watermark <= min(row.watermark for row in active)
            assert topic.lags.wall == NOW - topic.watermark >= max(row.lags.wall for row in active)
        for partition in topic.partitions:
            if topic.watermark is not None and partition.watermark is not None:
                assert topic.watermark <= partition.watermark


@given(chains(), st.integers())
def test_unknown_is_never_shown_as_well(logs, seed):
    board = folded(interleaved(logs, seed)).board(NOW)
    for topic in board.topics():
        for row in topic.sources():
            if row.state in {State.UNKNOWN, State.MISSING}:
                assert row.verdict is not Health.OK
        unknown = topic.watermark is None and topic.state not in {State.IDLE, State.ENDED}
        if unknown:
            assert severity(topic.verdict) >= severity(None)
            assert board.exit_status != 0
        assert severity(topic.verdict) >= max((severity(row.verdict) for row in topic.sources()), default=0)


@given(chains(), st.integers())
def test_why_is_content_only_where_nothing_fails(logs, seed):
    board = folded(interleaved(logs, seed)).board(NOW)
    for topic in board.topics():
        why = trace(board, topic.topic)
        rows = list(topic.sources())
        if why.exit_status == 0:
            assert not [row for row in rows if is_failure(row.verdict)]
        if any(is_failure(row.verdict) for row in rows):
            assert why.cause is not None
            # A source without a watermark keeps the topic from having one, whatever fails beside it.
            assert is_failure(why.cause.verdict) or why.cause.cause is Cause.NOTHING_PROMISED
            assert why.exit_status == 1


@given(chains(), st.integers())
def test_a_source_that_restarts_is_not_fenced(logs, seed):
    board = folded(interleaved(logs, seed)).board(NOW)
    assert not [row for topic in board.topics() for row in topic.sources() if row.verdict is Health.FENCED]


@given(chains(), st.integers())
def test_a_board_is_json(logs, seed):
    found = folded(interleaved(logs, seed)).board(NOW).as_json()
    assert found["status"] in {"ok", "stuck", "unknown"}
