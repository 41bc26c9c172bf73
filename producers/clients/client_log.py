"""Where Kafka's client logs: without the lines that frighten and mean nothing."""

import logging
from typing import Final

from typing_extensions import override

_RETRIED: Final = "Coordinator load in progress: retrying"
"""A broker's answer to the first producers after its start; the client asks again, and loses nothing."""


class _Meaningful(logging.Filter):
    @override
    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().endswith(_RETRIED)


def client_log(name: str) -> logging.Logger:
    """Return the logger of a module that gives it to a client.

    >>> log = client_log("floodmark.example")
    >>> log.warning("GETPID: Failed to acquire idempotence PID: Broker: Coordinator load in progress: retrying")
    """
    log = logging.getLogger(name)
    if not any(isinstance(one, _Meaningful) for one in log.filters):
        log.addFilter(_Meaningful())
    return log
