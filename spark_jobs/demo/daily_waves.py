"""Stage 3: how many departure waves ended on each day, the largest one, and their mean length."""

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

TOPIC: Final = "daily-waves"
WINDOW: Final = timedelta(days=1)


def daily(waves: DataFrame, window: timedelta = WINDOW) -> DataFrame:
    """Return window_start, window_end, waves, flights, largest, mean_length for each window in which a wave ended."""
    counted = waves.groupBy(F.window("ended", f"{milliseconds(window)} milliseconds")).agg(
        F.count("*").alias("waves"),
        F.sum("flights").alias("flights"),
        F.max("flights").alias("largest"),
        F.avg("length").alias("mean_length"),
    )
    times = ("window.start AS window_start", "window.end AS window_end")
    return counted.selectExpr(*times, "waves", "flights", "largest", "mean_length")


def main(
    bootstrap_servers: Annotated[str, typer.Option(help="Kafka's address.")],
    checkpoint_location: Annotated[Path, typer.Option(help="Where the job keeps its state.")],
    source: Annotated[str, typer.Option(help="Topic of waves.")] = "departure-waves",
    topic: Annotated[str, typer.Option(help="Topic of results.")] = TOPIC,
) -> None:
    """Read waves, write what each day had."""
    spark = session("daily-waves")
    waves = read(
        spark,
        topics=source,
        value=avro(load_schema("departure_wave")),
        event_time="ended",
        bootstrap_servers=bootstrap_servers,
    )
    job = write(
        daily(waves),
        topic=topic,
        value=avro(load_schema("daily_waves")),
        event_time="window_end",
        checkpoint_location=str(checkpoint_location),
        options=PRINTED,
    )
    run_to_end(job)


if __name__ == "__main__":
    run_command(main)
