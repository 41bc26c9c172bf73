"""The command ``catch-up``: how far a job has read its topics, and how long it takes to catch up."""

import math
from json import dumps
from typing import TYPE_CHECKING, Annotated, Final

import typer
from floodmark.producers.cli.command_line import BootstrapServers, ConfigFile, moment, option, quietly, span

if TYPE_CHECKING:
    from floodmark.producers.board.estimate import Estimate, JobProgress, TopicGap
    from floodmark.producers.readers.input_backlog import InputBacklog

_MINUTE: Final = 60_000
_SKEWED: Final = 2.0  # warn of a partition with this many times its share


def catch_up(  # noqa: PLR0913  # each is an option of the command line
    topics: Annotated[list[str], typer.Argument(help="Input topics of the job.")],
    *,
    bootstrap_servers: BootstrapServers = None,
    output: Annotated[
        str | None, option("Output topic of the job: its last marks say how far the job has read.")
    ] = None,
    since: Annotated[
        str | None,
        option("Time up to which the job has read: 2026-01-31T08:00:00Z. All that was written since is unread."),
    ] = None,
    group: Annotated[str | None, option("Consumer group whose committed offsets say how far the job has read.")] = None,
    rate: Annotated[
        float | None, option("Records per second that the job reads; with --output, default: as lately.")
    ] = None,
    over: Annotated[float, option("Minutes over which to measure how fast the topics grow.", min=1)] = 10,
    config: ConfigFile = None,
    json: Annotated[bool, option("Print one JSON object.", "--json")] = False,
) -> None:
    """Estimate how long a job takes to catch up with its input topics.

    The estimate divides the number of unread records by the rate of the job (--rate) minus the growth of the topics.
    Unread records, marks among them, are counted from --output (a Floodmark job), --since or --group; default: from
    the beginning.  A topic grows at the higher rate of the last minute and the last --over minutes.  Records count by
    Kafka's timestamps; the copies of an injector, which keep older timestamps, by the time at which it wrote them.

    To measure the rate of a job, start it: print(job.backlog()) shows it after a few batches.  Without a rate, the
    command shows which rates would be enough.  With --output, the default is the rate of the last batches, if the job
    was behind then: a job that keeps up reads only as fast as its input grows.

    A job that has ended ("ended" with --json) reads nothing more.

    Exit status: 0 the job catches up, 1 it never does, 2 unknown (the rate, what an open transaction hides, or
    whether the job has read records that Kafka has deleted), or an error.
    """
    from floodmark.producers.board.estimate import Estimate, JobProgress
    from floodmark.producers.cli.settings import kafka_settings
    from floodmark.producers.clients.clock import Clock
    from floodmark.producers.readers.input_backlog import InputBacklog, progress_of
    from floodmark.schemas.errors import UsageError
    from floodmark.schemas.errors.base import printable

    if sum(option is not None for option in (output, since, group)) > 1:
        raise UsageError(reason="--output, --since and --group each say how far the job has read: use one of them")
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise UsageError(reason=f"--rate is {rate:g}, expected records a second, above 0")
    if not math.isfinite(over):
        raise UsageError(reason=f"--over is {over:g}, expected minutes")
    settings = kafka_settings(bootstrap_servers, config)
    with quietly():
        now = Clock().wall()
        time = None if since is None else _time(since, now)
        backlog = InputBacklog(settings, topics)
        job = JobProgress("", [], [], ended=False) if output is None else progress_of(settings, output, topics)
        if job.marks and not job.reads:
            time = job.marks[-1].processing_time
        if group is not None:
            read = backlog.offsets_of_group(group)
        else:
            read = {**(backlog.offsets_at(None) if time is None else backlog.offsets_since(time)), **job.read}
        gaps = backlog.gaps(read, now, {int(over * _MINUTE), _MINUTE})
        estimate = Estimate(now, gaps, rate if rate is not None else _pace(backlog, job), job.ended)
    typer.echo(dumps(estimate.as_json()) if json else "\n".join(_lines(estimate, time, printable(job.job))))
    raise typer.Exit(estimate.exit_status)


