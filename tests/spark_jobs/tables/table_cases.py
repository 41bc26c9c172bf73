"""Jobs that write Iceberg and Delta tables; ``test_tables.py`` runs this file in a process of its own.

The connectors must be in the JVM of Spark from its start.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from floodmark.producers import WatermarkedProducer, complete_until, explicit, read_complete
from floodmark.producers.tables.table_history import history_of
from floodmark.producers.tables.table_mark import TableMark
from floodmark.schemas import END_OF_TIME
from floodmark.schemas.errors import (
    CheckpointAccessError,
    ContinueError,
    ForeignTableError,
    PublishedError,
    ReplacedCheckpointError,
    TableColumnsError,
    TableError,
    UnreadableTableError,
    UsageError,
)
from floodmark.schemas.timestamps import to_datetime
from floodmark.spark_jobs import Start, WriteOptions, iceberg, write
from floodmark.spark_jobs.batch import resume
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.functions import partitioning
from support.counting import WIDTH, fails, read_events, windowed
from support.crashing_job import KEYS
from support.crashing_job import run as run_crashing
from support.harness import Stream, until
from support.lake import (
    KINDS,
    assert_true_marks,
    counts_in,
    is_written,
    lake_session,
    marks_of,
    named_table,
    opened,
    partitions_of,
    place_of,
)
from support.lake import rows_of as rows_in
from support.permissions import obey_permissions
from support.rest_catalog import RestCatalog

obey_permissions()  # Spark's JVM, too

pytestmark = pytest.mark.spark
EACH_KIND = pytest.mark.parametrize("kind", KINDS)
COMPACT = {
    "iceberg": "CALL lake.system.rewrite_data_files(table => '{}', options => map('rewrite-all', 'true'))",
    "delta": "OPTIMIZE delta.`{}`",
}
HOUR = timedelta(hours=1)
PAGES = Path(__file__).parents[3] / "spark_jobs"
_LIMIT = 200


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="session")
def spark(folder):
    session = lake_session(folder)
    yield session
    session.stop()


@pytest.fixture
def place(folder, request):
    """Return the folder of the test's table, by its kind."""
    return lambda kind: place_of(kind, folder, f"t{abs(hash(request.node.name))}")


@pytest.fixture
def start(kafka, spark, checkpoint):
    """Start a job, with a checkpoint for each ``state``."""

    def job(
        topic, table, query=windowed, *, state="first", per_batch=80, output_mode="append", name="totals", **options
    ):
        rows = read_events(spark, kafka.bootstrap_servers, topic, max_offsets_per_trigger=per_batch)
        return write(
            query(rows),
            table=table,
            event_time="ended",
            job=name,
            checkpoint_location=f"{checkpoint}-{state}",
            output_mode=output_mode,
            options=WriteOptions(lookahead=timedelta(0), **options),
        )

    return job


def assert_exact(kind, place, stream):
    table = opened(kind, place)
    assert counts_in(table) == stream.windows(WIDTH)
    assert len(rows_in(table)) == len(stream.windows(WIDTH)), "a row was lost or written twice"
    assert_true_marks(table)


@EACH_KIND
def test_each_commit_has_its_rows_and_their_watermark(spark, kafka, topic, place, start, kind):
    given, stream = topic(2), Stream.seeded(31, sources=2, steps=6)
    stream.produce(kafka.config, given)
    seen, partitions = [], partitioning.days("ended") if kind == "iceberg" else "user"

    def maintain(batch):
        seen.append(batch)
        if len(seen) == 4:
            spark.sql(COMPACT[kind].format(place(kind) if kind == "delta" else f"db.{place(kind).name}"))

    job = start(given, named_table(kind, place(kind), partition_by=partitions), on_batch=maintain)
    job.awaitTermination(_LIMIT)
    assert_exact(kind, place(kind), stream)
    marks = marks_of(opened(kind, place(kind)))
    assert [mark.watermark for mark in marks] == sorted({batch.output for batch in seen} - {None})
    assert {mark.epoch for mark in marks} == {job.metrics().epoch}
    assert marks[0].holder is not None
    assert partitions_of(opened(kind, place(kind))) == (["ended_day"] if kind == "iceberg" else ["user"])
    table, name = opened(kind, place(kind)), named_table(kind, place(kind)).sql
    here, there = complete_until(table), complete_until(name, spark=spark)
    assert (here.watermark, here.holder, here.removed_by) == (END_OF_TIME, None, None)
    assert replace(there, table=here.table, committed_at=here.committed_at, since=here.since, pause=here.pause) == here
    assert read_complete(name, "ended", spark=spark).count() == read_complete(table, "ended").num_rows > 0
    start(given, named_table(kind, place(kind))).awaitTermination(_LIMIT)  # it has ended: no commit more
    assert marks_of(opened(kind, place(kind))) == marks


