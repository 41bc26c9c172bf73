"""The command ``catch-up``."""

import math
from json import dumps
from typing import Annotated

import typer
from floodmark.producers.cli.command_line import BootstrapServers, ConfigFile


def catch_up(  # noqa: PLR0913  # each is an option of the command line
    topics: Annotated[list[str], typer.Argument(help="The topics that the job reads.")],
    *,
    bootstrap_servers: BootstrapServers = None,
    output: Annotated[str | None, typer.Option(help="It stands where the last marks in its output topic say.")] = None,
    since: Annotated[str | None, typer.Option(help="It has read what came before: 2026-01-31T08:00:00Z.")] = None,
    group: Annotated[str | None, typer.Option(help="It stands where this consumer group has committed.")] = None,
    rate: Annotated[float | None, typer.Option(help="Records that it reads a second; --output: as it lately did.")] = (
        None
    ),
    over: Annotated[float, typer.Option(min=1, help="Minutes over which it is seen how quickly topics grow.")] = 10,
    config: ConfigFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Estimate how long a job will take to catch up with its topics, before it is started.

    What stands unread, counted from where the job stands: --output (a job of Floodmark), --since, --group, or else the
    beginning of the topics.  Divided by what it gains on them: --rate less what comes.  How quickly a topic grows is
    seen from Kafka's timestamps; of the last minutes (--over) and the last minute, the higher one counts.

    The pace is best measured: start the job, and print(job.backlog()) shows it after a few batches.  Without one, the
    pace that it takes is shown for some times.  With --output it is the one of its last batches, if it was behind then:
    a job that keeps up is no quicker than its input.

    Exit status: 0 it catches up, 1 it never does, 2 the pace is not known, or the topics cannot be asked.
    """
    from floodmark.producers.cli.catching_up import estimated, lines_of
    from floodmark.producers.cli.settings import kafka_settings
    from floodmark.schemas.errors import UsageError

    if sum(option is not None for option in (output, since, group)) > 1:
        raise UsageError(reason="--output, --since and --group each say where the job stands: choose one")
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise UsageError(reason=f"--rate is {rate:g}, expected records a second, above 0")
    if not math.isfinite(over):
        raise UsageError(reason=f"--over is {over:g}, expected minutes")
    estimate, time = estimated(kafka_settings(bootstrap_servers, config), topics, output, since, group, rate, over)
    typer.echo(dumps(estimate.as_json()) if json else "\n".join(lines_of(estimate, time)))
    raise typer.Exit(estimate.exit_status)
