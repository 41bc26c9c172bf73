"""A job that comes back to millions of rows: how large its batches are, its memory, and how far it says that it is.

PYTHONPATH=tests python tests/benchmarks/catch_up.py --help
"""

import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from benchmarks.full_topic import ROCKSDB, TOPIC, WIDTH, expected, fill, written
from benchmarks.job_chain import ROW, counted
from benchmarks.progress import progress, spark_settings
from floodmark.producers import EmbeddedKafka, create_topics
from floodmark.producers.cli.command_line import run_command
from floodmark.producers.clients.admin import begin_offsets
from floodmark.producers.readers.replay import read_until_end
from floodmark.schemas import AvroCodec
from floodmark.schemas.classify import Data
from floodmark.schemas.codec import without_logical_types
from floodmark.spark_jobs import Batch, Job, ReadOptions, WriteOptions, avro, local_session, read, write
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

Query = Callable[[DataFrame], DataFrame]

_TARGET: Final = "caught-up"
_EVERY: Final = 0.5
"""Seconds between two samples."""
_LIMIT: Final = 1_800.0
_MIB: Final = 1 << 20
_SHARES: Final = {"start": 0.0, "quarter": 0.25, "half": 0.5, "three quarters": 0.75, "end": 1.0}


@dataclass(frozen=True, slots=True)
class Sample:
    """The memory that is in use (RSS, MiB) when so many records are read, and what the job says of its backlog."""

    seconds: float
    read: int
    jvm: float
    workers: float
    python: float
    backlog: str

    @property
    def total(self) -> float:
        """Of the JVM, Spark's Python workers and the driver's Python."""
        return self.jvm + self.workers + self.python


