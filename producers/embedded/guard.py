"""Ends a broker whose program has gone, however it went: a small process beside the broker, which reads a pipe.

The pipe ends with the program, even where SIGKILL ended it.  Only the process that holds the broker's directory is
signalled: its number may belong to another one by then.
"""

import fcntl
import os
import signal
import sys
from contextlib import suppress


def main(claim: str) -> None:
    """Wait until the standard input ends, and then stop the broker that holds a claim, if there is still one."""
    with open(claim, "rb+") as file:  # noqa: PTH123  # pathlib is the larger part of this process' start
        sys.stdin.buffer.read()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with suppress(ProcessLookupError):
                os.kill(int(file.read()), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1])
