"""A folder of growing files: every line once, and no line of a known, growing file behind the watermark."""

import json
import random
import re
from datetime import timedelta
from pathlib import Path

import pytest
from floodmark.producers import LogFolder, WatermarkedProducer, explicit, log_folder
from floodmark.producers.clients.clock import Clock
from floodmark.producers.testing import ManualClock
from floodmark.schemas.errors import UsageError
from support.harness import drain

SECOND = timedelta(seconds=1)


def event_time(line):
    return int(line.split()[0]) if line[:1].isdigit() else None


def grow(folder, seed, written):
    """Write to some files, one of which appears later; yields the clock."""
    chance, times = random.Random(seed), {}  # noqa: S311  # repeatable
    for now in range(0, 40_000, 500):
        for name in ("a.log", "b.log", "c.log")[: 2 + (now > 10_000)]:
            lines = b""
            for _ in range(chance.randrange(4)):
                times[name] = times.get(name, now) + chance.randrange(300)
                times[name] = max(times[name], now - 2_000)
                lines += b"%d %s\n" % (times[name], name.encode())
                written.append(times[name])
            with folder.joinpath(name).open("ab") as file:
                file.write(lines)
        yield now


def test_every_line_once_and_none_behind_the_watermark_over_restarts(tmp_path):
    folder = LogFolder(tmp_path, event_time, quiet=5 * SECOND)
    seen, written, watermark = [], [], 0
    for _ in grow(tmp_path, 4, written):
        for line in folder.poll():
            assert line.event_time >= watermark or line.log == "c.log", "only a file nobody knew of can be late"
            seen.append(line.event_time)
        watermark = folder.watermark() or 0
        state = json.loads(json.dumps(folder.logs.snapshot()))
        folder = LogFolder(tmp_path, event_time, quiet=5 * SECOND)
        folder.logs.restore(state)
    assert sorted(seen) == sorted(written)
    assert watermark > 30_000


def test_half_a_line_waits_and_garbage_is_counted(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"12 whole\n# comment\n17 ha")
    clock = ManualClock(wall=0)
    folder = LogFolder(tmp_path, event_time, quiet=SECOND, clock=clock)
    assert [line.value for line in folder.poll()] == [b"12 whole"]
    assert folder.skipped == 1
    assert folder.poll() == [], "every line once"
    clock.advance(99 * SECOND)
    assert folder.watermark() == 12, "unprocessed bytes hold"
    with path.open("ab") as file:
        file.write(b"lf\r\n")
    assert [(line.value, line.event_time) for line in folder.poll()] == [(b"17 half", 17)]


def test_a_line_that_fails_is_named_and_no_line_counts_as_read(tmp_path):
    (tmp_path / "a.log").write_bytes(b"12\n# comment\n")
    (tmp_path / "b.log").write_bytes(b"13\n1x\n")
    folder = LogFolder(tmp_path, lambda line: None if line.startswith(b"#") else int(line), quiet=SECOND)
    for _ in range(2):
        with pytest.raises(ValueError, match="1x") as raised:
            folder.poll()
        assert raised.value.__notes__ == ["the line at byte 3 of log 'b.log'"]
        assert (folder.watermark(), folder.skipped) == (None, 0)
    (tmp_path / "b.log").write_bytes(b"13\n14\n")
    assert [line.event_time for line in folder.poll()] == [12, 13, 14]
    assert folder.skipped == 1


def test_a_file_that_was_replaced_by_a_longer_one_is_refused_also_after_a_restart(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"12 a\n17 b\n")
    folder = LogFolder(tmp_path, event_time, quiet=SECOND)
    assert len(folder.poll()) == 2
    stored = json.loads(json.dumps(folder.logs.snapshot()))
    path.write_bytes(b"20 first of the next day\n21 second\n")
    again = LogFolder(tmp_path, event_time, quiet=SECOND)
    again.logs.restore(stored)
    for one in (folder, again):
        with pytest.raises(UsageError, match=r"'a.log' was replaced: .*; give the new file another name"):
            one.poll()
    path.rename(tmp_path / "b.log")
    assert [line.event_time for line in folder.poll()] == [20, 21]


