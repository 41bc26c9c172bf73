"""Produce records with a client whose queue may be full."""

import math
from typing import Any, Final

from confluent_kafka import Producer
from floodmark.producers.clients.clock import Deadline

_WAIT: Final = 0.05  # seconds


def send(client: Producer, *record: Any, seconds: float = math.inf, **options: Any) -> None:  # noqa: ANN401
    """Produce a record; while the client's queue is full, serve delivery reports.  `BufferError` after ``seconds``."""
    deadline: Deadline | None = None
    while True:
        try:
            client.produce(*record, **options)
        except BufferError:
            deadline = deadline or Deadline(seconds)
            if deadline.passed:
                raise
            client.poll(_WAIT)
        else:
            return
