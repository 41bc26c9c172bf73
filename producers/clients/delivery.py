"""Hand records to a client whose queue may be full."""

import math
import time
from typing import Any, Final

from confluent_kafka import Producer

_WAIT: Final = 0.05


def send(client: Producer, *record: Any, seconds: float = math.inf, **options: Any) -> None:  # noqa: ANN401
    """Hand a record to a client; while its queue is full, serve delivery reports until there is room.

    Raises:
        BufferError: there was no room for so long; the record was not sent.
        KafkaException: the client refuses the record.
    """
    deadline: float | None = None
    while True:
        try:
            client.produce(*record, **options)
        except BufferError:
            now = time.monotonic()
            deadline = now + seconds if deadline is None else deadline
            if now >= deadline:
                raise
            client.poll(_WAIT)
        else:
            return
