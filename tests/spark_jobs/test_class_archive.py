"""Sessions map an archive of Spark's classes; without one, or with one that does not fit, all works as well."""

import atexit
import logging
import os
import shlex
import subprocess
import sys
import time

import pytest
from floodmark.producers.embedded.jars import cache, java
from floodmark.spark_jobs import class_archive
from floodmark.spark_jobs.class_archive_maker import make
from support.harness import until

FINDS_NONE = "from floodmark.spark_jobs.class_archive import archive_options; print(repr(archive_options()))"
MAPS = """\
from pathlib import Path
from floodmark.spark_jobs import local_session
pid = local_session("maps")._jvm.java.lang.ProcessHandle.current().pid()
print([line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if ".jsa" in line])
"""


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """Return where the archive belongs, in a cache of its own, which is empty."""
    monkeypatch.setenv("FLOODMARK_CACHE", str(tmp_path / "a cache"))
    return class_archive.archive_path()


@pytest.fixture
def at_exit(monkeypatch):
    """Return what is left for the end of this program, which is not done."""
    found = []
    monkeypatch.setattr(atexit, "register", lambda *call: found.append(call))
    class_archive._make_at_exit.cache_clear()  # noqa: SLF001
    yield found
    class_archive._make_at_exit.cache_clear()  # noqa: SLF001


def program(text):
    return subprocess.run(
        [sys.executable, "-W", "default::ResourceWarning", "-c", text],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.spark
@pytest.mark.every_spark
@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel for what a process maps")
def test_a_session_maps_the_archive(tmp_path, monkeypatch):
    jars = [path for path in cache().iterdir() if path.is_dir() and not path.name.startswith("class-archive")]
    place = tmp_path / "a cache"
    place.mkdir()
    for path in jars:
        (place / path.name).symlink_to(path)
    monkeypatch.setenv("FLOODMARK_CACHE", str(place))
    archive = class_archive.archive_path()
    make(archive)
    assert archive.stat().st_size > 1 << 20, (place / class_archive.LOG).read_text(encoding="utf-8")
    assert archive.name in program(MAPS).stdout


@pytest.mark.skipif(sys.platform == "win32", reason="the maker is a script of a shell")
def test_a_program_leaves_a_maker_behind_and_does_not_wait_for_it(archive, tmp_path):
    maker, go, made = tmp_path / "maker", tmp_path / "go", tmp_path / "made"
    maker.write_text(
        f'#!/bin/sh\nwhile [ ! -e "{go}" ]; do sleep 0.02; done\n'
        f'echo "$@" $PYSPARK_GATEWAY_PORT > "{made}.part"; mv "{made}.part" "{made}"\n',
        encoding="utf-8",
    )
    maker.chmod(0o755)
    # Under spark-submit a program has a JVM already, which the maker must not take for its own.
    begin = "import os, sys; os.environ['PYSPARK_GATEWAY_PORT'] = '1'; "
    done = program(f"{begin}{FINDS_NONE}; sys.executable = {str(maker)!r}")
    # Its output has ended, so the maker holds none of it.
    assert (done.returncode, done.stdout, done.stderr) == (0, "''\n", "")
    assert not made.exists()
    go.touch()
    until(made.exists, "what the maker was called with")
    assert made.read_text(encoding="utf-8") == f"-m {class_archive.MAKER} {archive}\n"


def test_what_is_missing_is_made_once_and_after_the_end(archive, at_exit):
    assert [class_archive.archive_options() for _ in range(2)] == ["", ""]
    assert at_exit == [(class_archive.start_maker, archive)]
    assert not archive.parent.exists()


@pytest.mark.parametrize("what", [b"", b"some", b"others have written this, or lost its end" * 100])
def test_what_is_not_whole_is_not_mapped(archive, at_exit, what):
    """The JVM maps one that lacks its end, and fails when it comes there."""
    archive.parent.mkdir()
    archive.write_bytes(what)
    assert class_archive.archive_options() == ""
    assert len(at_exit) == bool(what)  # it is made anew


def test_what_could_not_be_made_is_not_tried_again_for_a_day(archive, at_exit, caplog):
    archive.parent.mkdir()
    archive.touch()
    with caplog.at_level(logging.INFO):
        assert class_archive.archive_options() == ""
    assert str(archive.parent / class_archive.LOG) in caplog.text
    assert at_exit == []
    two_days_ago = time.time() - 2 * 86_400
    os.utime(archive, (two_days_ago, two_days_ago))
    assert class_archive.archive_options() == ""
    assert len(at_exit) == 1  # what stood in its way may be gone


def test_a_cache_that_cannot_be_written_is_no_error(archive):
    archive.parent.write_text("a file, no folder", encoding="utf-8")
    done = program(FINDS_NONE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "''\n", "")


def test_an_archive_in_a_cache_that_is_only_read_is_used(archive, at_exit, monkeypatch):
    def refuse(*_):
        raise PermissionError

    archive.parent.mkdir()
    archive.write_bytes(b"whole" + class_archive.SEAL)
    monkeypatch.setattr(os, "utime", refuse)
    assert f"-XX:SharedArchiveFile={archive}" in shlex.split(class_archive.archive_options())
    assert at_exit == []


def test_what_does_not_fit_is_passed_over_in_silence(archive):
    archive.parent.mkdir()
    archive.write_bytes(b"an archive of another Java" * 1000 + class_archive.SEAL)
    options = shlex.split(class_archive.archive_options())
    assert f"-XX:SharedArchiveFile={archive}" in options
    done = subprocess.run([java(), *options, "-version"], capture_output=True, text=True, check=True)
    plain = subprocess.run([java(), "-version"], capture_output=True, text=True, check=True)
    # It names whether it shares classes, in its last words.
    assert (done.stdout, done.stderr.replace(", sharing", "")) == (plain.stdout, plain.stderr.replace(", sharing", ""))


def test_a_java_or_a_spark_that_was_changed_has_another_archive(tmp_path, monkeypatch):
    """Each of these the JVM compares; so what fitted once would never fit again, and none would be made."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    jar, modules = tmp_path / "spark" / "jars" / "one.jar", tmp_path / "java" / "lib" / "modules"
    for path in (jar, modules, tmp_path / "java" / "bin" / "java"):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.1"\n', encoding="ascii")  # so it need not be run
    changes = [
        lambda: None,
        lambda: jar.write_bytes(b"xy"),
        lambda: os.utime(jar, (1, 1)),
        lambda: jar.with_name("other.jar").write_bytes(b""),
        lambda: os.utime(modules, (1, 1)),
        lambda: monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path)),
    ]
    paths = []
    for change in changes:
        change()
        paths += [class_archive.archive_path(), class_archive.archive_path()]
    assert paths[::2] == paths[1::2]
    assert len(set(paths)) == len(changes)
    (tmp_path / "same").symlink_to(tmp_path / "spark")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "same"))
    assert class_archive.archive_path() == paths[-1]


def test_a_java_whose_classes_are_not_seen_is_asked(tmp_path, monkeypatch):
    """As behind a script that chooses one."""
    script = tmp_path / "bin" / "java"
    script.parent.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = []
    for version in ("17.0.1", "17.0.2"):
        script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n", encoding="ascii")
        script.chmod(0o755)
        found.append(class_archive.archive_path())
    assert len(set(found)) == 2
