"""What the commands share: options, signals, readable times, and errors as one line with exit status 2.

Commands import the rest of Floodmark only when they run, so that help, version and shell completion are fast.
"""

import io
import logging
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from typing_extensions import override

COULD_NOT: Final = 2  # the exit status of a command that fails


def run_command(main: Callable[..., Any] | typer.Typer) -> None:
    """Run a function or a group of commands; an error of Floodmark, Kafka or the system is one line and status 2.

    Status 1 is for what a command finds in the data, so any other error has status 2, too, below its traceback.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal's encoding lacks
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines("%(levelname)s %(message)s"))
    handler.addFilter(lambda record: "load in progress" not in record.getMessage())  # of new clusters
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    shown = _shown(main)
    try:
        try:
            shown()
        finally:
            sys.stdout.flush()  # what cannot be written must be seen in the status
    except Exception as error:  # noqa: BLE001  # Python's own status for it is 1
        from confluent_kafka import KafkaException
        from floodmark.schemas.errors import FloodmarkError, MissingRightError
        from floodmark.schemas.errors.base import printable_lines

        if not isinstance(error, (FloodmarkError, KafkaException, OSError)):
            traceback.print_exc()
            raise SystemExit(COULD_NOT) from None
        if isinstance(error, OSError):
            _write_no_more()
        told = f"Kafka: {error.args[0].str()}" if isinstance(error, KafkaException) else str(error)
        if isinstance(error, KafkaException) and "authorization failed" in told.lower():
            told = f"{told.removesuffix('.')}. {MissingRightError.advice}"
        typer.echo(f"floodmark: {printable_lines(told)}", err=True)
        raise SystemExit(COULD_NOT) from None


def _shown(main: Callable[..., Any] | typer.Typer) -> Callable[[], object]:
    """Return what runs it, with its help wrapped once."""
    if isinstance(main, typer.Typer):
        app = main
    else:
        app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        app.command()(main)
    for command in (app.registered_callback, *app.registered_commands):
        if command is not None and command.callback is not None:
            paragraphs = (command.callback.__doc__ or "").split("\n\n")
            command.help = "\n\n".join(" ".join(text.split()) for text in paragraphs)  # wrapped once, when shown
    shown = typer.main.get_command(app)
    for command in (shown, *getattr(shown, "commands", {}).values()):
        for parameter in command.get_params(typer.Context(command)):
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""  # it takes no value, so help shows no type
    setattr(shown, "invoke", partial(_invoke, shown.invoke))  # noqa: B010  # mypy forbids to replace a method
    return shown


def _invoke(invoke: Callable[[typer.Context], object], context: typer.Context) -> object:
    """Run a command; if the reader of its output has gone, it could not do its work: typer and rich give status 1."""
    try:
        return invoke(context)
    except (BrokenPipeError, SystemExit) as error:
        if not isinstance(error.__context__ if isinstance(error, SystemExit) else error, BrokenPipeError):
            raise
        _write_no_more()
        raise typer.Exit(COULD_NOT) from None


def _write_no_more() -> None:
    """Drop what Python would write at exit to an output that has failed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Lines(logging.Formatter):
    """Log lines in which text from a topic cannot control the terminal."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        from floodmark.schemas.errors.base import printable_lines

        return printable_lines(super().format(record))


def option(text: str, *names: str, panel: str | None = None, values: Iterable[str] = (), **settings: Any) -> Any:  # noqa: ANN401  # as typer declares them
    """Return an option that shows and completes ``values``; the code that uses its value must check it."""
    if known := list(values):
        settings |= {"metavar": f"[{'|'.join(known)}]", "autocompletion": lambda: known}
    return typer.Option(*names, help=text, rich_help_panel=panel, **settings)


def seconds_of(text: str | float) -> float:
    """Return the seconds of an option: a number, or a duration with its unit.

    >>> seconds_of("5m"), seconds_of("-1"), seconds_of(0.5)
    (300.0, -1.0, 0.5)
    """
    try:
        return float(text)
    except ValueError:
        from floodmark.producers.trigger.plan.periods import duration
        from floodmark.schemas.errors import UsageError

        try:
            return duration(str(text), "it") / 1_000
        except UsageError:
            reason = f"{text!r} is no duration: expected seconds, such as 300, or 30s, 5min, 1h or 1d"
            raise typer.BadParameter(reason) from None


BootstrapServers = Annotated[
    str | None, option("Kafka's address; overrides the one in --config.", envvar="FLOODMARK_BOOTSTRAP_SERVERS")
]
ConfigFile = Annotated[
    Path | None,
    option(
        "File with librdkafka settings: one name=value per line; ${env:NAME} reads a variable.",
        envvar="FLOODMARK_CONFIG",
    ),
]
REGISTRY_VARIABLE: Final = "FLOODMARK_REGISTRY"
RegistryUrl = Annotated[
    str | None,
    option(
        "URL of the schema registry of the values; overrides schema.registry.url in --config.",
        "--registry",
        envvar=REGISTRY_VARIABLE,
    ),
]


@contextmanager
def _handled(handler: Callable[[int, object], None]) -> Iterator[None]:
    """In the block, Ctrl-C, SIGTERM and the end of the terminal call a function."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as ``nohup`` sets it
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


