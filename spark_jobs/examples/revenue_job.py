"""A Spark job: the revenue of each shop and minute, from the orders of ``floodmark.producers.examples.order_service``.

python -m floodmark.spark_jobs.examples.revenue_job --bootstrap-servers localhost:9092 --checkpoint state
"""

import argparse
import signal
import sys

from floodmark.producers import create_topics
from floodmark.spark_jobs import json, local_session, read, write
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention


def main() -> None:
    """Run until all sources have ended.  After a stop or a kill, the next start continues."""
    parser = argparse.ArgumentParser(description="Sum up orders per shop and minute.")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--orders", default="orders", help="the topic that is read")
    parser.add_argument("--revenue", default="revenue", help="the topic that is written")
    parser.add_argument("--checkpoint", required=True, help="where the job keeps its state")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # the job stops after its batch

    create_topics({"bootstrap.servers": options.bootstrap_servers}, {options.orders: 2, options.revenue: 2})
    # On a cluster: your own session, with floodmark.spark_jobs.packages() in spark.jars.packages.
    spark = local_session("revenue")
    orders = read(
        spark,
        topics=options.orders,
        value=json("shop STRING, amount BIGINT, at TIMESTAMP"),
        event_time="at",  # no withWatermark: the marks tell how complete the topic is
        bootstrap_servers=options.bootstrap_servers,
    )
    revenue = (
        orders.groupBy("shop", F.window("at", "1 minute"))
        .agg(F.sum("amount").alias("revenue"))
        .selectExpr("shop", "window.end AS minute", "revenue")
    )
    job = write(
        revenue,
        topic=options.revenue,
        key="shop",
        value=json("shop STRING, minute TIMESTAMP, revenue BIGINT"),
        event_time="minute",
        checkpoint_location=options.checkpoint,
        trigger={"processingTime": "2 seconds"},  # else the next batch starts at once, for each mark of a source
    )
    job.awaitTermination()
    print({name: count for name, count in job.counts.items() if count})  # also of late and lost rows


if __name__ == "__main__":
    main()
