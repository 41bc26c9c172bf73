"""Stages, lags and the way to a root cause, on chains that stand in memory."""

import json
import re
from dataclasses import replace
from itertools import count

import pytest
from floodmark.producers.board.causes import Cause
from floodmark.producers.board.fold import Fold
from floodmark.producers.board.model import State
from floodmark.producers.board.source_history import Health
from floodmark.producers.board.why import trace
from floodmark.producers.testing import mark
from floodmark.schemas.classify import Mark, Unreadable
from floodmark.schemas.errors import UnmarkedTableError
from floodmark.schemas.records import HELD_HEADER, READ_HEADER, Holder, Status
from floodmark.schemas.tracker import START_OR_INJECT

SECOND = 1_000
NOW = 30 * SECOND


class Chain:
    """Sources that mark once a second until ``NOW``, but for what a test changes."""

    def __init__(self):
        self.fold = Fold()
        self._offsets = count()

    def source(self, topic, name="web", *, partition=0, until=30, stands=30, behind=5, holder=None, **fields):
        for second in range(until):
            watermark = (min(second, stands) - behind) * SECOND
            written = replace(mark(name, watermark, second, **fields), holder=holder)
            self.fold.take(Mark(topic, partition, next(self._offsets), second * SECOND, written))
        return self

    def job(self, name, reads, writes, *, source="web", **fields):
        return self.source(writes, name, holder=Holder(reads, 0, source), behind=7, **fields)

    def board(self):
        return self.fold.board(NOW)

    def why(self, topic):
        return trace(self.board(), topic)


def test_stages_are_found_from_the_records_alone():
    board = Chain().job("means", "b", "c").job("counts", "a", "b").source("a").board()
    assert [(stage.name, stage.inputs) for stage in board.stages] == [
        ("sources", ()),
        ("counts", ("a",)),
        ("means", ("b",)),
    ]
    assert board.exit_status == 0
    assert [topic.lags.local for topic in board.topics()] == [None, 2 * SECOND, 0]
    assert [topic.lags.root for topic in board.topics()] == [None, 2 * SECOND, 2 * SECOND]


def test_nothing_is_well_while_kafka_does_not_answer():
    chain = Chain().source("a").source("b", stands=10)
    assert [topic.verdict for topic in chain.fold.board(NOW).topics()] == [Health.OK, Health.STALL]
    unanswered = chain.fold.board(NOW, answered=False)
    assert [topic.verdict for topic in unanswered.topics()] == [None, Health.STALL]
    assert unanswered.exit_status == 1
    assert [found.as_json()["answered"] for found in (unanswered, chain.fold.board(NOW))] == [False, True]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"batch_watermark": 21_999}, 22_000),
        ({"batch_watermark": 0}, None),
        ({"batch_watermark": "x"}, None),
        (7, None),
    ],
)
def test_the_watermarks_within_a_job_are_on_the_board(said, shown):
    chain = Chain().job("counts", "a", "b").source("a")
    last = replace(mark("counts", 22_000, 30), holder=Holder("a", 0, "web"))
    chain.fold.take(Mark("b", 0, 99, 30_000, last, [(READ_HEADER, json.dumps(said).encode())]))
    sources, counts = chain.board().topics()
    assert (sources.input_watermark, sources.batch_watermark) == (None, None)
    assert (counts.input_watermark, counts.batch_watermark, counts.watermark) == (24 * SECOND, shown, 22 * SECOND)
    assert counts.lags.local == 2 * SECOND


def test_the_root_cause_is_named_over_all_stages():
    chain = Chain().source("a", stands=10).job("counts", "a", "b", stands=10)
    why = chain.job("means", "b", "c", source="counts", stands=10).why("c")
    assert [step.topic for step in why.steps] == ["c", "b", "a"]
    assert (why.cause.topic, why.cause.partition, why.cause.source) == ("a", 0, "web")
    assert (why.cause.verdict, why.cause.cause, why.cause.since) == (Health.STALL, Cause.NO_EVENTS, 10 * SECOND)
    assert why.exit_status == 1
    waiting = chain.board().topic("b").held_by[0]
    assert (waiting.verdict, waiting.cause) == (Health.OK, Cause.WAITS)


def test_a_job_that_hands_nothing_on_is_the_cause_itself():
    why = Chain().source("a").job("counts", "a", "b", stands=10).why("b")
    assert (why.cause.source, why.cause.verdict) == ("counts", Health.STALL)
    assert "job counts reads input and writes nothing" in why.advice


