"""A table as the last stage of the board, and of `why`: its job, its last commit, and the topics before."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake
from floodmark.producers import WatermarkedProducer, explicit
from floodmark.producers.board.causes import Cause
from floodmark.producers.board.fold import Fold
from floodmark.producers.board.source_history import Health
from floodmark.producers.board.why import trace
from floodmark.producers.tables.table_history import Commit, open_table
from floodmark.producers.tables.table_history import History as TableHistory
from floodmark.producers.tables.table_mark import TableMark
from floodmark.producers.tables.table_stage import Tables, with_tables
from floodmark.producers.tables.table_watermark import TableWatermark, complete_until, watermark_of
from floodmark.producers.testing import mark
from floodmark.schemas.classify import Mark
from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import Holder, Status
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.spark_jobs.progress.published import Published, StoredPosition
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.utils.config import Config

SECOND, MINUTE = 1_000, 60_000
NOW = 1_790_000_000_000
TABLE = TableWatermark(
    table="db.daily",
    job="daily",
    watermark=NOW - 30 * SECOND,
    holder=Holder("clicks", 0, "web"),
    snapshot=1,
    committed_at=NOW - 20 * SECOND,
    since=NOW - 20 * SECOND,
    pause=MINUTE,
)


def board(table, stalls=0, awaited=(), over=None, past=120, begins=None, topic_id=None):
    """Return the board of a topic that `web` marks once a second, and whose watermark stands in the last seconds.

    ``over``: a status of its last 40 seconds; the mark of an end is the last one.
    """
    fold = Fold()
    fold.add("clicks", begins=begins, topic_id=topic_id)
    fold.awaited = awaited
    for number, second in enumerate(range(-past, -39 if over is Status.ENDED else 0)):
        at = NOW + second * SECOND
        status = over if over is not None and second >= -40 else Status.ACTIVE
        said = mark("web", min(at, NOW - stalls * SECOND) - 5 * SECOND, number, records=number, status=status)
        fold.take(Mark("clicks", 0, number, at, said))
    return with_tables(fold.board(NOW), {"db.daily": table}, fold.timeline.last_rise)


@pytest.mark.parametrize(
    ("table", "stalls", "status", "cause"),
    [
        pytest.param(TABLE, 0, 0, None, id="all is well"),
        pytest.param(TABLE, 60, 1, "web", id="the source of its input holds it"),
        pytest.param(replace(TABLE, committed_at=NOW - 10 * MINUTE), 0, 1, "daily", id="its job has stopped"),
        pytest.param(replace(TABLE, committed_at=NOW - 60 * MINUTE, pause=50 * MINUTE), 0, 0, None, id="rare commits"),
        pytest.param(replace(TABLE, committed_at=NOW - 100 * SECOND, pause=9), 110, 1, "web", id="no input, no commit"),
        pytest.param(replace(TABLE, watermark=None), 0, 2, "daily", id="no watermark yet"),
        pytest.param(replace(TABLE, watermark=END_OF_TIME, holder=None), 0, 0, None, id="ended"),
    ],
)
def test_why_leads_from_a_table_to_its_cause(table, stalls, status, cause):
    shown = board(table, stalls)
    why = trace(shown, "db.daily")
    assert (why.exit_status, why.cause and why.cause.source) == (status, cause)
    assert why.steps[0].topic == "db.daily"
    assert [stage.name for stage in shown.stages] == ["sources", "daily"]
    assert shown.exit_status == status


@pytest.mark.parametrize(
    ("over", "committed", "watermark", "past", "status"),
    [
        pytest.param(Status.IDLE, 190, 900, 300, 0, id="idle, and the job has read all: its windows are open"),
        pytest.param(Status.IDLE, 210, 900, 300, 1, id="idle, and the job had not read the last rows"),
        pytest.param(Status.IDLE, 190, 205, 60, 0, id="idle, and the table has its watermark, which rose long ago"),
        pytest.param(Status.IDLE, 190, 206, 60, 1, id="idle, and when its watermark rose is not read"),
        pytest.param(Status.ENDED, 130, 205, 300, 1, id="ended, and the job has not read the end"),
        pytest.param(Status.ENDED, 100, 205, 300, 0, id="ended, and the job may still read the end"),
    ],
)
def test_an_idle_input_is_no_new_input_and_an_ended_one_is(over, committed, watermark, past, status):
    table = replace(TABLE, committed_at=NOW - committed * SECOND, watermark=NOW - watermark * SECOND, pause=9)
    shown = board(table, stalls=200, over=over, past=past)
    why = trace(shown, "db.daily")
    assert (why.exit_status, shown.exit_status) == (status, status)
    assert (why.cause and why.cause.source) == ("daily" if status else None)


@pytest.mark.parametrize(
    ("over", "read", "status"),
    [(Status.ENDED, 81, 0), (Status.ENDED, 50, 1), (None, 120, 1)],
    ids=["it has read all", "there are more records", "its input goes on"],
)
def test_an_ended_job_is_not_well_if_its_input_goes_on(over, read, status):
    table = replace(TABLE, watermark=END_OF_TIME, holder=None, read={("clicks", 0): read})
    shown = board(table, over=over)
    why = trace(shown, "db.daily")
    assert (why.exit_status, shown.exit_status) == (status, status)
    assert (why.cause and why.cause.cause) == (Cause.OUTLIVED if status else None)


def said_of(topic, watermark, rose, status=Status.ACTIVE, last=0):
    """Yield the marks of a topic whose watermark rose some seconds ago; ``status``: that of its last mark."""
    for number, second in enumerate((rose + 2, rose + 1, rose, last or rose)):
        low = NOW - (watermark + 9 * (number < 2)) * SECOND
        said = mark("web", low, number, status=status if number > 2 else Status.ACTIVE)
        yield Mark(topic, 0, number, NOW - second * SECOND, said)


@pytest.mark.parametrize(
    ("clicks", "views", "committed", "verdict"),
    [
        pytest.param(
            (200, 310, Status.ENDED, 100), (250, 900, Status.IDLE), 300, Health.OK, id="nothing counts any more"
        ),
        pytest.param((200, 250, Status.ENDED), (190, 100, Status.IDLE), 300, Health.STOP, id="the idle one rose alone"),
        pytest.param((260, 100, Status.ENDED), (250, 200), 190, Health.STOP, id="the ended one held it"),
        pytest.param((200, 100, Status.ENDED), (250, 200), 190, Health.OK, id="the ended one did not hold it"),
        pytest.param((200, 100), (250, 200), 190, Health.OK, id="another input holds it"),
        pytest.param((250, 100), (200, 200), 190, Health.STOP, id="the holder rose"),
        pytest.param((200, 100, Status.ENDED), (190, 80, Status.ENDED), 190, Health.STOP, id="all have ended"),
        pytest.param((200, 100, Status.ENDED), None, 300, Health.OK, id="the other one is not read"),
    ],
)
def test_a_job_with_two_inputs_stops_only_if_their_minimum_has_advanced(clicks, views, committed, verdict):
    fold = Fold(["clicks"])
    for record in (*said_of("clicks", *clicks), *(() if views is None else said_of("views", *views))):
        fold.take(record)
    position = StoredPosition("id", 1, 5, Published({("clicks", 0): 3, ("views", 0): 3}, 5)).text
    said = TableMark(job="daily", epoch=1, batch=1, watermark=NOW - 280 * SECOND, position=position)
    said = replace(said, holder=Holder("clicks", 0, "web"))
    commit = Commit(1, NOW - committed * SECOND, said.properties(), removes=False, parent=None)
    table = watermark_of(TableHistory("db.daily", [commit], expired=False))
    shown = with_tables(fold.board(NOW), {"db.daily": table}, fold.timeline.last_rise).topic("db.daily")
    assert (shown.verdict, shown.held_by[0].inputs) == (verdict, ("clicks", "views"))


def test_the_job_of_a_table_whose_unread_input_is_deleted_starts_over():
    table = replace(TABLE, committed_at=NOW - 10 * MINUTE, read={("clicks", 0): 7})
    why = trace(board(table, begins={0: 9}), "db.daily")
    assert (why.cause.cause, "a restart of job daily fails" in why.advice) == (Cause.DELETED, True)


def test_the_job_of_a_table_whose_input_was_made_anew_starts_over():
    table = replace(TABLE, committed_at=NOW - 10 * MINUTE, read={("clicks", 0): 7}, ids={"clicks": "Xq3"})
    for topic_id, cause in (("b7A", Cause.RECREATED), ("Xq3", Cause.SILENT)):
        assert trace(board(table, topic_id=topic_id), "db.daily").cause.cause is cause


def test_a_table_whose_job_waits_for_a_source_without_a_mark_is_never_called_well(monkeypatch):
    tables, gone = Tables(["db.daily"]), Holder("clicks", 0, "gone")
    monkeypatch.setattr("floodmark.producers.tables.table_stage.open_table", lambda *_: None)
    for since, awaited in ((TABLE.committed_at, []), (TABLE.committed_at - 30 * SECOND, [gone])):
        table = replace(TABLE, holder=gone, since=since)
        monkeypatch.setattr("floodmark.producers.tables.table_stage.complete_until", lambda _, found=table: found)
        tables.read()
        assert tables.awaited() == awaited
    shown = board(table, awaited=awaited)
    why = trace(shown, "db.daily")
    assert (why.cause.source, why.cause.cause, why.exit_status, shown.exit_status) == ("gone", Cause.UNSEEN, 2, 2)


def test_a_table_that_cannot_be_read_is_named():
    assert (board("no catalog").exit_status, board("no catalog").unread) == (2, (("db.daily", "no catalog"),))


def test_a_table_of_a_catalog_opens_by_its_name_and_is_refreshed(tmp_path, monkeypatch):
    where = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    for name, value in where.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__HERE__{name.upper()}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # read once, at its import
    catalog = SqlCatalog("here", **where)
    catalog.create_namespace("db")
    rows = pa.table({"at": [1]})
    written = catalog.create_table("db.daily", schema=rows.schema)
    opened = open_table("here.db.daily")
    written.append(rows, snapshot_properties=TableMark(job="j", epoch=1, batch=1, watermark=5).properties())
    assert complete_until(open_table("here.db.daily", opened)).watermark == 5
    catalog.drop_table("db.daily")
    catalog.create_table("db.daily", schema=rows.schema)
    assert open_table("here.db.daily", opened).current_snapshot() is None
    with pytest.raises(UsageError, match=r"table 'here\.db\.x' cannot be opened: NoSuchTableError"):
        open_table("here.db.x")
    with pytest.raises(UsageError, match="the path of a Delta table"):
        open_table(str(tmp_path / "x"))
    with pytest.raises(UsageError, match=r"table 'x' cannot .* Expected the path of a Delta table, or CATALOG"):
        open_table("x")


@pytest.mark.kafka
def test_the_commands_follow_a_table_to_the_source_of_its_input(kafka, topic, tmp_path):
    target = topic(1)
    with WatermarkedProducer(kafka.config, topic=target, source="web", strategy=explicit()) as web:
        web.advance(TABLE.watermark)
        web.end()
    said = TableMark(job="daily", epoch=1, batch=1, watermark=5, holder=Holder(target, 0, "web")).as_json()
    write_deltalake(
        tmp_path / "t",
        pa.table({"at": [1]}),
        commit_properties=CommitProperties(custom_metadata={"userMetadata": said}),
    )
    command = [sys.executable, "-m", "floodmark.producers.cli.main"]
    more = ["--table", str(tmp_path / "t"), "--bootstrap-servers", kafka.bootstrap_servers]
    wide = {**os.environ, "COLUMNS": "1000"}  # the path may be long
    done = subprocess.run([*command, "why", *more], capture_output=True, text=True, timeout=90, check=False, env=wide)
    said = " ".join(done.stdout.split())
    assert (done.stderr, f"{tmp_path}/t: watermark 1970" in said, f"<- {target}" in said) == ("", True, True)
    done = subprocess.run([*command, "board", "--once", "--json", *more], capture_output=True, timeout=90, check=False)
    stages = json.loads(done.stdout)["stages"]
    assert [(stage["name"], stage["inputs"]) for stage in stages] == [("sources", []), ("daily", [target])]
    assert stages[1]["topics"][0]["watermark"] == 5
    done = subprocess.run([*command, "why"], capture_output=True, text=True, timeout=90, check=False)
    assert "name one topic or one --table" in done.stderr
