"""A job that loses an executor in the middle of a batch; run by ``test_executor_lost.py`` in a process of its own.

    python losing_executor.py SERVERS INPUT CHECKPOINT MARKER

Spark runs on a small cluster of two executors.  The task that first brings results kills the executor that it runs on,
once: the marker file says so.  What that executor had read for the batch is lost with it, and read again.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator

import pandas as pd
from floodmark.spark_jobs import local_session, write
from floodmark.spark_jobs.class_archive import archive_options
from support.counting import read_events, windowed
from support.harness import QUICK, SMALL_BATCHES


def main(servers: str, given: str, checkpoint: str, marker: str) -> None:
    """Run the job to its end and print its counts and results."""

    def kill_once(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            if len(frame) and not os.path.exists(marker):  # noqa: PTH110  # runs where the tests' modules are not
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                process = os.getpid()
                while not os.readlink(f"/proc/{process}/exe").endswith("java"):  # noqa: PTH115  # the same
                    with open(f"/proc/{process}/stat", encoding="utf-8") as stat:  # noqa: PTH123  # the same
                        process = int(stat.read().rpartition(")")[2].split()[1])
                os.kill(process, signal.SIGKILL)
            yield frame

    cluster = {"spark.master": "local-cluster[2,1,700]", "spark.executor.memory": "700m"}
    executors = {"spark.executor.extraJavaOptions": f"{QUICK} {archive_options(record=False)}"}
    settings = {**SMALL_BATCHES, "spark.sql.shuffle.partitions": "2", **cluster, **executors}
    spark = local_session("losing", settings=settings)
    results = windowed(read_events(spark, servers, given, max_offsets_per_trigger=200))
    found: list[tuple[str, int, int]] = []
    job = write(
        results.mapInPandas(kill_once, results.schema),
        writer=lambda frame, _: found.extend(
            (row["user"], round(row["ended"].timestamp() * 1000), row["n"]) for row in frame.collect()
        ),
        job="losing",
        checkpoint_location=checkpoint,
    )
    job.awaitTermination(300)
    sys.stdout.write(json.dumps({"counts": job.counts, "found": found}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