def test_a_job_that_waits_for_a_source_without_a_mark_is_never_called_well():
    chain = Chain().source("a").job("counts", "a", "b", source="gone", stands=10)
    why = chain.why("b")
    assert [(step.topic, step.held_by.source) for step in why.steps] == [("b", "counts"), ("a", "gone")]
    assert (why.cause.cause, why.exit_status, chain.board().exit_status) == (Cause.UNSEEN, 2, 2)
    moves = Chain().source("a").job("counts", "a", "b", source="gone")
    assert (moves.why("b").exit_status, moves.board().exit_status) == (0, 0), "it comes to the end of that source"


def test_a_job_that_buffers_is_told_from_one_that_is_stuck():
    """Its watermark stands in both; how old the oldest work is that may not be done stands on the board, too."""
    why = {}
    for name, works in (("buffers", True), ("stuck", False)):
        chain = Chain().source("a")
        for second in range(30):
            said = mark("counts", min(second, 10) * SECOND, second)
            said = replace(said, processing_time_watermark=(second if works else min(second, 10)) * SECOND)
            chain.fold.take(Mark("b", 0, second, second * SECOND, replace(said, holder=Holder("a", 0, "web"))))
        why[name] = chain.why("b")
        assert chain.board().topic("b").lags.processing == (1 if works else 20) * SECOND
    assert (why["buffers"].cause.cause, why["stuck"].cause.cause) == (Cause.BUFFERED, Cause.NO_EVENTS)
    assert "job counts keeps up" in why["buffers"].advice


def test_a_job_that_is_dead_is_the_cause_itself():
    why = Chain().source("a").job("counts", "a", "b", until=12).job("means", "b", "c", stands=12).why("c")
    assert (why.cause.source, why.cause.verdict) == ("counts", Health.STOP)
    assert [step.topic for step in why.steps] == ["c", "b"]


def test_of_a_job_that_has_ended_the_mark_before_is_read_too():
    """The last one names no input, and without its inputs the chain ends there."""
    chain = Chain()
    chain.fold.add("b")
    chain.fold.take(Mark("b", 0, 99, 30_000, mark("counts", 5_000, 30, status=Status.ENDED)))
    assert chain.fold.lacking("b", [0]) == {0}
    chain = Chain().job("counts", "a", "b")
    chain.fold.take(Mark("b", 0, 99, 30_000, mark("counts", 5_000, 30, status=Status.ENDED)))
    assert chain.fold.lacking("b", [0]) == set()
    assert chain.fold.named() == {"a"}


def test_a_source_without_a_watermark_is_the_cause_and_not_one_that_stands_beside_it():
    chain = Chain().source("a", stands=5, size=2)
    for second in range(30):
        chain.fold.take(Mark("a", 0, 99 + second, second * SECOND, mark("app", None, second, size=2)))
    why = chain.why("a")
    assert (why.exit_status, why.cause.source, why.cause.cause) == (1, "app", Cause.NOTHING_PROMISED)
    assert re.search("app has a watermark after .* call mark_idle.*Also check why web has no", why.advice)


@pytest.mark.parametrize(
    ("rise", "ahead", "stuck"),
    [(29, 0, False), (27, 0, False), (26, 0, True), (12, 0, True), (29, 60, True), (12, 60, True)],
)
def test_a_job_whose_input_has_just_risen_gets_three_batches_to_follow(rise, ahead, stuck):
    """Unless the input's clock is ahead: then its time does not tell how many came since."""
    chain = Chain()
    for second in range(30):
        at = second * SECOND
        risen = mark("web", (second if second >= rise else 10) * SECOND, second)
        chain.fold.take(Mark("a", 0, second, at + ahead * SECOND, risen))
        said = replace(mark("counts", min(second, 10) * SECOND, second), holder=Holder("a", 0, "web"))
        chain.fold.take(Mark("b", 0, second, at, replace(said, processing_time_watermark=at)))
    why = chain.why("b")
    assert (why.exit_status, why.cause and why.cause.cause) == ((1, Cause.BUFFERED) if stuck else (0, None))


def test_a_job_that_was_moved_to_another_topic_has_no_old_input():
    chain = Chain().source("a", until=12).source("a2").job("counts", "a", "b", until=20)
    for number, at in enumerate((21, 29), 100):
        said = replace(mark("counts", at * SECOND - 7_000, at, epoch=2), holder=Holder("a2", 0, "web"))
        read = READ_HEADER, json.dumps({"input_offsets": {"a2": {"0": at}}}).encode()
        chain.fold.take(Mark("b", 0, number, at * SECOND, said, [read]))
    assert [row.inputs for row in chain.board().topic("b").sources()] == [("a2",)]
    assert chain.why("b").exit_status == 0


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("until", [30, 12], ids=["alive", "silent since"])
def test_a_job_that_has_ended_is_not_well_if_its_input_goes_on(goes_on, until):
    chain = Chain().source("a", until=until).job("counts", "a", "b")
    chain.fold.take(Mark("b", 0, 99, 30_000, mark("counts", 5_000, 30, status=Status.ENDED)))
    if not goes_on:
        chain.fold.take(Mark("a", 0, 99, 30_000, mark("web", 5_000, 30, status=Status.ENDED)))
    why = chain.why("b")
    assert (why.exit_status, why.cause and why.cause.cause) == ((1, Cause.OUTLIVED) if goes_on else (0, None))


