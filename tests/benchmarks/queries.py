"""Run queries made up from seeds as jobs on Kafka and Spark, and compare each with a plain computation.

    PYTHONPATH=tests python tests/benchmarks/queries.py [--cases 500] [--seed 1] [--jobs 2] [--lost | --start] [--json]

Case N of seed S is the case of seed S + N; ``--cases 1 --seed N`` runs one of them again.  Ends with status 0 only
if no case differs.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from floodmark.producers import EmbeddedKafka, create_topics
from floodmark.schemas.errors import UnsupportedQueryError
from floodmark.spark_jobs import local_session
from pyspark.sql import SparkSession
from support.harness import SMALL_BATCHES
from support.query_cases import case, lost_case, start_case
from support.trial import Trial, differences, run


class Bench:
    """A broker and a Spark, which several threads use."""

    def __init__(self, kafka: EmbeddedKafka, spark: SparkSession, place: Path, make: Callable[[int], Trial]) -> None:
        """Keep them."""
        self._kafka = kafka
        self._spark = spark
        self._place = place
        self._numbers = itertools.count()
        self._case = make

    def try_out(self, seed: int) -> dict[str, Any]:
        """Run one case; returns what it was and how it differs."""
        began = time.monotonic()
        trial = self._case(seed)
        try:
            ran = run(self._spark, self._kafka.config, trial, self._topic, str(self._place / f"case-{seed}"))
            found, batches = differences(trial, ran), len(ran.batches)
        except UnsupportedQueryError as error:
            if not trial.lost:
                raise
            found, batches = [], 0
            trial.write = {**trial.write, "refused": error.operator}
        except Exception as error:  # noqa: BLE001  # any error is a difference, with its seed
            found, batches = [f"{type(error).__name__}: {str(error)[:500]}"], 0
        return {
            "seed": seed,
            "query": trial.query.name,
            "options": trial.write,
            "restarts": len(trial.restarts),
            "rows": sum(len(log.rows) for log in trial.logs),
            "batches": batches,
            "seconds": round(time.monotonic() - began, 1),
            "differences": found,
        }

    def _topic(self, partitions: int) -> str:
        name = f"topic-{next(self._numbers)}"
        create_topics(self._kafka.config, {name: partitions})
        return name


def main() -> int:
    """Run the cases, print each, and say how many differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="how many at the same time")
    parser.add_argument("--lost", action="store_true", help="each stop loses the checkpoint")
    parser.add_argument("--start", action="store_true", help="each job begins at a time of its output")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each case")
    options = parser.parse_args()
    began, wrong = time.monotonic(), []
    with tempfile.TemporaryDirectory() as place, EmbeddedKafka(Path(place, "kafka")) as kafka:
        spark = local_session("queries", settings=SMALL_BATCHES)
        bench = Bench(kafka, spark, Path(place), lost_case if options.lost else start_case if options.start else case)
        with ThreadPoolExecutor(options.jobs) as pool:
            seeds = range(options.seed, options.seed + options.cases)
            waiting = [pool.submit(bench.try_out, seed) for seed in seeds]
            for number, done in enumerate(as_completed(waiting), 1):
                result = done.result()
                if result["differences"]:
                    wrong.append(result["seed"])
                sys.stdout.write(f"{json.dumps(result) if options.json else _line(number, result)}\n")
                sys.stdout.flush()
        spark.stop()
    seconds = time.monotonic() - began
    summary = {"cases": options.cases, "first": options.seed, "different": sorted(wrong), "seconds": round(seconds)}
    seeds_of = f", the seeds {', '.join(map(str, sorted(wrong)))}" if wrong else ""
    told = f"{options.cases} cases from seed {options.seed} in {seconds:.0f} s: {len(wrong)} different{seeds_of}"
    sys.stdout.write(f"{json.dumps(summary) if options.json else told}\n")
    return 1 if wrong else 0


def _line(number: int, result: dict[str, Any]) -> str:
    verdict = "DIFFERENT" if result["differences"] else "equal"
    line = (
        f"{number:4} seed {result['seed']}: {verdict}, {result['rows']} rows, {result['batches']} batches, "
        f"{result['seconds']} s: {result['query']} {result['options'] or ''}"
    )
    return "\n".join([line, *(f"       {said}" for said in result["differences"])])


if __name__ == "__main__":
    sys.exit(main())
