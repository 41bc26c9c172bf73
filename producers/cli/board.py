"""The commands ``board`` and ``why``."""

from typing import Annotated

import typer
from floodmark.producers.cli.command_line import BootstrapServers, ConfigFile, ended_by_signals


def board(  # noqa: PLR0913  # each is an option of the command line
    topics: Annotated[list[str], typer.Argument(help="Topics; those that lead to them are found by their marks.")],
    *,
    bootstrap_servers: BootstrapServers = None,
    once: Annotated[bool, typer.Option(help="Show it once; the exit status says how things are.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 1,
    every: Annotated[bool, typer.Option("--all", help="Show every source, not only those that are not well.")] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Serve it as a page on the loopback address.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Of the page; 0: a free one.")] = 8417,
    config: ConfigFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each look.")] = False,
) -> None:
    """Show how far a chain of topics is, stage by stage, who holds it, and since when.

    The watermark of each topic, and how far it is behind: the clock (wall lag), the inputs of its stage (local) and the
    topics where the chain begins (global).  It is the lag of the slowest source: never an average, which would hide it.

    Every source is judged by its last ten marks: OK; WARN, it falls further behind at each; STALL, its marks come and
    its watermark stands; STOP, no marks come; REWIND, it promises less than before; TIME, its watermark is in 1970 or
    jumped ahead of the clock; FENCED, readers ignore the marks of a process of it; ?, its marks do not tell.

    --serve shows it in a browser on this machine: the watermarks of the last minutes as lines, and who holds whom.

    The topics are read from near their ends, without a consumer group: the right to read them is enough.  Without a
    terminal, each look is a line for each topic.

    Exit status of --once: 0 all is well, 1 something is stuck or fails, 2 cannot tell.  Without it: 0, when Ctrl-C or
    SIGTERM ends it.
    """
    from floodmark.producers.cli import looking
    from floodmark.producers.cli.settings import kafka_settings
    from floodmark.schemas.errors import UsageError

    if serve and (once or json):
        raise UsageError(reason="--serve shows the board in a browser; --once and --json print it: choose one")
    settings = kafka_settings(bootstrap_servers, config)
    with looking.reading(settings, topics) as reader:
        if once:
            found = reader.board()
            looking.show(found, every=every, json=json)
            raise typer.Exit(found.exit_status)
        with ended_by_signals(0):
            if serve:
                looking.serve(reader, interval, port)
            looking.follow(reader, interval, every=every, json=json)


def why(
    topic: Annotated[str, typer.Argument(help="The topic that does not move.")],
    *,
    bootstrap_servers: BootstrapServers = None,
    config: ConfigFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say why nothing comes out of a topic: walk back from it to the source that holds it, and say what to do.

    From job to job, by the watermarks of what each reads, to the source and the partition where the way ends, and since
    when it has stood.  It reads the topics near their ends, and needs the right to read them; where one cannot be read,
    it says what the marks behind it tell.

    Exit status: 0 nothing is stuck, 1 something is, 2 cannot tell.
    """
    from floodmark.producers.cli import looking
    from floodmark.producers.cli.settings import kafka_settings

    settings = kafka_settings(bootstrap_servers, config)
    with looking.reading(settings, [topic], since=True) as reader:
        raise typer.Exit(looking.explain(reader.board(), topic, json=json))
