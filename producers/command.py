"""Turn a function into a command: options from its signature, and errors in one line with exit status 2."""

from collections.abc import Callable
from typing import Any

import typer
from floodmark.schemas.errors import FloodmarkError


def run_command(main: Callable[..., Any] | typer.Typer) -> None:
    """Run a function (or a group of commands) as this process's command.

    A `FloodmarkError` becomes one line on standard error; its message already says what to do.
    """
    if isinstance(main, typer.Typer):
        app = main
    else:
        app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        app.command()(main)
    try:
        app()
    except FloodmarkError as error:
        typer.echo(f"floodmark: {error}", err=True)
        raise SystemExit(2) from None
