"""Stage 2: sessions per aircraft, a run of departures with no pause longer than the gap."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer
from floodmark.producers.cli.options import run_command
from floodmark.schemas.timestamps import milliseconds
from floodmark.spark_jobs.demo.schemas import load_schema
from floodmark.spark_jobs.demo.stage import PRINTED, run_to_end, session
from floodmark.spark_jobs.formats.values import avro
from floodmark.spark_jobs.read import read
from floodmark.spark_jobs.write import write
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

TOPIC: Final = "aircraft-sessions"
GAP: Final = timedelta(hours=5)


def sessions(flights: DataFrame, gap: timedelta) -> DataFrame:
    """Return a row for each session: aircraft, started, ended (last departure plus the gap), length, flights."""
    window = F.session_window("departed", f"{milliseconds(gap)} milliseconds")
    counted = flights.groupBy("aircraft", window).agg(F.count("*").alias("flights"))
    return counted.selectExpr(
        "aircraft",
        "session_window.start AS started",
        "session_window.end AS ended",
        f"unix_millis(session_window.end) - unix_millis(session_window.start) - {milliseconds(gap)} AS length",
        "flights",
    )


def main(
    bootstrap_servers: Annotated[str, typer.Option(help="Kafka's address.")],
    checkpoint_location: Annotated[Path, typer.Option(help="Where the job keeps its state.")],
    gap_hours: Annotated[float, typer.Option(help="The longest pause within a session.")] = 5,
    source: Annotated[str, typer.Option(help="Topic of flights.")] = "flights",
    topic: Annotated[str, typer.Option(help="Topic of sessions.")] = TOPIC,
) -> None:
    """Read flights, write sessions."""
    spark = session("aircraft-sessions")
    flights = read(
        spark,
        topics=source,
        value=avro(load_schema("flight")),
        event_time="departed",
        bootstrap_servers=bootstrap_servers,
    )
    job = write(
        sessions(flights, timedelta(hours=gap_hours)),
        topic=topic,
        value=avro(load_schema("aircraft_session")),
        key="aircraft",
        event_time="ended",
        checkpoint_location=str(checkpoint_location),
        options=PRINTED,
    )
    run_to_end(job)


if __name__ == "__main__":
    run_command(main)
