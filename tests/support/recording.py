"""A program that runs what a job runs, in a session that records the archive of Spark's classes."""

import subprocess
import sys
import tempfile

from floodmark.spark_jobs import local_session
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention


def record_classes() -> None:
    """Run the program, and wait until its JVM has written the archive: it holds the pipes until then."""
    subprocess.run([sys.executable, __file__], capture_output=True, check=False, timeout=600)


def run() -> None:
    """Run a query with state, that collects its rows as a job does."""
    spark = local_session("records classes")
    at = F.timestamp_seconds("value")
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).load().withColumn("at", at)
    rows = rows.withColumn("text", F.to_json(F.struct("value"))).where("text is not null")
    rows = rows.observe("observed", F.expr("count_if(value > 0) AS count"), F.collect_list("text").alias("texts"))
    rows = rows.withWatermark("at", "1 second").dropDuplicatesWithinWatermark(["value"])
    windows = rows.groupBy("value", F.window("at", "5 seconds")).agg(F.count("*"), F.avg("value"))

    def collect(batch: DataFrame, _number: int) -> None:
        batch.persist()
        batch.selectExpr("to_json(struct(*))").toArrow()
        batch.unpersist()

    with tempfile.TemporaryDirectory() as folder:
        stream = windows.writeStream.foreachBatch(collect).option("checkpointLocation", folder)
        query = stream.trigger(processingTime="0 seconds").start()
        while len(query.recentProgress) < 2 and query.isActive:
            query.awaitTermination(1)
        query.stop()
        spark.stop()


if __name__ == "__main__":
    run()
