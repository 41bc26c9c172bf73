"""Run and show a trigger: its target, where it begins, and what it fires."""

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from json import dumps
from typing import Any, Final

import typer
from floodmark.producers.cli.command_line import stop_on_signals
from floodmark.producers.clients.clock import Clock
from floodmark.producers.metrics import serve_metrics
from floodmark.producers.readers.replay import retained_since
from floodmark.producers.trigger.http_targets import AirflowAsset, DagsterAsset, Endpoint, HttpHook
from floodmark.producers.trigger.local_targets import CommandTarget, SuccessFile
from floodmark.producers.trigger.plan.periods import DAY, Pattern, instant
from floodmark.producers.trigger.plan.schedule import Fired, Rules
from floodmark.producers.trigger.plan.trigger_event import TriggerEvent
from floodmark.producers.trigger.position_topic import PositionTopic, create_position_topic, read_position
from floodmark.producers.trigger.table_input import TableInput
from floodmark.producers.trigger.target import Delivery, Target
from floodmark.producers.trigger.topic_input import TopicInput
from floodmark.producers.trigger.trigger_loop import Pace, StoredPosition, TriggerLoop, require_same
from floodmark.schemas.errors import UnknownTopicError, UsageError
from floodmark.schemas.errors.base import printable
from floodmark.schemas.timestamps import event_time_of
from rich.console import Console
from rich.markup import escape

_NAME: Final = re.compile(r"[A-Za-z0-9._+-]{1,200}", re.ASCII)
_EARLY: Final = 60_000
"""How far event times may be ahead of Kafka's timestamps, milliseconds."""


def name_of(name: str, topics: tuple[str, ...]) -> str:
    """Return the name of a trigger, by default of its topics; `UsageError` if it cannot be part of a key."""
    found = name or "+".join(topics)
    if not _NAME.fullmatch(found):
        raise UsageError(reason=f"--name is {found!r}, expected 1 to 200 letters, digits, or any of . _ + -")
    return found


def begin_of(text: str) -> int | str:
    """Return the value of ``--from``: a word, or epoch milliseconds; `UsageError` for anything else.

    >>> begin_of("now"), begin_of("1970-01-01T01:00Z")
    ('now', 3600000)
    """
    if text in {"now", "earliest"}:
        return text
    with suppress(ValueError, OverflowError):
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return event_time_of(at.astimezone(UTC))
    expected = "expected 'now', 'earliest', or a time with its zone: 2026-01-31T08:00Z"
    raise UsageError(reason=f"--from is {text!r}, {expected}")


