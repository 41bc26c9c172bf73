"""Why a source holds its topic back, in words, and what to do about it.  Pure."""

from enum import StrEnum
from typing import Final, NamedTuple

from floodmark.producers.board.source_history import Health, History


class Cause(StrEnum):
    """The reason of a state or a verdict."""

    SILENT = "silent"
    SILENT_HERE = "silent here"
    HIDDEN = "hidden"
    DELETED = "deleted"
    RECREATED = "recreated"
    SHARDS = "shards"
    NO_EVENTS = "no events"
    NO_PROMISE = "no promise"
    NOT_ACKNOWLEDGED = "not acknowledged"
    BUFFERED = "buffered"
    REWOUND = "rewound"
    SLOW = "slow"
    RESTARTS = "restarts"
    NOTHING_PROMISED = "nothing promised"
    TOO_FEW_MARKS = "too few marks"
    ONE_MARK = "one mark"
    UNREADABLE = "unreadable"
    MISSING = "missing"
    SIZES = "sizes"
    TWINS = "twins"
    ZOMBIE = "zombie"
    RETIRED = "retired"
    UNCOUNTED = "uncounted"
    RENAMED = "renamed"
    UNSEEN = "unseen"
    SECONDS = "seconds"
    FUTURE = "future"
    AHEAD = "ahead"
    IDLE = "idle"
    WAITS = "waits"
    OUTLIVED = "outlived"
    ALIGNED = "aligned"
    BEFORE_INPUT = "before its input"


class _Words(NamedTuple):
    reason: str
    advice: str
    of_a_job: str = ""
    of_an_injector: str = ""