@pytest.mark.parametrize("records", [0, 7, None])
def test_a_job_that_has_ended_is_not_well_if_its_input_sent_records_and_ended_again(records):
    chain, read = Chain().source("a", until=10), [(READ_HEADER, b'{"input_offsets": {"a": {"0": 21}}}')]
    chain.job("counts", "a", "b", until=10)
    chain.fold.take(Mark("a", 0, 20, 30_000, mark("web", 5_000, 30, status=Status.ENDED, records=9)))
    chain.fold.take(Mark("b", 0, 99, 30_000, mark("counts", 5_000, 30, status=Status.ENDED), read))
    assert chain.why("b").exit_status == 0
    chain.fold.take(Mark("a", 0, 21, 30_000, mark("web", 5_000, 30, status=Status.ENDED, records=9)))  # a copy
    assert chain.why("b").exit_status == 0
    said = mark("web", 9_000, 0, epoch=9, records=records)
    for number, status in enumerate((Status.ACTIVE, Status.ENDED)):
        chain.fold.take(Mark("a", 0, 28 + number, 30_000, replace(said, sequence=number, status=status)))
    why = chain.why("b")
    assert (why.exit_status, why.cause and why.cause.cause) == ((0, None) if records == 0 else (1, Cause.OUTLIVED))
    assert chain.board().exit_status == why.exit_status


def test_an_input_that_cannot_be_read_ends_the_way_there():
    chain = Chain().job("counts", "a", "b", stands=10)
    chain.fold.refuse("a", "Topic authorization failed")
    why = chain.why("b")
    assert [step.topic for step in why.steps] == ["b", "a"]
    assert why.steps[-1].unread == "Topic authorization failed"
    assert why.cause.source == "counts"
    assert why.exit_status == 1
    assert why.advice == "check whether a was deleted, and whether you have the right to read it"
    assert chain.board().unread == (("a", "Topic authorization failed"),)


def test_a_table_that_lacks_its_library_tells_to_install_it():
    chain = Chain()
    chain.fold.refuse("a", "no such topic")
    assert chain.why("a").advice == "check the name, and whether you have the right to read it"
    chain.fold.refuse("lake/daily", "ModuleNotFoundError: No module named 'deltalake'. Expected floodmark[delta]")
    assert chain.why("lake/daily").advice == "check the name, and whether you have installed what it needs"
    chain.fold.refuse("new", str(UnmarkedTableError(table="new", reason="it has no commit", advice="Wait for one")))
    assert not chain.why("new").advice, "the error has it"


def test_half_of_a_chain_that_moves_cannot_be_called_well():
    chain = Chain().job("counts", "a", "b")
    chain.fold.refuse("a", "Topic authorization failed")
    assert chain.board().exit_status == 2
    assert chain.board().topic("b").lags.local is None


@pytest.mark.parametrize(("whole", "status"), [(True, 1), (False, 2)])
def test_a_member_that_never_came_is_missing(whole, status):
    chain = Chain().source("a", "web-1", size=2)
    chain.fold.add("a", whole=whole)
    board = chain.board()
    missing = [row for row in board.topic("a").sources() if row.state is State.MISSING]
    assert [(row.partition, row.source) for row in missing] == [(0, None)]
    assert board.topic("a").watermark is None
    assert board.exit_status == status
    assert trace(board, "a").exit_status == status
    assert "start the missing source" in trace(board, "a").advice


def test_a_member_that_is_elsewhere_is_missing_by_name():
    board = Chain().source("a", "x", size=2, partitions=2).source("a", "y", partition=1, size=2, partitions=2).board()
    missing = [row for row in board.topic("a").sources() if row.state is State.MISSING]
    assert {(row.partition, row.source) for row in missing} == {(0, "y"), (1, "x")}


def test_a_mark_that_cannot_be_read_is_named():
    chain = Chain().source("a")
    chain.fold.take(Unreadable("a", 0, 99, 29_500, "damaged", "web"))
    row = chain.board().topic("a").held_by[0]
    assert (row.state, row.verdict, row.cause) == (State.UNKNOWN, None, Cause.UNREADABLE)
    assert "offset 99" in row.reason
    assert chain.board().exit_status == 2


