"""Spark jobs: read topics with watermark records, use Spark's own operators, write results with watermark records.

events = read(spark, topics="flights", value=avro(schema), event_time="departed", bootstrap_servers=servers)
counts = events.groupBy(window("departed", "1 hour")).count().selectExpr("window.end AS ended", "count")
job = write(counts, topic="per-hour", value=avro(counts_schema), event_time="ended", checkpoint_location=place)
job.awaitTermination()
"""

from importlib.util import find_spec

from floodmark.producers.lazy import lazy_names


def _require_spark(name: str) -> None:
    if find_spec("pyspark") is None:
        advice = "pip install '.[spark]' in the checkout"
        raise ImportError(f"floodmark.spark_jobs.{name} needs Spark: {advice}", name="pyspark")


_PLACES, __getattr__ = lazy_names(__name__, _require_spark)
__all__ = list(_PLACES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