_JOBS: Final = "Jobs that have read the event keep the high watermark: then run floodmark why on their output topics"
_RESTART: Final = (
    "if {0} does not run or is paused, restart it. If it runs with background=False, leave that out, or call poll() "
    "once an interval"
)
_INJECT: Final = "if {0} does not run or is paused, restart it (floodmark inject). Its log says why it fails"
_REJECT: Final = f"Reject such events with early=, and restart {{0}}. {_JOBS}"
_RESET: Final = f"Restart {{0}} with a smaller --early, and --reset, after which its readers start over, too. {_JOBS}"
_LOG: Final = (
    "read the log of {0}. It fails, or two processes use its name and stop each other: then stop one of the two"
)
_WORDS: Final = {
    Cause.SILENT: _Words(
        "it no longer sends marks",
        f"{_RESTART}. If it never returns, start it once and call end() or, if the topic has other "
        "sources, give them a membership with a higher version that does not count it",
        "check whether job {0} runs, and read its log. Restart it with its checkpoint_location",
        f"{_INJECT}, or for which open transaction it waits. If it is not needed any more, run it once with "
        "--until-end --end",
    ),
    Cause.SILENT_HERE: _Words(
        "it sends marks to other partitions, and no longer to this one",
        "{0} runs: do not restart it, but check whether Kafka accepts its records there",
        of_an_injector="if {0} is a group, a member may have died: start it again, or wait until the others have its "
        "partitions (session.timeout.ms, 45 s). Otherwise find the program whose open transaction stops this partition "
        "of its input or output",
    ),
    Cause.HIDDEN: _Words(
        "an open transaction hides its marks from offset {older} on",
        "if {0} does not run, restart it, which aborts its own transaction. If it runs, find out whose transaction is "
        "open (kafka-transactions.sh describe-producers): if it is that of {0}, wait; else end its program. Kafka "
        "aborts a transaction after the transaction.timeout.ms of its program",
    ),
    Cause.DELETED: _Words(
        "it has stopped, and Kafka has deleted {older} records of {newer} that it has not read",
        "a restart of job {0} fails: start it over with a new checkpoint_location and a new output, and keep its input "
        "longer (retention.ms)",
    ),
    Cause.RECREATED: _Words(
        "it has stopped, and {older} was deleted and created again since it last read it",
        "a restart of job {0} fails: start it over with a new checkpoint_location and a new output",
    ),
    Cause.SHARDS: _Words(
        "it no longer sends marks: its executors have not written {older} of {newer} shards of its batch",
        "check whether job {0} and its executors run and reach Kafka, and read their logs. If the job does not run, "
        "restart it with its checkpoint_location",
    ),
    Cause.NO_EVENTS: _Words(
        "it sends marks but no records there, and its watermark does not advance",
        "check why {0} has no events there. If it expects none, call mark_idle(), or use with_idleness() and "
        "wait for its timeout",
        "job {0} reads input and writes nothing: read its log, and check how long its windows are",
        "nothing, if its input has no new records: while {0} runs, its watermark will follow the clock again, behind "
        "by --late, its pauses, and the age of the last record at its first start",
    ),
    Cause.NO_PROMISE: _Words(
        "it sends marks and records, but its watermark does not advance",
        "with explicit(), {0} has to call advance(). With another strategy, check the event times that {0} sends",
        "job {0} writes results, but its watermark does not advance: read its log, and check how long its windows are",
    ),
    Cause.NOT_ACKNOWLEDGED: _Words(
        "it sends marks, but its watermark does not advance: Kafka has not acknowledged one of its records",
        "check whether Kafka accepts the records of {0}. producer.failed holds rejected records: call resend()",
    ),
    Cause.BUFFERED: _Words(
        "it reads its input and buffers it, and its watermark does not advance: the data is late, nothing is stuck",
        "{0} waits for later event times: check how long its windows and its watermark_hold are",
        "job {0} keeps up and waits for later event times: check how long its windows and its watermark_hold are",
    ),
    Cause.REWOUND: _Words(
        "its watermark is lower than before: an earlier run had {older}",
        "{0} restarted with a lower watermark. For readers that have the old one, its records below that are late. If "
        "the old one was ahead of the clock, {0} is right now, but jobs that read it may be ahead: run floodmark why "
        "on their output topics",
    ),
    Cause.SLOW: _Words(
        "its watermark falls behind the clock",
        "{0} has no new events, or does not keep up: check what it waits for, or divide its work among more sources",
        "job {0} does not keep up: add partitions or cores, or allow larger batches",
    ),
    Cause.RESTARTS: _Words(
        "it has restarted three times within two minutes",
        _LOG,
        "read the log of job {0}: it fails, or runs twice, and the two stop each other. Then stop one of the two",
        f"{_LOG}. Members of a group that come and go look the same",
    ),
    Cause.NOTHING_PROMISED: _Words(
        "it has no watermark yet",
        "{0} has a watermark after its first event with a readable time, or after advance(). If it expects none, call "
        "mark_idle()",
        "job {0} has a watermark when its inputs have one and its first batches are done",
        "{0} has a watermark after its first event with a readable time; it waits for open transactions in its input",
    ),
    Cause.TOO_FEW_MARKS: _Words("it has sent too few marks to judge", "wait for ten marks of {0}"),
    Cause.ONE_MARK: _Words(
        "only one mark of it was read",
        _RESTART,
        "check whether job {0} still runs: it sends marks after each batch, and runs none without new input",
        _INJECT,
    ),
    Cause.UNREADABLE: _Words(
        "its last mark cannot be read",
        "readers wait for the next readable mark of {0}. Find the program, and its version, that wrote this one",
    ),
    Cause.MISSING: _Words(
        "the membership includes it, but it has not reported",
        "start {0}. If it no longer exists, give the other sources a membership with a higher version without it",
    ),
    Cause.SIZES: _Words(
        "sources gave one membership version the sizes {older}, and readers wait for {newer} sources",
        "give all sources one membership with a higher version and the right size: change_membership(), or membership= "
        "at their next start",
    ),
    Cause.TWINS: _Words(
        "two processes use this source name: readers ignore the marks of epoch {older}, since epoch {newer} is higher",
        "stop one of the two processes, or give each its own source name and count both in the membership. Readers "
        "read the rows of the older process, but no watermark waits for them",
        "job {0} runs twice: stop one of the two, or give one a new name and output topic",
    ),
    Cause.ZOMBIE: _Words(
        "a process with epoch {older} still writes, but readers ignore its marks: a process with epoch {newer} started "
        "later, and has stopped",
        "stop the process of {0} that still writes, then start one new process. Without epoch= it takes a higher epoch",
    ),
    Cause.RETIRED: _Words(
        "it still writes with membership {older}, but the topic has membership {newer}: no watermark covers its rows",
        "if the new membership counts {0}, give it to {0}: change_membership(), or membership= at the next start. If "
        "not, give all sources a higher version that counts {0}",
    ),
    Cause.UNCOUNTED: _Words(
        "{older} sources write to the topic, but its membership counts {newer}: the watermark may advance without one, "
        "or wait for one that has stopped",
        "count all sources of the topic in membership= of {0} and of the others, with a higher version than now",
        of_an_injector="injectors have no membership: end all but one with --until-end --end",
    ),
    Cause.RENAMED: _Words(
        "{older} sources have marked the topic, its membership counts {newer}, and this one no longer sends marks",
        "if {0} started again under another name, stop that process and start it as {0}. If {0} does not run, restart "
        "it. If it never returns, give the other sources a membership with a higher version that does not count it",
    ),
    Cause.UNSEEN: _Words(
        "a job waits for it, and none of its marks is among the last records of the topic",
        "if {0} does not run, restart it; it may call end(). If the job is far behind, wait until it has caught up",
    ),
    Cause.SECONDS: _Words(
        "its watermark is in 1970, as if its event times were seconds and not milliseconds",
        "pass milliseconds in {0} (event_time=time * 1000, or an aware datetime) and restart it. If times come from "
        'values, set their unit: json(..., unit="s")',
        of_an_injector="restart {0} with --unit s and --reset, after which its readers start over, too",
    ),
    Cause.FUTURE: _Words(
        "an event moved its watermark ahead of the clock, so events with right times are late",
        "check the clock and the time zone of the events of {0}, or find the one that is ahead of the clock. "
        + _REJECT,
        of_an_injector="find the event of its input that is ahead of the clock. " + _RESET,
    ),
    Cause.AHEAD: _Words(
        "it sends records, and its watermark is ahead of the clock; the mark that moved it there is too old to be read",
        "if the events of {0} are not bookings or forecasts, one of them had a time in the future. " + _REJECT,
        of_an_injector="if its events are not bookings or forecasts, one of them had a time in the future. " + _RESET,
    ),
    Cause.IDLE: _Words(
        "all sources are idle",
        "if nothing more comes, call end(). All sources of {0} are idle, and its watermark advances when one of them "
        "writes again",
    ),
    Cause.WAITS: _Words("it waits for its input", ""),
    Cause.OUTLIVED: _Words(
        "it has ended, and does not read what its input has received since",
        "start job {0} with a new checkpoint_location and a new output: it then reads its input from the "
        "beginning. A source that will write again must not end, only be idle",
    ),
    Cause.ALIGNED: _Words(
        "alignment makes it wait for topic {older}, whose watermark is {newer}",
        "if that topic itself waits for {0}, raise the bound of the alignment of {0}",
    ),
    Cause.BEFORE_INPUT: _Words(
        "its watermark is ahead of the clock, and that of its input is not: an event with a time in the future was "
        "read, and all rows until then are late",
        "start job {0} over with a new checkpoint_location, a new output and "
        "ReadOptions(max_offsets_per_trigger=None), and so the jobs that read its output. Its first batch then reads "
        "past this event. If that is too much for one batch, use Start(output_at=) with a time after the restart of "
        "the source of this event",
    ),
}


