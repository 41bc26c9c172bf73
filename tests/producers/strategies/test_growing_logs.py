"""Logs that appear, grow, stop growing and are deleted: the watermark waits for those that may still grow."""

import json
from datetime import timedelta

import pytest
from floodmark.producers.strategies.growing_logs import GrowingLogs
from floodmark.schemas.errors import CorruptSnapshotError, UsageError

SECOND = timedelta(seconds=1)


def read(logs, name, to, event_time):
    logs.read(name, to, event_time)
    return logs.watermark


def test_unread_bytes_hold_however_old_they_are():
    logs = GrowingLogs(SECOND)
    logs.look({"a": 10}, 0)
    logs.read("a", 4, 50)
    logs.look({"a": 10, "b": 10}, 90_000)
    assert read(logs, "b", 10, 900) == 50
    assert logs.backlog() == {"a": 6}
    assert logs.holders() == {"a": "6 bytes are not read"}
    assert read(logs, "a", 10, 80) == 900, "read to its end and quiet"
    assert logs.holders() == {"b": "changed less than 0:00:01 ago"}


def test_a_new_log_holds_what_was_promised_until_its_first_event():
    logs = GrowingLogs(SECOND)
    logs.look({"a": 10}, 0)
    assert read(logs, "a", 10, 50) == 50
    logs.look({"a": 20, "new": 0}, 10_000)
    assert read(logs, "a", 20, 80) == 50, "an empty log has just appeared, however long ago the last look was"
    assert logs.holders() == {"new": "changed less than 0:00:01 ago"}
    logs.look({"a": 20, "new": 10}, 10)
    assert read(logs, "new", 10, 60) == 60


def test_a_deleted_log_is_forgotten_with_what_was_not_read():
    logs = GrowingLogs(SECOND)
    logs.look({"a": 10, "b": 10}, 0)
    logs.read("a", 4, 50)
    assert read(logs, "b", 10, 900) == 50
    assert logs.look({"b": 10}, 0) == {"a": 6}
    assert logs.watermark == 900
    logs.look({"a": 3, "b": 10}, 0)
    assert logs.position("a")[0] == 0, "a new log of that name"


def test_only_looks_count_towards_silence_over_a_restart_too():
    logs = GrowingLogs(SECOND)
    logs.look({"a": 1, "b": 1}, 0)
    logs.read("a", 1, 50)
    logs.read("b", 1, 900)
    for grown in (2, 3):
        logs.look({"a": 1, "b": grown}, 500)
        assert read(logs, "b", grown, 900) == 50
        stored = json.loads(json.dumps(logs.snapshot()))
        logs = GrowingLogs(SECOND)
        logs.restore(stored)
    logs.look({"a": 1, "b": 3}, 1)
    assert logs.watermark == 900


def test_unread_bytes_may_be_replaced():
    logs = GrowingLogs(SECOND)
    logs.look({"a": 10}, 0)
    logs.read("a", 4, 50)
    logs.look({"a": 4}, 5_000)
    assert logs.backlog() == {}
    assert logs.holders() == {"a": "changed less than 0:00:01 ago"}, "a log that was cut may still be written"


def test_what_cannot_be_is_an_error_and_changes_nothing():
    with pytest.raises(UsageError, match="quiet"):
        GrowingLogs(0 * SECOND)
    logs = GrowingLogs(SECOND)
    logs.look({"a": 10, "b": 10}, 0)
    logs.read("a", 10, 50)
    before = logs.snapshot()
    with pytest.raises(UsageError, match="'a' has shrunk to 9 bytes, and 10 were read; give the new file another name"):
        logs.look({"a": 9, "c": 5}, 5_000)
    with pytest.raises(CorruptSnapshotError, match="of logs"):
        logs.restore({"watermark": 5, "logs": {"a": [1, 2, 3, 4]}})
    assert logs.snapshot() == before
