"""Kafka's own programs, from its Maven jars."""

import os
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from floodmark.producers.embedded.jars import fetch, java
from support.processes import end_process

_VERSION: Final = "4.3.0"
"""The newest whose modules CI can download: it finds no `connect-file` and `connect-mirror` of 4.4.0."""


@contextmanager
def running(main: str, *arguments: object, log: Path, modules: Collection[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of Kafka's own programs from its Maven jars."""
    jars = [jar for module in modules for jar in fetch("org.apache.kafka", module, _VERSION)]
    command = [java(), "-Xmx256m", "-cp", os.pathsep.join(map(str, jars)), main, *map(str, arguments)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            end_process(process)
