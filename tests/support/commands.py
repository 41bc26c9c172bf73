"""What the benchmark commands share: settings of Spark as options, and saying what is being done."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.console import Console


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
