"""Programs in processes of their own, which can be killed with all that they have started."""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


class Process(subprocess.Popen):
    """A process in a group of its own, which runs in a folder, with its output in files there."""

    def __init__(self, name: str, command: list[str], folder: Path, env: Mapping[str, str] = os.environ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.output, self.error_log = folder / f"{name}.out", folder / f"{name}.log"
        with self.output.open("ab") as output, self.error_log.open("ab") as errors:
            files = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": errors}
            super().__init__(command, cwd=folder, env=env, start_new_session=True, **files)

    def log(self) -> str:
        return self.error_log.read_text(encoding="utf-8", errors="replace")

    def lines(self) -> list[str]:
        """Return what it has written so far, whole lines only."""
        text = self.output.read_text(encoding="utf-8")
        return text[: text.rfind("\n") + 1].splitlines()

    def kill(self) -> None:
        """End it at once with all that it has started (SIGKILL), as its machine would die."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.wait()


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
