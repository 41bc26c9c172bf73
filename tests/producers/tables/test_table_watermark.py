"""How complete a table is, read from real tables of pyiceberg and deltalake, whose commits carry a job's mark."""

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from floodmark.producers.tables.table_history import Commit, History
from floodmark.producers.tables.table_mark import TableMark
from floodmark.producers.tables.table_rows import read_complete
from floodmark.producers.tables.table_watermark import complete_until, watermark_of
from floodmark.schemas.errors import UnmarkedTableError, UnreadableTableError, UsageError
from floodmark.schemas.records import Holder
from floodmark.schemas.timestamps import END_OF_TIME
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog

TIMES = pa.array([1, 2, 3], pa.int64())
SINCE_1970 = TIMES.cast(pa.timestamp("ms")).cast(pa.timestamp("us"))
ROWS = pa.table({"at": TIMES, "local": SINCE_1970, "utc": SINCE_1970.cast(pa.timestamp("us", "UTC"))})
MARK = TableMark(job="daily", epoch=7, batch=0, watermark=10, holder=Holder("clicks", 0, "web-1"))


class Iceberg:
    """A table of pyiceberg with a catalog in SQLite, on disk."""

    def __init__(self, folder):
        catalog = SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
        catalog.create_namespace("db")
        self.open = catalog.create_table("db.daily", schema=ROWS.schema)
        self.name = "db.daily"

    def commit(self, mark=None, properties=None):
        """Append rows with a mark, with other properties, or with none."""
        self.open.append(ROWS, snapshot_properties=properties or (mark.properties() if mark else {}))
        return self.open.current_snapshot().snapshot_id

    def delete(self):
        self.open.delete("at = 1")
        return self.open.current_snapshot().snapshot_id

    def roll_back(self, number):
        self.open.manage_snapshots().rollback_to_snapshot(number).commit()

    def expire(self):
        self.open.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()


class Delta:
    """A table of deltalake, on disk."""

    def __init__(self, folder):
        DeltaTable.create(folder, ROWS.schema)
        self._folder = folder
        self.name = DeltaTable(folder).table_uri

    @property
    def open(self):
        return DeltaTable(self._folder)

    def commit(self, mark=None, properties=None):
        text = mark.as_json() if mark else json.dumps(properties)
        said = CommitProperties(custom_metadata={"userMetadata": text})
        write_deltalake(self._folder, ROWS, mode="append", commit_properties=said)
        return self.open.version()

    def delete(self):
        self.open.delete("at = 1")
        return self.open.version()

    def roll_back(self, number):
        self.open.restore(number)

    def maintain(self):
        self.open.optimize.compact()
        self.open.create_checkpoint()


@pytest.fixture(params=[Iceberg, Delta])
def table(request, tmp_path):
    return request.param(tmp_path)


def test_maintenance_and_other_programs_do_not_move_the_watermark(table):
    with pytest.raises(UnmarkedTableError, match=r"none of its|it is empty"):
        complete_until(table.open)
    table.commit(replace(MARK, watermark=5))
    last = table.commit(replace(MARK, batch=1))
    table.commit()
    table.commit(properties={"owner": "nightly load"})
    deleted = table.delete()
    if isinstance(table, Delta):
        table.maintain()
    found = complete_until(table.open)
    assert (found.watermark, found.holder, found.job) == (10, MARK.holder, "daily")
    assert (found.snapshot, found.removed_by, found.table) == (last, deleted, table.name)
    assert found.since == found.committed_at > 0 <= found.pause


def test_a_rollback_lowers_the_watermark_and_the_next_commit_raises_it(table):
    first = table.commit(replace(MARK, watermark=5))
    table.commit(replace(MARK, batch=1))
    table.roll_back(first)
    assert complete_until(table.open).watermark == 5
    table.commit(replace(MARK, batch=1, watermark=7))
    assert complete_until(table.open).watermark == 7


def test_a_table_whose_marked_commits_have_expired_says_so(tmp_path):
    table = Iceberg(tmp_path)
    table.commit(MARK)
    table.commit()
    table.expire()
    with pytest.raises(UnmarkedTableError, match=r"db\.daily has no watermark: none of its 1 .* are no longer"):
        complete_until(table.open)


