"""Which commit of a Delta table a job continues after, by the history that Spark shows; no Spark runs."""

from types import SimpleNamespace

import pytest
from floodmark.producers.tables.table_mark import TableMark
from floodmark.schemas.errors import ContinueError
from floodmark.spark_jobs import delta
from floodmark.spark_jobs.batch.sinks import StoredBatches
from floodmark.spark_jobs.progress.published import Published, StoredPosition
from floodmark.spark_jobs.tables.delta import DeltaTable
from floodmark.spark_jobs.tables.table_sink import table_position


class Log(list):
    """The versions of a table, in place of a session."""

    def add(self, operation, mark=None, **parameters):
        said = {"operation": operation, "operationParameters": parameters, "userMetadata": mark}
        self.append({"version": len(self), "timestamp": len(self), **said})

    def sql(self, text):
        rows = [SimpleNamespace(asDict=entry.copy) for entry in self[-int(text.rpartition(" LIMIT ")[2]) :]]
        return SimpleNamespace(selectExpr=lambda *_: SimpleNamespace(collect=lambda: rows))


def position(batch):
    return StoredPosition("id", batch, batch, Published({("orders", 0): batch}, 0))


@pytest.fixture
def log(monkeypatch):
    """Return the log of a table with the batches 1 to 30, each at the version of its number."""
    monkeypatch.setattr(DeltaTable, "exists", lambda *_: True)
    log = Log()
    log.add("CREATE TABLE")
    for batch in range(1, 31):
        mark = TableMark(job="totals", epoch=1, batch=batch, watermark=batch, position=position(batch).text)
        log.add("WRITE", mark.as_json())
    return log


@pytest.mark.parametrize(
    ("operation", "parameters"),
    [
        ("RESTORE", {"version": "3"}),
        ("RESTORE", {"timestamp": "2030-01-01 00:00:00.0"}),
        ("CREATE OR REPLACE TABLE AS SELECT", {}),
        ("CLONE", {}),
    ],
)
def test_a_job_writes_no_batch_that_would_follow_lost_ones(log, operation, parameters):
    read = table_position(delta("/totals"), log)

    def opened():
        batches = StoredBatches(read, "totals", "id", lambda: range(31), lambda _: False)
        batches.open()
        return batches

    running = opened()
    log.add(operation, **parameters)
    log.add("OPTIMIZE")
    with pytest.raises(ContinueError):
        running.next(31, position(31))
    with pytest.raises(ContinueError):
        opened()
    log.add("RESTORE", version="30")
    assert running.next(31, position(31)) == opened().next(31, position(31)) == position(31)