@EACH_KIND
def test_a_start_with_a_new_checkpoint_continues_and_the_old_one_writes_no_more(
    kafka, topic, place, start, kind, monkeypatch
):
    given, stream, seen, release = topic(2), Stream.seeded(31, sources=2, steps=5), [], threading.Event()
    stream.produce(kafka.config, given)

    def hold(batch):
        seen.append(batch)
        if len(seen) == 3:
            release.wait(120)

    table = named_table(kind, place(kind))
    old = start(given, table, on_batch=hold)  # it still runs when the next continues
    until(lambda: fails(old) or len(seen) == 3, "three batches", _LIMIT)
    with pytest.raises(PublishedError, match=r"results to table .*published='continue'"):
        start(given, table, state="new")
    monkeypatch.setattr(resume, "time", SimpleNamespace(time_ns=lambda: 0))  # the clock of another machine
    start(given, table, state="lost", start=Start(published="continue")).awaitTermination(_LIMIT)
    assert complete_until(opened(kind, place(kind))).watermark == END_OF_TIME
    release.set()
    with pytest.raises(
        ReplacedCheckpointError, match=r"table .* from another checkpoint_location, .* since batch 2 of"
    ):
        old.awaitTermination(_LIMIT)
    assert_exact(kind, place(kind), stream)


@pytest.mark.parametrize("commit_every", [timedelta(0), HOUR])
def test_an_older_copy_of_the_checkpoint_is_refused(kafka, topic, place, start, checkpoint, commit_every):
    """It would skip its next batches: other batches with these numbers are in the table."""
    given, table = topic(2), named_table("iceberg", place("iceberg"), commit_every=commit_every)
    Stream.seeded(31, sources=2, steps=5).produce(kafka.config, given)

    def run_some():
        seen = []
        job = start(given, table, on_batch=seen.append)
        # A batch that changes nothing is not in the table, so a copy from before it may go on.
        until(lambda: fails(job) or any(batch.rows for batch in seen[1:]), "rows of a second batch", _LIMIT)
        job.stop()

    run_some()
    shutil.copytree(f"{checkpoint}-first", f"{checkpoint}-copy")
    run_some()
    with pytest.raises(ReplacedCheckpointError, match="a newer copy of this one, since batch"):
        start(given, table, state="copy", per_batch=1000).awaitTermination(_LIMIT)


@pytest.mark.parametrize(("kind", "again"), [("iceberg", False), ("iceberg", True), ("delta", False)])
def test_a_table_that_is_deleted_under_its_job_fails_the_job(spark, kafka, topic, place, start, kind, again):
    given, stream, seen = topic(2), Stream.seeded(38, sources=2, steps=5), []
    stream.produce(kafka.config, given)
    table, kept = named_table(kind, place(kind)), place(kind).with_name(f"{place(kind).name}-kept")

    def delete(batch):
        seen.append(batch)
        if len(seen) == 3:
            place(kind).rename(kept)  # by another program
            if again:
                spark.sql(f"CREATE TABLE {table.sql} (user STRING, ended TIMESTAMP, n BIGINT) USING {kind}")

    job = start(given, table, on_batch=delete)
    with pytest.raises(ContinueError, match=r"table .*: it lost them while the job ran.*location and a new table\.$"):
        job.awaitTermination(_LIMIT)
    shutil.rmtree(place(kind), ignore_errors=True)
    kept.rename(place(kind))
    start(given, table).awaitTermination(_LIMIT)
    assert_exact(kind, place(kind), stream)
    shutil.rmtree(place(kind))
    with pytest.raises(ContinueError, match=r"table .*: it lacks batch \d+ of this checkpoint"):
        start(given, table)  # though the job has ended, and no batch follows


