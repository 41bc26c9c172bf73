"""What the demo's two jobs share: run until all input has ended, and print each batch as a line of JSON."""

import json
from collections.abc import Callable

import typer
from floodmark.spark_jobs.batch.report import Batch
from floodmark.spark_jobs.job import Job


def run_stage(start: Callable[[Callable[[Batch], None]], Job]) -> None:
    """Start a job and wait for its end; the last line of JSON sums it up.

    Args:
        start: called with the function that takes each batch, ``WriteOptions.on_batch``; returns the job.
    """
    job = start(lambda batch: typer.echo(batch.to_json()))
    typer.echo(json.dumps({"job": job.name, "started": True}))
    job.awaitTermination()
    read = sum(progress["numInputRows"] for progress in job.query.recentProgress)
    summary = {"job": job.name, "numInputRows": read, "batches": len(job.query.recentProgress), **job.counts}
    typer.echo(json.dumps(summary))