def test_the_largest_lag_counts_never_an_average():
    chain = Chain()
    for partition in range(50):
        chain.source("a", partition=partition, partitions=50, behind=600 if partition == 17 else 5)
    topic = chain.board().topic("a")
    assert topic.lags.wall == max(row.lags.wall for row in topic.sources()) == 601 * SECOND
    assert [row.partition for row in topic.held_by] == [17]


def test_an_idle_source_and_one_that_has_ended_are_not_waited_for():
    for status, state in ((Status.IDLE, State.IDLE), (Status.ENDED, State.ENDED)):
        chain = Chain().source("a", until=10)
        chain.fold.take(Mark("a", 0, 99, 10_000, mark("web", 5_000, 10, status=status)))
        topic = chain.fold.board(10**9).topic("a")
        assert (topic.state, topic.verdict, topic.watermark) == (state, Health.OK, None)


def test_jobs_in_a_circle_end():
    why = Chain().job("x", "b", "a", source="y").job("y", "a", "b", source="x").why("a")
    assert [step.topic for step in why.steps] == ["a", "b"]


def test_a_topic_without_marks_says_so():
    board = Fold(["plain"]).board(NOW)
    assert board.exit_status == 2
    assert trace(board, "plain").steps[0].unmarked
    assert "floodmark inject" in trace(board, "plain").advice


def test_the_output_of_a_job_over_a_topic_without_marks_has_the_same_advice():
    chain = Chain()
    for second in range(30):
        said = replace(mark("out", None, second), holder=Holder("plain"))
        chain.fold.take(Mark("out", 0, second, second * SECOND, said))
    chain.fold.add("plain", whole=True)
    why = chain.why("out")
    assert [step.topic for step in why.steps] == ["out", "plain"]
    assert why.steps[-1].unmarked
    assert (why.cause, why.advice, why.exit_status) == (None, START_OR_INJECT, 2)


def test_a_chain_whose_input_was_emptied_is_not_called_well():
    chain = Chain().job("counts", "a", "b")
    chain.fold.add("a", whole=True)
    why = chain.why("b")
    assert [(step.topic, step.unmarked) for step in why.steps] == [("b", False), ("a", True)]
    assert (why.cause, why.advice, why.exit_status) == (None, START_OR_INJECT, 2)


def test_clocks_that_disagree_are_named():
    board = Chain().source("a").fold.board(10 * SECOND)
    assert "clocks disagree" in board.notes[0]
    assert board.topic("a").verdict is not Health.STOP
    assert Chain().source("a").board().notes == ()


def test_silence_is_no_news_where_nothing_was_read():
    chain = Chain().source("a")
    chain.fold.read_until("a", NOW)
    assert chain.fold.board(10 * NOW).topic("a").verdict is Health.OK
    chain.fold.read_until("a", 9 * NOW)
    stopped = chain.fold.board(10 * NOW).topic("a")
    assert (stopped.verdict, stopped.state) == (Health.STOP, State.SILENT)


def test_a_mark_that_was_read_as_it_came_is_no_older_than_that():
    """The clock of this machine is an hour ahead; what comes now has come now."""
    hour = 3_600_000
    fold = Fold()
    for second in range(30):
        fold.take(
            Mark("a", 0, second, second * SECOND, mark("web", second * SECOND - 5_000, second)), second * SECOND + hour
        )
    assert fold.board(NOW + hour).topic("a").verdict is Health.OK


@pytest.mark.parametrize("header", [READ_HEADER, HELD_HEADER])
def test_a_header_of_a_mark_that_is_nested_too_deeply_for_json_is_ignored(header):
    chain = Chain().source("a")
    chain.fold.take(Mark("a", 0, 99, NOW, mark("web", 26 * SECOND, 99), [(header, b"[" * 100_000)]))
    assert chain.board().topic("a").watermark == 26 * SECOND


def test_what_an_ending_job_has_read_is_known_only_with_its_end_in_partition_0():
    chain = Chain().source("a", until=10)
    chain.fold.take(Mark("a", 0, 20, 30_000, mark("web", 5_000, 30, status=Status.ENDED, records=9)))
    for at, number, status in (
        (5, 0, Status.ACTIVE),
        (5, 1, Status.ACTIVE),
        (21, 1, Status.ENDED),
        (21, 0, Status.ENDED),
    ):
        said = replace(mark("counts", 5_000, at, partitions=2, status=status), holder=Holder("a", 0, "web"))
        read = [(READ_HEADER, b'{"input_offsets": {"a": {"0": %d}}}' % at)] if number == 0 else []
        chain.fold.take(Mark("b", number, at, 30_000, said, read))
        assert Cause.OUTLIVED not in {row.cause for row in chain.board().topic("b").sources()}
