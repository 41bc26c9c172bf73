"""Kill a trigger again and again, and compare what it fired with the periods of its topic.

    PYTHONPATH=tests python tests/benchmarks/trigger_kills.py [KILLS] [SEED]

The topic's watermark advances all the time.  The trigger runs a command that appends its key to a file.  KILLS (default
100): so often the process is ended by SIGKILL, mostly a moment after it has fired.  Ends with status 0 only if each
period was fired, in order, none before the watermark had passed its end, and none more than once more than it was
interrupted by a kill.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

from floodmark.producers import EmbeddedKafka, WatermarkedProducer, create_topics, explicit
from support.harness import until

EVERY = 100
_STEP = 30
_LIMIT = 120


def kill(config: dict[str, str], topic: str, place: Path, kills: int, seed: int = 1) -> str:
    """Kill a trigger of a topic so often, then let the topic end; return what is wrong, empty if nothing is."""
    chance = random.Random(seed)  # noqa: S311  # a repeatable run
    source = WatermarkedProducer(
        config, topic=topic, source="web", strategy=explicit(), interval=timedelta(hours=1), background=False
    )
    reached, stop, fired = [0], threading.Event(), place / "fired"
    fired.touch()

    def advance() -> None:
        while not stop.wait(0.02):
            reached[0] += chance.randrange(_STEP)
            source.advance(reached[0])
            source.flush(30)
        source.end()

    command = [sys.executable, "-m", "floodmark.producers.cli.main", "trigger", topic, "--every", f"{EVERY}ms"]
    command += ["--from", "1970-01-01T00:00Z", "--bootstrap-servers", config["bootstrap.servers"]]
    command += ["--run", f'echo "$FLOODMARK_EVENT" >> {fired}']

    def start() -> subprocess.Popen[bytes]:
        with (place / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def count() -> int:
        return fired.read_text().count("\n")

    feeder = threading.Thread(target=advance)
    source.advance(1)
    feeder.start()
    trigger = start()
    try:
        for _ in range(kills):
            before = count()
            until(lambda before=before: count() > before, "an event", _LIMIT)
            time.sleep(chance.uniform(0, 0.3))
            os.killpg(trigger.pid, signal.SIGKILL)
            trigger.wait()
            trigger = start()
        stop.set()
        feeder.join()
        status = trigger.wait(_LIMIT)
    finally:
        stop.set()
        trigger.kill()
    # A command that was killed while it wrote leaves half a line, and is fired again.
    events = [json.loads(line) for line in fired.read_text().splitlines() if line.endswith("}")]
    return wrong(events, reached[0], kills) or (f"exit status {status}" if status else "")


def wrong(events: list[dict[str, object]], watermark: int, kills: int) -> str:
    """Say what is wrong with the events of a topic with this last watermark; empty: nothing."""
    keys = Counter(str(event["key"]) for event in events)
    starts = list(dict.fromkeys(event["start_ms"] for event in events))
    expected = list(range(0, watermark - watermark % EVERY + 1, EVERY))
    early = [event["key"] for event in events if int(str(event["watermark_ms"])) < int(str(event["end_ms"]))]
    again = sum(keys.values()) - len(keys)
    different = len({json.dumps(event) for event in events}) - len(keys)
    sys.stdout.write(f"{len(expected):,} periods, {kills} SIGKILLs: {len(events):,} events, {again} of them again\n")
    found = {"missed or out of order": starts != expected, "early": bool(early), "too often": again > kills}
    return ", ".join(name for name, holds in {**found, "another event with a key": bool(different)}.items() if holds)


def main(kills: int = 100, seed: int = 1) -> int:
    """Run, kill, compare."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place, EmbeddedKafka(Path(place, "kafka")) as kafka:
        create_topics(kafka.config, {"ticks": 1})
        found = kill(kafka.config, "ticks", Path(place), kills, seed)
    sys.stdout.write(f"{found or 'each period fired, in order, none early'}; {time.monotonic() - began:.0f} s\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