@EACH_KIND
def test_a_table_that_is_rolled_back_fails_the_job_which_then_has_two_ways_on(spark, kafka, topic, place, start, kind):
    given, stream, seen = topic(2), Stream.seeded(43, sources=2, steps=5), []
    stream.produce(kafka.config, given)
    table = named_table(kind, place(kind))

    def commits():
        found = history_of(opened(kind, place(kind))).commits
        return [commit.number for commit in found if TableMark.of(commit.properties) is not None]

    def set_current(number):
        if kind == "delta":
            spark.sql(f"RESTORE TABLE {table.sql} TO VERSION AS OF {number}")
        else:
            spark.sql(f"CALL lake.system.set_current_snapshot('db.{place(kind).name}', {number})")

    def roll_back(batch):
        if not seen and len(commits()) == 4:
            seen.extend(commits())
            set_current(seen[1])  # by another program

    lost = pytest.raises(ContinueError, match=r"lacks batch \d+ of this .* as it was, or .*\(published='continue'\)\)")
    job = start(given, table, on_batch=roll_back, per_batch=60)
    with lost:
        job.awaitTermination(_LIMIT)
    with lost:
        start(given, table)
    set_current(seen[-1])
    start(given, table).awaitTermination(_LIMIT)
    assert_exact(kind, place(kind), stream)
    set_current(commits()[-3])
    start(given, table, state="new", start=Start(published="continue")).awaitTermination(_LIMIT)
    assert_exact(kind, place(kind), stream)


@EACH_KIND
def test_a_table_and_its_checkpoint_that_are_rolled_back_together_lose_no_row_in_silence(
    spark, kafka, topic, place, start, checkpoint, kind
):
    """Delta keeps the number of the last batch over a RESTORE, and skips a commit with this number without an error."""
    given, stream = topic(2), Stream.seeded(43, sources=2, steps=5)
    stream.produce(kafka.config, given)
    table = named_table(kind, place(kind))

    def commits():
        found = history_of(opened(kind, place(kind))).commits
        return [commit.number for commit in found if TableMark.of(commit.properties) is not None]

    job = start(given, table, per_batch=60)
    until(lambda: fails(job) or (is_written(place(kind)) and len(commits()) >= 3), "three commits", _LIMIT)
    job.stop()
    then = commits()[-1]
    shutil.copytree(f"{checkpoint}-first", f"{checkpoint}-copy")
    start(given, table).awaitTermination(_LIMIT)
    if kind == "delta":
        spark.sql(f"RESTORE TABLE {table.sql} TO VERSION AS OF {then}")
        with pytest.raises(ContinueError, match=r"Delta skips the commit of batch \d+, .*\(published='continue'\)\)"):
            start(given, table, state="copy").awaitTermination(_LIMIT)
        start(given, table, state="new", start=Start(published="continue")).awaitTermination(_LIMIT)
    else:
        spark.sql(f"CALL lake.system.set_current_snapshot('db.{place(kind).name}', {then})")
        start(given, table, state="copy").awaitTermination(_LIMIT)
    assert_exact(kind, place(kind), stream)


def test_several_batches_are_one_commit_and_a_stop_commits_what_is_staged(kafka, topic, place, start):
    given, stream, seen = topic(2), Stream.seeded(33, sources=2, steps=5), []
    stream.produce(kafka.config, given)
    table = named_table("iceberg", place("iceberg"), HOUR)
    job = start(given, table, on_batch=seen.append)
    until(lambda: fails(job) or len({batch.output for batch in seen} - {None}) > 2, "some watermarks", _LIMIT)
    assert len(marks_of(opened("iceberg", place("iceberg")))) == 1, "the first one, at once"
    job.stop()
    first, stopped = marks_of(opened("iceberg", place("iceberg")))
    assert first.watermark < stopped.watermark == seen[-1].output
    start(given, table).awaitTermination(_LIMIT)
    left = stopped.watermark != END_OF_TIME  # at the stop; the job may have been faster
    assert len(marks_of(opened("iceberg", place("iceberg")))) in ((3, 4) if left else (2,))
    assert_exact("iceberg", place("iceberg"), stream)


