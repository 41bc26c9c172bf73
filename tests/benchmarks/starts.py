"""How long a job takes to start: a new one, one without the archive of classes, and one that was killed.

PYTHONPATH=tests python tests/benchmarks/starts.py --help
"""

import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer
from floodmark.producers import EmbeddedKafka, WatermarkedProducer, create_topics, explicit
from floodmark.producers.cli.command_line import run_command
from floodmark.producers.embedded.jars import cache
from floodmark.spark_jobs.class_archive import archive_options, archive_path
from floodmark.spark_jobs.demo.processes import Child
from rich.console import Console
from support.harness import Stream, until
from support.recording import record_classes

KINDS: Final = {
    "plain": "a new job, without the archive of classes",
    "new": "a new job",
    "killed": "a job killed (SIGKILL) at work and started again",
}


@dataclass(slots=True)
class _Starts:
    """Jobs that are started and killed, and the seconds that each took: until its query ran, until its first batch."""

    kafka: EmbeddedKafka
    directory: Path
    source: WatermarkedProducer
    full_cache: Path
    plain_cache: Path
    times: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    _number: int = 0

    def start(self, kind: str, checkpoint: Path) -> None:
        """Start a job, whose checkpoint and topic have one name; wait for its first batch of new rows, and kill it."""
        first = self._number * 60_000
        self._number += 1
        times = list(range(first, first + 20_000))
        Stream.produce_step(self.source, times)
        self.source.advance(times[-1])
        self.source.flush()
        options = {"source": "in", "topic": checkpoint.name, "checkpoint": checkpoint}
        os.environ["FLOODMARK_CACHE"] = str(self.plain_cache if kind == "plain" else self.full_cache)
        began = time.monotonic()
        job = Child(
            f"{kind}-{self._number}",
            "nemesis_job",
            {"bootstrap-servers": self.kafka.bootstrap_servers, **options, "stage": "first", "lookahead": "yes"},
            self.directory,
        )
        until(lambda: any("started" in line for line in job.lines()), "the query", 180)
        ready = time.monotonic()
        until(lambda: any("batch" in json.loads(line) for line in job.lines()), "a batch", 180)
        self.times[kind].append((ready - began, time.monotonic() - began))
        job.kill()


def main(
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Starts of each kind, in turn.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure how long a job takes from a new process to its first finished batch, in a session of its own.

    A window count on a real Kafka, 20,000 rows; each start has new rows.  The first start of all is left out: it brings
    files into the machine's memory.
    """
    here = Path(__file__).parent
    os.environ["PYTHONPATH"] = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(here), str(here.parent)])
    if not archive_path().exists():
        record_classes()
        archive_options()
    with (
        tempfile.TemporaryDirectory() as place,
        EmbeddedKafka(Path(place, "kafka")) as kafka,
        Console(stderr=True).status("starting jobs"),
    ):
        directory = Path(place)
        states = ["state-warm", *(f"state-{kind}{number}" for number in range(rounds) for kind in ("plain-", ""))]
        create_topics(kafka.config, {"in": 3, **dict.fromkeys(states, 2)})
        with WatermarkedProducer(kafka.config, topic="in", source="a", strategy=explicit()) as source:
            starts = _Starts(kafka, directory, source, cache(), _without_archive(directory / "cache"))
            starts.start("new", directory / "state-warm")
            starts.times["new"].clear()
            for number in range(rounds):
                kept = directory / f"state-{number}"
                starts.start("plain", directory / f"state-plain-{number}")
                starts.start("new", kept)
                starts.start("killed", kept)
    _report(starts.times, as_json=as_json)


def _without_archive(folder: Path) -> Path:
    """Return a cache that has all that ours has but the archives of classes."""
    folder.mkdir()
    for file in cache().iterdir():
        if file.suffix != ".jsa":
            (folder / file.name).symlink_to(file)
    return folder


def _report(times: dict[str, list[tuple[float, float]]], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(times) + "\n")
        return
    for kind, words in KINDS.items():
        query, batch = zip(*times[kind], strict=True)
        sys.stdout.write(
            f"{words}: query runs after {statistics.median(query):.1f} s, first batch of new rows done after "
            f"{statistics.median(batch):.1f} s ({min(batch):.1f} to {max(batch):.1f} s)\n"
        )


if __name__ == "__main__":
    run_command(main)