def target_of(
    places: Mapping[str, str | None], asset: str | None, partition: str | None, token: str | None, every: int
) -> Target:
    """Return the target of the options; `UsageError` if they name none, more than one, or a part of one."""
    given = {option: place for option, place in places.items() if place is not None}
    if len(given) != 1:
        raise UsageError(reason=f"a trigger has one target: use one of {', '.join(places)}")
    ((option, place),) = given.items()
    orchestrated = option in {"--airflow", "--dagster"}
    if orchestrated != (asset is not None) or (partition is not None and not orchestrated):
        raise UsageError(reason="--airflow and --dagster need --asset; --asset and --partition are only for them")
    if option == "--run":
        return CommandTarget(place)
    if option == "--success":
        return SuccessFile(Pattern(place, "--success", every))
    endpoint = Endpoint(place, token)
    if option == "--http":
        return HttpHook(endpoint)
    # As the orchestrators write partitions: Airflow's timetables, Dagster's daily and hourly partitions.
    dagster = "{start:%Y-%m-%d}" if every % DAY == 0 else "{start:%Y-%m-%d-%H:%M}"
    default = "{start:%Y-%m-%dT%H:%M:%S}" if option == "--airflow" else dagster
    named = "--partition" if partition else "the default of --partition"
    key = Pattern(partition or default, named, every)
    return (AirflowAsset if option == "--airflow" else DagsterAsset)(endpoint, asset or "", key)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A position that is only read."""

    state: dict[str, Any] | None

    def store(self, state: dict[str, Any]) -> None:
        """Store nothing."""


class _Shown:
    """A target that takes events and does nothing."""

    about: Final = "nothing"

    def fire(self, _event: TriggerEvent) -> str:
        """Do nothing."""
        return "not fired"


def _stored_by(settings: dict[str, str], topic: str, name: str) -> _Stored:
    """Return what is stored; nothing if the topic does not exist."""
    try:
        return _Stored(read_position(settings, topic, name))
    except UnknownTopicError:
        return _Stored(None)


def _input_of(position: StoredPosition) -> Mapping[str, Any] | None:
    return None if position.state is None else position.state["input"]


def _line(event: TriggerEvent, answer: str) -> str:
    late = f", {event.late_rows:,} late rows" if event.late_rows else ""
    missing = "".join(
        f"; missing {'/'.join(str(part) for part in (m['topic'], m['partition'], m['source']) if part is not None)}"
        f" ({m['reason']}{'' if m['watermark'] is None else ' ' + m['watermark']})"
        for m in event.missing[:1]
    )
    more = f" and {len(event.missing) - 1} more" if len(event.missing) > 1 else ""
    return printable(f"{instant(event.start)} .. {instant(event.end)} {event.kind}{late}{missing}{more}: {answer}")


def fire_periods(  # noqa: PLR0913  # each is an option of the command line
    settings: dict[str, str],
    rules: Rules,
    target: Target,
    *,
    opens: Callable[[Mapping[str, Any] | None], TopicInput | TableInput],
    begin: int | str,
    judges: bool,
    pace: Pace,
    position_topic: str,
    metrics_port: str | None,
    until_end: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Fire periods until a signal, the end of the topics, or their present end."""
    with stop_on_signals() as stop, ExitStack() as opened:

        def told(event: TriggerEvent, answer: str) -> None:
            stop.echo(dumps(event.as_dict()) if as_json else _line(event, answer))

        exporter = None if metrics_port is None else serve_metrics(metrics_port)
        position: _Stored | PositionTopic = _stored_by(settings, position_topic, rules.trigger)
        require_same(rules, position.state)  # before its input is opened, which may have other topics
        if not dry_run:
            # An error comes before a topic is created, and before a running process with this name is fenced.
            opens(_input_of(position)).close()
            if create_position_topic(settings, position_topic):
                typer.echo(f"created the compacted topic {position_topic!r} for the positions of triggers", err=True)
            position = PositionTopic(settings, position_topic, rules.trigger)
        source = opens(_input_of(position))
        opened.enter_context(source)
        delivery = Delivery(_Shown() if dry_run else target, pace.retry, told)
        loop = TriggerLoop(rules, source, delivery, position, begin=begin, collect=pace.collect)
        status = opened.enter_context(Console(stderr=True).status("reading"))
        started = loop.schedule is not None
        if loop.schedule is not None:
            typer.echo(_continued_line(rules, begin, loop.schedule.fired), err=True)

        def first_line() -> str:
            first = None if loop.schedule is None else loop.schedule.fired.first
            is_table = isinstance(source, TableInput)
            past = "--from TIME" if is_table else "--from TIME, or --from earliest and --json-field or --event-time"
            line = _first_line(rules.trigger, first, begin, _later(first, source), past, judges=judges)
            return line if first is None or is_table else line + _cut(settings, rules, first)

        def progress() -> None:
            nonlocal started
            if exporter is not None:
                exporter.update(loop.metrics(), source.holders())
            status.update(escape(_state_line(loop)))
            if not started and (loop.schedule is not None or loop.ended):
                started = True
                typer.echo(first_line(), err=True)

        loop.run(stop=stop, until_end=until_end or dry_run, progress=progress)
        progress()
        lines = [_state_line(loop), *_unread_lines(loop, judges=judges)]
        typer.echo("\n".join([*lines, *["--dry-run: nothing was fired or stored"] * dry_run]), err=True)


