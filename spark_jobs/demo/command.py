"""The command ``floodmark demo``, an entry point in ``pyproject.toml``."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from floodmark.producers.cli.command_line import COULD_NOT, ended_by_signals


def demo(  # noqa: PLR0913  # each is an option of the command line
    *,
    days: Annotated[int, typer.Option(min=1, max=365, help="Number of days of 2013 to stream.")] = 365,
    gap: Annotated[float, typer.Option(min=1, help="Longest pause within a wave, in minutes.")] = 60,
    seconds: Annotated[
        float | None,
        typer.Option(min=1, help="Seconds in which the sources write all days; default: 12 to 45, by --days."),
    ] = None,
    crash: Annotated[bool, typer.Option("--crash", help="Kill each Spark job (SIGKILL) once and restart it.")] = False,
    table: Annotated[
        bool, typer.Option("--table", help="Write the daily results into an Iceberg table, and read it with pyiceberg.")
    ] = False,
    bootstrap_servers: Annotated[
        str | None, typer.Option(help="Use this Kafka instead of starting the embedded one.")
    ] = None,
    directory: Annotated[Path, typer.Option(help="Directory for results, logs and data.")] = Path("floodmark-demo"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep Kafka's data and the checkpoints.")] = False,
    timeout: Annotated[float, typer.Option(help="Timeout in seconds.")] = 900,
    json: Annotated[bool, typer.Option("--json", help="Print the outcome as one JSON object.")] = False,
) -> None:
    """Stream a year of real flights through Kafka and two Spark jobs, and check the results.

    Three airports write each flight when it lands, hours out of order, with a perfect watermark in the topic itself.
    Job 1 finds departure waves, the runs of departures of an airline from an airport with no pause longer than an hour;
    job 2 counts them per day.  The results must equal a batch computation of the same data row by row.  Then plain
    withWatermark with guessed delays runs on the same topic, for comparison.

    Exit status: 0 equal, 1 not equal, 2 error.
    """
    try:
        from floodmark.spark_jobs.demo import run, show  # noqa: PLC0415  # needs the extra
        from rich.console import Console  # noqa: PLC0415  # its help needs none of this

        if table:
            import pyiceberg.table  # noqa: F401, PLC0415  # else it would be missed after the run
    except ImportError as error:
        extras = "demo,iceberg" if table else "demo"
        typer.echo(f"floodmark: {error.name} is not installed: pip install '.[{extras}]' in the checkout", err=True)
        raise typer.Exit(COULD_NOT) from error
    duration = seconds or min(45.0, max(12.0, days / 4))
    options = run.Options(
        days, timedelta(minutes=gap), directory, bootstrap_servers, duration, crash, keep, timeout, table
    )
    console = Console(stderr=json)
    with ended_by_signals(COULD_NOT), show.progress(console) as showing:  # signals end the child processes, too
        outcome, watch = run.run(options, showing)
    show.draw(outcome, watch)
    if json:
        typer.echo(outcome.to_json())
    else:
        show.account(console, outcome)
    raise typer.Exit(0 if outcome.equal else 1)