@EACH_KIND
def test_the_executors_write_more_rows_than_the_driver_may_collect(spark, kafka, topic, checkpoint, place, start, kind):
    given, stream = topic(2), Stream.seeded(42, sources=2, steps=2, per_step=5_000)
    stream.produce(kafka.config, given)
    table, user = named_table(kind, place(kind)), "sha2(concat(user, string(at)), 512) AS user"

    def each(rows):
        return rows.selectExpr(user, "at AS ended", "1L AS n")

    start(given, table, each, per_batch=20_000).awaitTermination(_LIMIT)
    assert len(rows_in(opened(kind, place(kind)))) == stream.size
    assert not Path(f"{checkpoint}-first", "floodmark", "staged").exists(), "a batch that is a commit is written once"
    with pytest.raises(Py4JJavaError, match="maxResultSize"):
        spark.table(table.sql).collect()


@EACH_KIND
def test_a_newer_result_replaces_the_older_one_and_a_quiet_input_delays_no_commit(kafka, topic, place, start, kind):
    given, stream = topic(2), Stream.seeded(35, sources=2, steps=5)
    stream.produce(kafka.config, given, end=False)
    table = named_table(kind, place(kind), timedelta(seconds=2), key=["user", "ended"])
    seen = []
    job = start(given, table, output_mode="update", on_batch=seen.append)
    until(
        lambda: (
            fails(job) or (is_written(place(kind)) and counts_in(opened(kind, place(kind))) == stream.windows(WIDTH))
        ),
        "all rows, by the clock: no record comes",
        _LIMIT,
    )
    job.processAllAvailable(_LIMIT)
    until(lambda: marks_of(opened(kind, place(kind)))[-1].watermark == seen[-1].output, "the watermark", _LIMIT)
    commits = len(marks_of(opened(kind, place(kind))))
    job.stop()
    assert len(marks_of(opened(kind, place(kind)))) == commits, "nothing has changed"
    assert len(rows_in(opened(kind, place(kind)))) == len(stream.windows(WIDTH))


def test_a_key_that_is_not_unique_is_refused(kafka, topic, place, start):
    given = topic(2)
    Stream.seeded(36, sources=1, steps=3).produce(kafka.config, given)
    job = start(given, named_table("iceberg", place("iceberg"), key="user"), output_mode="update")
    with pytest.raises(
        UsageError, match="a batch has two rows with one key user: add the columns that differ to the key="
    ):
        job.awaitTermination(_LIMIT)
    assert rows_in(opened("iceberg", place("iceberg"))) == []


@EACH_KIND
def test_a_job_with_small_integers_starts_again_though_iceberg_has_no_such_column(kafka, topic, place, start, kind):
    given, table = topic(1), named_table(kind, place(kind))
    Stream.seeded(31, sources=2, steps=5).produce(kafka.config, given)
    for _ in range(2):
        small = start(given, table, lambda rows: windowed(rows).selectExpr("user", "ended", "smallint(n) AS n"))
        small.awaitTermination(_LIMIT)


