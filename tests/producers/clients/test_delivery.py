"""A full queue is waited for, as long as the caller says."""

import pytest
from floodmark.producers.clients.transaction import send


class Full:
    """A client whose queue has room after some polls."""

    def __init__(self, polls):
        self.polls, self.sent = polls, []

    def produce(self, *record, **options):
        if self.polls:
            raise BufferError
        self.sent.append((record, options))

    def poll(self, _seconds):
        self.polls -= 1


def test_a_record_waits_for_room_and_is_sent_once():
    client = Full(polls=3)
    send(client, "topic", b"value", headers=[])
    assert client.sent == [(("topic", b"value"), {"headers": []})]


@pytest.mark.parametrize("seconds", [0, 0.001])
def test_a_record_that_found_no_room_in_time_is_not_sent(seconds):
    client = Full(polls=10**9)
    with pytest.raises(BufferError):
        send(client, "topic", b"value", seconds=seconds)
    assert client.sent == []
