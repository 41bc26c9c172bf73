"""What the benchmark commands share: settings of Spark as options, and saying what is being done and how far it is."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def spark_settings(given: Sequence[str]) -> dict[str, str]:
    """Read settings of the form KEY=VALUE."""
    for setting in given:
        if "=" not in setting:
            raise typer.BadParameter(f"--set is {setting!r}, expected KEY=VALUE")
    return dict(setting.split("=", 1) for setting in given)


@contextmanager
def progress(console: Console, title: str) -> Iterator[Callable[[str], None]]:
    """Say what is being done: live on a terminal, a line for each new thing elsewhere."""
    if console.is_terminal:
        with console.status(title) as status:
            yield lambda doing: status.update(f"{title}: {doing}")
        return
    said = ""

    def report(doing: str) -> None:
        nonlocal said
        what = doing.partition(",")[0]
        if what != said:
            said = what
            console.print(f"{time.strftime('%H:%M:%S')}  {title}: {what}")

    yield report


@contextmanager
def bar(console: Console, title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how many of all are done, and in what time: live on a terminal, a line at the end elsewhere."""
    columns = TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    left = (TimeRemainingColumn(),) if console.is_terminal else ()
    with Progress(*columns, *left, console=console, refresh_per_second=4) as bars:
        task = bars.add_task(title, total=total)
        yield lambda done: bars.update(task, completed=done)
        bars.update(task, completed=total)
