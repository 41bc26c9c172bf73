"""From watermark records to progress: read topics, use Spark's own operators, write results with watermark records.

events = read(spark, topics="flights", value=avro(schema), event_time="departed", bootstrap_servers=servers)
counts = events.groupBy(window("departed", "1 hour")).count().selectExpr("window.end AS ended", "count")
write(counts, topic="per-hour", value=avro(counts_schema), event_time="ended", checkpoint_location=place).await_end()
"""

from floodmark.spark_jobs.drive import Batch
from floodmark.spark_jobs.event_time import drop_duplicates_within, event_time
from floodmark.spark_jobs.job import Job
from floodmark.spark_jobs.json_values import json_lines
from floodmark.spark_jobs.read import read
from floodmark.spark_jobs.session import local_session, packages
from floodmark.spark_jobs.substreams import windows_per_key
from floodmark.spark_jobs.values import Format, avro
from floodmark.spark_jobs.write import write

__all__ = [
    "Batch",
    "Format",
    "Job",
    "avro",
    "drop_duplicates_within",
    "event_time",
    "json_lines",
    "local_session",
    "packages",
    "read",
    "windows_per_key",
    "write",
]