def test_a_restore_to_a_time_hides_what_was_before(tmp_path):
    table = Delta(tmp_path)
    table.commit(MARK)
    table.commit()
    before = table.open.history()[1]["timestamp"]
    table.open.restore(datetime.fromtimestamp(before / 1_000, UTC))
    with pytest.raises(UnmarkedTableError):
        complete_until(table.open)


@pytest.mark.parametrize("column", ["at", "local", "utc"])
def test_only_rows_below_the_watermark_are_complete(table, column):
    table.commit(replace(MARK, watermark=None))
    assert read_complete(table.open, column).num_rows == 0
    table.commit(replace(MARK, watermark=3))
    table.commit()
    assert sorted(read_complete(table.open, column)["at"].to_pylist()) == [1, 1, 1, 2, 2, 2]
    table.commit(replace(MARK, watermark=END_OF_TIME))
    assert read_complete(table.open, column).num_rows == 12
    with pytest.raises(UsageError, match=r"no column 'time', only at, local, utc"):
        read_complete(table.open, "time")


def test_a_reader_learns_that_another_program_has_deleted_rows(table, caplog):
    table.commit(MARK)
    read_complete(table.open, "at")
    assert not caplog.text
    deleted = table.delete()
    assert read_complete(table.open, "at")["at"].to_pylist() == [2, 3]
    assert f"table {table.name}: commit {deleted} of another program deleted or replaced rows" in caplog.text


def test_a_process_that_has_read_a_delta_table_can_exit(tmp_path):
    table = Delta(tmp_path)
    for batch in range(8):
        table.commit(replace(MARK, batch=batch))
    reads = "import sys; from deltalake import DeltaTable; from floodmark import read_complete; "
    reads += "print(read_complete(DeltaTable(sys.argv[1]), 'at').num_rows)"
    for _ in range(6):  # read by pyarrow, exits were aborted
        done = subprocess.run([sys.executable, "-c", reads, tmp_path], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "24\n", "")


@pytest.mark.parametrize("wrong", ["db.daily", 7, None])
def test_something_else_than_a_table_is_refused(wrong):
    with pytest.raises(UsageError, match=r"the table|is a name"):
        complete_until(wrong)
    with pytest.raises(UsageError, match=r"'lake/daily' is a path: .* delta\.`/absolute/path`"):
        complete_until("lake/daily", spark=object())
    with pytest.raises(UsageError, match=r"has a relative path, .* delta\.`/absolute/path`"):
        complete_until("delta.`lake/daily`", spark=object())


def test_files_that_are_missing_are_named(table, tmp_path):
    table.commit(MARK)
    opened = table.open
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    with pytest.raises(UnreadableTableError, match=rf"{table.name} cannot be read: .*\.parquet.* your rights"):
        read_complete(opened, "at")


def history(*said):
    """Return a history of marks, or of properties."""
    properties = [mark.properties() if isinstance(mark, TableMark) else mark for mark in said]
    commits = [Commit(n, n, one, removes=False, parent=n - 1 or None) for n, one in enumerate(properties, 1)]
    return History("db.daily", commits, expired=False)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.none() | st.integers(0, 9)), min_size=1))
def test_the_watermark_is_the_lowest_of_the_jobs_and_of_each_the_highest_of_its_newest_epoch(said):
    """A job that starts with ``published="repeat"`` adds its rows again, from the first one on."""
    found = watermark_of(history(*(TableMark(job=j, epoch=e, batch=0, watermark=w) for j, e, w in said)))
    highest = {}
    for job in {job for job, _, _ in said}:
        own = [(epoch, time) for name, epoch, time in said if name == job]
        newest = max(epoch for epoch, _ in own)
        highest[job] = max((time for epoch, time in own if epoch == newest and time is not None), default=None)
    lowest = None if None in highest.values() else min(highest.values())
    assert found.watermark == lowest == highest[found.job]


def test_a_commit_that_cannot_be_read_counts_for_nothing(caplog):
    damaged = replace(MARK, watermark=END_OF_TIME).properties() | {"floodmark.batch": "?"}
    assert watermark_of(history(MARK, damaged)).watermark == 10
    assert "commit 2 is ignored" in caplog.text
    with pytest.raises(UnmarkedTableError, match=r"floodmark\.batch"):
        watermark_of(history(damaged))