def test_a_folder_that_is_away_deletes_nothing(tmp_path):
    home = tmp_path / "logs"
    home.mkdir()
    (home / "a.log").write_bytes(b"12\n")
    folder = LogFolder(str(home), event_time, quiet=SECOND)
    assert len(folder.poll()) == 1
    home.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        folder.poll()
    (tmp_path / "away").rename(home)
    assert folder.poll() == []


def test_a_quiet_file_holds_nothing_while_another_grows(tmp_path):
    clock = ManualClock(wall=0)
    folder = LogFolder(tmp_path, event_time, quiet=SECOND, clock=clock)
    for name, time in (("a.log", 100), ("b.log", 200)):
        (tmp_path / name).write_bytes(b"%d\n" % time)
    assert len(folder.poll()) == 2
    assert folder.watermark() == 100
    clock.advance(2 * SECOND)
    assert folder.watermark() == 100, "all are quiet"
    with (tmp_path / "b.log").open("ab") as file:
        file.write(b"300\n")
    assert len(folder.poll()) == 1
    assert folder.watermark() == 300


def test_files_of_one_name_in_two_folders_are_two_logs(tmp_path):
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.log").write_bytes(b"12 %s\n" % name.encode())
    folder = LogFolder(tmp_path, event_time, pattern="*/*.log", quiet=SECOND)
    assert [(line.log, line.value) for line in folder.poll()] == [("x/a.log", b"12 x"), ("y/a.log", b"12 y")]


def test_rotation_loses_and_repeats_no_line_if_the_pattern_matches_the_new_names(tmp_path, caplog):
    path, clock, seen = tmp_path / "app.log", ManualClock(wall=0), []
    folder = LogFolder(tmp_path, event_time, pattern="app.log*", quiet=SECOND, clock=clock)
    for time in range(0, 60, 3):
        with path.open("ab") as file:
            file.write(b"%d\n" % time)
        seen += folder.poll()
        clock.advance(2 * SECOND)
        folder.watermark()
        with path.open("ab") as file:
            file.write(b"%d\n%d\n" % (time + 1, time + 2))
        if time % 2:
            for number in range(5, 0, -1):
                older = tmp_path / (f"app.log.{number}" if number > 1 else "app.log")
                if older.exists():
                    older.rename(tmp_path / f"app.log.{number + 1}")
        state = json.loads(json.dumps(folder.logs.snapshot()))
        folder = LogFolder(tmp_path, event_time, pattern="app.log*", quiet=SECOND, clock=clock)
        folder.logs.restore(state)
    seen += folder.poll()
    assert sorted(line.event_time for line in seen) == list(range(60))
    assert not caplog.text


def test_unread_lines_of_a_file_that_a_rotation_replaces_are_told(tmp_path, caplog):
    folder = LogFolder(tmp_path, event_time, pattern="*.log*", quiet=SECOND)
    for name in ("app.log", "app.log.1"):
        (tmp_path / name).write_bytes(b"1\n")
    assert len(folder.poll()) == 2
    (tmp_path / "app.log.1").write_bytes(b"1\n2\n3\n")
    folder.watermark()
    (tmp_path / "app.log").rename(tmp_path / "app.log.1")
    (tmp_path / "app.log").write_bytes(b"4\n")
    assert [line.value for line in folder.poll()] == [b"4"]
    assert "log 'app.log.1 (replaced)' was deleted before its last 4 bytes were read" in caplog.text


@pytest.mark.parametrize(
    ("beginning", "left"), [(b"", "before its last 8 bytes were read"), (b"#at\n", "while it may")]
)
def test_unread_lines_of_a_rotated_file_that_begins_as_the_new_one_are_told(tmp_path, caplog, beginning, left):
    path, clock = tmp_path / "app.log", ManualClock(wall=0)
    folder = LogFolder(tmp_path, event_time, quiet=SECOND, clock=clock)
    path.write_bytes(beginning)
    assert folder.poll() == []
    clock.advance(2 * SECOND)
    path.write_bytes(beginning or b"100\n101\n")
    folder.watermark()
    path.write_bytes(beginning + b"100\n101\n")
    path.rename(tmp_path / "app.log.1")
    path.write_bytes(beginning + b"200\n")
    assert [line.event_time for line in folder.poll()] == [200]
    assert f"log 'app.log' was deleted {left}" in caplog.text


