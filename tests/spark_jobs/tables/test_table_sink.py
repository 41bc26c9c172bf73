"""Batches that a failed job has staged, and the next start in the same process; but for one test, no Spark runs."""

import gc
from contextlib import nullcontext
from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from unittest.mock import Mock
from weakref import ref

import pytest
from floodmark.schemas.errors import CheckpointAccessError, ContinueError, CorruptSnapshotError, TableError
from floodmark.schemas.tracker import Tracker
from floodmark.spark_jobs.batch.handler import BatchHandler, register_running, stop_running
from floodmark.spark_jobs.internals.files import LocalFiles
from floodmark.spark_jobs.job import Job
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.published import Published
from floodmark.spark_jobs.tables import table_sink
from floodmark.spark_jobs.tables.staging import StagedRows, Staging
from floodmark.spark_jobs.tables.table_sink import TableSink
from py4j.protocol import Py4JError, Py4JJavaError


class Store(Staging):
    """A table, and the folders of a checkpoint, both in memory; its one file is on disk."""

    name, commit_every = "totals", timedelta(hours=1)

    def __init__(self, folder):
        self._files, self._folders = LocalFiles(folder), self
        self.kept, self.rows, self.mark, self._numbers = {}, [], None, count()
        self.last = -1  # the last batch that Spark has committed

    def write(self, rows):
        name = f"folder-{next(self._numbers)}"
        self.kept[name] = rows
        return StagedRows(name, 1)

    def read(self, _spark, rows):
        return self.kept[rows.folder]

    def names(self):
        return list(self.kept)

    def delete(self, rows):
        self.kept.pop(rows if isinstance(rows, str) else rows.folder, None)

    def newest(self, _spark):
        return self.mark

    def failing(self, _job):
        return nullcontext()

    def commit(self, _spark, batches, mark):
        self.rows += batches.values()
        self.mark = mark

    def sink(self):
        return TableSink(self, None, self, "totals", "id", lambda: range(self.last + 1), lambda found: found is None)

    def run(self, sink, batch, *, cached=False, rows=1):
        sink._written = None if cached else self.write(batch)  # noqa: SLF001  # as `consume`, while no commit is due
        progress = SimpleNamespace(output=batch, epoch=1, holders=list, ended=False)
        frame = SimpleNamespace(createOrReplaceGlobalTempView=lambda _: None)
        sink._spark = SimpleNamespace(table=lambda _: batch, catalog=SimpleNamespace(dropGlobalTempView=str))  # noqa: SLF001
        sink.commit(frame, batch, progress, Published({("orders", 0): batch}, 0), (), rows)
        self.last = batch


def lose_its_results(store):
    store.mark = None


def lose_its_catalog(store):
    def commit(*_):
        raise Py4JError("503")

    store.commit = commit


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(table_sink, "clone", lambda spark: spark)
    monkeypatch.setattr(table_sink, "is_stopped", lambda _: False)
    monkeypatch.setattr(table_sink.time, "sleep", lambda _: None)  # between the attempts of a commit
    return Store(tmp_path)


def handler_of(sink):
    identity = SimpleNamespace(job="totals", checkpoint_id="id")
    settings = SimpleNamespace(rules=SimpleNamespace(possible=False))
    handler = BatchHandler(identity, [], sink, None, settings, recent=1)
    handler.progress = Progress(Tracker({"orders"}))
    return handler


def fail_in_a_batch(handler):
    with pytest.raises(ZeroDivisionError), handler._failing():  # noqa: SLF001
        raise ZeroDivisionError


def start_again(handler):
    register_running(handler)
    assert not stop_running("id")


@pytest.mark.parametrize("end", [fail_in_a_batch, start_again])
def test_a_failed_job_leaves_the_batches_of_the_next_start_alone(store, end):
    old = store.sink()
    old.open()
    for batch in (0, 1, 2):  # the first one is committed at once
        store.run(old, batch)
    handler = handler_of(old)
    end(handler)
    new = store.sink()
    new.open()
    for batch in (3, 4, 5):
        new._due = 1e9  # noqa: SLF001
        store.run(new, batch)
    old._on_time()  # noqa: SLF001  # a timer that was about to run
    handler.close()
    new._timer.cancel()  # noqa: SLF001  # the process is killed
    store.sink().open()
    assert (store.rows, store.kept) == ([0, 1, 2, 3, 4, 5], {})


def opened(store):
    """Return a sink with a batch in the table, and one that is staged."""
    sink = store.sink()
    sink.open()
    store.run(sink, 0)
    store.run(sink, 1)
    sink._timer.cancel()  # noqa: SLF001
    return sink, handler_of(sink)


@pytest.mark.parametrize(("harm", "error"), [(lose_its_results, ContinueError), (lose_its_catalog, TableError)])
def test_a_job_whose_last_commit_fails_has_failed(store, harm, error):
    _, handler = opened(store)
    harm(store)
    job = Job(SimpleNamespace(isActive=False, exception=lambda: None), handler, available_now=True)
    with pytest.raises(error):
        job.awaitTermination()
    assert isinstance(job.exception(), error)


