"""A job that writes a table and kills itself and Spark's JVM (SIGKILL), in a process of its own.

    python crashing_table_job.py SERVERS INPUT KIND PLACE CHECKPOINT STEP [BATCHES] [COMMIT_EVERY]

KIND: "iceberg" or "delta"; PLACE: the folder of the table; STEP: one of `STEPS`, or "none".  The crash comes at that
step of the BATCHES-th batch, or commit, of this process.  COMMIT_EVERY: seconds.
"""

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from floodmark.spark_jobs import WriteOptions, write
from floodmark.spark_jobs.internals.engine import Engine
from floodmark.spark_jobs.tables.table import Table
from floodmark.spark_jobs.tables.table_sink import TableSink
from support.counting import read_events, windowed
from support.lake import lake_session, named_table

STEPS = {
    "before the files of a batch": (TableSink, "consume", "before"),
    "after the files of a batch": (TableSink, "consume", "after"),
    "after a batch is staged": (TableSink, "commit", "after"),
    "before the commit": (Table, "commit", "before"),
    "within the commit": (Table, "commit", "within"),
    "after the commit": (Table, "commit", "after"),
    "during Spark's commit": (Engine, "set_watermark", "after"),
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the job in a process of its own."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command, environment = [sys.executable, __file__, *arguments], {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=200, check=False, start_new_session=True
    )


def _kill() -> NoReturn:
    os.killpg(os.getpgid(0), signal.SIGKILL)
    raise AssertionError


def _kill_when_it_has_files(folder: Path) -> None:
    """Kill as soon as a folder has one more data file, which the commit then lacks."""

    def files() -> int:
        return sum(1 for _ in folder.rglob("*.parquet"))

    def watch() -> None:
        before = files()
        while files() == before:
            pass
        _kill()

    threading.Thread(target=watch, daemon=True).start()


def _crash(owner: type, name: str, when: str, times: int, folder: Path) -> None:
    original: Callable[..., object] = getattr(owner, name)
    calls = itertools.count(1)

    def crashing(*args: object, **kwargs: object) -> object:
        is_due = next(calls) >= times
        if is_due and when == "before":
            _kill()
        if is_due and when == "within":
            _kill_when_it_has_files(folder)
        result = original(*args, **kwargs)
        if is_due and when == "after":
            _kill()
        return result

    setattr(owner, name, crashing)


def main(  # of the command line
    servers: str,
    given: str,
    kind: str,
    place: str,
    checkpoint: str,
    step: str,
    batches: str = "2",
    commit_every: str = "0",
) -> None:
    """Run the job, and die where told."""
    folder = Path(place)
    if step != "none":
        _crash(*STEPS[step], int(batches), folder)
    spark = lake_session(folder.parent.parent if kind == "iceberg" else folder.parent, kind)
    job = write(
        windowed(read_events(spark, servers, given, max_offsets_per_trigger=60)),
        table=named_table(kind, folder, timedelta(seconds=float(commit_every))),
        event_time="ended",
        job="totals",
        checkpoint_location=checkpoint,
        options=WriteOptions(lookahead=timedelta(0)),
    )
    job.awaitTermination(150)


if __name__ == "__main__":
    main(*sys.argv[1:])
