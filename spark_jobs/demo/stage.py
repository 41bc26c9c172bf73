"""What the demo's jobs share: a session, and to run to the end of all input, each batch printed as a line of JSON."""

import json
from typing import Final

import typer
from floodmark.spark_jobs.class_archive import JAVA_OPTIONS
from floodmark.spark_jobs.job import Job
from floodmark.spark_jobs.options import WriteOptions
from floodmark.spark_jobs.session import local_session
from pyspark.sql import SparkSession

PRINTED: Final = WriteOptions(on_batch=lambda batch: typer.echo(batch.to_json()))
"""Options of a job that prints each batch."""


def session(app: str) -> SparkSession:
    """Start Spark in a JVM that compiles quickly rather than well: for a minute or two that is half of the work."""
    quick = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    return local_session(app, settings={JAVA_OPTIONS: quick, "spark.sql.execution.arrow.pyspark.enabled": "true"})


def run_to_end(job: Job) -> None:
    """Wait for the end of a job's input; the last line of JSON sums the job up."""
    typer.echo(json.dumps({"job": job.name, "started": True}))
    job.awaitTermination()
    batches = job.query.recentProgress
    read = sum(batch["numInputRows"] for batch in batches)
    typer.echo(json.dumps({"job": job.name, "numInputRows": read, "batches": len(batches), **job.counts}))
