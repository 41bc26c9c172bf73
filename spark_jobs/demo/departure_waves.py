"""Stage 2: departure waves, the runs of departures of an airline from an airport with no pause longer than the gap."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer
from floodmark.producers.cli.options import run_command
from floodmark.schemas.timestamps import milliseconds
from floodmark.spark_jobs.demo.schemas import load_schema
from floodmark.spark_jobs.demo.stage import PRINTED, run_to_end, session
from floodmark.spark_jobs.formats.values import avro
from floodmark.spark_jobs.reader import read
from floodmark.spark_jobs.writer import write
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

TOPIC: Final = "departure-waves"
GAP: Final = timedelta(hours=1)


def waves(flights: DataFrame, gap: timedelta) -> DataFrame:
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


def main(
    bootstrap_servers: Annotated[str, typer.Option(help="Kafka's address.")],
    checkpoint_location: Annotated[Path, typer.Option(help="Where the job keeps its state.")],
    gap_minutes: Annotated[float, typer.Option(help="The longest pause within a wave.")] = 60,
    source: Annotated[str, typer.Option(help="Topic of flights.")] = "flights",
    topic: Annotated[str, typer.Option(help="Topic of waves.")] = TOPIC,
) -> None:
    """Read flights, write waves."""
    spark = session("departure-waves")
    flights = read(
        spark,
        topics=source,
        value=avro(load_schema("flight")),
        event_time="departed",
        bootstrap_servers=bootstrap_servers,
    )
    job = write(
        waves(flights, timedelta(minutes=gap_minutes)),
        topic=topic,
        value=avro(load_schema("departure_wave")),
        key="airline",
        event_time="ended",
        checkpoint_location=str(checkpoint_location),
        options=PRINTED,
    )
    run_to_end(job)


if __name__ == "__main__":
    run_command(main)
