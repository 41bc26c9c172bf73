"""What the demo's two jobs share: run until all input has ended, and tell each batch as a line of JSON."""

import json
import sys
from collections.abc import Callable

from floodmark.spark_jobs.batch.report import Batch
from floodmark.spark_jobs.job import Job


def run_stage(start: Callable[[Callable[[Batch], None]], Job]) -> None:
    """Start a job and wait for its end; the last line of JSON sums it up.

    Args:
        start: is given what to tell each batch to, and returns the job.
    """
    job = start(lambda batch: _say(batch.to_json()))
    _say(json.dumps({"job": job.name, "started": True}))
    job.awaitTermination()
    read = sum(progress["numInputRows"] for progress in job.query.recentProgress)
    _say(json.dumps({"job": job.name, "numInputRows": read, "batches": len(job.query.recentProgress), **job.counts}))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
