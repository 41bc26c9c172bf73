"""Files beside Spark's: one contract, kept on a local disk without Hadoop and on Hadoop's file systems."""

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from floodmark.schemas.errors import CheckpointAccessError, CheckpointFilesError, CorruptSnapshotError, UsageError
from floodmark.spark_jobs import write
from floodmark.spark_jobs.internals.checkpoint import Checkpoint
from floodmark.spark_jobs.internals.files import (
    FILE_MANAGER,
    HadoopFiles,
    LocalFiles,
    disk_settings,
    files,
    require_replacing,
)
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.permissions import obey_permissions

pytestmark = pytest.mark.spark

TEXT = "ä" * 700 + "\n"


@pytest.fixture
def mounted(spark, tmp_path):
    """Return an address of Hadoop's that is no local disk: a view of one."""
    table = tmp_path.name.replace("_", "-")  # Hadoop keeps file systems by their name
    configuration = spark._jsc.hadoopConfiguration()  # noqa: SLF001
    configuration.set(f"fs.viewfs.mounttable.{table}.link./data", tmp_path.as_uri())
    return f"viewfs://{table}/data/job"


@pytest.fixture(params=["disk", "hadoop"])
def kept(request, spark, tmp_path, mounted):
    found = files(spark, str(tmp_path / "job") if request.param == "disk" else mounted)
    assert isinstance(found, LocalFiles if request.param == "disk" else HadoopFiles)
    return found


def test_what_is_written_is_read(kept):
    assert (kept.read("a/1.json"), kept.exists("a"), kept.numbers("a")) == (None, False, [])
    for text in ("", TEXT, "short"):
        kept.write("a/1.json", text)
        assert kept.read("a/1.json") == text
    kept.write("a/17", "")
    assert (kept.exists("a/17"), kept.numbers("a")) == (True, [17])
    kept.delete("a/1.json")
    kept.delete("a/1.json")
    assert kept.read("a/1.json") is None


@pytest.mark.parametrize("writer", ["disk", "hadoop"])
def test_either_reads_what_the_other_has_written(spark, tmp_path, writer):
    """A job goes on after an upgrade, and after the way back."""
    disk = LocalFiles(tmp_path)
    path = spark._jvm.org.apache.hadoop.fs.Path(str(tmp_path))  # noqa: SLF001
    hadoop = HadoopFiles(spark, path, path.getFileSystem(spark._jsc.hadoopConfiguration()))  # noqa: SLF001
    first, second = (disk, hadoop) if writer == "disk" else (hadoop, disk)
    first.write("1.json", TEXT)
    assert second.read("1.json") == TEXT
    second.write("1.json", "again")
    assert first.read("1.json") == "again"
    assert {path.name for path in tmp_path.iterdir()} == {"1.json", ".1.json.crc"}
    second.delete("1.json")
    assert not list(tmp_path.iterdir())


def test_a_changed_byte_is_noticed(kept, tmp_path):
    kept.write("1.json", TEXT)
    path = tmp_path / "job" / "1.json"
    path.write_bytes(path.read_bytes().replace(b"\xa4", b"\xa5", 1))
    with pytest.raises(CorruptSnapshotError, match=re.escape("1.json")):
        kept.read("1.json")


def test_what_is_no_text_is_corrupt(kept, tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "1.json").mkdir()
    with pytest.raises(CorruptSnapshotError):
        kept.read("1.json")


def test_a_file_that_cannot_be_opened_now_is_not_taken_for_a_damaged_one(tmp_path, monkeypatch):
    """Else it would be rebuilt where the session allows that."""
    files = LocalFiles(tmp_path)
    files.write("1.json", TEXT)
    monkeypatch.setattr(Path, "read_bytes", lambda _path: os.open("/dev/null/x", os.O_RDONLY))
    with pytest.raises(CheckpointAccessError, match="cannot be read: Not a directory"):
        files.read("1.json")


@pytest.mark.parametrize("text", ["", "v1\n", "v1\n{\n-", 'v1\n{}\n{"t":{"0":'])
def test_a_log_file_that_a_power_loss_has_cut_is_named(spark, tmp_path, text):
    checkpoint = Checkpoint(spark, str(tmp_path))
    for name in ("offsets/0", "commits/0"):
        checkpoint.files.write(name, text)
    said = "cannot be read: it is not whole: .*restore an intact copy"
    with pytest.raises(CorruptSnapshotError, match=f"{tmp_path}/offsets/0 {said}"):
        checkpoint.planned_end(0)
    if "{}" not in text:  # a commit has no more lines
        with pytest.raises(CorruptSnapshotError, match=f"{tmp_path}/commits/0 {said}"):
            checkpoint.next_watermark(0)


