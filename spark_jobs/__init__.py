"""From watermark records to progress: read topics, use Spark's own operators, write results with watermark records.

events = read(spark, topics="flights", value=avro(schema), event_time="departed", bootstrap_servers=servers)
counts = events.groupBy(window("departed", "1 hour")).count().selectExpr("window.end AS ended", "count")
job = write(counts, topic="per-hour", value=avro(counts_schema), event_time="ended", checkpoint_location=place)
job.awaitTermination()
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from floodmark.spark_jobs.batch.report import Batch
    from floodmark.spark_jobs.beginning.start import Start
    from floodmark.spark_jobs.formats import Format, avro, confluent_avro, confluent_json, confluent_protobuf, json
    from floodmark.spark_jobs.job import Job
    from floodmark.spark_jobs.options import ReadOptions, WriteOptions
    from floodmark.spark_jobs.reader import read
    from floodmark.spark_jobs.reading.event_time import drop_duplicates_within, event_time
    from floodmark.spark_jobs.reading.rows import kafka_timestamp
    from floodmark.spark_jobs.session import local_session, packages
    from floodmark.spark_jobs.substreams import windows_per_key
    from floodmark.spark_jobs.writer import write

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
    "kafka_timestamp",
    "local_session",
    "packages",
    "read",
    "windows_per_key",
    "write",
]

_PLACES: Final = {
    "Batch": "floodmark.spark_jobs.batch.report",
    "Format": "floodmark.spark_jobs.formats",
    "Job": "floodmark.spark_jobs.job",
    "ReadOptions": "floodmark.spark_jobs.options",
    "Start": "floodmark.spark_jobs.beginning.start",
    "WriteOptions": "floodmark.spark_jobs.options",
    "avro": "floodmark.spark_jobs.formats",
    "confluent_avro": "floodmark.spark_jobs.formats",
    "confluent_json": "floodmark.spark_jobs.formats",
    "confluent_protobuf": "floodmark.spark_jobs.formats",
    "drop_duplicates_within": "floodmark.spark_jobs.reading.event_time",
    "event_time": "floodmark.spark_jobs.reading.event_time",
    "json": "floodmark.spark_jobs.formats",
    "kafka_timestamp": "floodmark.spark_jobs.reading.rows",
    "local_session": "floodmark.spark_jobs.session",
    "packages": "floodmark.spark_jobs.session",
    "read": "floodmark.spark_jobs.reader",
    "windows_per_key": "floodmark.spark_jobs.substreams",
    "write": "floodmark.spark_jobs.writer",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a name when it is first asked for: commands and executors need few of them, and some need no Spark."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if find_spec("pyspark") is None:
            raise ImportError(
                f"floodmark.spark_jobs.{name} needs Spark: pip install 'floodmark[spark]'", name="pyspark"
            )
        return globals().setdefault(name, getattr(import_module(_PLACES[name]), name))

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
