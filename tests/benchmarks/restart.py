"""How long a killed job takes to come back: from a new process to its first finished batch.

    PYTHONPATH=tests python tests/benchmarks/restart.py [ROUNDS]

A windowed job on a real Kafka is killed (SIGKILL) at work and started again, ROUNDS times (default 5).
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from floodmark.producers import EmbeddedKafka, WatermarkedProducer, create_topics, explicit
from floodmark.spark_jobs.demo.processes import Child
from support.harness import Stream, until


def main(rounds: int = 5) -> None:
    """Kill, start, measure."""
    here = Path(__file__).parent
    os.environ["PYTHONPATH"] = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(here), str(here.parent)])
    started, worked = [], []
    with tempfile.TemporaryDirectory() as place, EmbeddedKafka(Path(place, "kafka")) as kafka:
        directory = Path(place)
        create_topics(kafka.config, {"in": 3, "windows": 2})
        source = WatermarkedProducer(kafka.config, topic="in", source="a", strategy=explicit())
        options = {"source": "in", "topic": "windows", "checkpoint": directory / "state", "stage": "first"}
        for number in range(rounds + 1):
            times = list(range(number * 60_000, number * 60_000 + 20_000))
            Stream.produce_step(source, times)
            source.advance(times[-1])
            source.flush()
            began = time.monotonic()
            job = Child(
                f"first-{number}", "nemesis_job", {"bootstrap-servers": kafka.bootstrap_servers, **options}, directory
            )
            until(lambda job=job: any("started" in line for line in job.lines()), "the job", 120)
            ready = time.monotonic()
            until(lambda job=job: any("batch" in json.loads(line) for line in job.lines()), "a batch", 120)
            done = time.monotonic()
            job.kill()
            if number:  # the first start is none again
                started.append(ready - began)
                worked.append(done - began)
    sys.stdout.write(
        f"{rounds} restarts after SIGKILL: query started after {statistics.median(started):.1f} s, "
        f"first batch of new rows done after {statistics.median(worked):.1f} s (worst {max(worked):.1f} s)\n"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
