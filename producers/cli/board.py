"""The commands ``board`` and ``why``."""

from typing import Annotated, Final

import typer
from floodmark.producers.cli.command_line import BootstrapServers, ConfigFile, ended_by_signals, option

_PORT: Final = 8417

Tables = Annotated[
    list[str] | None,
    option("Table of a job: CATALOG.DATABASE.TABLE of pyiceberg, or a Delta table's path.", "--table"),
]


def board(  # noqa: PLR0913  # each is an option of the command line
    topics: Annotated[
        list[str] | None, typer.Argument(help="Topics to show; marks name the topics before them.")
    ] = None,
    *,
    table: Tables = None,
    bootstrap_servers: BootstrapServers = None,
    once: Annotated[bool, option("Print the board once; the exit status says whether all is well.", "--once")] = False,
    interval: Annotated[float, option("Seconds between updates.", min=0.1, max=3600)] = 1,
    every: Annotated[bool, option("Show all sources, not only those with a problem.", "--all")] = False,
    serve: Annotated[bool, option("Serve the board as a web page on the loopback address.", "--serve")] = False,
    port: Annotated[
        int | None, option("Port of the web page; 0: any free port.", min=0, max=65_535, show_default=str(_PORT))
    ] = None,
    config: ConfigFile = None,
    json: Annotated[bool, option("Print a JSON line for each update.", "--json")] = False,
) -> None:
    """Show the watermarks of a chain of topics, which source holds each topic back, and since when.

    Shows the watermark of each topic and its lag behind the clock (wall), behind the inputs of its stage (local) and
    behind the first topics of the chain (global).  The lag of a topic is the lag of its slowest source, not an average.

    The last ten marks of a source give its verdict.  OK: no problem.  WARN: its lag grew over ten marks, it is an
    injector without new events, or it restarts often.  STALL: it sends marks, but its watermark does not advance.
    STOP: it sends no marks.  REWIND: its watermark went back.  TIME: its watermark is in 1970 or jumped ahead of
    the clock.  UNCOUNTED: more sources write to the topic than its membership counts.  FENCED: readers ignore the
    marks of one of its processes.  ?: unknown.

    --serve shows the board in a browser on this machine, with the watermarks of the last minutes as lines.

    The board reads the last records of the topics, without a consumer group: the right to read the topics is enough.
    Without a terminal, it prints one line per topic and update.

    Exit status with --once: 0 all is well, 1 a source is stuck or fails, 2 unknown or error.  Without --once: 0 after
    Ctrl-C or SIGTERM.
    """
    from floodmark.producers.cli import board_page, board_text
    from floodmark.producers.cli.settings import kafka_settings
    from floodmark.schemas.errors import UsageError

    if serve and (once or json):
        raise UsageError(reason="--serve shows the board in a browser, --once and --json print it: use one of them")
    if port is not None and not serve:
        raise UsageError(reason="--port is the port of the web page: pass --serve, too")
    if not (topics or table):
        raise UsageError(reason="name a topic or a --table to show")
    settings = kafka_settings(bootstrap_servers, config)
    with board_text.reading(settings, topics or [], table or []) as reader:
        if once:
            found = reader.board()
            board_text.show(found, every=every, json=json)
            raise typer.Exit(found.exit_status)
        with ended_by_signals(0):
            if serve:
                board_page.serve(reader, interval, _PORT if port is None else port)
            board_text.follow(reader, interval, every=every, json=json)


def why(
    topic: Annotated[str | None, typer.Argument(help="Topic whose watermark does not advance.")] = None,
    *,
    table: Tables = None,
    bootstrap_servers: BootstrapServers = None,
    config: ConfigFile = None,
    json: Annotated[bool, option("Print one JSON object.", "--json")] = False,
) -> None:
    """Explain why the watermark of a topic or a table does not advance, and what to do.

    Follows the slowest input from job to job, back to the source and partition that hold the watermark back, and says
    since when.  It reads the last records of the topics, and needs the right to read them.  If it cannot read a topic,
    it reports what the marks downstream show.

    Exit status: 0 nothing is stuck, 1 a source is stuck or fails, 2 unknown or error.
    """
    from floodmark.producers.cli import board_text
    from floodmark.producers.cli.settings import kafka_settings
    from floodmark.schemas.errors import UsageError

    topics, tables = [topic] if topic else [], table or []
    if len(topics + tables) != 1:
        raise UsageError(reason="name one topic or one --table")
    settings = kafka_settings(bootstrap_servers, config)
    with board_text.reading(settings, topics, tables, since=True) as reader:
        raise typer.Exit(board_text.explain(reader.board(), *topics, *tables, json=json))