def test_a_start_that_is_refused_commits_nothing_and_logs_no_failed_commit(store, caplog):
    opened(store)
    lose_its_results(store)
    again = store.sink()
    with pytest.raises(ContinueError):
        again.open()
    again.close()
    assert (store.rows, again.failure, caplog.text) == ([0], None, "")


def test_a_job_without_input_fails_when_its_table_lacks_its_results(store):
    sink, handler = opened(store)
    lose_its_results(store)
    sink._on_time()  # noqa: SLF001
    handler._ran_at = float("-inf")  # noqa: SLF001
    handler.check_while_idle()
    assert isinstance(handler.failure, ContinueError)
    with pytest.raises(ContinueError):
        store.run(sink, 2)


def test_a_timer_commits_when_the_catalog_answers_again(store):
    sink, handler = opened(store)
    commit = store.commit
    lose_its_catalog(store)
    sink._on_time()  # noqa: SLF001
    store.commit = commit
    sink._timer.cancel()  # noqa: SLF001
    sink._on_time()  # noqa: SLF001
    handler.close()
    assert (store.rows, handler.failure) == ([0, 1], None)


def test_a_timer_ends_with_the_session(store, monkeypatch):
    sink, _ = opened(store)
    lose_its_catalog(store)
    monkeypatch.setattr(table_sink, "is_stopped", lambda _: True)
    sink._on_time()  # noqa: SLF001
    assert sink._timer is None  # noqa: SLF001  # it would retry for ever


def test_a_timer_keeps_no_failed_job_in_memory(store):
    sink = store.sink()
    sink.open()
    store.run(sink, 0)
    store.run(sink, 1)
    timer, gone = sink._timer, ref(sink)  # noqa: SLF001
    del sink
    gc.collect()
    assert gone() is None
    timer.function(*timer.args)
    timer.cancel()
    assert store.rows == [0]


def test_a_job_that_is_killed_before_it_forgets_a_staged_watermark_starts_again(store, monkeypatch):
    sink = store.sink()
    sink.open()
    store.run(sink, 0)
    store.run(sink, 1, rows=0)
    sink._due = 0  # noqa: SLF001
    monkeypatch.setattr(store, "clear", None)
    with pytest.raises(TypeError):
        store.run(sink, 2, cached=True)
    monkeypatch.delattr(store, "clear")
    again = store.sink()
    again.open()
    store.run(again, 2, cached=True)
    store.run(again, 3, cached=True)
    assert (store.rows, store.kept) == ([0, 2, 3], {})


def test_a_job_that_could_not_forget_a_commit_by_the_timer_starts_again(store, monkeypatch, caplog):
    sink = store.sink()
    sink.open()
    store.run(sink, 0)
    store.run(sink, 1)
    with monkeypatch.context() as away:
        away.setattr(
            store, "clear", refuse := Mock(side_effect=CheckpointAccessError(path="p", action="deleted", reason="r"))
        )
        sink._on_time()  # noqa: SLF001
        assert (store.rows, refuse.call_count) == ([0, 1], 1)
        assert "rows that the table lacks are in the checkpoint" in caplog.text
        sink._due = 0  # noqa: SLF001
        with pytest.raises(CheckpointAccessError):
            store.run(sink, 2, cached=True)
    again = store.sink()
    again.open()
    store.run(again, 2, cached=True)
    assert (store.rows, store.kept) == ([0, 1, 2], {})


def test_rows_are_staged_also_where_the_checkpoint_has_the_name_of_a_pattern(spark, tmp_path):
    place = tmp_path / "state[eu]{a,b}*?"
    staging = Staging(spark, str(place), LocalFiles(place))
    assert staging.read(spark, staging.write(spark.range(20))).count() == 20


def test_a_staged_file_that_cannot_be_read_is_an_error_also_in_a_session_that_skips_such_files(spark, tmp_path):
    staging = Staging(spark, str(tmp_path), LocalFiles(tmp_path))
    folder = staging.write(spark.range(20).repartition(2))
    assert staging.read(spark, folder).count() == 20
    part = max(tmp_path.rglob("part-*.parquet"))  # Spark takes the schema from the first one
    part.write_bytes(b"x" * part.stat().st_size)
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(Py4JJavaError, match="FAILED_READ_FILE"):
            staging.read(spark, folder).count()
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


@pytest.mark.parametrize("lose", [lambda part: part.write_bytes(b""), lambda part: part.unlink()])
def test_a_staged_file_that_a_power_failure_emptied_or_removed_is_an_error(spark, tmp_path, lose):
    staging = Staging(spark, str(tmp_path), LocalFiles(tmp_path))
    rows = staging.write(spark.range(20).repartition(2))
    lose(max(tmp_path.rglob("part-*.parquet")))
    with pytest.raises(CorruptSnapshotError, match=r"its files have [\d,]+ bytes, and had [\d,]+"):
        staging.read(spark, rows)


def test_what_is_found_while_it_idles_does_not_replace_the_failure_of_a_batch(store):
    _, handler = opened(store)
    first, second = TableError(job="j", table="t", reason="first"), TableError(job="j", table="t", reason="second")

    def find():
        handler.failure = first
        raise second

    handler.sink.check = find
    handler._ran_at = float("-inf")  # noqa: SLF001
    handler.check_while_idle()
    assert handler.failure is first
