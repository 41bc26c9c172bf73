"""The command ``floodmark``."""

from dataclasses import asdict
from datetime import timedelta
from json import dumps
from pathlib import Path
from typing import Annotated, Final

import typer
from floodmark.producers.check import check_topic, event_time_reader
from floodmark.producers.command import run_command
from floodmark.schemas.errors import UsageError
from rich.console import Console

_TOLD: Final = 10_000  # records between two words of progress

app = typer.Typer(
    name="floodmark",
    help="In-band watermarks for Kafka and Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def _main() -> None:
    """In-band watermarks for Kafka and Spark: topics that know how complete they are."""


@app.command()
def demo(  # noqa: PLR0913  # each is an option of the command line
    *,
    days: Annotated[int, typer.Option(min=1, max=365, help="How many days of 2013 to stream.")] = 365,
    gap: Annotated[float, typer.Option(min=0.1, help="The longest pause within a session, hours.")] = 5,
    seconds: Annotated[float | None, typer.Option(help="How long the sources take for all days.")] = None,
    crash: Annotated[
        bool, typer.Option(help="Kill each Spark job (SIGKILL) in the middle and start it again.")
    ] = False,
    bootstrap_servers: Annotated[
        str | None, typer.Option(help="Use this Kafka instead of starting the embedded one.")
    ] = None,
    directory: Annotated[Path, typer.Option(help="Where results, logs and data go.")] = Path("floodmark-demo"),
    keep: Annotated[bool, typer.Option(help="Keep Kafka's data and the checkpoints.")] = False,
    timeout: Annotated[float, typer.Option(help="Give up after so many seconds.")] = 900,
    json: Annotated[bool, typer.Option("--json", help="Print the outcome as one JSON object.")] = False,
) -> None:
    """Stream a year of real flights through Kafka and two Spark jobs, and check the results.

    Three airports tell each flight as it lands, hours out of order, with a perfect watermark in the topic itself.
    Job 1 makes sessions per aircraft, job 2 their mean length per day.  The results must equal a batch computation of
    the same data row by row.  Then plain withWatermark with guessed delays runs on the same topic, for comparison.

    Exit status: 0 equal, 1 not equal, 2 could not run.
    """
    try:
        from floodmark.spark_jobs.demo import picture, run, show  # noqa: PLC0415  # needs the extra
    except ImportError as error:
        typer.echo(f"floodmark: {error.name} is not installed: pip install 'floodmark[demo]'", err=True)
        raise typer.Exit(2) from error
    options = run.Options(days, timedelta(hours=gap), directory, bootstrap_servers, seconds, crash, keep, timeout)
    console = Console(stderr=json)
    with show.progress(console) as showing:
        outcome, watch = run.run(options, showing)
    picture.draw(outcome.results, watch.lines, watch.present, Path(outcome.picture))
    if json:
        typer.echo(outcome.to_json())
    else:
        show.account(console, outcome)
    raise typer.Exit(0 if outcome.equal else 1)


@app.command()
def check(
    topic: Annotated[str, typer.Argument(help="The topic to check.")],
    *,
    bootstrap_servers: Annotated[str, typer.Option(help="Kafka's address.")],
    schema: Annotated[Path | None, typer.Option(help="Avro schema of the data, to judge lateness by.")] = None,
    event_time: Annotated[str | None, typer.Option(help="The field of the schema that is the event time.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per finding.")] = False,
) -> None:
    """Check that a topic keeps its promises: every record of it, from the beginning.

    Finds late rows, regressing marks, missing and surplus members, gaps in sequences, lost and surplus rows,
    unreadable marks and rows, conflicting replays, zombies, membership conflicts, what comes after the end, unmarked
    partitions and missing headers.

    Exit status: 0 nothing is wrong, 1 something is, 2 could not check.
    """
    if (schema is None) != (event_time is None):
        raise UsageError(reason="check needs --schema and --event-time together")
    reader = None if schema is None or event_time is None else event_time_reader(schema, event_time)
    console = Console(stderr=True)
    with console.status("reading") as status:
        checker, findings = check_topic(
            {"bootstrap.servers": bootstrap_servers},
            topic,
            reader,
            lambda count: status.update(f"{count:,} records read") if count % _TOLD == 0 else None,
        )
    for finding in findings:
        typer.echo(dumps({**asdict(finding), "fault": finding.fault.value}) if json else str(finding))
    judged = "" if reader else ", lateness not judged (no --schema)"
    counts = f"{checker.records['data']:,} data records, {checker.records['marks']:,} marks{judged}"
    typer.echo(f"{topic}: {counts}: {len(findings)} fault(s)", err=True)
    raise typer.Exit(1 if findings else 0)


def main() -> None:
    """Run the command."""
    run_command(app)


if __name__ == "__main__":
    main()
