"""The commands ``board`` and ``why``."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from json import dumps
from typing import Annotated

import typer
from floodmark.producers.board.view import Board
from floodmark.producers.board.why import trace
from floodmark.producers.cli.board_page import BoardPage
from floodmark.producers.cli.board_text import board_lines, board_table, why_text
from floodmark.producers.cli.options import COULD_NOT, BootstrapServers, ConfigFile, ended_by_signals, kafka_settings
from floodmark.producers.readers.chain import ChainReader
from floodmark.schemas.errors import UsageError
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape


@contextmanager
def _reader(settings: dict[str, str], topics: list[str], *, since: bool = False) -> Iterator[ChainReader]:
    """Read the chain; Ctrl-C and SIGTERM end the command, and no log disturbs the screen."""
    console = Console(stderr=True)
    logging.disable()
    try:
        with ended_by_signals(COULD_NOT):
            with console.status("reading") as status:
                reader = ChainReader(
                    settings, topics, since=since, progress=lambda topic: status.update(f"reading {escape(topic)}")
                )
            with reader:
                yield reader
    finally:
        logging.disable(logging.NOTSET)


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
    its watermark stands; STOP, no marks come; REWIND, it promises less than before; ?, its marks do not tell.

    --serve shows it in a browser on this machine: the watermarks of the last minutes as lines, and who holds whom.

    The topics are read from near their ends, without a consumer group: the right to read them is enough.  Without a
    terminal, each look is a line for each topic.

    Exit status of --once: 0 all is well, 1 something is stuck or fails, 2 cannot tell.  Without it: 0, when Ctrl-C or
    SIGTERM ends it.
    """
    if serve and (once or json):
        raise UsageError(reason="--serve shows the board in a browser; --once and --json print it: choose one")
    settings = kafka_settings(bootstrap_servers, config)
    with _reader(settings, topics) as reader:
        if once:
            found = reader.board()
            _show(found, every=every, json=json)
            raise typer.Exit(found.exit_status)
        with ended_by_signals(0):
            if serve:
                _serve(reader, interval, port)
            _follow(reader, interval, every=every, json=json)


def _show(found: Board, *, every: bool, json: bool) -> None:
    if json:
        typer.echo(dumps(found.as_json()))
        return
    console = Console(highlight=False)
    console.print(board_table(found, console.width, every=every))


def _follow(reader: ChainReader, interval: float, *, every: bool, json: bool) -> None:
    console = Console(highlight=False)
    if json or not console.is_terminal:
        while True:
            found = reader.board()
            typer.echo(dumps(found.as_json()) if json else "\n".join(board_lines(found)))
            reader.poll(interval)
    table: RenderableType = ""
    try:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                table = board_table(reader.board(), console.width, every=every)
                live.update(table, refresh=True)
                reader.poll(interval)
    finally:
        console.print(table, end="")  # the last look stays, where the screen was another


def _serve(reader: ChainReader, interval: float, port: int) -> None:
    with BoardPage(port) as page:
        typer.echo(f"floodmark: the board is at {page.url}; Ctrl-C ends it", err=True)
        while True:
            page.show(reader.board())
            reader.poll(interval)


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
    settings = kafka_settings(bootstrap_servers, config)
    with _reader(settings, [topic], since=True) as reader:
        found = reader.board()
        answer = trace(found, topic)
        if json:
            typer.echo(dumps(answer.as_json()))
        else:
            Console(highlight=False).print(why_text(answer, found.now))
        raise typer.Exit(answer.exit_status)