def _continued_line(rules: Rules, begin: int | str, fired: Fired) -> str:
    """Return where a trigger with a position continues, and whether ``--from`` is not used.

    >>> hourly, fired = Rules("orders", ("orders",), 3_600_000), Fired.begin(0, 0)
    >>> _continued_line(hourly, "now", fired)
    "trigger 'orders' continues: its next complete period begins at 1970-01-01T00:00:00Z."
    """
    line = f"trigger {rules.trigger!r} continues: its next complete period begins at {instant(fired.next)}."
    if isinstance(begin, str) or rules.floor(begin) == fired.first:
        return line
    unused = f"--from is not used: its first period began at {instant(fired.first)}"
    return f"{line} {unused}. To begin elsewhere, use another --name."


def _later(first: int | None, source: TopicInput | TableInput) -> str:
    """Return what the first period is later than; empty if its input has reached it."""
    reached, name = (source.highest, "end of the input") if source.ended else (source.watermark, "watermark")
    if reached is None:
        reached, name = Clock().wall(), "clock"
    return "" if first is None or first <= reached else f", later than the {name} ({instant(reached)})"


def _cut(settings: dict[str, str], rules: Rules, first: int) -> str:
    """Return which records that the first period may need Kafka has deleted; empty if it has them all."""
    retained = retained_since(settings, rules.topics, first - _EARLY)
    cut = [
        f"{topic}/{n} before offset {found.first}" for (topic, n), found in retained.items() if not found.is_complete
    ]
    return f" WARNING: its first periods may lack rows, since Kafka has deleted {', '.join(cut)}." if cut else ""


def _first_line(trigger: str, first: int | None, begin: int | str, later: str, past: str, *, judges: bool) -> str:
    """Return where a new trigger begins; ``first``: ``None``, its topics have ended; ``judges``: it reads event times.

    ``later``: of `_later`; ``past``: the options for earlier periods.

    >>> _first_line("orders", 0, "earliest", "", "--from TIME", judges=True)
    "trigger 'orders' is new: its first period begins at 1970-01-01T00:00:00Z."
    """
    if first is None:
        line = f"trigger {trigger!r} is new, and its input has ended: nothing will fire."
        return f"{line} For the past, use {past}."
    line = f"trigger {trigger!r} is new: its first period begins at {instant(first)}{later}."
    if begin == "now" or later:
        return f"{line} It does not fire earlier periods; for them, use another --name and {past}."
    if begin == "earliest" and not judges:
        return f"{line} It is by the first watermark. To begin with the earliest row, add --json-field or --event-time."
    return line


def _unread_lines(loop: TriggerLoop, *, judges: bool) -> list[str]:
    """Tell that the last rows of topics may lack their periods: a source may write far above its last watermark."""
    if judges or not loop.ended or loop.schedule is None or isinstance(loop.source, TableInput):
        return []
    begin = instant(loop.schedule.fired.next)
    line = f"The topics have ended. The event times of their last rows are not read: no period from {begin} on fires."
    return [f"{line} For such rows, use another --name with --from {begin} and --json-field or --event-time."]


def _state_line(loop: TriggerLoop) -> str:
    watermark = loop.source.watermark
    shown = "unknown" if watermark is None else "end of the input" if loop.source.ended else instant(watermark)
    fired = ", ".join(f"{count:,} {kind}" for kind, count in sorted(loop.delivery.counts.items())) or "nothing fired"
    holds = loop.source.holders()
    held = f"; held by {printable(str(holds[0]))}" if holds and not loop.source.ended else ""
    if loop.delivery.failing:
        held = "; its target has not taken the next event"
    until = "" if loop.schedule is None or loop.delivery.failing else _until(loop.schedule.fired)
    count = loop.source.unreadable if isinstance(loop.source, TopicInput) else 0
    unreadable = f"; {count:,} row(s) without a readable event time" if count else ""
    return f"{fired}{until}; watermark {shown}{held}{unreadable}"


def _until(position: Fired) -> str:
    if position.next == position.first:
        return f"; no complete period yet from {instant(position.first)} on"
    return f"; complete up to {instant(position.next)}"
