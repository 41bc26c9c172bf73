"""Plain Spark on the same topic: ``withWatermark`` with guessed delays.

Spark judges a row by the watermark of the batch before, so the loss depends on how much event time a batch covers.  In
the demo a year passes in a minute, so a batch covers days and hides what a job in service loses.  Therefore the guesses
run on the first days only, in batches of a few hours.  Shorter batches, as in service, drop more.
"""

import json
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import pandas as pd
import typer
from floodmark.producers.cli.command_line import run_command
from floodmark.schemas.records import KEY_PREFIX
from floodmark.spark_jobs.demo import outcome
from floodmark.spark_jobs.demo.flights import FIRST_DAY, TOPIC, landed, load, load_schema
from floodmark.spark_jobs.demo.jobs import departure_waves, session
from floodmark.spark_jobs.formats.plain_values import avro
from floodmark.spark_jobs.internals.engine import last_report, reports
from floodmark.spark_jobs.progress.backlog import ends_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.streaming.query import StreamingQuery

GUESSES: Final = ("10 minutes", "12 hours")
DAYS: Final = 7
BATCHES_A_DAY: Final = 8


class _Excerpt:
    """The flights in the demo's topic that have landed in the first days."""

    def __init__(self, spark: SparkSession, servers: str, days: int) -> None:
        self._spark = spark
        self._options = {"kafka.bootstrap.servers": servers, "subscribe": TOPIC, "startingOffsets": "earliest"}
        self._until = F.lit(FIRST_DAY + timedelta(days=days))
        last = F.max("offset").alias("offset")
        rows = self._flights(spark.read.format("kafka").options(**self._options).load())
        self._ends = {row["partition"]: row["offset"] + 1 for row in rows.groupBy("partition").agg(last).collect()}

    def stream(self, batches: int) -> DataFrame:
        """Return them as a stream in about this number of batches."""
        size = max(1, sum(self._ends.values()) // batches)
        reader = self._spark.readStream.format("kafka").options(**self._options, maxOffsetsPerTrigger=size)
        return self._flights(reader.load())

    def is_read(self, query: StreamingQuery) -> bool:
        """Tell whether a query has read all of them."""
        report = last_report(query)
        read = {} if report is None else ends_of(report, "endOffset")
        return all(read.get((0, TOPIC, str(partition)), 0) >= end for partition, end in self._ends.items())

    def _flights(self, kafka: DataFrame) -> DataFrame:
        data = kafka.where(~F.startswith(F.col("key"), F.lit(KEY_PREFIX)))
        value = avro(load_schema("flight")).decode(F.col("value")).alias("value")
        flights = data.select("partition", "offset", value).select("partition", "offset", "value.*")
        return flights.where(F.col("landed") < self._until)


def _start(
    excerpt: _Excerpt, guess: str, gap: timedelta, batches: int, work: Path
) -> tuple[StreamingQuery, list[pd.DataFrame]]:
    out: list[pd.DataFrame] = []

    def keep(frame: DataFrame, _batch_id: int) -> None:
        times = (F.unix_millis(name).alias(name) for name in ("started", "ended"))
        out.append(frame.select("airline", "origin", *times, "length", "flights").toPandas())

    waves = departure_waves(excerpt.stream(batches).withWatermark("departed", guess), gap)
    place = str(work / guess.replace(" ", "-"))
    return waves.writeStream.foreachBatch(keep).option("checkpointLocation", place).start(), out


def main(
    bootstrap_servers: Annotated[str, typer.Option(help="Kafka's address.")],
    work: Annotated[Path, typer.Option(help="Where the checkpoints go.")],
    gap_minutes: Annotated[float, typer.Option(help="The longest pause within a wave.")] = 60,
    days: Annotated[int, typer.Option(help="Number of days of 2013.")] = DAYS,
) -> None:
    """Run the first job with each guess over the first days of the topic, and print the losses as JSON."""
    spark = session("guessed-delay")
    gap = timedelta(minutes=gap_minutes)
    excerpt = _Excerpt(spark, bootstrap_servers, days)
    running = {name: _start(excerpt, name, gap, days * BATCHES_A_DAY, work) for name in GUESSES}
    flights = landed(load(days))
    flights = flights[flights["landed"] < pd.Timestamp(FIRST_DAY + timedelta(days=days))]
    truth = outcome.waves(flights, gap)
    for name, (query, out) in running.items():
        while not excerpt.is_read(query):
            query.awaitTermination(1)  # raises the error of a failed query
        query.stop()
        operators = [operator for report in reports(query) for operator in report["stateOperators"]]
        dropped = sum(operator["numRowsDroppedByWatermark"] for operator in operators)
        streamed = pd.concat(out)
        due = truth[truth["ended"] <= streamed["ended"].max()]
        merged = due.merge(streamed, on=list(truth.columns), how="left", indicator=True)
        wrong = int((merged["_merge"] == "left_only").sum())  # missing, cut in two, or lacking a flight
        typer.echo(json.dumps(asdict(outcome.Guess(name, days, len(flights), dropped, len(due), wrong))))


if __name__ == "__main__":
    run_command(main)
