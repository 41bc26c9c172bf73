"""What a job logs of what a batch has read."""

import base64
import json
import logging
from types import SimpleNamespace

import pytest
from floodmark.producers.testing import mark
from floodmark.schemas import Tracker
from floodmark.schemas.classify import mark_record
from floodmark.schemas.errors import EventTimeUnitError
from floodmark.schemas.tracker import AS_WRITTEN
from floodmark.spark_jobs.batch.observed_batch import ObservedBatch, require_usable, update_progress
from floodmark.spark_jobs.batch.output_observation import Output
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.unusable import Skipped
from floodmark.spark_jobs.reading.observation import Observation

_NOON = 1_767_225_600_000


class Partition:
    """A partition of a topic, from which a job reads all that is new with each batch."""

    def __init__(self):
        self.progress = Progress(Tracker({"clicks"}))
        self._offset = self._begin = 0
        self._marks = []

    def rows(self, count):
        self._offset += count

    def mark(self, **fields):
        key, value, _ = mark_record(mark("web", **fields))
        text = {"key": base64.b64encode(key).decode(), "value": base64.b64encode(value).decode()}
        self._marks.append({"topic": "clicks", "partition": 0, "offset": self._offset, "log_time": 0, **text})
        self._offset += 1

    def batch(self, earliest=None, unusable=(), latest=None):
        begin, self._begin = self._begin, self._offset
        marks, self._marks = self._marks, []
        read = self._offset - begin
        found = Observation(
            marks=json.dumps(marks),
            records={("clicks", 0): read},
            rows=read - len(marks),
            earliest=earliest,
            latest=latest or earliest,
            unusable=dict(unusable),
        )
        spec = SimpleNamespace(topics=("clicks",), mark_policy=AS_WRITTEN, unit=None)
        offsets = [{("clicks", 0): offset} for offset in (begin, self._offset)]
        batch = ObservedBatch([(spec, found)], Output(), {}, *offsets)
        done = update_progress("counts", self.progress, batch, ())
        require_usable("counts", self.progress, [spec])
        return done


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


def twins(partition, batches, **older):
    """Let two processes write in turn, and return how many surplus rows were counted."""
    surplus = 0
    for number in range(batches):
        for process in ({"epoch": 72}, {"epoch": 71, **older}):
            partition.mark(sequence=number, watermark=number, records=10 * number, **process)
            partition.rows(10)
        counts, _ = partition.batch()
        surplus += counts["surplus"]
    return surplus


def test_two_processes_with_one_name_are_logged_once_with_both_epochs(logged):
    surplus = twins(Partition(), 30)
    (line,) = [line for line in logged() if "epoch" in line]
    assert "source web of topic clicks" in line
    assert "epoch 71" in line
    assert "epoch 72" in line
    assert surplus > 200
    assert len([line for line in logged() if "surplus" in line]) <= 1, "before the second mark of the older process"


def test_a_process_with_an_older_membership_is_logged_once(logged):
    partition = Partition()
    for number in range(10):
        partition.mark(sequence=number, watermark=number, epoch=72, version=2)
        partition.mark(sequence=number, watermark=number, epoch=71, version=1)
        partition.batch()
    (line,) = logged()
    assert "membership 1" in line
    assert "membership 2" in line


def test_the_last_mark_of_a_process_that_was_replaced_is_not_logged(logged):
    partition = Partition()
    for epoch, sequence in ((71, 0), (71, 1), (72, 0), (71, 2), (72, 1), (72, 2)):
        partition.mark(sequence=sequence, watermark=sequence, epoch=epoch)
        partition.batch()
    assert logged() == []


def test_surplus_rows_are_logged_where_one_process_writes(logged):
    partition = Partition()
    for number in range(5):
        partition.mark(sequence=number, watermark=number, records=0)
        partition.rows(10)
        partition.batch()
    assert len([line for line in logged() if "surplus" in line]) == 4


def test_unusable_records_are_logged_when_their_number_has_doubled(logged):
    partition = Partition()
    for _ in range(100):
        partition.batch(unusable={"out_of_range": Skipped(3, "clicks", 0, 7, 5), "unreadable": Skipped()})
        partition.batch()
    kinds = [line for line in logged() if "out_of_range rows so far" in line]
    assert [int(line.split()[2]) for line in kinds] == [3, 6, 12, 24, 48, 96, 192]
    assert len([line for line in logged() if "none of its" in line]) == len(kinds)
    assert len(logged()) == 2 * len(kinds)


@pytest.mark.parametrize(
    ("earliest", "factor"),
    [
        (1_767_225_600, "1,000"),
        (1_767_225, "1,000,000"),
        (1_767, "1,000,000,000"),
        (1_767_225_600_000, None),
        (5_000, None),
    ],
)
def test_values_that_are_read_in_too_short_a_unit_are_named(logged, earliest, factor):
    """Their windows would be in 1970, and a job that reads all in one batch has no watermark to count them late."""
    partition = Partition()
    partition.rows(2)
    partition.mark(watermark=_NOON, records=2)
    partition.batch(earliest, latest=_NOON)
    assert [
        line
        for line in logged()
        if f"that is {factor} times as long? Then pass that unit=" in line and "clicks" in line and "1970" in line
    ] == logged()
    assert len(logged()) == (factor is not None)
    partition = Partition()
    partition.rows(1)
    partition.batch(earliest)  # no mark yet
    partition.mark(watermark=_NOON, records=1)
    if factor is None:
        partition.batch()
        return
    with pytest.raises(EventTimeUnitError, match=f"of clicks .* 1970-01-.* {factor} times as long"):
        partition.batch()


def test_one_row_in_a_wrong_unit_fails_no_job(logged):
    partition = Partition()
    for number, time in enumerate((_NOON, _NOON // 1_000, _NOON)):
        partition.rows(1)
        partition.mark(sequence=number, watermark=_NOON, records=number + 1)
        partition.batch(time)
    assert len(logged()) == 1


@pytest.mark.parametrize(("earliest", "warns"), [(1_767_225_600_000, True), (1_767_225_600, False), (None, False)])
def test_marks_in_seconds_beside_rows_in_milliseconds_are_logged_once_with_their_source(logged, earliest, warns):
    partition = Partition()
    for number in range(3):
        partition.rows(1)
        partition.mark(sequence=number, watermark=1_767_225_600 + number, records=number + 1)
        partition.batch(earliest)
    assert [line for line in logged() if "source web of topic clicks" in line and "milliseconds" in line] == logged()
    assert len(logged()) == warns
