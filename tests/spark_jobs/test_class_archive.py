"""Sessions map an archive of Spark's classes; without one, or with one that does not fit, all works as well."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from floodmark.producers.embedded.jars import java
from floodmark.spark_jobs import class_archive


@pytest.mark.spark
@pytest.mark.every_spark
@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel for what a process maps")
def test_a_session_maps_the_archive(spark):
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()  # noqa: SLF001
    archive = class_archive._archive()  # noqa: SLF001
    assert archive.stat().st_size > 1 << 20
    assert str(archive) in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """Return where the archive belongs, in a cache of its own."""
    monkeypatch.setenv("FLOODMARK_CACHE", str(tmp_path / "a cache"))
    return class_archive._archive()  # noqa: SLF001


def test_what_cannot_be_made_is_said_once(archive, tmp_path, monkeypatch, caplog):
    fails = tmp_path / "python"
    fails.write_text("#!/bin/sh\necho no room >&2\nexit 1\n", encoding="utf-8")
    fails.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fails))
    assert class_archive.archive_options() == ""
    assert "no room" in caplog.text
    caplog.clear()
    assert class_archive.archive_options() == ""
    assert not caplog.text
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]


def test_a_cache_that_cannot_be_written_is_no_error(archive, monkeypatch, caplog):
    archive.parent.write_text("a file, no folder", encoding="utf-8")
    assert class_archive.archive_options() == ""
    assert "there is no archive" in caplog.text


def test_what_does_not_fit_is_passed_over_in_silence(archive):
    archive.parent.mkdir()
    archive.write_bytes(b"an archive of another Java" * 1000)
    options = shlex.split(class_archive.archive_options())
    assert f"-XX:SharedArchiveFile={archive}" in options
    done = subprocess.run([java(), *options, "-version"], capture_output=True, text=True, check=True)
    plain = subprocess.run([java(), "-version"], capture_output=True, text=True, check=True)
    # It names whether it shares classes, in its last words.
    assert (done.stdout, done.stderr.replace(", sharing", "")) == (plain.stdout, plain.stderr.replace(", sharing", ""))
