"""Stops a broker when its program has ended, even by SIGKILL: a small process that reads a pipe from the program.

It signals only the process that holds the lock of the broker's directory, because process ids are used again.
"""

import fcntl
import os
import signal
import sys
from contextlib import suppress


def main(claim: str) -> None:
    """Wait for the end of standard input, then stop the broker that holds the lock, if one does."""
    with open(claim, "rb+") as file:  # noqa: PTH123  # pathlib is the larger part of this process' start
        sys.stdin.buffer.read()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with suppress(ProcessLookupError):
                os.kill(int(file.read()), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1])
