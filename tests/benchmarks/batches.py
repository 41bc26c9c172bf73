"""What a batch costs beside the bare scan: the cache of a user's writer, and judging each row (``late=``).

    PYTHONPATH=tests python tests/benchmarks/batches.py [RECORDS]

The same Kafka records are read and decoded in each way, one after the other, several times; printed are medians.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from floodmark.producers import EmbeddedKafka, WatermarkedProducer, ascending, create_topics
from floodmark.producers.clients.admin import end_offsets
from floodmark.spark_jobs import avro, local_session
from floodmark.spark_jobs.batch.reread import rows_of
from floodmark.spark_jobs.progress.lateness import NOTHING, LateThresholds, Promises
from floodmark.spark_jobs.reading.source_spec import Connection, SourceSpec
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.harness import EVENT, events

_ROUNDS = 5
_TOPIC = "batches"


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("append").save()


def _cached(frame: DataFrame) -> None:
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    _noop(kept)
    _noop(kept)
    kept.unpersist(blocking=True)


def main(records: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder) / "kafka") as kafka:
        create_topics(kafka.config, {_TOPIC: 2})
        with WatermarkedProducer(kafka.config, topic=_TOPIC, source="a", strategy=ascending()) as producer:
            for number in range(records):
                producer.produce(events.encode({"user": f"u{number % 1000}", "at": number}), event_time=number)
            producer.end()
        spark = local_session("batches")
        found = end_offsets(kafka.config, _TOPIC)
        ends = {(_TOPIC, partition): end for partition, end in found.items()}

        def scan(late: str | None) -> DataFrame:
            connection = Connection((_TOPIC,), kafka.bootstrap_servers)
            spec = SourceSpec("batches", connection, F.col("at"), avro(EVENT).decode, late=late)
            rows = rows_of(spark, spec, {}, ends).where("not control")
            return rows.select("value.*", *([] if late is None else ["late"]))

        spark.sparkContext.setLocalProperty("batches", LateThresholds(Promises(), NOTHING, None).to_text([_TOPIC]))
        ways: dict[str, Callable[[], None]] = {
            "bare scan and decode": lambda: _noop(scan(None)),
            "with the cache of a writer": lambda: _cached(scan(None)),
            "with late=": lambda: _noop(scan("drop").where("not late")),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(_ROUNDS + 1):
            for name, run in ways.items():
                began = time.monotonic()
                run()
                if number:  # the first round warms up
                    taken[name].append((time.monotonic() - began) / records * 1e6)
        bare = statistics.median(taken["bare scan and decode"])
        for name, times in taken.items():
            middle = statistics.median(times)
            spread = f"{min(times):.2f} to {max(times):.2f}"
            sys.stdout.write(f"{name}: {middle:.2f} us a row ({spread}), {middle / bare:.2f} of the bare scan\n")
        spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
