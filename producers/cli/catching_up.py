"""How the command ``catch-up`` asks the topics, and says what comes of it."""

import logging
from datetime import UTC, datetime
from typing import Final

from floodmark.producers.board.estimate import Estimate, Mark
from floodmark.producers.cli.command_line import COULD_NOT, ended_by_signals, moment, span
from floodmark.producers.clients.clock import Clock
from floodmark.producers.readers.positions import Positions, last_marks
from floodmark.schemas.errors import UsageError
from floodmark.schemas.timestamps import event_time_of

_MINUTE: Final = 60_000
_SKEWED: Final = 2.0
"""A partition with so many times its share is worth a word."""


def estimated(
    settings: dict[str, str],
    topics: list[str],
    output: str | None,
    since: str | None,
    group: str | None,
    rate: float | None,
    over: float,
) -> tuple[Estimate, int | None]:
    """Return the estimate, and the time up to which the job has read (epoch milliseconds); ``None``: it is not known.

    The arguments are the options of the command.
    """
    logging.disable()
    try:
        with ended_by_signals(COULD_NOT):
            now = Clock().wall()
            time = None if since is None else _time(since, now)
            positions = Positions(settings, topics)
            marks = [] if output is None else last_marks(settings, output)
            if marks:
                time = marks[-1].processing_time
            begins = positions.begins() if time is None else positions.at(time)
            read = positions.of_group(group) if group is not None else begins
            gaps = positions.gaps(read, now, {int(over * _MINUTE), _MINUTE})
            estimate = Estimate(now, gaps, rate if rate is not None else _pace(positions, marks))
    finally:
        logging.disable(logging.NOTSET)
    return estimate, time


def _time(text: str, now: int) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = datetime.fromtimestamp(0)  # noqa: DTZ006  # refused with the times that have no zone
    if at.tzinfo is None:
        raise UsageError(reason=f"--since is {text!r}, expected a time with its zone: 2026-01-31T08:00:00Z")
    time = event_time_of(at.astimezone(UTC))
    if time > now:
        raise UsageError(reason=f"--since is {text}, which is not over yet")
    return time


def _pace(positions: Positions, marks: list[Mark]) -> float | None:
    """Return how quickly a job has lately read; ``None``: it does not tell, or has kept up, and may be quicker."""
    if not marks or marks[-1].at - marks[-1].processing_time < _MINUTE or marks[-1].at == marks[0].at:
        return None
    before, after = (sum(positions.at(mark.processing_time).values()) for mark in (marks[0], marks[-1]))
    return (after - before) * 1_000 / (marks[-1].at - marks[0].at) or None


def lines_of(estimate: Estimate, time: int | None) -> list[str]:
    """Return the estimate as people read it."""
    lines = [] if time is None else [f"read up to {moment(time, estimate.now)}, {span(estimate.now - time)} ago"]
    for gap in estimate.gaps:
        most = f", the largest {max(gap.unread):,}" if len(gap.unread) > 1 else ""
        parts = f"{len(gap.unread)} partition{'s' * (len(gap.unread) > 1)}{most}"
        lines.append(f"{gap.topic}: {gap.total:,} unread in {parts}; {gap.arrival_rate:,.0f} come a second")
    partitions = sum(len(gap.unread) for gap in estimate.gaps)
    if estimate.largest_share * partitions >= _SKEWED:
        lines.append(f"one partition holds {estimate.largest_share:.0%} of it, and is read by one core at a time")
    seconds, records, pace = estimate.seconds, estimate.records, estimate.read_rate or 0.0
    if seconds is not None and records is not None:
        at = moment(estimate.now + round(seconds * 1_000), estimate.now)
        reads = f"{records:,} records at {pace:,.0f} a second" if estimate.unread else "nothing is unread"
        return [*lines, f"caught up in {span(round(seconds * 1_000))}, at {at}: {reads}"]
    if estimate.read_rate is not None:
        return [*lines, f"never: {pace:,.0f} a second are read, and {estimate.arrival_rate:,.0f} come"]
    lines.append("how long it takes is not known without its pace (--rate); it takes")
    return [
        *lines,
        *(f"  {span(at * 1_000):>6} at {estimate.rate_for(at):,.0f} a second" for at in (60, 600, 3_600)),
    ]
