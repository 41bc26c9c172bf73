"""Why a source is not well, in words, and what to do about it.  Pure."""

from enum import StrEnum
from typing import Final, NamedTuple

from floodmark.producers.board.source_history import Health, History


class Cause(StrEnum):
    """What stands behind a state or a verdict."""

    SILENT = "silent"
    NO_EVENTS = "no events"
    NO_PROMISE = "no promise"
    NOT_ACKNOWLEDGED = "not acknowledged"
    BUFFERED = "buffered"
    REWOUND = "rewound"
    SLOW = "slow"
    NOTHING_PROMISED = "nothing promised"
    TOO_FEW_MARKS = "too few marks"
    UNREADABLE = "unreadable"
    MISSING = "missing"
    TWINS = "twins"
    ZOMBIE = "zombie"
    RETIRED = "retired"
    SECONDS = "seconds"
    FUTURE = "future"
    AHEAD = "ahead"
    WAITS = "waits"


class _Words(NamedTuple):
    reason: str
    advice: str
    of_a_job: str = ""


_WORDS: Final = {
    Cause.SILENT: _Words(
        "no mark comes from it any more",
        "if {0} runs: create it with background=True, or call poll() at least every interval; if not, "
        "start it again; with lease= readers stop waiting for a dead source",
        "see whether job {0} runs, and what its log says; start it again on its checkpoint",
    ),
    Cause.NO_EVENTS: _Words(
        "its marks come, without records, and its watermark stands",
        "see why {0} has no events; if none are due: mark_idle(), or with_idleness(...) as its strategy",
        "job {0} has input that it does not hand on: see its log, and how long its windows are",
    ),
    Cause.NO_PROMISE: _Words(
        "its marks and its records come, its watermark stands",
        "{0} sends events and promises no more: with explicit(), call advance(); else see which event times it sends",
        "job {0} writes results and hands no watermark on: see its log, and how long its windows are",
    ),
    Cause.NOT_ACKNOWLEDGED: _Words(
        "its marks come, its watermark stands: Kafka has yet to acknowledge a record of it",
        "see whether Kafka accepts what {0} writes; what it refused stands in producer.failed: resend()",
    ),
    Cause.BUFFERED: _Words(
        "it works off what comes and holds it, its watermark stands: the data is late, nothing is stuck",
        "{0} waits for event times: see how long its windows and its hold are",
        "job {0} keeps up and holds what it has read for its event time: see how long its windows and its hold are",
    ),
    Cause.REWOUND: _Words(
        "it promises less than it did before",
        "{0} began anew with a lower watermark: what it sends below the old one is late until it has caught up",
    ),
    Cause.SLOW: _Words(
        "its watermark rises more slowly than the clock",
        "{0} does not keep up: see what it waits for, or share its work among more sources",
        "job {0} does not keep up: more partitions, more cores, or larger batches",
    ),
    Cause.NOTHING_PROMISED: _Words(
        "it has promised nothing yet",
        "{0} promises with its first event, or by advance()",
        "job {0} promises once its inputs do, and its first batches are through",
    ),
    Cause.TOO_FEW_MARKS: _Words("too few marks to tell", "wait for ten marks of {0}"),
    Cause.UNREADABLE: _Words(
        "its last mark cannot be read",
        "readers wait for the next readable mark of {0}: see which program, and which version of it, wrote this one",
    ),
    Cause.MISSING: _Words(
        "the membership counts on it, and it has not reported",
        "start {0}; if it is not to come, let the others speak under a higher membership version without it",
    ),
    Cause.TWINS: _Words(
        "two processes write under this name: readers ignore the marks of epoch {older}, for epoch {newer} is higher",
        "stop one of the two processes, or give each its own source name and count both in the membership; the rows of "
        "the older process are read, and no watermark waits for them",
        "job {0} runs twice: stop one of the two, or give it another name and output topic",
    ),
    Cause.ZOMBIE: _Words(
        "a process with epoch {older} still writes, but readers ignore its marks: the process with epoch {newer} came "
        "later, and has stopped",
        "stop the process of {0} that still writes, then start one new process; without epoch= it takes a higher epoch",
    ),
    Cause.RETIRED: _Words(
        "it still writes, under membership {older} alone, and the topic is at membership {newer}: no watermark covers "
        "its rows",
        "give {0} the membership that the other sources have: change_membership(), or membership= at its next start",
    ),
    Cause.SECONDS: _Words(
        "its watermark is in 1970, as if its event times were seconds and not milliseconds",
        "let {0} pass milliseconds (event_time=time * 1000, or an aware datetime) and restart it; where its times are "
        'read from values, name their unit: json(..., unit="s"), floodmark inject --unit s',
    ),
    Cause.FUTURE: _Words(
        "an event made its watermark jump ahead of the clock, and its next events are late",
        "find the event of {0} that is ahead of the clock; refuse such events with early= (floodmark inject: --early), "
        "and restart it",
    ),
    Cause.AHEAD: _Words(
        "its records come, and its watermark stands ahead of the clock; the mark with which it got there is too far "
        "back to be read",
        "if the events of {0} are not bookings or forecasts, one of them came from the future: refuse such events with "
        "early= (floodmark inject: --early), and restart it",
    ),
    Cause.WAITS: _Words("it waits for its input", ""),
}
_OF_A_VERDICT: Final = {Health.STOP: Cause.SILENT, Health.REWIND: Cause.REWOUND, Health.WARN: Cause.SLOW}


def cause_of(history: History, verdict: Health | None, now: int) -> Cause | None:
    """Return why a source is not well, by its own marks; ``None``: it is.

    Args:
        history: its marks.
        verdict: on them.
        now: the reader's clock, epoch milliseconds.
    """
    if verdict is None and history.may_have_jumped(now):
        return Cause.AHEAD
    if verdict is None:
        waits = history.is_active and history.watermark is None
        return Cause.NOTHING_PROMISED if waits else Cause.TOO_FEW_MARKS
    if verdict is Health.STALL:
        return _of_a_stall(history)
    if verdict is Health.FENCED:
        return Cause.TWINS if history.lives(now) else Cause.ZOMBIE
    if verdict is Health.TIME:
        return Cause.SECONDS if history.is_in_seconds(now) else Cause.FUTURE
    return _OF_A_VERDICT.get(verdict)


def _of_a_stall(history: History) -> Cause:
    mark = history.mark
    is_job = mark is not None and mark.holder is not None
    if is_job and history.works_off:
        return Cause.BUFFERED
    if not is_job and mark is not None and mark.processing_time_watermark is not None and not history.works_off:
        return Cause.NOT_ACKNOWLEDGED
    return Cause.NO_PROMISE if history.brings_records else Cause.NO_EVENTS


def reason_of(cause: Cause | None, older: object = None, newer: object = None) -> str:
    """Say in a few words what a source's marks show; empty where it is well.

    >>> reason_of(Cause.SILENT)
    'no mark comes from it any more'
    """
    return "" if cause is None else _WORDS[cause].reason.format(older=older, newer=newer)


def advice_on(cause: Cause | None, source: str | None, *, is_job: bool = False) -> str:
    """Say what to do; empty where there is nothing to do.

    >>> advice_on(Cause.TOO_FEW_MARKS, "web")
    'wait for ten marks of web'
    """
    if cause is None:
        return ""
    words = _WORDS[cause]
    return (words.of_a_job if is_job and words.of_a_job else words.advice).format(source or "the missing source")
