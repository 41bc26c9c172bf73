"""Stops a broker when its program has ended, even by SIGKILL: a small process that reads a pipe from the program.

It signals the broker only while its process holds the lock of the directory: process ids are used again, and once the
broker has died, another program may have started its own there.
"""

import fcntl
import os
import signal
import sys
from contextlib import suppress


def main(claim: str, broker: str) -> None:
    """Wait for the end of standard input, then stop the process ``broker`` if it holds the lock."""
    with open(claim, "rb+") as file:  # noqa: PTH123  # pathlib is the larger part of this process' start
        sys.stdin.buffer.read()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if file.read().decode() == broker:
                with suppress(ProcessLookupError):
                    os.kill(int(broker), signal.SIGTERM)


if __name__ == "__main__":
    main(*sys.argv[1:])
