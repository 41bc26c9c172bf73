"""The demo's two Spark jobs: stage 2 finds departure waves, stage 3 counts them per day.

A departure wave is a run of departures of an airline from an airport with no pause longer than the gap.
"""

import json
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer
from floodmark.producers.cli.command_line import run_command
from floodmark.schemas.timestamps import milliseconds
from floodmark.spark_jobs.class_archive import JAVA_OPTIONS
from floodmark.spark_jobs.demo import flights as source
from floodmark.spark_jobs.demo.days_table import lake_settings, write_days
from floodmark.spark_jobs.demo.flights import load_schema
from floodmark.spark_jobs.formats.plain_values import avro
from floodmark.spark_jobs.internals.engine import reports
from floodmark.spark_jobs.job import Job
from floodmark.spark_jobs.options import WriteOptions
from floodmark.spark_jobs.reader import read
from floodmark.spark_jobs.session import local_session
from floodmark.spark_jobs.writer import write
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

WAVES: Final = "departure-waves"  # job and output topic of stage 2
DAYS: Final = "daily-waves"  # job and output topic of stage 3
SCHEMAS: Final = {source.TOPIC: "flight", WAVES: "departure_wave", DAYS: "daily_waves"}
"""The schema of each topic, in the order of the stages."""
GAP: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)


def session(app: str, lake: Path | None = None) -> SparkSession:
    """Start Spark in a JVM that compiles quickly, with less optimization: for a short run that halves the work."""
    quick = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    settings = {
        JAVA_OPTIONS: quick,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.numRecentProgressUpdates": "100000",  # for its totals
    }
    if lake is None:
        return local_session(app, settings=settings)
    return local_session(app, tables=["iceberg"], settings={**settings, **lake_settings(lake)})


def departure_waves(flights: DataFrame, gap: timedelta) -> DataFrame:
    """Return a row for each wave: airline, origin, started, ended (last departure plus the gap), length, flights."""
    window = F.session_window("departed", f"{milliseconds(gap)} milliseconds")
    counted = flights.groupBy("airline", "origin", window).agg(F.count("*").alias("flights"))
    return counted.selectExpr(
        "airline",
        "origin",
        "session_window.start AS started",
        "session_window.end AS ended",
        f"unix_millis(session_window.end) - unix_millis(session_window.start) - {milliseconds(gap)} AS length",
        "flights",
    )


def daily_waves(waves: DataFrame) -> DataFrame:
    """Return window_start, window_end, waves, flights, largest, mean_length for each day on which a wave ended."""
    counted = waves.groupBy(F.window("ended", f"{milliseconds(DAY)} milliseconds")).agg(
        F.count("*").alias("waves"),
        F.sum("flights").alias("flights"),
        F.max("flights").alias("largest"),
        F.avg("length").alias("mean_length"),
    )
    times = ("window.start AS window_start", "window.end AS window_end")
    return counted.selectExpr(*times, "waves", "flights", "largest", "mean_length")


def _input(spark: SparkSession, topic: str, event_time: str, servers: str) -> DataFrame:
    value = avro(load_schema(SCHEMAS[topic]))
    return read(spark, topics=topic, value=value, event_time=event_time, bootstrap_servers=servers)


def _output(rows: DataFrame, topic: str, key: str | None, event_time: str, checkpoint: Path) -> Job:
    return write(
        rows,
        topic=topic,
        key=key,
        value=avro(load_schema(SCHEMAS[topic])),
        event_time=event_time,
        checkpoint_location=str(checkpoint),
        options=WriteOptions(on_batch=lambda batch: typer.echo(batch.to_json())),
    )


def main(
    name: Annotated[str, typer.Option(help=f"Which job: {WAVES} or {DAYS}.")],
    bootstrap_servers: Annotated[str, typer.Option(help="Kafka's address.")],
    checkpoint_location: Annotated[Path, typer.Option(help="Where the job keeps its state.")],
    gap_minutes: Annotated[float, typer.Option(help="Longest pause within a wave, minutes.")] = 60,
    lake: Annotated[Path | None, typer.Option(help=f"Folder for an Iceberg table of {DAYS}.")] = None,
) -> None:
    """Run a job to the end of its input, and print a line of JSON per batch and one with the totals."""
    spark = session(name, lake)
    if name == WAVES:
        flights = _input(spark, source.TOPIC, "departed", bootstrap_servers)
        waves = departure_waves(flights, timedelta(minutes=gap_minutes))
        job = _output(waves, WAVES, "airline", "ended", checkpoint_location)
    else:
        days = daily_waves(_input(spark, WAVES, "ended", bootstrap_servers))
        job = _output(days, DAYS, None, "window_end", checkpoint_location)
    typer.echo(json.dumps({"job": job.name, "started": True}))
    job.awaitTermination()
    batches = reports(job.query)
    rows = sum(batch["numInputRows"] for batch in batches)
    if lake is not None:
        days = _input(spark, DAYS, "window_end", bootstrap_servers)
        write_days(days, checkpoint_location.with_name(f"{DAYS}-table"))
    typer.echo(json.dumps({"job": job.name, "numInputRows": rows, "batches": len(batches), **job.counts}))


if __name__ == "__main__":
    run_command(main)
