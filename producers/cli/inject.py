"""Run and show an injection, alone or as a member of a group."""

from collections import Counter
from json import dumps
from typing import Final

import typer
from floodmark.producers.cli.command_line import stop_on_signals
from floodmark.producers.clients.admin import create_topics, existing_topics, require_topics
from floodmark.producers.clients.clock import Deadline
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.group import InjectorGroup
from floodmark.producers.injector.injector import Injector
from floodmark.producers.injector.partitions import measured
from floodmark.producers.injector.preview import preview_injection, require_input, require_start
from floodmark.producers.injector.topics import decisions_of, require_unmarked_input
from floodmark.producers.metrics import serve_metrics
from floodmark.producers.readers.alignment import Alignment
from floodmark.schemas.partition_state import lowest
from floodmark.schemas.timestamps import to_datetime
from rich.console import Console
from rich.markup import escape

_PATIENCE: Final = 10.0  # seconds; longer without a step, it waits for an open transaction, or for Kafka
_REPORT: Final = 60.0  # seconds between updates of metrics amid a transaction; an alert waits for 300
_CHANGES: Final = ("unreadable_headers", "headers_removed", "timestamps_replaced")


def reached(injector: Injector | InjectorGroup) -> str | None:
    """Return the lowest watermark of an injection in ISO 8601, UTC; ``None``: unknown."""
    watermark = lowest(injector.watermarks.values())
    return None if watermark is None else to_datetime(watermark).isoformat()


def injection_line(injector: Injector | InjectorGroup) -> str:
    """Return the progress of an injection as one line."""
    watermark = reached(injector)
    place = f"watermark {watermark or 'unknown'}" if injector.watermarks else "no partitions assigned"
    found = injector.outcomes + Counter({name: injector.counts[name] for name in _CHANGES})
    outcomes = ", ".join(f"{count:,} {outcome.replace('_', ' ')}" for outcome, count in sorted(found.items()) if count)
    trouble = f"; first problem: {injector.first_trouble}" if injector.first_trouble else ""
    read = f"{injector.counts['records']:,} records read"
    if not outcomes and not injector.counts["records"] and injector.watermarks:
        return f"{read}, none to read yet; {place}" + ("" if watermark is None else " by the clock")
    totals = "; since the first run " if injector.outcomes.total() > injector.counts["records"] else ", "
    if isinstance(injector, InjectorGroup) and injector.partitions:
        totals = "; its present partitions, since the first run: "
    return f"{read}{outcomes and totals}{outcomes}; {place}{trouble}"


def injection_json(injector: Injector | InjectorGroup) -> str:
    """Return the same as a JSON object, which always has the same keys; ``outcomes`` has those that occurred."""
    counts, metrics = injector.counts, injector.metrics()
    found = {
        **{name: counts[name] for name in ("records", "marks", "transactions", *_CHANGES)},
        **{name: getattr(metrics, name) for name in measured(Counter())},
        "outcomes": injector.outcomes if injector.watermarks else {},
        "watermarks": injector.watermarks,
        "watermark_utc": reached(injector),
    }
    return dumps(found)


def show_preview(injection: Injection, settings: dict[str, str], *, reset: bool) -> None:
    """Show the decisions on the next records; a `FloodmarkError` if none has a readable time."""
    preview = preview_injection(injection, settings, reset=reset)
    typer.echo("\n".join([*preview.lines(), f"{preview.records:,} records read, nothing written"]))
    preview.require_time()


def _create_target(injection: Injection, settings: dict[str, str], *others: str | None) -> None:
    """Create the output topic, unless it exists, after all checks of the input and of ``others`` that an injector has.

    So an error of these checks leaves no empty topic.
    """
    if injection.target_topic in existing_topics(settings):
        return
    source = injection.source_topic
    sizes = require_topics(settings, [source, *(topic for topic in others if topic is not None)])
    require_unmarked_input(settings, injection)
    require_input(injection, settings)
    create_topics(settings, {injection.target_topic: sizes[source]})


def run_injection(  # noqa: PLR0913  # each is an option of the command line
    injection: Injection,
    settings: dict[str, str],
    group: str | None,
    *,
    create: bool,
    decisions_from: str | None,
    reset: bool,
    alignment: Alignment | None,
    metrics_port: str | None,
    until_end: bool,
    end: bool,
    as_json: bool,
) -> None:
    """Run an injection, or a member of a group, until a signal or the end of the input, and commit what was read."""
    injector: Injector | InjectorGroup
    with stop_on_signals(_PATIENCE) as stop:
        decisions = None if decisions_from is None else decisions_of(settings, decisions_from, injection.source)
        exporter = None if metrics_port is None else serve_metrics(metrics_port)
        if create:
            _create_target(injection, settings, injection.dropped_to, None if alignment is None else alignment.topic)
        (require_input if reset else require_start)(injection, settings)  # before one that runs is fenced
        if group is None:
            injector = Injector(injection, settings, decisions=decisions, reset=reset, alignment=alignment)
        else:
            injector = InjectorGroup(injection, settings, group=group, alignment=alignment)
        source, target, ended = injection.source_topic, injection.target_topic, ""
        typer.echo(f"copying {source} to {target} as source {injection.source}; see floodmark board {target}", err=True)
        with injector, Console(stderr=True).status("waiting") as status:
            committed = injector.metrics(), injector.holders()

            def progress(now: Injector | InjectorGroup) -> None:
                nonlocal committed
                committed = now.metrics(), now.holders()
                if exporter is not None:
                    exporter.update(*committed)
                if as_json:
                    stop.echo(injection_json(now))
                partitions = f"partitions {now.partitions}: " if isinstance(now, InjectorGroup) else ""
                status.update(escape(f"{partitions}{injection_line(now)}"))

            reported = Deadline(0)  # so that counters start at 0

            def stopped() -> bool:
                nonlocal reported
                if exporter is not None and reported.passed:
                    exporter.update(*committed)
                    reported = Deadline(_REPORT)
                return stop()

            if isinstance(injector, InjectorGroup):
                injector.run(progress=progress, stop=stopped)
            else:
                injector.run(until_end=until_end, progress=progress, stop=stopped)
                if end and not stop():
                    injector.end()
                    ended = "; ended"
            progress(injector)  # of the last transaction
            typer.echo(f"{injection_line(injector)}{ended}", err=True)
