"""What the commands share: options to objects, settings from a file, and errors in one line with exit status 2."""

import logging
import math
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from string import Template
from typing import Annotated, Any, Final

import typer
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from floodmark.producers.clients.admin import QUIET, redacted
from floodmark.schemas.errors import FloodmarkError, UsageError

COULD_NOT: Final = 2
"""The exit status of a command that could not do what it was asked."""
REGISTRY: Final = "schema.registry."
"""How the settings of a schema registry begin in the file of settings, as in those of Kafka's Java clients."""


def run_command(main: Callable[..., Any] | typer.Typer) -> None:
    """Run a function (or a group of commands) as this process's command.

    An error of Floodmark or of Kafka becomes one line on standard error, and the exit status is 2.
    """
    _log_plainly()
    if isinstance(main, typer.Typer):
        app = main
    else:
        app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        app.command()(main)
    try:
        app()
    except FloodmarkError as error:
        typer.echo(f"floodmark: {error}", err=True)
        raise SystemExit(COULD_NOT) from None
    except KafkaException as error:
        typer.echo(f"floodmark: Kafka: {_reason(error)}", err=True)
        raise SystemExit(COULD_NOT) from None


def _log_plainly() -> None:
    """Show warnings in a line each, but not that a young cluster's coordinators take a moment: clients try again."""
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: "load in progress" not in record.getMessage())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, format="%(levelname)s %(message)s")


BootstrapServers = Annotated[
    str | None,
    typer.Option(envvar="FLOODMARK_BOOTSTRAP_SERVERS", help="Kafka's address; it overrules the one in --config."),
]
"""The option that all commands share."""

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        envvar="FLOODMARK_CONFIG", help="File of Kafka client settings (librdkafka's), name=value a line, with ${ENV}."
    ),
]
"""The same."""


def one_of(names: Iterable[str], text: str) -> Any:  # noqa: ANN401  # as typer declares its options
    """Return an option that takes one of some names: its help shows them, and the shell completes them.

    What is given is checked where it is used, whose error says what to write.
    """
    choices = list(names)
    return typer.Option(help=text, metavar=f"[{'|'.join(choices)}]", autocompletion=lambda: choices)


def kafka_settings(bootstrap_servers: str | None, config: Path | None) -> dict[str, str]:
    """Return the confluent-kafka settings that the options of a command name, checked before anything is done.

    Args:
        bootstrap_servers: Kafka's address, of the command line or else of the environment; it overrules the file's.
        config: a file of settings, see `settings_file`.

    Raises:
        UsageError: where no address is given, or a setting is none that confluent-kafka knows.
    """
    found = settings_file(config)
    settings = {name: value for name, value in found.items() if not name.startswith(REGISTRY)}
    if bootstrap_servers is not None:
        settings["bootstrap.servers"] = bootstrap_servers
    if not settings.get("bootstrap.servers"):
        raise UsageError(reason="no Kafka address: pass --bootstrap-servers, or bootstrap.servers in --config")
    try:
        AdminClient(dict[str, Any](settings), logger=QUIET)
    except (KafkaException, ValueError, TypeError) as error:
        raise UsageError(reason=f"Kafka setting: {_without_secrets(_reason(error), settings)}") from None
    return settings


def _reason(error: Exception) -> str:
    return error.args[0].str() if isinstance(error, KafkaException) else str(error)


def _without_secrets(text: str, settings: dict[str, str]) -> str:
    for name, shown in redacted(settings).items():
        if shown != settings[name] and settings[name]:
            text = text.replace(settings[name], shown)
    return text


def settings_file(path: Path | None) -> dict[str, str]:
    """Read Kafka settings from a file, so that no secret stands on a command line.

    One ``name=value`` a line, as in the files of Kafka's own tools; ``#`` or ``!`` begins a comment; ``${NAME}`` is
    filled in from the environment.  Settings are librdkafka's: those that only Java clients know are refused by name.

    Raises:
        UsageError: where the file or a line cannot be read, or a variable is not set; the message never holds a value.
    """
    if path is None:
        return {}
    settings = {}
    for number, line in enumerate(text_file(path).splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith(("#", "!")):
            continue
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(reason=f"{path} line {number}: expected name=value")
        try:
            settings[name.strip()] = Template(value.strip()).substitute(os.environ)
        except (KeyError, ValueError) as error:
            raise UsageError(reason=f"{path} line {number}: {name.strip()} names a variable that is not set") from error
    return settings


def text_file(path: Path) -> str:
    """Return the text of a file that an option names.

    Raises:
        UsageError: where it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(reason=f"{path} is no UTF-8 text") from error
    except OSError as error:
        raise UsageError(reason=f"{path} cannot be read: {error.strerror}") from error


def seconds(value: float, option: str) -> timedelta:
    """Return the duration that an option gives in seconds.

    Raises:
        UsageError: where it is no duration that a calendar of 9999 years knows.

    >>> seconds(1.5, "--late")
    datetime.timedelta(seconds=1, microseconds=500000)
    """
    if not math.isfinite(value) or abs(value) > timedelta.max.total_seconds() / 2:
        raise UsageError(reason=f"{option} is {value:g}, expected a number of seconds")
    return timedelta(seconds=value)


@contextmanager
def _handled(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Within the block, Ctrl-C and SIGTERM call a function."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Within the block, Ctrl-C and SIGTERM only ask to stop; give a function that tells whether they have.

    What is under way is finished, so nothing is committed by halves.  A second signal interrupts at once.
    """
    asked = False

    def ask(_number: int, _frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    with _handled(ask):
        yield lambda: asked


@contextmanager
def ended_by_signals(status: int) -> Iterator[None]:
    """Within the block, Ctrl-C and SIGTERM end the command at once, with this exit status and without a traceback.

    Whatever error comes after the signal is the signal: confluent-kafka makes errors of its own of an interrupt that
    strikes while it takes in its settings.
    """
    struck = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal struck
        struck = True
        raise KeyboardInterrupt

    with _handled(interrupt):
        try:
            yield
        except BaseException:
            if struck:
                raise typer.Exit(status) from None
            raise
