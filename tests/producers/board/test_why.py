"""What `why` says of topics whose cause is known, and that it says nothing of those that are well."""

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
from floodmark.producers.board.causes import Cause
from floodmark.producers.board.fold import Fold
from floodmark.producers.board.source_history import Health, History, is_failure
from floodmark.producers.board.why import trace
from floodmark.producers.event_times.injection import STATE_HEADER
from floodmark.producers.testing import mark
from floodmark.schemas.classify import Mark, Unreadable
from floodmark.schemas.records import READ_HEADER, Held, Holder, Status

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
BEGIN = 1_790_000_000_000
END = 60
"""Seconds after the beginning when `why` runs."""


def behind(seconds):
    """Return what a source promises that is so far behind the clock."""
    return lambda second: BEGIN + (second - seconds) * SECOND


def ahead(milliseconds):
    return lambda second: BEGIN + second * SECOND + milliseconds


def until(second, promise, then=None):
    """Promise as before up to a second, and then one thing; without it: no more than by then."""
    return lambda now: promise(now) if now < second else promise(second) if then is None else then


def starting(second, promise):
    """Promise nothing before a second."""
    return lambda now: promise(now) if now >= second else None


def stands_ahead(second):
    """Promise what the latest of some bookings allows: it is days ahead, and rarely moves."""
    return BEGIN + 30 * DAY + second // 45 * HOUR


def seconds_for_milliseconds(second):
    return BEGIN // 1_000 + second - 5


@dataclass
class Writer:
    """A process that marks every partition of a topic once a second, in some of the seconds."""

    source: str = "web"
    promise: Any = field(default_factory=lambda: behind(5))
    seconds: Any = range(END)
    epoch: int = 1
    topic: str = "clicks"
    reads: str | None = None
    rate: int = 3
    """Records a second."""
    writes: Any = lambda _second: True
    """In which seconds it writes records."""
    status: Any = lambda _second: Status.ACTIVE
    waits_since: Any = None
    """The second since when Kafka has not acknowledged a record of it."""
    partitions: int = 1
    only: int | None = None
    """The one partition that it marks."""
    held: Held | None = None
    injects: bool = False
    fields: dict[str, Any] = field(default_factory=dict)

    def marks(self):
        records = 0
        for sequence, second in enumerate(self.seconds):
            records += self.rate * bool(self.writes(second))
            said = mark(
                self.source,
                self.promise(second),
                sequence,
                epoch=self.epoch,
                status=self.status(second),
                records=records,
                partitions=self.partitions,
                **{"emitted_at": BEGIN + second * SECOND, **self.fields},
            )
            holder = None if self.reads is None else Holder(self.reads, 0, "web")
            worked = None if self.waits_since is None else BEGIN + min(second, self.waits_since) * SECOND
            said = replace(said, holder=holder, processing_time_watermark=worked)
            headers = [] if self.held is None else self.held.headers()
            headers += [(STATE_HEADER, b"{}")] if self.injects else []
            for number in range(self.partitions) if self.only is None else [self.only]:
                yield BEGIN + second * SECOND, self.topic, number, said, headers


def asked(*writers, last="clicks", whole=True, more=()):
    """Return what `why` says of the last topic, the log of each partition in the order of its times."""
    fold, offsets = Fold(), defaultdict(count)
    for topic in sorted({writer.topic for writer in writers}):
        fold.add(topic, whole=whole)
    for time, topic, number, said, headers in sorted(
        (one for writer in writers for one in writer.marks()), key=lambda one: one[0]
    ):
        fold.take(Mark(topic, number, next(offsets[topic, number]), time, said, headers))
    for record in more:
        fold.take(record)
    board = fold.board(BEGIN + END * SECOND)
    return board, trace(board, last)


def members(*names, **fields):
    return [Writer(name, fields={"size": len(names)}, **fields) for name in names]


