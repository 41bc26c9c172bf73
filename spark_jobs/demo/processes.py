"""The demo's child processes, each in a process group of its own, which end with the demo in any case."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from floodmark.producers.clients.consumers import Closing
from floodmark.schemas.errors import JobFailedError
from typing_extensions import override

_TAIL: Final = 1500
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Delay signals until the end of the block: a signal within `Popen` would leave an unknown child."""
    came: list[int] = []
    before = {one: signal.getsignal(one) for one in _ENDING if callable(signal.getsignal(one))}
    for one in before:
        signal.signal(one, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        for number in came:
            signal.raise_signal(number)


class Child:
    """One ``python -m module`` with its output in a file."""

    def __init__(self, name: str, module: str, options: dict[str, object], directory: Path) -> None:
        self.name = name
        self.output = directory / f"{name}.jsonl"
        self.errors = directory / f"{name}.log"
        self._command = [sys.executable, "-m", module]
        for option, value in options.items():
            self._command += [f"--{option}", str(value)]
        self._start()

    def _start(self) -> None:
        with self.output.open("ab") as output, self.errors.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603  # modules of this package
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    @property
    def finished(self) -> bool:
        """Whether it has ended without an error."""
        code = self._process.poll()
        if code:
            tail = self.errors.read_text(encoding="utf-8", errors="replace")[-_TAIL:].strip()
            raise JobFailedError(job=self.name, reason=f"exit status {code}; the end of {self.errors}:\n{tail}")
        return code == 0

    def lines(self) -> list[str]:
        """Return the whole lines of its output so far."""
        text = self.output.read_text(encoding="utf-8")
        return text[: text.rfind("\n") + 1].splitlines()

    def crash(self) -> None:
        """Kill it with all its children (SIGKILL), and start it again."""
        self.kill()
        with _undisturbed():
            self._start()

    def kill(self) -> None:
        """Kill it with all its children (SIGKILL)."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Children(Closing):
    """All children of a run; the end of the block kills those that still run."""

    def __init__(self, directory: Path, bootstrap_servers: str) -> None:
        self._directory = directory
        self._servers = bootstrap_servers
        self.all: dict[str, Child] = {}

    def start(self, name: str, module: str, /, **options: object) -> Child:
        """Start ``python -m module`` with these options and Kafka's address."""
        named = {option.replace("_", "-"): value for option, value in options.items()}
        with _undisturbed():
            child = self.all[name] = Child(name, module, {"bootstrap-servers": self._servers, **named}, self._directory)
        return child

    def check(self) -> bool:
        """Tell whether all have finished."""
        finished = [child.finished for child in self.all.values()]  # checks each child for an error
        return all(finished)

    @override
    def close(self) -> None:
        """Kill the children that still run."""
        for child in self.all.values():
            child.kill()