def _time(text: str, now: int) -> int:
    from datetime import datetime

    from floodmark.schemas.errors import InvalidEventTimeError, UsageError
    from floodmark.schemas.timestamps import event_time_of

    try:
        time = event_time_of(datetime.fromisoformat(text))
    except (ValueError, InvalidEventTimeError) as error:
        reason = f"--since is {text!r}, expected a time with its zone: 2026-01-31T08:00:00Z"
        raise UsageError(reason=reason) from error
    if time > now:
        raise UsageError(reason=f"--since is {text}, which is in the future")
    return time


def _pace(backlog: "InputBacklog", job: "JobProgress") -> float | None:
    """Return the rate of a job in records per second; ``None``: unknown, or the job kept up and may be faster."""
    marks, reads = job.marks, job.reads
    if not marks or marks[-1].at - marks[-1].processing_time < _MINUTE:
        return None
    if len(reads) < 2:  # noqa: PLR2004  # its times say less: records need not be in the order of their timestamps
        reads = [(mark.at, backlog.offsets_at(mark.processing_time)) for mark in (marks[0], marks[-1])]
    (began, before), (at, after) = reads[0], reads[-1]
    read = sum(after[place] - before[place] for place in backlog.offsets_at(None) if place in before and place in after)
    return read * 1_000 / (at - began) if read > 0 and at > began else None


def _lines(estimate: "Estimate", time: int | None, job: str) -> list[str]:
    lines = [f"{job} has ended: its output has the end mark"] if estimate.ended else []
    if time is not None:
        lines.append(f"read up to {moment(time, estimate.now)}, {span(estimate.now - time)} ago")
    for gap in estimate.gaps:
        lines += _gap_lines(gap, by_group=time is None)
    if estimate.ended:
        never = "never: start a job over with a new checkpoint_location and output, or start an injector again"
        return [*lines, never if estimate.unread or estimate.deleted else "nothing is unread"]
    sizes = [size for gap in estimate.gaps for size in gap.unread]
    share = max(sizes, default=0) / max(1, estimate.unread)
    if share * len(sizes) >= _SKEWED:
        lines.append(f"one partition holds {share:.0%} of the unread records, and one core reads it")
    seconds, records, pace = estimate.seconds, estimate.records, estimate.read_rate or 0.0
    if seconds is not None and records is not None:
        at = moment(estimate.now + round(seconds * 1_000), estimate.now)
        reads = f"{records:,} records at {pace:,.0f} a second" if estimate.unread else "nothing is unread"
        return [*lines, f"caught up in {span(round(seconds * 1_000))}, at {at}: {reads}"]
    if estimate.deleted:
        return [*lines, "never: the job fails, or skips these records"]
    if estimate.read_rate is not None:
        return [*lines, f"never: it reads {pace:,.0f} a second, and the topics grow by {estimate.arrival_rate:,.0f}"]
    known = "pass --rate, or --output of a job that has run some batches while behind"
    lines.append(f"Time unknown: {known}. Rate needed to catch up in:")
    rates = (f"  {span(at * 1_000):>6}: {math.ceil(estimate.rate_for(at)):,} a second" for at in (60, 600, 3_600))
    return [*lines, *rates]


def _gap_lines(gap: "TopicGap", *, by_group: bool) -> list[str]:
    most = f", the largest {max(gap.unread):,}" if len(gap.unread) > 1 else ""
    parts = f"{len(gap.unread)} partition{'s' * (len(gap.unread) > 1)}{most}"
    pace = f"{gap.arrival_rate:,.1f}".removesuffix(".0")  # below the rates to catch up, which are rounded up
    lines = [f"{gap.topic}: {gap.total:,} unread in {parts}; grows by {pace} a second"]
    if gap.assumed:
        why = "without an offset of the group" if by_group else "without a record from before"
        lines.append(f"{gap.assumed} of them {why}: all of their records count as unread")
    if gap.unsure:
        lines.append(f"Kafka has deleted records of {gap.topic} there: check whether the job has read them")
    if gap.hidden:
        lines.append(f"an open transaction hides the records from {gap.hidden} on, which are not counted")
    if gap.deleted:
        lost = f"Kafka has deleted {gap.deleted:,} records of {gap.topic} that the job has not read"
        lines.append(f"{lost}: see 'not available in Kafka any more' in OPERATING.md")
    return lines