def ended_at(second):
    return lambda now: Status.ENDED if now == second else Status.ACTIVE


ONE_OF_TWO = {"size": 2}
MEMBERSHIP_1, MEMBERSHIP_2 = {"version": 1, "size": 2}, {"version": 2, "size": 2}
NEAR_COUNTS = Held(BEGIN, "topic 'counts'", "counts")
NOT_READABLE = Unreadable("clicks", 0, 999, BEGIN + END * SECOND, "damaged", "web")

FAULTS = {
    "a process is dead, or never polled": (
        [Writer(seconds=range(30))],
        (1, "web", Cause.SILENT),
        ("no longer sends marks", "restart it", "background=False", "poll()", "higher version"),
    ),
    "a process is dead that had marked twice": (
        [Writer(seconds=range(2))],
        (1, "web", Cause.SILENT),
        ("no longer sends marks",),
    ),
    "one of two processes is dead, and its times are ahead of the clock": (
        [Writer("a", ahead(DAY), fields=ONE_OF_TWO), Writer("b", ahead(DAY), range(20), fields=ONE_OF_TWO)],
        (1, "b", Cause.SILENT),
        ("no longer sends marks", "restart it"),
    ),
    "one of two processes is dead, and its lease has run out": (
        [Writer("a", fields=ONE_OF_TWO), Writer("b", seconds=range(20), fields={**ONE_OF_TWO, "lease": 5 * SECOND})],
        (1, "b", Cause.SILENT),
        ("its lease has run out: it no longer sends marks", "restart it", "higher version"),
    ),
    "a process runs, and a partition waits for a transaction in its input": (
        [Writer(partitions=2, only=0, injects=True), Writer(partitions=2, only=1, seconds=range(30), injects=True)],
        (1, "web", Cause.SILENT_HERE),
        ("to other partitions", "a member may have died", "open transaction"),
    ),
    "a process runs, and Kafka takes nothing of it in a partition": (
        [Writer(partitions=2, only=0), Writer(partitions=2, only=1, seconds=range(30))],
        (1, "web", Cause.SILENT_HERE),
        ("to other partitions", "do not restart it", "whether Kafka accepts its records there"),
    ),
    "an injector is dead": (
        [Writer(seconds=range(30), injects=True)],
        (1, "web", Cause.SILENT),
        ("no longer sends marks", "restart it (floodmark inject)", "Its log says why it fails", "--until-end --end"),
    ),
    "a source has no events": (
        [Writer(promise=until(20, behind(5)), writes=lambda second: second < 20)],
        (1, "web", Cause.NO_EVENTS),
        ("but no records", "mark_idle()", "with_idleness()"),
    ),
    "a source sends events and its watermark does not advance": (
        [Writer(promise=until(20, behind(5)))],
        (1, "web", Cause.NO_PROMISE),
        ("marks and records", "advance()"),
    ),
    "Kafka has not acknowledged a record": (
        [Writer(promise=until(20, behind(5)), waits_since=20)],
        (1, "web", Cause.NOT_ACKNOWLEDGED),
        ("acknowledge", "resend()"),
    ),
    "Kafka has acknowledged no record of a source": (
        [Writer(promise=lambda _second: None, waits_since=20)],
        (1, "web", Cause.NOT_ACKNOWLEDGED),
        ("acknowledge", "resend()"),
    ),
    "a source began an epoch with a lower watermark": (
        [Writer(seconds=range(30)), Writer(promise=behind(90), seconds=range(30, END), epoch=2)],
        (1, "web", Cause.REWOUND),
        ("lower than before: an earlier run had 20",),
    ),
    "a member never came": (
        [Writer("a", fields=ONE_OF_TWO)],
        (1, None, Cause.MISSING),
        ("1 of 2 sources", "reported: a", "start the missing source"),
    ),
    "a member is missing in one partition": (
        [Writer("a", partitions=2, fields=ONE_OF_TWO), Writer("b", partitions=2, only=1, fields=ONE_OF_TWO)],
        (1, "b", Cause.MISSING),
        ("1 of 2 sources", "reported: a", "not here: b"),
    ),
    "two members give one version of the membership two sizes": (
        [Writer("a", fields={"version": 3, "size": 2}), Writer("bb", fields={"version": 3, "size": 3})],
        (1, None, Cause.SIZES),
        ("sizes 2 and 3", "1 of 3 sources", "reported: a, bb", "higher version and the right size"),
    ),
    "a member still has the membership of before": (
        [
            Writer("a", seconds=range(20), fields=MEMBERSHIP_1),
            Writer("a", seconds=range(20, END), epoch=2, fields=MEMBERSHIP_2),
            Writer("b", fields=MEMBERSHIP_1),
        ],
        (1, "b", Cause.RETIRED),
        ("1 of 2 sources", "reported: a", "only in an older membership: b", "change_membership()"),
    ),
    "two sources each have a membership of one": (
        [Writer("a"), Writer("b")],
        (1, "a", Cause.UNCOUNTED),
        ("2 sources write to the topic, but its membership counts 1", "membership="),
    ),
    "two injectors write to one topic": (
        [Writer("a", injects=True), Writer("b", injects=True)],
        (1, "a", Cause.UNCOUNTED),
        ("2 sources write to the topic, but its membership counts 1", "but one with --until-end --end"),
    ),
    "a second source with a membership of one has left after one mark": (
        [Writer("a"), Writer("b", seconds=[20])],
        (1, "b", Cause.UNCOUNTED),
        ("2 sources write to the topic, but its membership counts 1",),
    ),
    "a source started again under another name": (
        [
            Writer("a", fields=ONE_OF_TWO),
            Writer("b", seconds=range(20), fields=ONE_OF_TWO),
            Writer("bb", seconds=range(21, END), fields=ONE_OF_TWO),
        ],
        (1, "b", Cause.RENAMED),
        ("3 sources have marked the topic, its membership counts 2", "start it as b"),
    ),
    "two sources of two partitions each have a membership of one": (
        [Writer("a", partitions=2, only=0), Writer("b", partitions=2, only=1)],
        (1, "a", Cause.UNCOUNTED),
        ("2 sources write to the topic, but its membership counts 1", "membership="),
    ),
    "a source still writes that no membership counts any more": (
        [
            Writer("a", seconds=range(20), fields=MEMBERSHIP_1),
            Writer("a", seconds=range(20, END), epoch=2, fields={"version": 2, "size": 1}),
            Writer("b", fields=MEMBERSHIP_1),
        ],
        (1, "b", Cause.RETIRED),
        ("with membership 1,", "has membership 2", "no watermark covers its rows"),
    ),
    "two processes have one name": (
        [Writer(epoch=71), Writer(seconds=range(20, END), epoch=72)],
        (1, "web", Cause.TWINS),
        ("two processes", "epoch 71", "epoch 72", "stop one"),
    ),
    "three processes have one name": (
        [Writer(epoch=71), Writer(epoch=72, seconds=range(10, END)), Writer(epoch=73, seconds=range(20, END))],
        (1, "web", Cause.TWINS),
        ("epoch 71 and 72", "epoch 73"),
    ),
    "two processes have one name, and another source holds the topic": (
        [
            Writer("a", behind(30), fields=ONE_OF_TWO),
            Writer("b", epoch=71, fields=ONE_OF_TWO),
            Writer("b", epoch=72, seconds=range(20, END), fields=ONE_OF_TWO),
        ],
        (1, "b", Cause.TWINS),
        ("epoch 71", "epoch 72"),
    ),
    "the process of before still writes, and the new one is dead": (
        [Writer(epoch=71), Writer(epoch=72, seconds=range(20, 40))],
        (1, "web", Cause.ZOMBIE),
        ("epoch 71", "epoch 72", "stop the process", "Without epoch="),
    ),
    "the process of before still writes, and the new one died at once": (
        [Writer(epoch=71), Writer(epoch=72, seconds=[20])],
        (1, "web", Cause.ZOMBIE),
        ("epoch 71", "epoch 72"),
    ),
    "the process of before still writes, and the new one has ended": (
        [Writer(epoch=71), Writer(epoch=72, seconds=range(20, 40), status=ended_at(39))],
        (1, "web", Cause.ZOMBIE),
        ("epoch 71", "epoch 72"),
    ),
    "event times are seconds": (
        [Writer(promise=seconds_for_milliseconds)],
        (1, "web", Cause.SECONDS),
        ("1970", "seconds", "time * 1000", "unit="),
    ),
    "event times were seconds, and the process is dead": (
        [Writer(promise=seconds_for_milliseconds, seconds=range(30))],
        (1, "web", Cause.SECONDS),
        ("1970", "unit="),
    ),
    "one event came from the future": (
        [Writer(promise=until(40, behind(5), then=BEGIN + 30 * DAY))],
        (1, "web", Cause.FUTURE),
        ("ahead of the clock", "early="),
    ),
    "the last event of a process came from the future": (
        [Writer(promise=until(39, behind(5), then=BEGIN + 30 * DAY), seconds=range(40))],
        (1, "web", Cause.FUTURE),
        ("ahead of the clock", "early="),
    ),
    "one of many devices has a wrong clock": (
        [Writer(promise=lambda second: BEGIN + second * SECOND + (second >= 30) * DAY)],
        (1, "web", Cause.FUTURE),
        ("ahead of the clock",),
    ),
    "a source whose clock was right was restarted with times that are an hour ahead": (
        [Writer(seconds=range(30)), Writer(promise=starting(31, ahead(HOUR)), seconds=range(30, END), epoch=2)],
        (1, "web", Cause.FUTURE),
        ("ahead of the clock", "early="),
    ),
    "a source with few events has a wrong clock since the last ones": (
        [Writer(promise=lambda second: BEGIN + second // 15 * 15 * SECOND + (second >= 45) * HOUR)],
        (1, "web", Cause.FUTURE),
        ("ahead of the clock",),
    ),
    "a job has read an event with a time in the future, and its input is right again": (
        [Writer(), Writer("counts", lambda _second: BEGIN + HOUR, topic="counts", reads="clicks")],
        (1, "counts", Cause.BEFORE_INPUT),
        ("rows until then are late", "start job counts over"),
    ),
    "a job is dead": (
        [Writer(), Writer("counts", behind(9), range(30), topic="counts", reads="clicks")],
        (1, "counts", Cause.SILENT),
        ("job counts",),
    ),
    "a job reads and writes no watermark": (
        [Writer(), Writer("counts", until(20, behind(9)), topic="counts", reads="clicks", writes=lambda _: False)],
        (1, "counts", Cause.NO_EVENTS),
        ("job counts",),
    ),
    "the source of a job's input is dead": (
        [
            Writer(seconds=range(30)),
            Writer("counts", until(30, behind(5)), topic="counts", reads="clicks", writes=lambda second: second < 30),
        ],
        (1, "web", Cause.SILENT),
        ("background=False",),
    ),
    "a job's input has two processes with one name": (
        [
            Writer(epoch=71),
            Writer(epoch=72, seconds=range(20, END)),
            Writer("counts", behind(9), topic="counts", reads="clicks"),
        ],
        (1, "web", Cause.TWINS),
        ("epoch 71", "epoch 72"),
    ),
    "alignment holds a source near a topic that waits for the source": (
        [
            Writer(promise=until(20, behind(5)), writes=lambda second: second < 20, held=NEAR_COUNTS),
            Writer("counts", until(20, behind(9)), topic="counts", reads="clicks", writes=lambda second: second < 20),
        ],
        (1, "web", Cause.ALIGNED),
        ("wait for topic counts, whose watermark is 2026-", "raise the bound"),
    ),
    "a mark cannot be read": ([Writer()], (2, "web", Cause.UNREADABLE), ("offset 999",)),
    "a source has promised nothing yet": (
        [Writer(promise=lambda _second: None)],
        (2, "web", Cause.NOTHING_PROMISED),
        ("no watermark yet",),
    ),
}

WELL = {
    "a source": [Writer()],
    "many sources": members("a", "b", "c", partitions=3),
    "a source that is idle": [Writer(status=lambda second: Status.IDLE if second > 20 else Status.ACTIVE)],
    "a source that was idle and left": [
        Writer(seconds=range(30), status=lambda second: Status.IDLE if second > 20 else Status.ACTIVE)
    ],
    "a source that has ended": [Writer(seconds=range(30), status=ended_at(29))],
    "a source that has ended, with made-up times of 1970": [
        Writer(promise=lambda second: second * SECOND, seconds=range(30), status=ended_at(29))
    ],
    "made-up times of 1970": [Writer(promise=lambda second: second * SECOND)],
    "a source that was restarted": [Writer(seconds=range(30)), Writer(seconds=range(31, END), epoch=2)],
    "a source that was restarted five times": [
        Writer(seconds=range(10 * number, 10 * number + 10), epoch=number + 1) for number in range(6)
    ],
    "a source whose process of before marked once more": [
        Writer(seconds=range(31)),
        Writer(seconds=range(30, END), epoch=2),
    ],
    "a source whose process of before ended after the new one began": [
        Writer(seconds=range(35), status=ended_at(34)),
        Writer(seconds=range(30, END), epoch=2),
    ],
    "a source whose process of before left half a minute ago": [
        Writer(seconds=range(25)),
        Writer(seconds=range(20, END), epoch=2),
    ],
    "a backfill of old data": [Writer(promise=lambda second: 993_000_000_000 + second * DAY)],
    "a backfill from before 1970": [Writer(promise=lambda second: -20 * 365 * DAY + second * DAY)],
    "a slow source": [Writer(promise=lambda second: BEGIN + second // 20 * 20 * SECOND - HOUR)],
    "a source that falls behind": [Writer(promise=lambda second: BEGIN + second * 900 - 5 * SECOND)],
    "a source with a mark every ten seconds": [Writer(seconds=range(0, END, 10))],
    "bookings": [Writer(promise=stands_ahead)],
    "bookings of two sources, of which one stands": [
        Writer("a", stands_ahead, fields=ONE_OF_TWO),
        Writer("b", lambda _second: BEGIN + 20 * DAY, fields=ONE_OF_TWO),
    ],
    "forecasts": [Writer(promise=ahead(DAY))],
    "forecasts of a source that was restarted": [
        Writer(promise=ahead(DAY), seconds=range(30)),
        Writer(promise=starting(31, ahead(DAY)), seconds=range(30, END), epoch=2),
    ],
    "a program that makes up a year in a minute": [Writer(promise=lambda second: BEGIN + (second - 30) * 6 * DAY)],
    "a clock that is four minutes ahead": [Writer(promise=ahead(4 * MINUTE))],
    "a promise of silence until tomorrow": [
        Writer(promise=until(40, behind(5), then=BEGIN + DAY), seconds=range(50), writes=lambda second: second < 20)
    ],
    "a membership that grew": [
        Writer("a", seconds=range(20)),
        Writer("a", seconds=range(20, END), epoch=2, fields=MEMBERSHIP_2),
        Writer("b", seconds=range(20, END), fields=MEMBERSHIP_2),
    ],
    "a membership that shrank": [
        Writer("b", seconds=range(21), status=ended_at(20), fields=MEMBERSHIP_1),
        Writer("a", seconds=range(20), fields=MEMBERSHIP_1),
        Writer("a", seconds=range(20, END), epoch=2, fields={"version": 2, "size": 1}),
    ],
    "a membership that shrank, and nothing ended": [
        Writer("b", seconds=range(20), fields=MEMBERSHIP_1),
        Writer("a", seconds=range(20), fields=MEMBERSHIP_1),
        Writer("a", seconds=range(20, END), epoch=2, fields={"version": 2, "size": 1}),
    ],
    "a chain of two jobs": [
        Writer(),
        Writer("counts", behind(7), topic="counts", reads="clicks"),
        Writer("means", behind(9), topic="means", reads="counts"),
    ],
    "a job that was restarted": [
        Writer(),
        Writer("counts", behind(7), range(30), topic="counts", reads="clicks"),
        Writer("counts", behind(7), range(33, END), epoch=2, topic="counts", reads="clicks"),
    ],
    "a job whose input is idle": [
        Writer(status=lambda second: Status.IDLE if second > 20 else Status.ACTIVE),
        Writer("counts", until(20, behind(7)), topic="counts", reads="clicks", writes=lambda _: False),
    ],
}


def last_topic(writers):
    return ([writer.topic for writer in writers if writer.reads] or ["clicks"])[-1]


@pytest.mark.parametrize("name", FAULTS)
def test_why_names_the_cause(name):
    writers, (status, source, cause), words = FAULTS[name]
    board, why = asked(*writers, last=last_topic(writers), more=[NOT_READABLE] if cause is Cause.UNREADABLE else ())
    assert why.cause is not None
    assert (why.exit_status, why.cause.source, why.cause.cause) == (status, source, cause)
    assert board.exit_status == status
    said = f"{why.cause.reason}; {why.advice}"
    assert [word for word in words if word not in said] == [], said
    if cause in {Cause.ZOMBIE, Cause.TWINS, Cause.RETIRED}:
        assert "restart it" not in said


def test_a_source_that_starts_again_with_an_older_membership_holds_the_watermark_since_its_last_mark_that_counts():
    board, why = asked(
        Writer("a", seconds=range(20), fields=MEMBERSHIP_2),
        Writer("a", seconds=range(20, END), epoch=2, fields=MEMBERSHIP_1),
        Writer("b", fields=MEMBERSHIP_2),
    )
    clicks = board.topic("clicks")
    assert (clicks.watermark, clicks.since) == (behind(5)(19), BEGIN + 19 * SECOND)
    assert [(row.source, row.verdict, row.cause) for row in clicks.held_by] == [("a", Health.FENCED, Cause.RETIRED)]
    assert [row.source for row in clicks.sources()] == ["a", "b"]
    assert (why.cause.cause, why.exit_status) == (Cause.RETIRED, 1)


def test_a_member_that_never_came_is_named_beside_one_that_starts_again_with_an_older_membership():
    of_three = {"version": 2, "size": 3}
    board, _ = asked(
        Writer("a", seconds=range(20), fields=of_three),
        Writer("a", seconds=range(20, END), epoch=2, fields=MEMBERSHIP_1),
        Writer("b", fields=of_three),
    )
    rows = [(row.source, row.cause) for row in board.topic("clicks").sources()]
    assert rows == [("a", Cause.RETIRED), ("b", None), (None, Cause.MISSING)]


@pytest.mark.parametrize("name", WELL)
def test_why_finds_no_fault_where_there_is_none(name):
    writers = WELL[name]
    board, why = asked(*writers, last=last_topic(writers))
    assert not [row for topic in board.topics() for row in topic.sources() if is_failure(row.verdict)]
    assert (why.exit_status, board.exit_status) == (0, 0)


def test_a_topic_whose_sources_are_idle_has_advice_though_nothing_is_stuck():
    writers = WELL["a job whose input is idle"]
    for last in ("clicks", "counts"):
        board, why = asked(*writers, last=last)
        assert (why.cause, why.exit_status, board.exit_status) == (None, 0, 0)
        assert "All sources of clicks are idle" in why.advice
        assert "end()" in why.advice


def read_from(second, writer):
    """Return the fold of what is read of a source that marks once a second, from a second on, and what it lacks."""
    fold = Fold(["clicks"])
    for offset, (time, topic, number, said, _) in enumerate(writer.marks()):
        if time >= BEGIN + second * SECOND:
            fold.take(Mark(topic, number, offset, time, said))
    return fold.lacking("clicks", [0]), trace(fold.board(BEGIN + END * SECOND), "clicks")


def test_the_event_from_the_future_is_looked_for_further_back():
    writer = Writer(promise=until(20, behind(5), then=BEGIN + 30 * DAY))
    lacking, why = read_from(45, writer)
    assert (lacking, why.exit_status, why.cause.cause) == ({0}, 2, Cause.AHEAD)
    assert "early=" in why.advice
    lacking, why = read_from(10, writer)
    assert (lacking, why.exit_status, why.cause.cause) == (set(), 1, Cause.FUTURE)


@pytest.mark.parametrize("promise", [ahead(DAY), lambda second: BEGIN + DAY + second // 6 * HOUR])
def test_nothing_is_looked_for_where_event_times_are_ahead_all_the_time(promise):
    lacking, why = read_from(45, Writer(promise=promise))
    assert (lacking, why.exit_status) == (set(), 0)


def test_marks_from_around_the_start_show_that_a_source_was_not_always_ahead():
    writer = Writer(promise=lambda second: BEGIN + second * SECOND + (second >= 20) * HOUR)
    fold = Fold(["clicks"])
    for offset, (time, topic, number, said, _) in enumerate(writer.marks()):
        if not BEGIN + 12 * SECOND <= time < BEGIN + 40 * SECOND:
            fold.take(Mark(topic, number, offset, time, said))
    later = [(fold.board(BEGIN + (END + second) * SECOND), second) for second in (0, 8, 10, 300)]
    found = [(board.topic("clicks").held_by[0], trace(board, "clicks").exit_status) for board, _ in later]
    assert [(row.verdict, row.cause, status) for row, status in found] == [(Health.TIME, Cause.FUTURE, 1)] * 4
    history = History()
    for time, _, _, said, _ in Writer(seconds=[*range(12), *range(40, END)]).marks():
        history.take(replace(said, sequence=(time - BEGIN) // SECOND), time)
    assert history.verdict(BEGIN + (END + 8) * SECOND) is Health.OK
    assert history.verdict(BEGIN + (END + 10) * SECOND) is Health.STOP, "what was not read is no pause"


def test_behind_a_source_that_alignment_holds_the_dead_job_is_named():
    held = Writer(promise=until(20, behind(5)), writes=lambda second: second < 20, held=NEAR_COUNTS)
    _, why = asked(held, Writer("counts", behind(9), range(20), topic="counts", reads="clicks"))
    assert [(step.topic, step.held_by.source, step.held_by.cause) for step in why.steps] == [
        ("clicks", "web", Cause.ALIGNED),
        ("counts", "counts", Cause.SILENT),
    ]
    assert (why.cause.source, why.exit_status) == ("counts", 1)


@pytest.mark.parametrize(("late", "named"), [(5, ["counts", "web"]), (9, ["counts"])])
def test_behind_a_dead_job_that_had_read_all_the_dead_source_is_named_too(late, named):
    job = Writer("counts", until(30, behind(late)), range(40), topic="counts", reads="clicks")
    _, why = asked(Writer(seconds=range(31)), job, last="counts")
    assert [step.held_by.source for step in why.steps] == named
    assert (why.cause.source, why.exit_status) == (named[-1], 1)
    assert ("if web does not run" in why.advice) == ("web" in named)
    assert ("check whether job counts runs" in why.advice) == ("web" not in named)
    assert why.advice.endswith(". Then check whether job counts goes on") == ("web" in named), "it waits for its input"
    assert (why.steps[0].held_by.verdict is Health.OK) == ("web" in named)


def test_all_that_fails_is_named_with_its_partitions():
    silent = [
        Writer(name, behind(late), range(30), partitions=3, fields={"size": 4})
        for name, late in (("web-2", 9), ("phone", 7), ("web-1", 5))
    ]
    _, why = asked(*silent, Writer("tv", partitions=3, fields={"size": 4}))
    step = why.steps[0]
    assert (step.held_by.source, step.partitions, step.others) == ("web-2", 3, ("phone", "web-1"))


def test_an_injector_without_new_events_is_no_failure():
    paused = {"writes": lambda second: second < 20, "waits_since": END, "injects": True}
    _, why = asked(Writer(promise=until(20, behind(5)), **paused))
    assert (why.exit_status, why.cause.verdict, why.cause.cause) == (0, Health.WARN, Cause.NO_EVENTS)
    assert "will follow the clock again" in why.advice


def test_a_fault_does_not_hide_what_holds_the_topic():
    """A source is silent, and another has two processes."""
    _, why = asked(
        Writer("a", seconds=range(30), fields=ONE_OF_TWO),
        Writer("b", epoch=1, fields=ONE_OF_TWO),
        Writer("b", epoch=2, fields=ONE_OF_TWO),
    )
    assert (why.cause.source, why.cause.cause, why.steps[0].others) == ("a", Cause.SILENT, ("b",))


@pytest.mark.parametrize(
    ("read", "topic_id", "seconds", "cause"),
    [
        pytest.param({"0": 7}, "old", range(30), Cause.DELETED, id="a restart fails"),
        pytest.param({"0": 9}, "new", range(30), Cause.RECREATED, id="its input was created again"),
        pytest.param({"0": 9}, "old", range(30), Cause.SILENT, id="Kafka has all that it has not read"),
        pytest.param({"0": 9}, None, range(30), Cause.SILENT, id="Kafka tells no id"),
        pytest.param({"0": 7}, "new", range(END), None, id="it runs"),
    ],
)
def test_a_restart_is_not_advised_where_it_fails(read, topic_id, seconds, cause):
    fold, offsets = Fold(), defaultdict(count)
    fold.add("clicks", begins={0: 9}, topic_id=topic_id)
    said = (READ_HEADER, json.dumps({"input_offsets": {"clicks": read}, "topic_ids": {"clicks": "old"}}).encode())
    job = Writer("counts", behind(9), seconds, topic="counts", reads="clicks")
    for time, topic, number, record, _ in sorted((*Writer().marks(), *job.marks()), key=lambda one: one[0]):
        fold.take(Mark(topic, number, next(offsets[topic]), time, record, [said] if topic == "counts" else []))
    why = trace(fold.board(BEGIN + END * SECOND), "counts")
    assert (why.cause and why.cause.cause) == cause
    assert ("Restart it with its checkpoint_location" in why.advice) == (cause is Cause.SILENT)
    assert ("a restart of job counts fails" in why.advice) == (cause in {Cause.DELETED, Cause.RECREATED})
    if cause is Cause.DELETED:
        assert "Kafka has deleted 2 records of clicks that it has not read" in why.cause.reason


def test_a_restart_that_died_at_once_is_silent_by_what_its_earlier_run_did():
    job = {"topic": "counts", "reads": "clicks"}
    runs = [Writer("counts", behind(9), range(0, 20, 2), **job), Writer("counts", behind(9), [20], epoch=2, **job)]
    late = [replace(run, seconds=[second - 2 * MINUTE // SECOND for second in run.seconds]) for run in runs]
    for writers, cause in ((runs, Cause.TOO_FEW_MARKS), (late, Cause.SILENT)):
        _, why = asked(Writer(), *writers, last="counts")
        assert (why.cause.source, why.cause.cause) == ("counts", cause)
