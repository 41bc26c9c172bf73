"""A Spark session that can read Kafka, with the connector of the installed Spark version."""

import os
import sys
from pathlib import Path
from typing import Final

import pyspark
from floodmark.producers.embedded.jars import fetch
from floodmark.spark_jobs.class_archive import JAVA_OPTIONS, archive_options
from floodmark.spark_jobs.internals.files import disk_settings
from pyspark.sql import SparkSession

_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
"""Errors alone, from the first line on; `SparkContext.setLogLevel` comes after Spark's warnings at startup."""
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def packages() -> str:
    """Return the coordinates for ``spark.jars.packages``: the Kafka connector and Avro, of this Spark's version."""
    version = pyspark.__version__
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version},org.apache.spark:spark-avro_2.13:{version}"


def local_jars() -> str:
    """Return the same as files for ``spark.jars``; only the first call needs the network."""
    version = pyspark.__version__
    kafka = fetch("org.apache.spark", "spark-sql-kafka-0-10_2.13", version)
    avro = fetch("org.apache.spark", "spark-avro_2.13", version)
    shipped = {jar.name for jar in Path(pyspark.__file__).parent.joinpath("jars").glob("*.jar")}
    unique = {jar.name: str(jar) for jar in [*avro, *kafka] if jar.name not in shipped}
    return ",".join(path for _, path in sorted(unique.items()))


def local_session(app: str, *, cores: int = 2, settings: dict[str, str] | None = None) -> SparkSession:
    """Start a small Spark on this machine.

    On a cluster, create your own session instead, with `packages` in ``spark.jars.packages``.  Checkpoints of this
    session must be on a local disk: it writes their files in a way that is fast and safe only there.

    Later sessions start faster: they use an archive of Spark's classes, which the first program records at its end.

    Args:
        app: the name of the application.
        cores: the number of concurrent tasks and of shuffle partitions, 1 or more.
        settings: of Spark; they override those of this function.

    Raises:
        JavaError: if there is no Java 17 or newer.
        EmbeddedKafkaError: if a jar cannot be fetched.
    """
    archive = archive_options()  # first, since it fails without Java before anything is fetched
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app)
    defaults = {
        **_QUIET,
        "spark.jars": local_jars(),
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "1g",
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
        JAVA_OPTIONS: "-XX:+UseSerialGC",
        **disk_settings(),
    }
    chosen = {**defaults, **(settings or {})}
    chosen[JAVA_OPTIONS] += f" {archive}"
    if "SPARK_CONF_DIR" not in os.environ:  # that folder has the log settings of its owner
        chosen[JAVA_OPTIONS] += f' "-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"'
    for name, value in chosen.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
