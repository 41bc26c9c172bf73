"""The first session records an archive of Spark's classes, later ones map it; all works without one, too."""

import os
import shlex
import subprocess
import sys
import time

import pytest
from floodmark.producers.embedded.jars import cache, java
from floodmark.spark_jobs import class_archive

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


def program(text):
    return subprocess.run(
        [sys.executable, "-W", "default::ResourceWarning", "-c", text],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel for what a process maps")
def test_a_session_maps_what_the_first_one_has_recorded(tmp_path, monkeypatch):
    jars = [path for path in cache().iterdir() if path.is_dir() and not path.name.startswith("class-archive")]
    place = tmp_path / "a cache"
    place.mkdir()
    for path in jars:
        (place / path.name).symlink_to(path)
    monkeypatch.setenv("FLOODMARK_CACHE", str(place))
    archive = class_archive.archive_path()
    assert archive.name not in program(MAPS).stdout  # it returns when the JVM, which holds the pipes, has written it
    assert archive.name in program(MAPS).stdout
    assert archive.stat().st_size > 1 << 20


def drafts(archive):
    return sorted(archive.parent.glob("*.draft"))


def recorded_by(options):
    (path,) = [option.partition("=")[2] for option in shlex.split(options) if "ArchiveClassesAtExit" in option]
    return path


def test_sessions_that_start_together_record_into_files_of_their_own(archive):
    first, second = (recorded_by(class_archive.archive_options()) for _ in range(2))
    assert first != second
    assert class_archive.archive_options(record=False) == ""


def test_a_complete_draft_becomes_the_archive_and_the_others_go(archive):
    archive.parent.mkdir()
    for number in range(2):
        archive.with_name(f"{archive.stem}-{number}.draft").write_bytes(b"written")
    assert f"-XX:SharedArchiveFile={archive}" in shlex.split(class_archive.archive_options())
    assert (archive.read_bytes(), drafts(archive)) == (b"written", [])


def test_the_archive_of_a_session_that_was_killed_early_is_replaced(archive):
    archive.parent.mkdir()
    archive.write_bytes(b"early")
    for number, written in enumerate((b"a whole session", b"short")):
        archive.with_name(f"{archive.stem}-{number}.draft").write_bytes(written)
    class_archive.archive_options()
    assert (archive.read_bytes(), drafts(archive)) == (b"a whole session", [])


def test_a_draft_that_a_jvm_still_writes_stays_for_a_day(archive):
    archive.parent.mkdir()
    draft = archive.with_name(f"{archive.stem}-1.draft")
    draft.write_bytes(bytes(1000))
    recorded_by(class_archive.archive_options())
    assert drafts(archive) == [draft]
    os.utime(draft, (1, 1))
    recorded_by(class_archive.archive_options())
    assert drafts(archive) == []


def test_an_archive_that_no_session_has_used_for_a_month_is_deleted(archive):
    archive.parent.mkdir()
    unused_for_less, other = archive.with_name("spark-4.0.0-other.jsa"), archive.with_name("kafka.jsa")
    days = {unused_for_less: 29, other: 31, archive: 31}
    days |= {archive.with_name(name): 31 for name in ("spark-4.0.0-old.jsa", "spark-4.0.0-gone-1.draft")}
    for path, age in days.items():
        path.touch()
        os.utime(path, (time.time() - age * 86_400,) * 2)
    assert f"-XX:SharedArchiveFile={archive}" in shlex.split(class_archive.archive_options())
    assert set(archive.parent.iterdir()) == {unused_for_less, other, archive}


def test_a_cache_that_cannot_be_written_is_no_error(archive):
    archive.parent.write_text("a file")
    assert class_archive.archive_options() == ""


def test_what_does_not_fit_is_passed_over_in_silence(archive):
    archive.parent.mkdir()
    archive.write_bytes(b"an archive of another Java" * 1000)
    options = shlex.split(class_archive.archive_options())
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
