"""What plain Spark does on the same topic: ``withWatermark`` with a delay that somebody guessed."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from floodmark.producers.cli.options import run_command
from floodmark.producers.clients.admin import end_offsets
from floodmark.schemas.records import KEY_PREFIX
from floodmark.spark_jobs.demo import batch
from floodmark.spark_jobs.demo.departure_waves import waves
from floodmark.spark_jobs.demo.flights import landed, load
from floodmark.spark_jobs.demo.schemas import load_schema
from floodmark.spark_jobs.demo.stage import session
from floodmark.spark_jobs.formats.values import avro
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.streaming.query import StreamingQuery


def _start(
    spark: SparkSession, servers: str, topic: str, guess: str, gap: timedelta, batch_size: int, work: Path
) -> tuple[StreamingQuery, list[pd.DataFrame]]:
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    kafka = spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger=batch_size).load()
    data = kafka.where(~F.startswith(F.col("key"), F.lit(KEY_PREFIX)))
    flights = data.select(avro(load_schema("flight")).decode(F.col("value")).alias("value")).select("value.*")
    out: list[pd.DataFrame] = []

    def keep(frame: DataFrame, _batch_id: int) -> None:
        times = (F.unix_millis(name).alias(name) for name in ("started", "ended"))
        out.append(frame.select("airline", "origin", *times, "length", "flights").toPandas())

    found = waves(flights.withWatermark("departed", guess), gap)
    query = (
        found.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(work / guess.replace(" ", "-")))
        .trigger(availableNow=True)
        .start()
    )
    return query, out


def main(
    bootstrap_servers: Annotated[str, typer.Option(help="Kafka's address.")],
    work: Annotated[Path, typer.Option(help="Where the checkpoints go.")],
    guess: Annotated[list[str], typer.Option(help="A delay, as withWatermark takes it; may be repeated.")],
    gap_minutes: Annotated[float, typer.Option(help="The longest pause within a wave.")] = 60,
    days: Annotated[int, typer.Option(help="How many days of 2013 are in the topic.")] = 365,
    source: Annotated[str, typer.Option(help="Topic of flights.")] = "flights",
    batches: Annotated[
        list[int] | None, typer.Option(help="Into how many batches to cut the topic, per guess.")
    ] = None,
) -> None:
    """Run the first job once per guess over what is in the topic, and print what was dropped, as JSON."""
    spark = session("guessed-delay")
    gap = timedelta(minutes=gap_minutes)
    records = sum(end_offsets({"bootstrap.servers": bootstrap_servers}, source).values())
    cuts = batches or [20] * len(guess)
    running = {
        name: _start(spark, bootstrap_servers, source, name, gap, max(500, records // cut), work)
        for name, cut in zip(guess, cuts, strict=True)
    }
    truth = batch.waves(landed(load(days)), gap)
    for name, (query, out) in running.items():
        query.awaitTermination()
        dropped = sum(
            operator["numRowsDroppedByWatermark"]
            for progress in query.recentProgress
            for operator in progress["stateOperators"]
        )
        wrong = _wrong(pd.concat(out), truth)
        typer.echo(json.dumps({"guess": name, "dropped": dropped, "wrong": wrong}))


def _wrong(streamed: pd.DataFrame, truth: pd.DataFrame) -> int:
    """Count the waves that are missing, cut in two, or lack a dropped flight, up to the last result."""
    due = truth[truth["ended"] <= streamed["ended"].max()]
    merged = due.merge(streamed, on=list(truth.columns), how="left", indicator=True)
    return int((merged["_merge"] == "left_only").sum())


if __name__ == "__main__":
    run_command(main)
