"""A Spark session that can read Kafka, with the connector of the installed Spark version."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark
from floodmark.producers.embedded.jars import fetch
from floodmark.schemas.errors import UsageError
from floodmark.spark_jobs.class_archive import JAVA_OPTIONS, archive_options
from floodmark.spark_jobs.internals.connectors import Connector, connector, is_stopped
from floodmark.spark_jobs.internals.files import disk_settings
from floodmark.spark_jobs.internals.jvm import RELEASE
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
"""Errors alone, from the first line on; `SparkContext.setLogLevel` comes after Spark's warnings at startup."""
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_CONNECTOR_VERSIONS: Final[dict[tuple[int, ...], str]] = {(4, 3): "4.2.0"}
"""Spark's own connectors where they are not of its version: those that the tests of that Spark use."""

_READS_ZIPS_ONCE: Final = (3, 13)
_WORKERS: Final = {"spark.python.daemon.module": "floodmark.spark_jobs.internals.worker_daemon"}


def packages(*tables: Connector) -> str:
    """Return the coordinates for ``spark.jars.packages``: Kafka, Avro and tables, for this Spark's version.

    Args:
        tables: ``"iceberg"`` or ``"delta"``, or both.

    Raises:
        MissingConnectorError: if the tables have no connector for this Spark.
    """
    version = _CONNECTOR_VERSIONS.get(RELEASE, pyspark.__version__)
    return ",".join(
        [
            f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}",
            f"org.apache.spark:spark-avro_2.13:{version}",
            *(connector(table) for table in tables),
        ]
    )


def local_jars(*tables: Connector) -> str:
    """Return the same as files for ``spark.jars``; only the first call needs the network."""
    found = [jar for one in reversed(packages(*tables).split(",")) for jar in fetch(*one.split(":"))]
    shipped = {jar.name for jar in Path(pyspark.__file__).parent.joinpath("jars").glob("*.jar")}
    unique = {jar.name: str(jar) for jar in found if jar.name not in shipped}
    return ",".join(path for _, path in sorted(unique.items()))


def _running() -> SparkSession | None:
    """Return the session of this process, also one of another thread, which Spark would return and change."""
    with suppress(PySparkException):  # there is none
        found = SparkSession.active()
        return None if is_stopped(found) else found
    return None


def _refuse_running(settings: dict[str, str]) -> None:
    """Refuse a running session, which Spark would return, if it lacks settings and cannot change them."""
    running = _running()
    lacking = [
        name
        for name, value in settings.items()
        if running is not None
        and not running.conf.isModifiable(name)
        and any(part not in str(running.conf.get(name, "")) for part in value.split(","))
    ]
    if lacking:
        reason = f"a Spark session is already running without {', '.join(lacking)}: call spark.stop() first"
        raise UsageError(reason=reason)


def local_session(
    app: str, *, cores: int = 2, tables: Sequence[Connector] = (), settings: dict[str, str] | None = None
) -> SparkSession:
    """Start a small Spark on this machine.

    On a cluster, create your own session instead, with `packages` in ``spark.jars.packages``.  Checkpoints of this
    session must be on a local disk: it writes their files in a way that is fast and safe only there.  If a session runs
    already, it is returned, and only ``settings`` change it.

    Later sessions start faster: they use an archive of Spark's classes, which the first program records at its end.

    Args:
        app: the name of the application.
        cores: the number of concurrent tasks and of shuffle partitions, 1 or more.
        tables: ``"iceberg"`` or ``"delta"``, for their connectors.  Set the catalogs of Iceberg in ``settings``.
        settings: of Spark; they override those of this function, such as the session time zone UTC.

    Raises:
        JavaError: if there is no Java 17 or newer.
        JarDownloadError: if a jar cannot be downloaded, or Maven has none for this Spark.
        MissingConnectorError: if the tables have no connector for this Spark.
        UsageError: if a session is running that lacks ``tables`` or ``settings``.
    """
    archive = archive_options()  # first, since it fails without Java before anything is fetched
    python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    jars = local_jars(*tables)
    _refuse_running({**(settings or {}), **({"spark.jars": jars} if tables else {})})
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app)
    defaults = {
        **_QUIET,
        "spark.jars": jars,
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "1g",
        JAVA_OPTIONS: "-XX:+UseSerialGC",
        **disk_settings(),
        **(_WORKERS if python == sys.executable and sys.version_info < _READS_ZIPS_ONCE else {}),
        **(_DELTA if "delta" in tables else {}),
    }
    chosen = {**defaults, **(settings or {})}
    chosen[JAVA_OPTIONS] += f" {archive}"
    if "SPARK_CONF_DIR" not in os.environ:  # that folder has the log settings of its owner
        chosen[JAVA_OPTIONS] += f' "-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"'
    if _running() is not None:
        chosen = settings or {}  # another time zone would change the times that it reads
    for name, value in chosen.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
