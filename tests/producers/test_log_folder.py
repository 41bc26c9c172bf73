"""A folder of growing files: every line once, and no line of a known, growing file behind the watermark."""

import json
import random
from datetime import timedelta

import pytest
from floodmark.producers import LogFolder, WatermarkedProducer, explicit
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
    for now in grow(tmp_path, 4, written):
        for line in folder.poll(now):
            assert line.event_time >= watermark or line.log == "c.log", "only a file nobody knew of can be late"
            seen.append(line.event_time)
        watermark = folder.watermark(now) or 0
        state = json.loads(json.dumps(folder.logs.snapshot()))
        folder = LogFolder(tmp_path, event_time, quiet=5 * SECOND)
        folder.logs.restore(state)
    assert sorted(seen) == sorted(written)
    assert watermark > 30_000


def test_half_a_line_waits_and_garbage_is_counted(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"12 whole\n# comment\n17 ha")
    folder = LogFolder(tmp_path, event_time, quiet=SECOND)
    assert [line.value for line in folder.poll(0)] == [b"12 whole"]
    assert folder.skipped == 1
    assert folder.poll(0) == [], "every line once"
    assert folder.watermark(99_999) == 12, "unprocessed bytes hold"
    with path.open("ab") as file:
        file.write(b"lf\r\n")
    assert [(line.value, line.event_time) for line in folder.poll(1)] == [(b"17 half", 17)]


@pytest.mark.kafka
def test_into_kafka(kafka, topic, tmp_path):
    target, written = topic(2), []
    folder = LogFolder(tmp_path, event_time, quiet=5 * SECOND)
    with WatermarkedProducer(
        kafka.config, topic=target, source="logs", strategy=explicit(), on_late="send"
    ) as producer:
        for now in grow(tmp_path, 5, written):
            for line in folder.poll(now):
                producer.produce(line.value, key=line.log, event_time=line.event_time)
            reached = folder.watermark(now)
            if reached is not None:
                producer.advance(reached)
        producer.end()
    values, observer = drain(kafka.config, target)
    assert sorted(map(event_time, values)) == sorted(written)
    assert observer.trackers[target].ended