def main(
    *,
    rows: Annotated[int, typer.Option(min=2, help="Rows in the topic.")] = 10_000_000,
    batch: Annotated[int | None, typer.Option(min=1, help="The most records of a batch; default: Floodmark's.")] = None,
    partitions: Annotated[int, typer.Option(min=1, help="Of the topic.")] = 4,
    every_row: Annotated[
        bool, typer.Option("--every-row", help="A query without state: each row is a result, and passes the driver.")
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the Spark session; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON.")] = False,
) -> None:
    """Let a job come back to a topic that was filled meanwhile, and watch its memory and its backlog.

    A broker of its own, one Spark session on two cores with RocksDB, a sum per user and two minutes into a Kafka topic,
    exactly once.  The job reads one batch, is stopped, and comes back to the rest.  Memory is the resident set of the
    JVM (driver and executors), of Spark's Python workers and of the driver's Python, twice a second; each figure is the
    highest of its quarter.  The results are read back and compared with what the rows add up to.

    Exit status: 0; 1 where the results are others, or a row was late, lost or read twice.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    settings = {**ROCKSDB, **spark_settings(set_ or [])}
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder, "kafka")) as kafka:
        with progress(console, f"{rows:,} rows") as report:
            began = time.monotonic()
            fill(kafka.config, rows, partitions, report)
            console.print(f"the topic is full after {time.monotonic() - began:.0f} s")
        create_topics(kafka.config, {_TARGET: 2})
        spark = local_session("catch-up", settings=settings)
        reports: list[Batch] = []
        options = ReadOptions() if batch is None else ReadOptions(max_offsets_per_trigger=batch)
        query: Query = _each if every_row else partial(counted, width=WIDTH)
        start = partial(_start, spark, kafka.bootstrap_servers, Path(folder, "checkpoint"), query, options, reports)
        first = start()
        _wait(lambda: bool(reports), first)
        logging.disable()  # it may be stopped amid a batch
        first.stop()
        logging.disable(logging.NOTSET)
        before = len(reports)
        console.print(f"stopped after {sum(one.records for one in reports):,} records; it comes back")
        job, began = start(), time.monotonic()
        with sampled(job, spark, reports, console) as samples:
            job.awaitTermination(_LIMIT)
        seconds = time.monotonic() - began
        found, backlog = job.counts, job.backlog()
        wrong = _wrong(kafka.config, rows, found, written(rows) if every_row else expected(rows))
        spark.stop()
    line = {
        "rows": rows,
        "batches": len(reports),
        "largest_batch": max(one.records for one in reports),
        "seconds": round(seconds, 1),
        "rows_a_second": round(sum(one.records for one in reports[before:]) / seconds),
        "memory": {name: _round(sample) for name, sample in _quarters(samples)},
        "backlog": str(backlog),
        "wrong": wrong,
    }
    sys.stdout.write(f"{json.dumps(line)}\n" if as_json else _text(line))
    raise typer.Exit(int(bool(wrong)))


def _each(rows: DataFrame) -> DataFrame:
    return rows.select("user", "at", "n")


def _start(  # what a job is made of
    spark: SparkSession, servers: str, place: Path, query: Query, options: ReadOptions, reports: list[Batch]
) -> Job:
    source = read(spark, topics=TOPIC, value=avro(ROW), event_time="at", bootstrap_servers=servers, options=options)
    return write(
        query(source),
        topic=_TARGET,
        value=avro(ROW),
        event_time="at",
        key="user",
        job="catch-up",
        checkpoint_location=str(place),
        options=WriteOptions(on_batch=reports.append, watermark_hold=timedelta(milliseconds=1)),
    )


def _wait(condition: Any, job: Job) -> None:
    deadline = time.monotonic() + _LIMIT
    while not condition():
        if not job.isActive or time.monotonic() > deadline:
            raise RuntimeError(f"the job has no batch: {job.exception()}")
        time.sleep(0.05)


@contextmanager
def sampled(job: Job, spark: SparkSession, reports: list[Batch], console: Console) -> Iterator[list[Sample]]:
    """Sample memory and backlog until the block ends."""
    samples: list[Sample] = []
    done = threading.Event()
    jvm, began, before = spark.sparkContext._gateway.proc.pid, time.monotonic(), len(reports)  # noqa: SLF001
    said = ""

    def look() -> None:
        nonlocal said
        backlog = str(job.backlog() or "")
        count = sum(one.records for one in reports[before:])
        memory = _resident(jvm), sum(map(_resident, _children(jvm))), _resident(os.getpid())
        samples.append(Sample(round(time.monotonic() - began, 1), count, *memory, backlog))
        if backlog != said:
            said = backlog
            console.print(f"{samples[-1].seconds:5.0f} s  {samples[-1].total:6,.0f} MiB  {backlog}")

    def loop() -> None:
        while not done.wait(_EVERY):
            look()

    look()
    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


def _resident(pid: int) -> float:
    """Return the resident set of a process, MiB; 0: it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE") / _MIB
    except OSError:
        return 0.0


def _children(pid: int) -> list[int]:
    """Return the processes that one has started, and theirs."""
    parents: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(place.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(int(place.parent.name))
    found, open_ = list[int](), [pid]
    while open_:
        open_ = [child for one in open_ for child in parents.get(one, ())]
        found += open_
    return found


def _quarters(samples: list[Sample]) -> list[tuple[str, Sample]]:
    """Return the first sample, and of each quarter of the records the one with the most memory."""
    most = max(1, samples[-1].read)
    found = [("start", samples[0])]
    for (_, after), (name, until) in zip(list(_SHARES.items()), list(_SHARES.items())[1:], strict=False):
        part = [one for one in samples if after < one.read / most <= until]
        if part:
            found.append((name, max(part, key=lambda one: one.total)))
    return found


def _round(sample: Sample) -> dict[str, Any]:
    shown = {name: round(value) for name, value in asdict(sample).items() if name in {"jvm", "workers", "python"}}
    return {"seconds": sample.seconds, "read": sample.read, **shown, "total": round(sample.total)}


def _wrong(
    config: dict[str, Any], rows: int, counts: dict[str, int], results: Iterable[tuple[str, int, int]]
) -> list[str]:
    """Compare what stands in the topic of results with what the rows add up to, and the counts with none."""
    codec, found = AvroCodec(without_logical_types(ROW)), Counter[tuple[str, int, int]]()
    for record in read_until_end(config, begin_offsets(config, [_TARGET])):
        if isinstance(record, Data) and record.value is not None:
            row = codec.decode(record.value)
            found[row["user"], row["at"], row["n"]] += 1
    due = Counter(results)
    amiss = [f"{(found - due).total():,} results too many, {(due - found).total():,} missing"] if found != due else []
    bad = {name: counts[name] for name in ("late", "lost", "surplus") if counts[name]}
    read_ = counts["records"] - counts["marks"]
    return amiss + ([f"{bad}"] if bad else []) + ([f"{read_:,} rows read of {rows:,}"] if read_ != rows else [])


def _text(line: dict[str, Any]) -> str:
    text = [
        f"{os.cpu_count()} cores; {line['rows']:,} rows in {line['batches']} batches of {line['largest_batch']:,}",
        f"{line['seconds']:,.0f} s, {line['rows_a_second']:,} a second",
        "",
        f"{'MiB':16}{'read':>12}{'JVM':>8}{'workers':>9}{'driver':>8}{'all':>8}",
    ]
    for name, one in line["memory"].items():
        parts = f"{one['jvm']:8,}{one['workers']:9,}{one['python']:8,}{one['total']:8,}"
        text.append(f"{name:16}{one['read']:12,}{parts}")
    text += ["", line["backlog"], "; ".join(line["wrong"]) or "the results are what the rows add up to, each once"]
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    run_command(main)
