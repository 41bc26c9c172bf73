"""From watermark records to progress: read topics, use Spark's own operators, write results with watermark records.

events = read(spark, topics="flights", value=avro(schema), event_time="departed", bootstrap_servers=servers)
counts = events.groupBy(window("departed", "1 hour")).count().selectExpr("window.end AS ended", "count")
job = write(counts, topic="per-hour", value=avro(counts_schema), event_time="ended", checkpoint_location=place)
job.awaitTermination()
"""

from importlib.util import find_spec

# The commands that need no Spark run without it; a name that needs it says what to install.
if find_spec("pyspark") is not None:
    from floodmark.spark_jobs.batch.report import Batch
    from floodmark.spark_jobs.beginning.start import Start
    from floodmark.spark_jobs.formats import Format, avro, confluent_avro, confluent_json, confluent_protobuf, json
    from floodmark.spark_jobs.job import Job
    from floodmark.spark_jobs.options import ReadOptions, WriteOptions
    from floodmark.spark_jobs.read import read
    from floodmark.spark_jobs.reading.event_time import drop_duplicates_within, event_time
    from floodmark.spark_jobs.session import local_session, packages
    from floodmark.spark_jobs.substreams import windows_per_key
    from floodmark.spark_jobs.write import write
else:

    def __getattr__(name: str) -> object:
        if name in __all__:
            raise ImportError(
                f"floodmark.spark_jobs.{name} needs Spark: pip install 'floodmark[spark]'", name="pyspark"
            )
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Batch",
    "Format",
    "Job",
    "ReadOptions",
    "Start",
    "WriteOptions",
    "avro",
    "confluent_avro",
    "confluent_json",
    "confluent_protobuf",
    "drop_duplicates_within",
    "event_time",
    "json",
    "local_session",
    "packages",
    "read",
    "windows_per_key",
    "write",
]
