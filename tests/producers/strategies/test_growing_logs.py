"""Logs that grow, appear and fall silent: none that is waited for is behind the watermark."""

from datetime import timedelta

import pytest
from floodmark.producers.strategies.growing_logs import GrowingLogs
from floodmark.schemas.errors import UsageError

SECOND = timedelta(seconds=1)


def test_unprocessed_bytes_hold_however_old_they_are():
    logs = GrowingLogs(SECOND)
    logs.seen("a", 10, 0)
    logs.read("a", 4, 50)
    logs.seen("b", 10, 90_000)
    logs.read("b", 10, 900)
    assert logs.watermark(90_000) == 50
    assert logs.backlog() == {"a": 6}
    logs.read("a", 10, 80)
    assert logs.watermark(90_000) == 900, "read to its end and quiet"


def test_a_new_log_holds_what_was_promised_until_its_first_event():
    logs = GrowingLogs(SECOND)
    logs.seen("a", 10, 0)
    logs.read("a", 10, 50)
    assert logs.watermark(0) == 50
    logs.seen("new", 10, 10)
    logs.seen("a", 20, 10)
    logs.read("a", 20, 80)
    assert logs.watermark(10) == 50
    logs.read("new", 10, 60)
    assert logs.watermark(10) == 60


def test_what_cannot_be_is_an_error():
    with pytest.raises(UsageError, match="quiet"):
        GrowingLogs(0 * SECOND)
    logs = GrowingLogs(SECOND)
    logs.seen("a", 10, 0)
    with pytest.raises(UsageError, match="shrunk"):
        logs.seen("a", 9, 1)
