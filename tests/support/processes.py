"""Programs in processes of their own, which can be killed with all that they have started."""

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path


class Process:
    """A process in a group of its own, which runs in a folder, with its output in files there."""

    def __init__(self, name: str, command: Iterable[str], folder: Path, env: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self.output, self.errors = name, folder / f"{name}.out", folder / f"{name}.log"
        with self.output.open("ab") as output, self.errors.open("ab") as errors:
            self._process = subprocess.Popen(
                list(command),
                cwd=folder,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit status; ``None`` while it runs."""
        return self._process.poll()

    def log(self) -> str:
        return self.errors.read_text(encoding="utf-8", errors="replace")

    def lines(self) -> list[str]:
        """Return what it has written so far, whole lines only."""
        text = self.output.read_text(encoding="utf-8")
        return text[: text.rfind("\n") + 1].splitlines()

    def kill(self) -> None:
        """End it at once with all that it has started (SIGKILL), as its machine would die."""
        if self.code is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    def end(self) -> None:
        end_process(self._process)


def end_process(process: subprocess.Popen[bytes], seconds: float = 30) -> None:
    """Ask a process to end (SIGTERM), and end it at once where it has not after so many seconds."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def processes_of(place: Path) -> list[str]:
    """Return which processes have a folder in their command line."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += [file.parent.name] if str(place).encode() in file.read_bytes() else []
    return found
