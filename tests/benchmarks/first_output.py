"""The time from the start of a job to its first output, beside the estimate of `floodmark catch-up`.

PYTHONPATH=tests python tests/benchmarks/first_output.py --help
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer
from benchmarks.full_topic import ROCKSDB, TOPIC
from benchmarks.job_chain import ROW
from benchmarks.progress import progress
from floodmark.producers import EmbeddedKafka, WatermarkedProducer, ascending, create_topics
from floodmark.producers.cli.command_line import run_command
from floodmark.schemas import AvroCodec
from floodmark.schemas.codec import without_logical_types
from floodmark.schemas.timestamps import to_datetime
from floodmark.spark_jobs import Batch, Job, ReadOptions, Start, WriteOptions, avro, local_session, read, write
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from rich.console import Console

_USERS: Final = 1_000
_LIMIT: Final = 1_800.0
_codec = AvroCodec(without_logical_types(ROW))


def _now() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """A live topic: rows at an even pace, whose times are those of Kafka's timestamps."""

    kafka: EmbeddedKafka
    first: int
    """The time of the first row, epoch milliseconds."""
    width: int
    """Milliseconds of the window."""
    rows: int
    """Rows in one window."""

    def time_of(self, number: int) -> int:
        """Return the time of a row."""
        return self.first + number * self.width // self.rows

    def count(self, begin: int, end: int) -> int:
        """Return how many rows there are from one time to another."""
        before = [-(-(time - self.first) * self.rows // self.width) for time in (begin, end)]
        return before[1] - before[0]

    def write(self, loaded: threading.Event, stop: threading.Event) -> None:
        """Write the rows, as fast as possible up to now, and then each at its time."""
        settings = {**self.kafka.config, "compression.type": "lz4", "linger.ms": 20}
        marks = {"strategy": ascending(), "membership": 1, "interval": timedelta(milliseconds=200)}
        with WatermarkedProducer(settings, topic=TOPIC, source="feed", **marks) as feed:
            for number in itertools.count():
                at = self.time_of(number)
                while at > _now():
                    loaded.set()
                    if stop.wait(0.01):
                        return
                user = f"u{number % _USERS}"
                feed.produce(_codec.encode({"user": user, "at": at, "n": 1}), key=user, event_time=at, timestamp=at)


@dataclass(slots=True)
class Run:
    """A job that is started with ``output_at`` now, until its first output."""

    width: int
    """Milliseconds of its window."""
    at: int = field(default_factory=_now)
    """That time, epoch milliseconds: the end of the window that comes out first."""
    began: float = field(default_factory=time.monotonic)
    batches: list[tuple[float, Batch]] = field(default_factory=list)
    first: dict[int, int] = field(default_factory=dict)
    """The ends of the windows in the first output, with their sums."""
    seconds: float = 0.0
    """Until then."""
    done: threading.Event = field(default_factory=threading.Event)

    def take(self, frame: DataFrame, _batch_id: int) -> None:
        """Note the first output."""
        if not self.done.is_set():
            sums = frame.groupBy(F.unix_millis("at")).agg(F.sum("n")).collect()
            if sums:
                self.first, self.seconds = dict(sums), time.monotonic() - self.began
                self.done.set()

    def note(self, batch: Batch) -> None:
        """Note a batch."""
        self.batches.append((time.monotonic(), batch))

    @property
    def start(self) -> float:
        """Seconds until its first batch began."""
        at, batch = self.batches[0]
        return at - batch.duration.total_seconds() - self.began

    @property
    def rate(self) -> float:
        """Records per second that it read from its first batch to the first output."""
        records = sum(batch.records for at, batch in self.batches if at <= self.began + self.seconds)
        return records / (self.seconds - self.start)


def main(
    *,
    rows: Annotated[int, typer.Option(min=1_000, help="Rows in the window.")] = 3_000_000,
    minutes: Annotated[int, typer.Option(min=1, help="Width of the window.")] = 10,
    batch: Annotated[int, typer.Option(min=1, help="Most records of a batch.")] = 250_000,
    partitions: Annotated[int, typer.Option(min=1, help="Of the topic.")] = 4,
    factor: Annotated[float, typer.Option(min=1, help="By how much the estimate may be off.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON.")] = False,
) -> None:
    """Load a window of rows up to now, start a job with `Start(output_at=)` now, and time its first output.

    Rows go on coming at the same pace.  The estimate is the time of a start, and that of `floodmark catch-up`.  Both
    need figures of an earlier start: it has a window of half the width.  A first start warms up the JVM.

    Exit status: 0; 1 where the estimate is off by more than --factor, or the first output is not the window.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    width = minutes * 60_000
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder, "kafka")) as kafka:
        create_topics(kafka.config, {TOPIC: partitions})
        spark = local_session("first-output", settings=ROCKSDB)
        load = Load(kafka, _now() - width, width, rows)
        with progress(console, f"{rows:,} rows in {minutes} minutes") as report, _written(load):
            report("the first start")
            _first_output(spark, load, batch, Path(folder, "first"), Run(width // 2))
            report("the start that is measured")
            before = _first_output(spark, load, batch, Path(folder, "before"), Run(width // 2))
            estimate = _estimate(load, before.rate)
            report("the start that is compared")
            run = _first_output(spark, load, batch, Path(folder, "compared"), Run(width))
        spark.stop()
    expected = before.start + estimate
    off = max(run.seconds / expected, expected / run.seconds)
    due = {run.at: load.count(run.at - width, run.at)}
    wrong = [] if run.first == due else [f"the first output is {run.first}, expected {due}"]
    line = {
        "rows": rows,
        "rate": round(before.rate),
        "start": round(before.start, 2),
        "catch_up": round(estimate, 2),
        "first_output": round(run.seconds, 2),
        "factor": round(off, 2),
        "wrong": wrong,
    }
    sys.stdout.write(f"{json.dumps(line)}\n" if as_json else _text(line))
    raise typer.Exit(int(bool(wrong) or off > factor))


@contextmanager
def _written(load: Load) -> Iterator[None]:
    """Write a load, and go on until the block ends; the block begins when the window is full."""
    loaded, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=load.write, args=(loaded, stop), daemon=True)
    thread.start()
    try:
        while not loaded.wait(1):
            if not thread.is_alive():
                raise RuntimeError("the topic is not loaded")
        yield
    finally:
        stop.set()
        thread.join()


def _first_output(spark: SparkSession, load: Load, batch: int, place: Path, run: Run) -> Run:
    source = read(
        spark,
        topics=TOPIC,
        value=avro(ROW),
        event_time="at",
        bootstrap_servers=load.kafka.bootstrap_servers,
        options=ReadOptions(max_offsets_per_trigger=batch),
    )
    window = F.window("at", *[f"{run.width} milliseconds"] * 2, f"{run.at % run.width} milliseconds")
    summed = source.groupBy("user", window).agg(F.sum("n").alias("n")).selectExpr("user", "window.end AS at", "n")
    start = Start(output_at=to_datetime(run.at), early=timedelta(0))
    job = write(
        summed,
        writer=run.take,
        event_time="at",
        job="first-output",
        checkpoint_location=str(place),
        options=WriteOptions(start=start, on_batch=run.note),
    )
    _wait(job, run)
    job.stop()
    return run


def _wait(job: Job, run: Run) -> None:
    deadline = time.monotonic() + _LIMIT
    while not run.done.wait(1):
        if not job.isActive or time.monotonic() > deadline:
            raise RuntimeError(f"the job has no output: {job.exception()}")


def _estimate(load: Load, rate: float) -> float:
    """Return what `floodmark catch-up` says of a start now, seconds."""
    since = to_datetime(_now() - load.width).isoformat()
    command = [sys.executable, "-m", "floodmark.producers.cli.main", "catch-up", TOPIC, "--since", since]
    command += ["--rate", str(rate), "--bootstrap-servers", load.kafka.bootstrap_servers, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    return float(json.loads(done.stdout)["seconds"])


def _text(line: dict[str, object]) -> str:
    return (
        f"{os.cpu_count()} cores; {line['rows']:,} rows, read at {line['rate']:,} a second\n"
        f"estimated: {line['start']} s for the start, {line['catch_up']} s to catch up\n"
        f"measured:  {line['first_output']} s to the first output; off by a factor of {line['factor']}\n"
        + ("; ".join(map(str, line["wrong"])) or "the first output is the window, whole")  # type: ignore[call-overload]
        + "\n"
    )


if __name__ == "__main__":
    run_command(main)
