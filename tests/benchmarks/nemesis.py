"""Break things on purpose, on real Kafka and real Spark, and compare the results with a batch computation.

    PYTHONPATH=tests python tests/benchmarks/nemesis.py [FAULTS] [SEED] [LOOKAHEAD] [DELIVERY]

Two Spark jobs in a chain, three sources; FAULTS (default 30) of: SIGKILL of the first job, of the second, of the broker
(each comes back), at random moments, each before the end of the input.  LOOKAHEAD 0: the jobs never look ahead (default
1: they do).  DELIVERY: of both jobs, ``exactly-once`` (the default) or ``exactly-once-executors``, where Python workers
are killed, too, and an executor of the first job, which then has two.  Ends with status 0 only if no row was lost,
doubled or late, and if the jobs' own counts say so, too.
"""

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from floodmark.producers import EmbeddedKafka, create_topics
from floodmark.schemas import FloodmarkError
from floodmark.spark_jobs.demo.processes import Child
from support.harness import Stream, drain, until, window_counts

WIDTH = 10_000
STEPS_PER_FAULT = 24
PAUSE = 0.25  # seconds, between two steps
VICTIMS = ["first", "second", "broker", "both"]
IN_JOBS = {"workers": b"pyspark.daemon", "executor": b"CoarseGrainedExecutorBackend"}
"""What is also killed where executors write, with a part of its command line."""


class Supervisor:
    """Starts a job again whenever it has ended, as any operator would."""

    def __init__(self, name: str, options: dict[str, object], directory: Path) -> None:
        """Start it."""
        self.child = Child(name, "nemesis_job", options, directory)
        self.failures = 0

    def tend(self) -> bool:
        """Start it again if it failed; tells whether it has finished."""
        try:
            return self.child.finished
        except FloodmarkError:
            self.failures += 1
            self.child.crash()
            return False


def feed(config: dict[str, str], stream: Stream, fed: list[int], faults: list[str]) -> None:
    """Write the stream step by step, slowly, through every broker crash; then end.

    ``fed`` gets each step.  The steps for a fault wait until ``faults`` has those before it.
    """
    patient = {**config, "message.timeout.ms": 120_000, "linger.ms": 5}
    producers = stream.producers(patient, "in", timedelta(milliseconds=200))
    for number in range(max(map(len, stream.steps.values()))):
        while len(faults) < number // STEPS_PER_FAULT:
            time.sleep(PAUSE)
        for name, script in stream.steps.items():
            times, watermark = script[number]
            stream.produce_step(producers[name], times)
            producers[name].advance(watermark)
            producers[name].poll()
        fed.append(number)
        time.sleep(PAUSE)
    for producer in producers.values():
        producer.end(timeout=240)


def descendants(jobs: list[Supervisor], program: bytes) -> list[int]:
    """Return the processes that jobs have started, directly or not, with this in their command line."""
    found, parents = [], [job.child._process.pid for job in jobs]  # noqa: SLF001  # the demo needs no pid
    while parents:
        for thread in Path(f"/proc/{parents.pop()}/task").glob("*/children"):  # any thread of the JVM may start one
            with suppress(FileNotFoundError, ProcessLookupError):
                children = [int(child) for child in thread.read_text("ascii").split()]
                parents += children
                found += [one for one in children if program in Path(f"/proc/{one}/cmdline").read_bytes()]
    return found


def kill_within(jobs: list[Supervisor], victim: str) -> int:
    """Kill one executor, or all Python workers, as soon as there is one; return the number of processes."""
    found: list[int] = []

    def find() -> bool:
        for job in jobs:
            job.tend()
        found.extend(descendants(jobs, IN_JOBS[victim]))
        return bool(found)

    until(find, f"a process to kill ({victim})", 300)
    killed = found if victim == "workers" else found[:1]
    for process in killed:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return len(killed)


def main(faults: int = 30, seed: int = 1, lookahead: int = 1, delivery: str = "exactly-once") -> int:
    """Run, break, compare."""
    here = Path(__file__).parent
    os.environ["PYTHONPATH"] = os.pathsep.join(  # for the jobs
        [os.environ.get("PYTHONPATH", ""), str(here), str(here.parent)]
    )
    chance = random.Random(seed)  # noqa: S311  # a repeatable run
    stream = Stream.seeded(seed, sources=3, steps=STEPS_PER_FAULT * faults, per_step=12)
    done = Counter[str]()
    with tempfile.TemporaryDirectory() as place, EmbeddedKafka(Path(place, "kafka")) as kafka:
        directory = Path(place)
        os.environ["SPARK_WORKER_DIR"] = str(directory / "executors")
        create_topics(kafka.config, {"in": 3, "windows": 2, "totals": 2})
        began = time.monotonic()
        common = {
            "bootstrap-servers": kafka.bootstrap_servers,
            "lookahead": "yes" if lookahead else "no",
            "delivery": delivery,
        }
        jobs = [
            Supervisor(
                name,
                {**common, "source": given, "topic": out, "checkpoint": directory / name, "stage": name},
                directory,
            )
            for name, given, out in (("first", "in", "windows"), ("second", "windows", "totals"))
        ]
        fed: list[int] = []
        past: list[str] = []
        feeder = threading.Thread(target=feed, args=(kafka.config, stream, fed, past), daemon=True)
        until(lambda: all(job.tend() or job.child.lines() for job in jobs), "two jobs", 120)
        feeder.start()
        for number in range(faults):
            moment = STEPS_PER_FAULT * number + chance.randrange(STEPS_PER_FAULT)
            until(lambda moment=moment: len(fed) > moment, f"step {moment} of the input", 300)
            victim = chance.choice([*VICTIMS, *(IN_JOBS if delivery == "exactly-once-executors" else ())])
            if victim == "broker":
                kafka.kill()
                kafka.start()
            if victim in IN_JOBS:
                done[f"killed {victim}"] += kill_within(jobs, victim)
            for job in jobs:
                if victim in {job.child.name, "both"}:
                    job.child.crash()
                job.tend()
            done[victim] += 1
            past.append(victim)
            sys.stdout.write(f"{time.monotonic() - began:5.0f} s  fault {number + 1:2}: SIGKILL of {victim}\n")
            sys.stdout.flush()
        feeder.join(300)
        until(lambda: all([job.tend() for job in jobs]), "the end of both jobs", 300)  # noqa: C419  # tend to each
        first = window_counts(drain(kafka.config, "windows")[0])
        second = window_counts(drain(kafka.config, "totals")[0])
        rows = len(drain(kafka.config, "windows")[0])
        said = [json.loads(line) for job in jobs for line in job.child.lines()]
        last = [json.loads(job.child.lines()[-1]) for job in jobs]
    wrong = {name: sum(line[name] for line in last) for name in ("late", "lost", "surplus")}
    truth = stream.windows(WIDTH)
    equal = first == truth and second == truth and rows == len(truth)
    failures = sum(job.failures for job in jobs)
    ahead = sum(line.get("ahead", False) for line in said)
    counted = ", ".join(f"{count} {name}" for name, count in wrong.items())
    sys.stdout.write(
        f"{faults} faults ({', '.join(f'{n} {what}' for what, n in sorted(done.items()))}), "
        f"{failures} more failures of jobs that followed\n"
        f"{stream.size:,} events, {len(truth):,} windows: "
        f"{'equal row by row in both stages' if equal else 'DIFFERENT'}, {counted} rows; "
        f"{ahead} of the {sum('batch' in line for line in said)} batches of the last starts looked ahead\n"
    )
    return 0 if equal and not any(wrong.values()) else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:4]), *sys.argv[4:]))
