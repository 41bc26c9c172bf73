"""How an injection is shown while it runs, alone or as a member of a group."""

from collections import Counter
from json import dumps
from typing import Final

import typer
from floodmark.producers.cli.options import stop_on_signals
from floodmark.producers.injector.group import InjectorGroup
from floodmark.producers.injector.injector import Injector
from floodmark.schemas.combined import lowest
from floodmark.schemas.timestamps import to_datetime
from rich.console import Console
from rich.markup import escape

_CHANGES: Final = ("unreadable_headers", "headers_removed", "timestamps_replaced")


def reached(injector: Injector | InjectorGroup) -> str | None:
    """Return the lowest watermark of an injection in ISO 8601, UTC; ``None``: unknown."""
    watermark = lowest(injector.watermarks.values())
    return None if watermark is None else to_datetime(watermark).isoformat()


def injection_line(injector: Injector | InjectorGroup) -> str:
    """Say in a line how far an injection is."""
    watermark = reached(injector)
    place = "unknown" if watermark is None else f"watermark {watermark}"
    found = injector.outcomes + Counter({name: injector.counts[name] for name in _CHANGES})
    outcomes = ", ".join(f"{count:,} {outcome.replace('_', ' ')}" for outcome, count in sorted(found.items()) if count)
    trouble = f"; first trouble: {injector.first_trouble}" if injector.first_trouble else ""
    return f"{injector.counts['records']:,} records read, {outcomes or 'nothing yet'}; {place}{trouble}"


def as_line_of_json(injector: Injector | InjectorGroup) -> str:
    """Say the same as one JSON object."""
    watermarks = {"watermarks": injector.watermarks, "watermark_utc": reached(injector)}
    return dumps({**injector.counts, **injector.outcomes, **watermarks})


def inject_with_others(group: InjectorGroup, *, as_json: bool) -> None:
    """Run a member of a group until Ctrl-C or SIGTERM; what it has read is committed then."""
    console = Console(stderr=True)
    with stop_on_signals() as stop, group, console.status("waiting for the group") as status:

        def progress(group: InjectorGroup) -> None:
            if as_json:
                typer.echo(as_line_of_json(group))
            status.update(escape(f"partitions {group.partitions}: {injection_line(group)}"))

        group.run(progress=progress, stop=stop)
        typer.echo(injection_line(group), err=True)