@pytest.mark.parametrize("beginning", [b"", b"#Fields: time\n"])
def test_a_log_that_was_written_anew_with_the_inode_of_another_is_not_read_again(tmp_path, beginning):
    whole = beginning + b"12 a\n17 b\n"
    (tmp_path / "a.log").write_bytes(whole)
    (tmp_path / "b.log").write_bytes(beginning)
    folder = LogFolder(tmp_path, event_time, quiet=SECOND)
    assert [line.event_time for line in folder.poll()] == [12, 17]
    folder.watermark()
    (tmp_path / "b.log").rename(tmp_path / "a.log")
    (tmp_path / "a.log").write_bytes(whole + b"20 c\n")
    (tmp_path / "b.log").write_bytes(beginning)
    assert [line.event_time for line in folder.poll()] == [20]


def test_a_renamed_file_that_the_pattern_does_not_match_is_told(tmp_path, caplog):
    clock = ManualClock(wall=0)
    folder = LogFolder(tmp_path, event_time, quiet=SECOND, clock=clock)
    for name in ("a.log", "b.log", "c.log"):
        (tmp_path / name).write_bytes(b"1\n")
    assert len(folder.poll()) == 3
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")
    folder.poll()
    assert "log 'a.log' was deleted while it may have grown. If it was renamed, pattern= must match" in caplog.text
    clock.advance(2 * SECOND)
    folder.poll()
    (tmp_path / "b.log").unlink()
    (tmp_path / "c.log").write_bytes(b"1\n2\n")
    folder.watermark()
    (tmp_path / "c.log").unlink()
    folder.poll()
    assert "'b.log'" not in caplog.text
    assert "log 'c.log' was deleted before its last 2 bytes were read" in caplog.text


class World:
    """A folder to which everything happens, and what must come of it; the times of a log never fall."""

    def __init__(self, folder, seed, monkeypatch):
        self.folder, self.chance = folder, random.Random(seed)  # noqa: S311  # repeatable
        self.steady = 1_000_000
        self.unread, self.queued, self.last, self.grown, self.done = {}, {}, {}, {}, {}
        self.failing, self.promised, self.made = True, 0, 0
        real = Path.open
        monkeypatch.setattr(Path, "open", lambda path, mode: real(path, mode + self.trouble(mode)))
        monkeypatch.setattr(log_folder, "_CHUNK", 64)
        self.restart({"format": 1, "watermark": None, "logs": {}})

    def trouble(self, mode):
        """Return what makes a mode invalid, now and then."""
        return "?" * (self.failing and mode == "rb" and self.chance.random() < 0.05)

    def event_time(self, line):
        return int(line[: self.chance.choice((0, None)) if self.trouble("rb") else None].split()[0])

    def restart(self, state):
        clock = Clock(steady=lambda: self.steady)
        self.reader = LogFolder(self.folder, self.event_time, quiet=SECOND, clock=clock)
        self.reader.logs.restore(json.loads(json.dumps(state)))

    def create(self):
        name, self.made = f"{self.made}.log", self.made + 1
        self.unread[name], self.queued[name], self.last[name], self.done[name] = [], b"", self.promised, 0
        self.write(name, 0)

    def write(self, name, size):
        """Write what was queued, up to some byte of a line."""
        written, self.queued[name] = self.queued[name][:size], self.queued[name][size:]
        with (self.folder / name).open("ab") as file:
            file.write(written)
        if written or name not in self.grown:
            self.grown[name] = self.steady

    def delete(self, name):
        (self.folder / name).unlink()
        for kept in (self.unread, self.queued, self.last, self.grown, self.done):
            del kept[name]

    def rename(self, name):
        new, self.made = f"{self.made}.log", self.made + 1
        (self.folder / name).rename(self.folder / new)
        for kept in (self.unread, self.queued, self.last, self.grown, self.done):
            kept[new] = kept.pop(name)

    def change(self):
        """Let some of what happens to such folders happen."""
        if len(self.unread) < 2 or self.chance.random() < 0.1:
            self.create()
        for name in list(self.unread):
            for _ in range(self.chance.choice((0, 0, 3))):
                self.last[name] += self.chance.randrange(300)
                self.unread[name].append(self.last[name])
                self.queued[name] += b"%d%s\n" % (self.last[name], b" x" * self.chance.choice((0, 5, 150)))
            if self.chance.random() < 0.02:
                self.delete(name)
            elif self.chance.random() < 0.02:
                self.rename(name)
            elif self.queued[name] and self.chance.random() < 0.5:
                self.write(name, self.chance.randint(1, len(self.queued[name])))
        if self.chance.random() < 0.1:
            self.restart(self.reader.logs.snapshot())

    def look(self):
        """Let time pass; read, and ask for the watermark."""
        self.steady += self.chance.choice((1, 50, 400))
        lines = []
        try:
            lines = self.reader.poll()
        except (ValueError, IndexError):
            assert self.failing
        for line in lines:
            assert line.event_time == self.unread[line.log].pop(0), "every line once, in its order"
            self.done[line.log] = line.position + len(line.value) + 1
        if self.chance.random() < 0.5:
            if self.failing and self.chance.random() < 0.5:
                self.change()  # while the caller is busy with the lines
            try:
                self.check(self.reader.watermark() or 0)
            except ValueError:  # it reads a file that was renamed
                assert self.failing

    def check(self, watermark):
        if watermark > self.promised:
            self.promised = watermark
            for name, unread in self.unread.items():
                written = (self.folder / name).stat().st_size
                if written > self.done[name] or self.steady - self.grown[name] <= 1_000:
                    assert watermark <= [*unread, self.last[name]][0], f"{name} may still bring an earlier line"


