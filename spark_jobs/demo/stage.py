"""What the demo's two jobs share: run until all input has ended, and print each batch as a line of JSON."""

import json
from typing import Final

import typer
from floodmark.spark_jobs.job import Job
from floodmark.spark_jobs.options import WriteOptions

PRINTED: Final = WriteOptions(on_batch=lambda batch: typer.echo(batch.to_json()))
"""Options of a job that prints each batch."""


def run_to_end(job: Job) -> None:
    """Wait for the end of a job's input; the last line of JSON sums the job up."""
    typer.echo(json.dumps({"job": job.name, "started": True}))
    job.awaitTermination()
    batches = job.query.recentProgress
    read = sum(batch["numInputRows"] for batch in batches)
    typer.echo(json.dumps({"job": job.name, "numInputRows": read, "batches": len(batches), **job.counts}))
