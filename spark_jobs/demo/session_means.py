"""Stage 3: how many sessions ended in each fixed window, and their mean length."""

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

TOPIC: Final = "session-means"
WINDOW: Final = timedelta(days=1)


def means(sessions: DataFrame, window: timedelta = WINDOW) -> DataFrame:
    """Return window_start, window_end, sessions, flights, mean_length for each window in which a session ended."""
    counted = sessions.groupBy(F.window("ended", f"{milliseconds(window)} milliseconds")).agg(
        F.count("*").alias("sessions"),
        F.sum("flights").alias("flights"),
        F.avg("length").alias("mean_length"),
    )
    times = ("window.start AS window_start", "window.end AS window_end")
    return counted.selectExpr(*times, "sessions", "flights", "mean_length")


def main(
    bootstrap_servers: Annotated[str, typer.Option(help="Kafka's address.")],
    checkpoint_location: Annotated[Path, typer.Option(help="Where the job keeps its state.")],
    source: Annotated[str, typer.Option(help="Topic of sessions.")] = "aircraft-sessions",
    topic: Annotated[str, typer.Option(help="Topic of results.")] = TOPIC,
) -> None:
    """Read sessions, write their means per day."""
    spark = session("session-means")
    sessions = read(
        spark,
        topics=source,
        value=avro(load_schema("aircraft_session")),
        event_time="ended",
        bootstrap_servers=bootstrap_servers,
    )
    job = write(
        means(sessions),
        topic=topic,
        value=avro(load_schema("session_mean")),
        event_time="window_end",
        checkpoint_location=str(checkpoint_location),
        options=PRINTED,
    )
    run_to_end(job)


if __name__ == "__main__":
    run_command(main)