@pytest.mark.parametrize("seed", range(40))
def test_whatever_fails_every_line_comes_once_and_no_line_of_a_growing_log_is_late(tmp_path, seed, monkeypatch):
    world = World(tmp_path, seed, monkeypatch)
    for _ in range(200):
        world.change()
        world.look()
    world.failing = False
    for name in world.unread:
        world.write(name, len(world.queued[name]))
    for _ in range(100):
        world.look()
    assert not any(world.unread.values())
    furthest = max(world.last, key=world.last.__getitem__)
    with (tmp_path / furthest).open("ab") as file:
        file.write(b"%d\n" % world.last[furthest])
    assert [line.event_time for line in world.reader.poll()] == [world.last[furthest]]
    assert world.reader.watermark() == world.last[furthest], "all others are quiet"


@pytest.mark.kafka
def test_into_kafka(kafka, topic, tmp_path):
    target, written = topic(2), []
    folder = LogFolder(tmp_path, event_time, quiet=5 * SECOND)
    with WatermarkedProducer(
        kafka.config, topic=target, source="logs", strategy=explicit(), on_late="send"
    ) as producer:
        for _ in grow(tmp_path, 5, written):
            for line in folder.poll():
                producer.produce(line.value, key=line.log, event_time=line.event_time)
            reached = folder.watermark()
            if reached is not None:
                producer.advance(reached)
        producer.end()
    values, observer = drain(kafka.config, target)
    assert sorted(map(event_time, values)) == sorted(written)
    assert observer.trackers[target].ended


@pytest.mark.kafka
def test_the_loop_of_the_page_resumes(kafka, topic, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "producers" / "README.md").read_text(encoding="utf-8")
    (loop,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "LogFolder(" in code)
    target = topic(1)
    (tmp_path / "logs").mkdir()
    monkeypatch.chdir(tmp_path)
    for run in ("1", "2"):
        with (tmp_path / "logs" / "a.log").open("a") as file:
            file.write("".join(f"{run}{number}\n" for number in range(3)))
        with WatermarkedProducer(kafka.config, topic=target, source="logs", strategy=explicit()) as web:
            names = {"web": web, "event_time": event_time, "sleep": float, "json": json, "timedelta": timedelta}
            names |= {"LogFolder": LogFolder, "Path": Path}
            exec(loop.replace("while True:", "for _ in range(2):"), names)  # noqa: S102  # code of the page
            web.end()
    assert drain(kafka.config, target)[0] == [b"10", b"11", b"12", b"20", b"21", b"22"]
