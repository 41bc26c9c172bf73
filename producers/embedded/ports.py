"""Ports for servers that bind them seconds after they were chosen."""

import secrets
import socket
from typing import Final

_LOWEST: Final = 20_000
_COUNT: Final = 12_000
"""Systems hand out higher ones of their own (Linux from 32,768 on, others from 49,152), so nobody takes these."""


def free_port() -> int:
    """Return a port of the loopback address that nobody uses, and that no program gets without asking for it."""
    while True:
        port = _LOWEST + secrets.randbelow(_COUNT)
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