def cause_of(history: History, verdict: Health | None, now: int, *, lives: bool = False) -> Cause | None:
    """Return why a source is not well, by its marks in a partition; ``None`` if it is well.

    ``now``: epoch milliseconds.  ``lives``: whether it still writes, in any partition.
    """
    if verdict is None:
        return _of_an_unknown(history, now)
    often = history.restarts_often(now)
    if verdict is Health.STALL or (verdict is Health.WARN and history.stands and not often):
        return _of_a_stall(history)
    if verdict is Health.FENCED:
        return Cause.TWINS if history.lives(now) else Cause.ZOMBIE
    if verdict is Health.TIME:
        return Cause.SECONDS if history.is_in_seconds(now) else Cause.FUTURE
    silent = Cause.SILENT_HERE if lives else Cause.SILENT
    warned = Cause.RESTARTS if often else Cause.SLOW
    return {Health.STOP: silent, Health.REWIND: Cause.REWOUND, Health.WARN: warned}.get(verdict)


def _of_an_unknown(history: History, now: int) -> Cause:
    if history.may_have_jumped(now):
        return Cause.AHEAD
    if history.restarts_often(now):
        return Cause.RESTARTS
    if history.stops_at_one(now):
        return Cause.ONE_MARK
    return Cause.NOTHING_PROMISED if history.is_active and history.watermark is None else Cause.TOO_FEW_MARKS


def _of_a_stall(history: History) -> Cause:
    mark = history.mark
    is_job = mark is not None and mark.holder is not None
    if is_job and history.works_off:
        return Cause.BUFFERED
    if history.awaits_acknowledgement:
        return Cause.NOT_ACKNOWLEDGED
    return Cause.NO_PROMISE if history.brings_records else Cause.NO_EVENTS


def reason_of(cause: Cause | None, older: object = None, newer: object = None) -> str:
    """Return in a few words what a source's marks show; empty if it is well."""
    return "" if cause is None else _WORDS[cause].reason.format(older=older, newer=newer)


def advice_on(cause: Cause | None, source: str | None, *, is_job: bool = False, injects: bool = False) -> str:
    """Return what to do; empty if there is nothing to do.

    >>> advice_on(Cause.TOO_FEW_MARKS, "web")
    'wait for ten marks of web'
    """
    if cause is None:
        return ""
    words = _WORDS[cause]
    special = words.of_an_injector if injects else words.of_a_job if is_job else ""
    return (special or words.advice).format(source or "the missing source")
