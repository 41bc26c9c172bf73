"""Targets on this machine: a command, and a file in the folder of a period."""

import json
import os
import subprocess
import uuid
from pathlib import Path
from typing import Final

from floodmark.producers.trigger.plan.periods import Pattern
from floodmark.producers.trigger.plan.trigger_event import TriggerEvent
from floodmark.producers.trigger.target import RefusedError
from floodmark.schemas.errors import UsageError

_SUCCESS: Final = "_SUCCESS"
_INCOMPLETE: Final = "_INCOMPLETE"
_PREFIX: Final = "FLOODMARK_"
_STDERR: Final = 2


class CommandTarget:
    """Runs a command line of the shell; exit status 0 means that the event is taken.

    The fields of the event are environment variables: ``FLOODMARK_KEY``, ``FLOODMARK_START``; ``FLOODMARK_EVENT`` is
    its JSON.  What the command prints goes to standard error: standard output belongs to the trigger.
    """

    def __init__(self, command: str) -> None:
        if not command.strip():
            raise UsageError(reason="--run is empty: expected a command")
        self._command = command
        self.about: Final = f"command {command!r}"

    def fire(self, event: TriggerEvent) -> str:
        """Run the command, however long it takes."""
        fields = event.as_dict()
        variables = {_PREFIX + name.upper(): _text(value) for name, value in fields.items()}
        variables[f"{_PREFIX}EVENT"] = json.dumps(fields)
        environment = {**os.environ, **variables}
        done = subprocess.run(self._command, shell=True, check=False, env=environment, stdout=_STDERR)  # noqa: S602  # the user's own
        if done.returncode:
            raise RefusedError(f"exit status {done.returncode}")
        return "exit status 0"


def _text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(value) if all(isinstance(one, str) for one in value) else json.dumps(value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


class SuccessFile:
    """Writes ``_SUCCESS`` with the event's JSON into the folder of the period.

    For an incomplete period it writes ``_INCOMPLETE`` instead, and deletes it when the period is complete.
    """

    def __init__(self, folder: Pattern) -> None:
        if "://" in folder.text:
            raise UsageError(reason=f"{folder.option} is {folder.text!r}, expected a folder of this machine, not a URL")
        self._folder = folder
        self.about: Final = f"files in {folder.text}"

    def fire(self, event: TriggerEvent) -> str:
        """Write the file as a whole, or not at all."""
        folder = Path(self._folder.of(event.start))
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (_INCOMPLETE if event.kind == "incomplete" else _SUCCESS)
        new = folder / f".{path.name}.{uuid.uuid4().hex}"
        with new.open("w", encoding="utf-8") as file:
            file.write(json.dumps(event.as_dict()) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        if path.name == _SUCCESS:
            (folder / _INCOMPLETE).unlink(missing_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # so that the name survives a crash of the machine
        finally:
            os.close(descriptor)
        return str(path)