def test_a_table_that_cannot_take_the_rows_is_refused_before_any_row(spark, kafka, topic, place, start):
    given, stream = topic(2), Stream.seeded(34, sources=1, steps=3)
    stream.produce(kafka.config, given)
    table = named_table("iceberg", place("iceberg"))
    for wrong, reason in (
        (lambda rows: windowed(rows).drop("user"), "the result has no column 'user'"),
        (lambda rows: windowed(rows).selectExpr("*", "n AS m"), "the table has no column 'm'"),
        (lambda rows: windowed(rows).selectExpr("user", "ended", "int(n) AS n"), "column 'n' is int in the result"),
    ):
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table.sql} (user STRING, ended TIMESTAMP, n BIGINT) USING iceberg")
        with pytest.raises(TableColumnsError, match=reason):
            start(given, table, wrong)
    for settings, mode, reason in (
        ({"key": "user"}, "append", "need each other"),
        ({}, "update", "need each other"),
        ({"partition_by": ["endedd"]}, "append", r"partition_by=\['endedd'\], but the result has the columns"),
    ):
        with pytest.raises(UsageError, match=reason):
            start(given, named_table("iceberg", place("iceberg"), **settings), output_mode=mode)
    with pytest.raises(UsageError, match=r"no setting spark\.sql\.catalog\.away"):
        start(given, iceberg("away.db.totals"))
    spark.conf.set("spark.sql.catalog.broken", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.broken.type", "rest")
    spark.conf.set("spark.sql.catalog.broken.uri", "http://127.0.0.1:9")
    with pytest.raises(TableError, match=r"cannot use table 'broken\.db\.totals'.*No row is lost"):
        start(given, iceberg("broken.db.totals"))
    with pytest.raises(TableError, match="/proc/none"):  # where not even root may write
        start(given, named_table("delta", Path("/proc/none/t")), state="elsewhere")
    assert rows_in(opened("iceberg", place("iceberg"))) == []


@contextmanager
def allowed(folder, mode):
    folder.chmod(mode)
    try:
        yield
    finally:
        folder.chmod(0o755)


@EACH_KIND
def test_a_folder_without_rights_is_named_and_no_row_is_lost(
    spark, kafka, topic, place, checkpoint, start, kind, monkeypatch
):
    monkeypatch.setattr("floodmark.spark_jobs.tables.table_sink._ATTEMPTS", 1)
    given, stream, folder, state = topic(2), Stream.seeded(40, sources=2, steps=5), place(kind), Path(f"{checkpoint}-s")
    log, data = (folder / "metadata", folder / "data") if kind == "iceberg" else (folder / "_delta_log", folder)
    stream.produce(kafka.config, given)
    table, no_rights = named_table(kind, folder), rf"cannot use table '.*{folder.name}'.*No row is lost.*the rights"

    def failing(where, mode, error=TableError, said=no_rights):
        with allowed(where, mode), pytest.raises(error, match=said):
            start(given, table, state="s").awaitTermination(_LIMIT)

    def forbid(_batch):
        if any(data.rglob("*.parquet")):
            data.chmod(0o555)

    folder.parent.mkdir(exist_ok=True)
    failing(folder.parent, 0o555)
    assert not folder.exists()
    with pytest.raises(TableError, match=no_rights):
        start(given, table, state="s", on_batch=forbid).awaitTermination(_LIMIT)
    before = rows_in(opened(kind, folder))
    for where, mode in ((data, 0o555), (log, 0o555), (log, 0o000)):
        failing(where, mode)
        assert rows_in(opened(kind, folder)) == before
    for mode, action in ((0o555, "written"), (0o000, "read")):
        failing(state, mode, CheckpointAccessError, f"of the checkpoint cannot be {action}: Permission denied.*rights")
    open_table, unreadable = opened(kind, folder), rf"{folder.name}.* cannot be read: .*rights"
    with allowed(log, 0o000), pytest.raises(UnreadableTableError, match=unreadable):
        complete_until(table.sql, spark=spark)
    with allowed(log, 0o000), pytest.raises(UnreadableTableError, match=unreadable):
        read_complete(open_table, "ended")
    start(given, table, state="s").awaitTermination(_LIMIT)
    assert_exact(kind, folder, stream)
    spark.conf.set("spark.floodmark.seen", folder.name)
    seen = SparkSession.getActiveSession().conf.get("spark.floodmark.seen", None)
    assert seen == folder.name, "a start that commits before its first batch leaves the session of this thread"


def test_a_catalog_may_conflict_lose_an_answer_forbid_or_go_away(spark, kafka, topic, start, tmp_path, caplog):
    given, stream, seen = topic(2), Stream.seeded(39, sources=2, steps=5), []
    stream.produce(kafka.config, given)
    catalog, table = RestCatalog(tmp_path), iceberg("rest.db.totals", commit_every=timedelta(0))
    columns = pa.schema([("user", pa.string()), ("ended", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    catalog.tables.create_table("db.totals", columns, properties={"commit.retry.num-retries": "0"})
    for name, value in catalog.settings("rest").items():
        spark.conf.set(name, value)

    def failing(trouble, at=2):
        def cause(batch):
            seen.append(batch)
            if len(seen) == at:
                trouble()

        seen.clear()
        with pytest.raises(TableError, match=r"cannot use table 'rest\.db\.totals'.*No row is lost") as failed:
            start(given, table, on_batch=cause, per_batch=60).awaitTermination(_LIMIT)
        assert_true_marks(catalog.tables.load_table("db.totals"), ended=False)
        return str(failed.value)

    with catalog.running() as stop:
        catalog.troubles += ["conflict", "lost", "conflict"]
        assert "no right to commit" in failing(lambda: catalog.troubles.extend(["forbidden"] * 5), at=4)
        assert [text for text in caplog.messages if "CommitFailedException" in text]
        assert "Connect" in failing(stop)
    assert "Connect" in failing(None)  # already at its start
    with catalog.running():
        start(given, table).awaitTermination(_LIMIT)
        written = catalog.tables.load_table("db.totals")
        assert counts_in(written) == stream.windows(WIDTH)
        assert len(rows_in(written)) == len(stream.windows(WIDTH))
        assert_true_marks(written)
        with pytest.raises(ForeignTableError, match="job 'totals' writes it"):
            start(given, table, state="other", name="others")


def test_the_results_from_a_time_on_begin_a_table(kafka, topic, place, start):
    kind, given, stream = KINDS[0], topic(2), Stream.seeded(37, sources=2, steps=5)
    stream.produce(kafka.config, given)
    at = sorted(ended for _, ended in stream.windows(WIDTH))[9]
    start(given, named_table(kind, place(kind)), start=Start(output_at=to_datetime(at))).awaitTermination(_LIMIT)
    expected = {window: n for window, n in stream.windows(WIDTH).items() if window[1] >= at}
    assert counts_in(opened(kind, place(kind))) == expected


@pytest.mark.parametrize(
    ("kind", "step", "more"),
    [
        ("iceberg", "within the commit", {"COMMIT_EVERY": "0"}),
        ("iceberg", "after a batch is staged or committed", {"COMMIT_EVERY": "3600", "OUTPUT_MODE": "update"}),
        ("delta", "after the commit", {"COMMIT_EVERY": "0"}),
    ],
)
def test_a_job_that_is_killed_writes_each_row_once(kafka, topic, place, checkpoint, start, kind, step, more):
    given, stream = topic(2), Stream.seeded(22, steps=6)
    stream.produce(kafka.config, given)
    names = kafka.bootstrap_servers, given, str(place(kind)), f"{checkpoint}-first"
    done = run_crashing(*names, step, "3", delivery=kind, **more)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    mode = more.get("OUTPUT_MODE", "append")
    start(given, named_table(kind, place(kind), key=KEYS[mode]), output_mode=mode).awaitTermination(_LIMIT)
    assert_exact(kind, place(kind), stream)


def test_a_delta_table_whose_creation_was_killed_is_created_by_the_next_start(kafka, topic, place, start):
    given, stream = topic(2), Stream.seeded(22, steps=4)
    stream.produce(kafka.config, given)
    (place("delta") / "_delta_log" / "_staged_commits").mkdir(parents=True)  # what a start left behind
    (place("delta") / "part-00000.snappy.parquet").touch()
    start(given, named_table("delta", place("delta"))).awaitTermination(_LIMIT)
    assert_exact("delta", place("delta"), stream)


def test_the_programs_of_the_pages_write_a_table(spark, kafka, topic, checkpoint, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the first program's catalog is in the folder "lake" there
    orders, minute = topic(1), 60_000
    with WatermarkedProducer(kafka.config, topic=orders, source="till", strategy=explicit()) as till:
        for at in range(minute, 5 * minute, 10_000):
            value = {"shop": "north", "amount": 1, "at": to_datetime(at).isoformat()}
            till.produce(json.dumps(value), key="north", event_time=at)
        till.end()

    def programs(page):
        own = PAGES.joinpath(page).read_text(encoding="utf-8").replace("localhost:9092", kafka.bootstrap_servers)
        return re.findall(r"```python\n(.*?)```", own.replace('"orders"', f'"{orders}"'), re.DOTALL)

    def written(lake):
        table = opened("iceberg", lake / "shops" / "revenue")
        assert complete_until(table).watermark == END_OF_TIME
        rows = ((row["shop"], round(row["minute"].timestamp() * 1_000), row["revenue"]) for row in rows_in(table))
        return sorted(rows)

    expected = [("north", end * minute, 6) for end in range(2, 6)]
    command = [sys.executable, "-c", programs("TABLES.md")[0]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert written(tmp_path / "lake") == expected

    after = next(code for code in programs("MIGRATING.md") if "def after" in code)
    change = re.compile(r'topic="revenue-complete",.*?value=json\([^)]*\),', re.DOTALL)
    code, changed = change.subn('table=iceberg("lake.shops.revenue"), job="revenue",', after)
    found = {"iceberg": iceberg}
    exec(code, found)  # noqa: S102  # our own page
    assert changed == 1
    found["after"](spark, kafka.bootstrap_servers, checkpoint).awaitTermination(_LIMIT)
    assert written(folder) == expected
