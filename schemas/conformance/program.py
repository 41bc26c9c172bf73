"""A program in any language: it takes lines of JSON from standard input, and prints one line for each step."""

import json
import shlex
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from floodmark.schemas.conformance.reader_cases import Line, ReaderCase
from floodmark.schemas.conformance.writer_cases import WriterCase
from floodmark.schemas.errors import FloodmarkError

_SHOWN: Final = 80
Case = ReaderCase | WriterCase


class ProgramError(FloodmarkError):
    """A program that did not start, ended early, hung, or printed no JSON."""

    template = "program {command!r} {problem} {place}. It has to print one JSON object for each step: see SPEC.md"
    command: str
    problem: str
    place: str


class Program:
    """A program that runs with all cases; ``timeout``: for how many seconds it may print nothing."""

    def __init__(self, command: str, cases: Sequence[Case], timeout: float) -> None:
        self._command, self._cases, self._timeout = command, cases, timeout
        self._printed: SimpleQueue[str] = SimpleQueue()  # an empty text: the end
        try:
            self._process = subprocess.Popen(  # noqa: S603  # what the user asks for
                shlex.split(command) or [command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
            )
        except (OSError, ValueError) as error:
            raise self._error(f"cannot be started ({error})", "before the first case") from error

    def answers(self) -> Iterator[tuple[Case, list[Line]]]:
        """Yield each case with the answers of the program, one for each step.

        Raises:
            ProgramError: if it ends early, prints nothing for too long, or no JSON.
        """
        threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._feed)]
        try:
            for thread in threads:
                thread.start()
            for case in self._cases:
                steps = f"of {len(case.steps)} of {case.name!r}"
                yield case, [self._answer(f"at step {number} {steps}") for number, _ in enumerate(case.steps, 1)]
            if line := self._next_line(place := "after the last answer"):
                raise self._error(f"printed {line[:_SHOWN]!r}", place)
        finally:
            self._process.kill()
            self._process.wait()
            for thread in filter(threading.Thread.is_alive, threads):
                thread.join(1)  # a child of the program may still hold its output

    def _feed(self) -> None:
        with suppress(OSError), self._process.stdin as given:  # type: ignore[union-attr]  # it is a pipe
            for case in self._cases:
                given.writelines(json.dumps(line) + "\n" for line in (*case.begin, *case.steps))

    def _read(self) -> None:
        with self._process.stdout as output:  # type: ignore[union-attr]  # it is a pipe
            for line in output:
                self._printed.put(line)
        self._printed.put("")

    def _next_line(self, place: str) -> str:
        try:
            return self._printed.get(timeout=self._timeout)
        except Empty:
            raise self._error(f"printed nothing for {self._timeout:g} s", place) from None

    def _answer(self, place: str) -> Line:
        line = self._next_line(place)
        if not line:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self._timeout)
            raise self._error(f"closed its output (exit status {self._process.returncode})", place)
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise self._error(f"printed {line[:_SHOWN]!r}", place)
        return answer

    def _error(self, problem: str, place: str) -> ProgramError:
        return ProgramError(command=self._command, problem=problem, place=place)
