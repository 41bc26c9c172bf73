"""Kill a process of some jobs, again and again, and compare what they wrote with a batch computation.

    PYTHONPATH=tests python tests/benchmarks/killed.py [KILLS] [SEED] [KINDS]

The jobs read two topics while they are written; each looks ahead in half of its starts.  KILLS (default 20): so often
the process is ended by SIGKILL, and all jobs with it: mostly a moment after they have started, at times while they
start.  KINDS: "mixed" (default: windows, sessions, a join, a Python function with state, dropped duplicates), or
"temporal" (the recipes of ``TEMPORAL.md``, joins).  Ends with status 0 only if no row of an output topic was lost,
doubled or late, and if the jobs' own counts say so, too.
"""

import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from benchmarks.killed_job import KINDS
from floodmark.producers import EmbeddedKafka, create_topics
from floodmark.spark_jobs.demo.processes import Child
from support.harness import until
from support.operators import Query
from support.streams import Log, Put, Say, batches_of, total

STEPS_PER_KILL = 60
STEP = 6
"""Entries that are written at once."""
_BEGIN = 1_000_000
_LIMIT = 600


def made_up(chance: random.Random, steps: int) -> Log:
    """Make up two sources in two partitions: five rows and a mark a step, some rows twice, out of order."""
    log = Log(2)
    for step in range(steps):
        source, now = f"s{step % 2}", _BEGIN + 500 * step
        rows = [(chance.choice("abc"), now + chance.randrange(3_000), chance.randrange(100)) for _ in range(4)]
        log.entries += [Put(source, row, chance.randrange(2)) for row in [*rows, chance.choice(rows)]]
        log.entries.append(Say(source, now))
    return log


def feed(config: dict[str, str], logs: dict[str, Log], stop: threading.Event) -> None:
    """Write both topics, step by step, until they are to stop; what was not written is no part of the logs then."""
    steps = [(log, log.writing(config, topic, STEP)) for topic, log in logs.items()]
    number = 0
    while not stop.wait(0.3):
        number += 1
        for _, step in steps:
            next(step, None)
    for topic, log in logs.items():
        del log.entries[number * STEP :]
        Log(log.partitions, [Say(source, "end") for source in log.sources]).write(config, topic, epoch=2)


def differences(
    kinds: dict[str, Query], config: dict[str, str], logs: dict[str, Log], counts: dict[str, Counter[str]]
) -> list[str]:
    """Say for each kind what is wrong; one line each."""
    found = []
    for name, query in kinds.items():
        expected = query.results(*[log.rows for log in logs.values()][: query.source.inputs])
        written = total(batches_of(config, name))
        wrong = {what: counts[name].get(what, 0) for what in ("late", "lost", "surplus", "sequence_gaps")}
        missing, more = expected - written, written - expected
        if missing or more or any(wrong.values()):
            found.append(f"{name}: {missing.total()} rows missing, {more.total()} too many, counts {wrong}")
        sys.stdout.write(f"{name}: {written.total():,} of {expected.total():,} rows, {wrong}\n")
    return found


def main(kills: int = 20, seed: int = 1, kinds: str = "mixed") -> int:
    """Run, kill, compare."""
    paths = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[1])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for the jobs
    queries = KINDS[kinds]
    chance = random.Random(seed)  # noqa: S311  # a repeatable run
    logs = {topic: made_up(chance, STEPS_PER_KILL * 2 * kills) for topic in ("left", "right")}
    with tempfile.TemporaryDirectory() as place, EmbeddedKafka(Path(place, "kafka")) as kafka:
        create_topics(kafka.config, {"left": 2, "right": 2, **dict.fromkeys(queries, 2)})
        stop, began = threading.Event(), time.monotonic()
        feeder = threading.Thread(target=feed, args=(kafka.config, logs, stop))
        feeder.start()
        options = {"bootstrap-servers": kafka.bootstrap_servers, "directory": place, "kinds": kinds}
        child = Child("jobs", "benchmarks.killed_job", options, Path(place))

        def starts() -> int:
            if child.finished:  # raises where it failed
                raise AssertionError("the jobs have ended before their input")
            return sum("started" in json.loads(line) for line in child.lines())

        try:
            for number in range(kills):
                before, early = starts(), chance.random() < 0.2
                if early:
                    time.sleep(chance.uniform(5, 15))
                else:
                    until(lambda before=before: starts() > before, "a start of all jobs", _LIMIT)
                    time.sleep(chance.uniform(0, 8))
                starts()
                child.crash()
                when = "while they start" if early else "once they have started"
                sys.stdout.write(f"{time.monotonic() - began:5.0f} s  SIGKILL {number + 1}, {when}\n")
                sys.stdout.flush()
            stop.set()
            feeder.join()
            until(lambda: child.finished, "the end of all jobs", _LIMIT)
            said = [json.loads(line) for line in child.lines()]
            found = differences(queries, kafka.config, logs, said[-1]["counts"])
        finally:
            stop.set()
            child.kill()
    ahead = Counter(line["ahead"] for line in said if "ahead" in line)
    sys.stdout.write(
        f"{kills} SIGKILLs of a process of {len(queries)} jobs, {kills * len(queries)} killed jobs; "
        f"{sum(ahead.values())} jobs started, {ahead[True]} of them with look ahead; {time.monotonic() - began:.0f} s\n"
        f"{', '.join(f'{len(log.rows):,} rows {topic}' for topic, log in logs.items())}: "
        f"{'; '.join(found) or 'all outputs equal a batch computation, row by row, 0 late, lost or surplus'}\n"
    )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3]), *sys.argv[3:]))
