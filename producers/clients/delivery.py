"""Hand records to a client whose queue may be full."""

import math
from typing import Any, Final

from confluent_kafka import Producer
from floodmark.producers.clients.clock import Deadline

_WAIT: Final = 0.05


def send(client: Producer, *record: Any, seconds: float = math.inf, **options: Any) -> None:  # noqa: ANN401
    """Hand a record to a client; while its queue is full, serve delivery reports until there is room.

    Raises:
        BufferError: there was no room for so long; the record was not sent.
        KafkaException: the client refuses the record.
    """
    deadline: Deadline | None = None
    while True:
        try:
            client.produce(*record, **options)
        except BufferError:
            deadline = Deadline(seconds) if deadline is None else deadline
            if deadline.passed:
                raise
            client.poll(_WAIT)
        else:
            return
