"""What it costs Spark to read headers, as `read` does to honour adjusted times: scans with and without, alternating.

    PYTHONPATH=tests python tests/benchmarks/headers.py [RECORDS]

Seconds are the CPU time of Spark's process, so that other load on the machine counts little.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path

from confluent_kafka import Producer
from floodmark.producers import EmbeddedKafka, create_topics
from floodmark.spark_jobs import avro, local_session
from floodmark.spark_jobs.reading.rows import decoded
from floodmark.spark_jobs.reading.source_spec import Connection, SourceSpec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.harness import EVENT, events

PAIRS = 7


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def scan(spark: SparkSession, kafka: EmbeddedKafka, headers: str) -> float:
    """Read the whole topic once; return the CPU seconds."""
    pid = spark.sparkContext._gateway.proc.pid  # noqa: SLF001
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "subscribe": "events",
        "startingOffsets": "earliest",
        "includeHeaders": headers,
    }
    connection = Connection(("events",), kafka.bootstrap_servers)
    spec = SourceSpec("headers", connection, F.col("at"), avro(EVENT).decode)
    began = cpu_seconds(pid)
    rows = decoded(spark.read.format("kafka").options(**options).load(), spec)
    rows.where("kind = 'row'").select("value.*", "event_time").write.format("noop").mode("append").save()
    return cpu_seconds(pid) - began


def main(records: int = 1_000_000) -> None:
    """Print the CPU seconds of each pair, and the median of their ratios."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder, "kafka")) as kafka:
        create_topics(kafka.config, {"events": 2})
        producer = Producer({**kafka.config, "compression.type": "lz4", "queue.buffering.max.messages": 1_000_000})
        for number in range(records):
            producer.produce("events", events.encode({"user": f"u{number % 1000}", "at": 1_000_000 + number}))
            if number % 10_000 == 0:
                producer.poll(0.05)
        producer.flush(60)
        spark, ratios = local_session("headers"), []
        for run in range(PAIRS + 1):
            without, with_them = (scan(spark, kafka, headers) for headers in ("false", "true"))
            sys.stdout.write(f"{without:.1f} s without headers, {with_them:.1f} s with\n")
            if run:  # the first pair warms up
                ratios.append(with_them / without)
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        sys.stdout.write(f"{middle:.2f} (median of {PAIRS} pairs, {low:.2f} to {high:.2f})\n")
        spark.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