def test_a_file_that_cannot_be_written_is_named(kept):
    kept.write("file", TEXT)
    with pytest.raises(CheckpointAccessError, match=r"file/1\.json of the checkpoint cannot be written: .*rights"):
        kept.write("file/1.json", TEXT)


def test_a_folder_without_rights_is_named(tmp_path):
    kept = LocalFiles(tmp_path)
    kept.write("a/1", TEXT)
    calls = {
        "written": lambda: kept.write("a/2", TEXT),
        "deleted": lambda: kept.delete("a/1"),
        "read": lambda: kept.read("a/1"),
    }
    with ThreadPoolExecutor(1, initializer=obey_permissions) as user:
        tmp_path.joinpath("a").chmod(0o000)
        for action, call in calls.items():
            with pytest.raises(CheckpointAccessError, match=f"cannot be {action}: Permission denied"):
                user.submit(call).result()
        with pytest.raises(CheckpointAccessError, match="cannot be read: Permission denied"):
            user.submit(kept.numbers, "a").result()
        tmp_path.joinpath("a").chmod(0o755)
    assert kept.read("a/1") == TEXT


_WRITER = """
import itertools, sys
from pathlib import Path
from floodmark.spark_jobs.internals.files import LocalFiles
files = LocalFiles(Path(sys.argv[1]))
for number in itertools.count():
    files.write("1.json", str(number) * 20_000)
    print(number, flush=True)
"""


def test_a_killed_writer_leaves_a_whole_text(tmp_path):
    disk = LocalFiles(tmp_path)
    for kill_after in (1, 2, 7, 30):
        with subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE) as running:
            for _ in range(kill_after):
                running.stdout.readline()
            os.kill(running.pid, signal.SIGKILL)
        text = disk.read("1.json")
        number = text[: len(text) // 20_000]
        assert text == number * 20_000
        assert int(number) >= kill_after - 1


@pytest.mark.every_spark
def test_the_settings_for_disks_are_those_of_this_spark(spark):
    settings = disk_settings()
    found = spark._jvm.java.lang.Class.forName(settings[FILE_MANAGER])  # noqa: SLF001
    assert found.getSimpleName() == "FileSystemBasedCheckpointFileManager"
    for setting in settings:
        assert spark.conf.get(setting) == settings[setting], "local_session has set it"


@pytest.mark.every_spark
@pytest.mark.parametrize(
    ("manager", "file_system", "replaces"),
    [
        ("FileContextBasedCheckpointFileManager", "hive.ql.io.ProxyLocalFileSystem", True),
        ("FileSystemBasedCheckpointFileManager", "fs.LocalFileSystem", True),
        ("FileSystemBasedCheckpointFileManager", "fs.RawLocalFileSystem", True),
        ("FileSystemBasedCheckpointFileManager", "hive.ql.io.ProxyLocalFileSystem", False),
    ],
)
def test_a_job_starts_only_where_spark_replaces_files(spark, tmp_path, manager, file_system, replaces):
    session = spark.newSession()
    package = disk_settings()[FILE_MANAGER].rpartition(".")[0]
    session.conf.set(FILE_MANAGER, f"{package}.{manager}")
    session.conf.set("fs.file.impl", f"org.apache.hadoop.{file_system}")
    session.conf.set("fs.file.impl.disable.cache", "true")
    kept = files(session, str(tmp_path))
    if replaces:
        require_replacing(session, str(tmp_path), kept)
        assert not list(tmp_path.iterdir())
    else:
        with pytest.raises(CheckpointFilesError, match=f"{manager}.*{re.escape(file_system)}"):
            require_replacing(session, str(tmp_path), kept)


def test_they_are_refused_where_no_disk_is(spark, source, rows, mounted):
    assert spark.conf.get(FILE_MANAGER) == disk_settings()[FILE_MANAGER]
    counted = rows().groupBy(F.window("at", "1 second")).count()
    with pytest.raises(UsageError, match=re.escape(f"spark.conf.unset('{FILE_MANAGER}')")):
        write(counted, checkpoint_location=mounted, writer=print, job="job")
    assert source.topic
