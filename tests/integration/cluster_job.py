"""The two jobs of ``test_standalone.py``: windows per user, then totals per window; run by ``spark-submit``.

    spark-submit ... cluster_job.py --servers=S --given=TOPIC --windows=TOPIC --totals=TOPIC --checkpoint=PLACE

Each line that it prints is an object of JSON.  The first says from where the executors take Floodmark.
"""

import argparse
import json
import os
import sys

from floodmark.spark_jobs import Batch, Job, ReadOptions, WriteOptions, avro, read, write
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.harness import COUNT, EVENT

WIDTH = 10_000


def say(**fields: object) -> None:
    """Write a line of JSON."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def place_of_the_package(_number: int) -> str:
    """Tell, on an executor, which Floodmark it imports."""
    from floodmark.spark_jobs.reading import judge  # noqa: PLC0415  # on the executor

    return os.path.abspath(judge.__file__)  # noqa: PTH100  # of a folder of the executor's


def start(spark: SparkSession, options: argparse.Namespace, stage: str, source: str, topic: str) -> Job:
    """Start one of the two stages."""
    first = stage == "first"
    rows = read(
        spark,
        topics=source,
        value=avro(EVENT if first else COUNT),
        event_time="at" if first else "ended",
        bootstrap_servers=options.servers,
        late="drop" if first else None,  # judged by Python, on the executors
        options=ReadOptions(max_offsets_per_trigger=5_000),
    )
    if first:
        grouped = rows.groupBy("user", F.window("at", f"{WIDTH} milliseconds")).agg(F.count("user").alias("n"))
        result = grouped.select("user", F.col("window.end").alias("ended"), "n")
    else:
        result = rows.groupBy("user", "ended").agg(F.sum("n").alias("n")).select("user", "ended", "n")

    def report(batch: Batch) -> None:
        say(stage=stage, batch=batch.batch_id, rows=batch.rows)

    return write(
        result,
        topic=topic,
        value=avro(COUNT),
        key="user",
        event_time="ended",
        checkpoint_location=f"{options.checkpoint}/{stage}",
        options=WriteOptions(on_batch=report),
    )


def main() -> None:
    """Run both stages to their end."""
    parser = argparse.ArgumentParser()
    for option in ("servers", "given", "windows", "totals", "checkpoint"):
        parser.add_argument(f"--{option}", required=True)
    options = parser.parse_args()
    spark = SparkSession.builder.appName("two stages").getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    say(places=spark.sparkContext.parallelize(range(2), 2).map(place_of_the_package).collect())
    jobs = [
        start(spark, options, "first", options.given, options.windows),
        start(spark, options, "second", options.windows, options.totals),
    ]
    for job in jobs:
        job.awaitTermination()
    say(counts=[{name: job.counts[name] for name in ("late", "lost", "surplus")} for job in jobs])
    spark.stop()


if __name__ == "__main__":
    main()