@contextmanager
def _timed(handler: Callable[[int, object], None]) -> Iterator[None]:
    """In the block, the timer of the process calls a function."""
    if not hasattr(signal, "setitimer"):  # Windows
        yield
        return
    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Stop:
    """Tells whether a command is to stop: a signal came, or its output was closed, as by ``head``.

    After a signal, it ends a command that waits for something: at once before the first call, or else ``patience``
    seconds after the last one.
    """

    def __init__(self, patience: float) -> None:
        from floodmark.producers.clients.clock import Clock

        self._signalled = self._closed = self._heard = False
        self._now = Clock().steady
        self._patience, self._called = patience, -math.inf

    def __call__(self) -> bool:
        """Whether it is asked to."""
        self._called, self._heard = self._now(), self._signalled
        return self._signalled or self._closed

    def ask(self, _number: int, _frame: object) -> None:
        """Handle a signal; the second one interrupts."""
        if self._signalled:
            raise KeyboardInterrupt
        self._signalled = True
        if self._called == -math.inf:
            self._leave()
        if self._patience < math.inf:
            self.end_if_it_waits()

    def end_if_it_waits(self, *_: object) -> None:
        """End the command if it has not called for ``patience``, or look again then, until it calls."""
        if self._heard:
            return
        left = self._called + 1_000 * self._patience - self._now()
        if left <= 0:
            self._leave()
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, left / 1_000)

    def _leave(self) -> NoReturn:
        typer.echo("stopped while it waited: the next start continues", err=True)
        raise SystemExit(0)

    def echo(self, line: str) -> None:
        """Print a line."""
        try:
            typer.echo(line)
        except BrokenPipeError:
            _write_no_more()
            self._closed = True


@contextmanager
def stop_on_signals(patience: float = math.inf) -> Iterator[Stop]:
    """In the block, a first signal only requests a stop, see `Stop`."""
    stop = Stop(patience)
    with _handled(stop.ask), _timed(stop.end_if_it_waits):
        yield stop


@contextmanager
def ended_by_signals(status: int) -> Iterator[None]:
    """In the block, a signal, the end of the terminal or a closed pipe ends the command without a traceback."""
    interrupted = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    with _handled(interrupt):
        try:
            yield
        except BrokenPipeError:
            _write_no_more()
            raise typer.Exit(status) from None
        except BaseException:
            if interrupted:
                raise typer.Exit(status) from None
            raise


@contextmanager
def quietly() -> Iterator[None]:
    """In the block, nothing is logged, and signals end the command as one that failed."""
    logging.disable()
    try:
        with ended_by_signals(COULD_NOT):
            yield
    finally:
        logging.disable(logging.NOTSET)


_TENTHS: Final = 10_000
_UNITS: Final = (("y", 31_536_000), ("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def span(milliseconds: int | None) -> str:
    """Return a duration in at most two units.

    >>> span(1_500), span(95_000), span(None), span(-7_200_000), span(90_000_000)
    ('1.5 s', '1 min 35 s', '-', '-2 h', '1 d 1 h')
    """
    if not milliseconds:
        return "-" if milliseconds is None else "0 s"
    if milliseconds < 0:
        return f"-{span(-milliseconds)}"
    if milliseconds < _TENTHS:
        return f"{milliseconds / 1000:.1f} s"
    left, parts = milliseconds // 1000, list[str]()
    for unit, seconds in _UNITS:
        count, left = divmod(left, seconds)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(part for part in parts[:2] if part)


def moment(time: int | None, now: int) -> str:
    """Return a time in UTC, without the date if it is today.

    >>> moment(1_763_800_000_000, 1_763_800_060_000), moment(0, 1_763_800_060_000), moment(10**15, 0)
    ('08:26:40Z', '1970-01-01 00:00:00Z', '1000000000000000')
    """
    if time is None:
        return "-"
    from floodmark.schemas.timestamps import to_datetime

    try:
        at = to_datetime(time)
    except OverflowError:  # a writer's timestamp in another unit
        return str(time)
    return at.strftime("%H:%M:%SZ") if at.date() == to_datetime(now).date() else f"{at:%Y-%m-%d %H:%M:%SZ}"
