"""The two jobs of ``nemesis.py``: windows per user, then totals per window."""

import json
import sys
from datetime import timedelta
from typing import Annotated

import typer
from floodmark.producers.cli.command_line import run_command
from floodmark.spark_jobs import Batch, ReadOptions, WriteOptions, avro, local_session, read, write
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.harness import COUNT, EVENT

WIDTH = 10_000


def say(**fields: object) -> None:
    """Write a line of JSON."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


Text = Annotated[str, typer.Option()]


def main(  # the options of the command line
    bootstrap_servers: Text,
    source: Text,
    topic: Text,
    checkpoint: Text,
    stage: Text,
    lookahead: Text,
    delivery: Text = "exactly-once",
) -> None:
    """Run one of the two stages; ``lookahead``: "yes" or "no"."""
    first = stage == "first"
    cluster = {"spark.master": "local-cluster[2,1,500]", "spark.executor.memory": "500m"}
    on_cluster = first and delivery == "exactly-once-executors"
    spark = local_session(stage, cores=1, settings=cluster if on_cluster else {})
    event_time = "at" if first else "ended"
    rows = read(
        spark,
        topics=source,
        value=avro(EVENT if first else COUNT),
        event_time=event_time,
        bootstrap_servers=bootstrap_servers,
        options=ReadOptions(max_offsets_per_trigger=20_000 if lookahead == "yes" else 2_000),
    )
    if first:
        grouped = rows.groupBy("user", F.window("at", f"{WIDTH} milliseconds")).agg(F.count("user").alias("n"))
        result = grouped.select("user", F.col("window.end").alias("ended"), "n")
    else:
        # Grouped by the event time itself: Spark lets a group go when the watermark is past it.
        grouped = rows.groupBy("user", "ended").agg(F.sum("n").alias("n"))
        result = grouped.select("user", "ended", "n")
    known = None

    def report(batch: Batch) -> None:
        nonlocal known
        ahead = known is not None and batch.batch_watermark != known
        known = batch.watermark
        say(batch=batch.batch_id, late=batch.late, ahead=ahead)

    job = write(
        result,
        topic=topic,
        value=avro(COUNT),
        key="user",
        event_time="ended",
        checkpoint_location=checkpoint,
        options=WriteOptions(delivery=delivery, on_batch=report, lookahead=timedelta(seconds=lookahead == "yes")),
    )
    say(started=stage)
    job.awaitTermination()
    say(ended=stage, **{name: job.counts[name] for name in ("late", "lost", "surplus")})


if __name__ == "__main__":
    run_command(main)
