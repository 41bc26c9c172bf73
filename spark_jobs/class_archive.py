"""Spark's classes as the JVM maps them, made once and kept: a session and its first batch come in half the time.

A new JVM reads, checks and links some 15,000 classes before Spark's first batch.  With a shared archive of them (class
data sharing, JEP 350) it maps a file instead.  One belongs to one Java and one Spark; the JVM passes over any other.
"""

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pyspark
from floodmark.producers.embedded.jars import cache, java
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_TIMEOUT: Final = 300
_BATCHES: Final = 2
_log = logging.getLogger(__name__)


def archive_options() -> str:
    """Return the options by which a JVM begins with the archive; the first call on a machine makes it, some 20 s.

    Empty where it cannot be made, which the first call logs: all works without it.

    Raises:
        JavaError: where there is no Java.
    """
    archive = _archive()
    if not archive.exists():
        _make(archive)
    usable = archive.exists() and archive.stat().st_size
    # What does not fit is passed over without a word on the error output of the user's program.
    return f'"-XX:SharedArchiveFile={archive}" -Xshare:auto -Xlog:cds*=off' if usable else ""


def _archive() -> Path:
    said = subprocess.run([java(), "-version"], capture_output=True, check=True).stderr  # noqa: S603  # as `java` found
    place = f"{pyspark.__file__} {os.environ.get('SPARK_HOME')}"
    key = hashlib.sha256(said + place.encode()).hexdigest()[:12]
    return cache() / f"spark-{pyspark.__version__}-{key}.jsa"


def _make(archive: Path) -> None:
    """Make it in a process of its own; where that fails, an empty file says so to all later calls."""
    _log.info("the classes of Spark %s are put into an archive, once", pyspark.__version__)
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            draft = Path(folder, archive.name)
            command = [sys.executable, "-m", __name__, str(draft)]
            # The JVM writes after the end of the program that has started it, and holds the pipes until then.
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT)  # noqa: S603
            if not draft.exists():
                _log.warning("there is no archive of Spark's classes, sessions start slower: %s", done.stderr[-500:])
                draft.touch()
            draft.rename(archive)
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.warning("there is no archive of Spark's classes, sessions start slower: %s", error)


def train(archive: Path) -> None:
    """Run what a job runs, in a JVM that writes an archive of the classes it has loaded when it ends."""
    builder = SparkSession.builder.master("local[2]").appName("class archive")
    settings = {
        JAVA_OPTIONS: f'-XX:+UseSerialGC "-XX:ArchiveClassesAtExit={archive}"',
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    at = F.timestamp_seconds("value")
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).load().withColumn("at", at)
    rows = rows.withColumn("text", F.to_json(F.struct("value"))).where("text is not null")
    rows = rows.observe(
        "observed", F.count_if(F.col("value") > 0).alias("count"), F.collect_list("text").alias("texts")
    )
    rows = rows.withWatermark("at", "1 second").dropDuplicatesWithinWatermark(["value"])
    windows = rows.groupBy("value", F.window("at", "5 seconds")).agg(F.count("*"), F.avg("value"))

    def collect(batch: DataFrame, _number: int) -> None:
        batch.persist()
        batch.selectExpr("to_json(struct(*))").toArrow()
        batch.unpersist()

    with tempfile.TemporaryDirectory() as folder:
        stream = windows.writeStream.foreachBatch(collect).option("checkpointLocation", folder)
        query = stream.trigger(processingTime="0 seconds").start()
        while len(query.recentProgress) < _BATCHES and query.isActive:
            query.awaitTermination(1)
        query.stop()
        spark.stop()


if __name__ == "__main__":
    train(Path(sys.argv[1]))
