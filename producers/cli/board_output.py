"""How the commands ``board`` and ``why`` read a chain of topics, and print it or serve it to a browser."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from json import dumps
from typing import Final

import typer
from floodmark.producers.board.model import Board
from floodmark.producers.board.why import trace
from floodmark.producers.cli.board_page import BoardPage
from floodmark.producers.cli.board_text import board_lines, board_table, why_text
from floodmark.producers.cli.command_line import COULD_NOT, ended_by_signals
from floodmark.producers.readers.chain import ChainReader
from floodmark.schemas.errors.base import printable, printable_lines
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.segment import Segment
from typing_extensions import override

_UNWRAPPED: Final = 10_000
"""Columns of an output that is no terminal."""


@contextmanager
def reading(
    settings: dict[str, str], topics: list[str], *, since: bool = False, past: timedelta = timedelta()
) -> Iterator[ChainReader]:
    """Read the chain; Ctrl-C and SIGTERM end the command, and no log disturbs the screen."""
    console = Console(stderr=True)
    logging.disable()
    try:
        with ended_by_signals(COULD_NOT):
            with console.status("reading") as status:
                reader = ChainReader(
                    settings,
                    topics,
                    since=since,
                    past=past,
                    progress=lambda topic: status.update(f"reading {escape(topic)}"),
                )
            with reader:
                yield reader
    finally:
        logging.disable(logging.NOTSET)


class _Screen(Console):
    """A console that prints names from marks neither as markup nor as control sequences."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False)

    @override
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable_lines(segment.text), segment.style)


def _console() -> Console:
    """Return the console for a board; without a terminal, it wraps no line, for `grep`."""
    console = _Screen()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNWRAPPED
    return console


def show(found: Board, *, every: bool, json: bool) -> None:
    """Print the board once."""
    if json:
        typer.echo(dumps(found.as_json()))
        return
    console = _console()
    console.print(board_table(found, console.width, every=every))


def follow(reader: ChainReader, interval: float, *, every: bool, json: bool) -> None:
    """Print the board every ``interval`` seconds."""
    console = _Screen()
    if json or not console.is_terminal:
        while True:
            found = reader.board()
            typer.echo(dumps(found.as_json()) if json else "\n".join(map(printable, board_lines(found))))
            reader.poll(interval)
    table: RenderableType = ""
    try:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                table = board_table(reader.board(), console.width, every=every)
                live.update(table, refresh=True)
                reader.poll(interval)
    finally:
        console.print(table, end="")  # keeps the last board on the normal screen


def serve(reader: ChainReader, interval: float, port: int) -> None:
    """Serve the board as a web page, updated every ``interval`` seconds."""
    with BoardPage(port) as page:
        typer.echo(f"floodmark: the board is at {page.url}; Ctrl-C ends it", err=True)
        while True:
            page.show(reader.board(), reader.points())
            reader.poll(interval)


def explain(found: Board, topic: str, *, json: bool) -> int:
    """Print why the watermark of a topic does not advance; return the exit status."""
    answer = trace(found, topic)
    if json:
        typer.echo(dumps(answer.as_json()))
    else:
        _console().print(why_text(answer, found.now))
    return answer.exit_status
