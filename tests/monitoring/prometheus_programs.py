"""Prometheus' own programs, for tests: `promtool`, which judges files, and a server for as long as a test needs it."""

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest
from floodmark.producers.embedded.broker import free_port
from support.harness import until
from support.processes import end_process

REQUIRED = os.environ.get("FLOODMARK_REQUIRE_PROMETHEUS") == "1"


def program(name):
    """Return the path of ``promtool`` or ``prometheus``; skip the test where it is not installed."""
    found = shutil.which(name)
    if found is None:
        reason = f"{name} is not installed (Debian's package: prometheus)"
        (pytest.fail if REQUIRED else pytest.skip)(reason)
    return found


def promtool(*arguments, text=None):
    """Run promtool, which must find nothing wrong."""
    command = [program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr or text is None, done.stderr  # `check metrics` names there what it would have otherwise
    return done.stdout


class Server:
    """A running Prometheus."""

    def __init__(self, port):
        self._address = f"http://127.0.0.1:{port}"

    def get(self, path, **query):
        """Return what its API answers; ``None``: it does not listen yet, or is not ready."""
        try:
            with urllib.request.urlopen(f"{self._address}{path}?{urlencode(query)}", timeout=5) as answer:  # noqa: S310  # loopback
                return json.loads(answer.read())["data"]
        except OSError:
            return None

    def value(self, expression):
        """Return what an expression yields now: labels and value of each series."""
        answers = []

        def is_answered():
            answers.append(self.get("/api/v1/query", query=expression))
            return answers[-1] is not None

        until(is_answered, "an answer")
        return [(one["metric"], float(one["value"][1])) for one in answers[-1]["result"]]


@contextmanager
def served(config: Path, data: Path) -> Iterator[Server]:
    """Run a Prometheus on loopback, and end it."""
    port = free_port()
    command = [
        program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (data.parent / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 60
            server = Server(port)
            while server.get("/api/v1/status/buildinfo") is None:
                assert process.poll() is None, Path(log.name).read_text(encoding="utf-8")
                assert time.monotonic() < deadline, Path(log.name).read_text(encoding="utf-8")
                time.sleep(0.05)
            yield server
        finally:
            end_process(process)
