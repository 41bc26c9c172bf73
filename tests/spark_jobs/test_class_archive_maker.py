"""One process makes the archive, whole or not at all, whatever becomes of it and of others."""

import os
import subprocess
import sys

import pytest
from floodmark.spark_jobs import class_archive_maker as maker
from floodmark.spark_jobs.class_archive import LOG, SEAL
from support.harness import until

WHOLE = b"a whole archive"
MAKE = """\
import sys
from pathlib import Path
from floodmark.spark_jobs.class_archive_maker import make
sys.executable = {trainer!r}
make(Path({archive!r}))
"""
# In the place of Python: it notes that it was begun, waits until it may end, and writes the draft, its last argument.
TRAINER = """\
#!/bin/sh
echo begun >> "{folder}/begun"
while [ ! -e "{folder}/go" ]; do sleep 0.02; done
for draft; do :; done
{then}
"""


@pytest.fixture
def archive(tmp_path):
    """Return where the archive belongs, in a cache that is not there yet."""
    return tmp_path / "a cache" / "spark-4-one.jsa"


@pytest.fixture
def trainer(tmp_path):
    """Give a trainer that ends when it may, by the command given."""

    def write(then):
        path = tmp_path / "trainer"
        path.write_text(TRAINER.format(folder=tmp_path, then=then), encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    yield write
    (tmp_path / "go").touch()  # none is left to wait


@pytest.fixture
def start(archive, trainer):
    """Start makers, whose trainer writes a whole archive."""
    text = MAKE.format(trainer=trainer(f"printf '{WHOLE.decode()}' > \"$draft\""), archive=str(archive))
    started = []

    def another():
        started.append(subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        return started[-1]

    yield another
    for process in started:
        process.kill()
        process.communicate()


def begun(folder):
    file = folder / "begun"
    return file.read_text(encoding="ascii").count("begun") if file.exists() else 0


def left(archive):
    return {path.name for path in archive.parent.rglob("*") if path.is_file()}


def test_of_two_makers_one_makes_it_and_the_other_ends_at_once(archive, start, tmp_path):
    first = start()
    until(lambda: begun(tmp_path) == 1, "a trainer")
    assert start().wait(60) == 0
    assert first.poll() is None
    assert not archive.exists()
    (tmp_path / "go").touch()
    assert first.wait(60) == 0
    assert start().wait(60) == 0  # it is there
    assert archive.read_bytes() == WHOLE + SEAL
    assert begun(tmp_path) == 1
    assert left(archive) == {LOG, "class-archive.lock", archive.name}


def test_makers_at_once_make_it_once(archive, start, tmp_path):
    (tmp_path / "go").touch()
    makers = [start() for _ in range(3)]
    assert [process.wait(60) for process in makers] == [0, 0, 0]
    assert archive.stat().st_size
    assert begun(tmp_path) == 1


def test_a_maker_that_is_killed_leaves_no_lock_and_no_archive(archive, start, tmp_path):
    """Although what it has started lives on, and had begun to write."""
    first = start()
    until(lambda: begun(tmp_path) == 1, "a trainer")
    first.kill()
    first.wait(60)
    half = next((archive.parent / "class-archive-drafts").iterdir()) / archive.name
    half.write_bytes(b"half")
    second = start()
    until(lambda: begun(tmp_path) == 2, "a second trainer")
    assert not archive.exists()
    assert not half.exists()
    (tmp_path / "go").touch()
    assert second.wait(60) == 0
    assert archive.read_bytes() == WHOLE + SEAL
    assert left(archive) == {LOG, "class-archive.lock", archive.name}


@pytest.mark.parametrize(
    "then",
    [
        "echo no room >&2; exit 1",
        "echo no room >&2",
        'echo no room >&2; head -c 5000 /dev/zero > "$draft"',  # killed before it wrote the beginning
    ],
)
def test_what_cannot_be_made_leaves_an_empty_file_and_the_reason(archive, trainer, tmp_path, monkeypatch, then):
    monkeypatch.setattr(sys, "executable", trainer(then))
    (tmp_path / "go").touch()
    maker.make(archive)
    assert archive.read_bytes() == b""
    assert "no room" in (archive.parent / LOG).read_text(encoding="utf-8")
    maker.make(archive)
    assert begun(tmp_path) == 1


def test_a_cache_that_cannot_be_written_ends_the_maker_before_it_trains(archive, start, tmp_path):
    archive.parent.write_text("a file, no folder", encoding="utf-8")
    assert start().wait(60) != 0
    assert begun(tmp_path) == 0


def test_a_trainer_that_gets_no_time_is_no_reason_to_give_up(archive, trainer, monkeypatch):
    monkeypatch.setattr(sys, "executable", trainer('printf whole > "$draft"'))
    monkeypatch.setattr(maker, "_TIMEOUT", 0.1)
    with pytest.raises(subprocess.TimeoutExpired):
        maker.make(archive)
    assert left(archive) == {"class-archive.lock"}


def test_an_archive_that_is_not_whole_is_made_again(archive, trainer, tmp_path, monkeypatch):
    archive.parent.mkdir()
    archive.write_bytes(WHOLE)
    archive.chmod(0o444)
    monkeypatch.setattr(sys, "executable", trainer(f'printf \'{WHOLE.decode()}\' > "$draft"; chmod 444 "$draft"'))
    (tmp_path / "go").touch()
    maker.make(archive)
    assert archive.read_bytes() == WHOLE + SEAL


def test_a_maker_takes_what_time_others_leave():
    """Linux may give each session a share of its own, whatever the priorities within it."""
    text = f"""
import os
from pathlib import Path
from {maker.__name__} import give_way
give_way()
share = Path("/proc/self/autogroup")
print(os.nice(0), share.read_text().split()[-1] if share.exists() else 19)
"""
    done = subprocess.run(
        [sys.executable, "-c", text], start_new_session=True, capture_output=True, text=True, check=True
    )
    assert done.stdout == "19 19\n"


def test_archives_that_were_not_used_for_long_are_deleted(archive, trainer, tmp_path, monkeypatch):
    archive.parent.mkdir()
    for age in range(6):
        old = archive.with_name(f"spark-4-old{age}.jsa")
        old.write_bytes(WHOLE)
        os.utime(old, (1_000_000 - age, 1_000_000 - age))
    monkeypatch.setattr(sys, "executable", trainer('printf whole > "$draft"'))
    (tmp_path / "go").touch()
    maker.make(archive)
    assert sorted(path.name for path in archive.parent.glob("*.jsa")) == [
        "spark-4-old0.jsa",
        "spark-4-old1.jsa",
        "spark-4-old2.jsa",
        archive.name,
    ]
