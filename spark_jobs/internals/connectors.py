"""The connectors of tables and the folders of a checkpoint, as objects of the JVM."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Literal, get_args

import pyspark
from floodmark.schemas.errors import MissingConnectorError, UsageError
from floodmark.spark_jobs.internals.jvm import FAILURES, RELEASE, reaching
from pyspark import java_gateway
from pyspark.sql import DataFrame, SparkSession

Connector = Literal["iceberg", "delta"]

CONNECTORS: Final[dict[tuple[Connector, tuple[int, ...]], str]] = {
    ("iceberg", (4, 0)): "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
    ("iceberg", (4, 1)): "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
    ("delta", (4, 0)): "io.delta:delta-spark_2.13:4.0.0",
}
"""By the Spark versions that the connector of a table supports."""


def connector(table: Connector) -> str:
    """Return the coordinates of the connector of a table, or raise `MissingConnectorError`."""
    if table not in get_args(Connector):
        raise UsageError(reason=f"tables has {table!r}, expected a list of 'iceberg' and 'delta'")
    found = CONNECTORS.get((table, RELEASE))
    if found is None:
        versions = " or ".join(f"{major}.{minor}" for name, (major, minor, *_) in CONNECTORS if name == table)
        reason, advice = "Floodmark knows of none for this version", f"Use Spark {versions}"
        raise MissingConnectorError(version=pyspark.__version__, tables=table, reason=reason, advice=advice)
    return found


def clone(spark: SparkSession) -> SparkSession:
    """Return a session with the same settings, whose changes no other query sees."""
    with reaching("SparkSession.cloneSession"):
        java: Any = spark._jsparkSession  # noqa: SLF001
        return SparkSession(spark.sparkContext, java.cloneSession())


def is_stopped(spark: SparkSession) -> bool:
    """Tell whether a session can run nothing more."""
    java: Any = spark.sparkContext._jsc  # noqa: SLF001
    return java is None or bool(java.sc().isStopped())


def without_rows(frame: DataFrame) -> DataFrame:
    """Return the columns of a frame without a row.

    PySpark's `createDataFrame` makes its session the active one of the thread.  With a clone, Spark would then ignore
    what the user sets in the session.
    """
    jvm: Any = frame.sparkSession._jvm  # noqa: SLF001
    java: Any = frame.sparkSession._jsparkSession  # noqa: SLF001
    return DataFrame(java.createDataFrame(jvm.java.util.ArrayList(), frame._jdf.schema()), frame.sparkSession)  # noqa: SLF001


def require_connector(spark: SparkSession, table: Connector, name: str) -> None:
    """Raise `MissingConnectorError` if the session lacks a class of the connector."""
    jvm: Any = spark._jvm  # noqa: SLF001
    try:
        jvm.java.lang.Class.forName(name, False, jvm.java.lang.Thread.currentThread().getContextClassLoader())  # noqa: FBT003
    except FAILURES as error:
        connector(table)  # raises an error with the versions that have a connector
        reason = f"the session has no class {name}"
        advice = f"Use local_session(tables=[{table!r}]), or packages({table!r}) in spark.jars.packages"
        raise MissingConnectorError(version=spark.version, tables=table, reason=reason, advice=advice) from error


def is_delta(spark: SparkSession, folder: str) -> bool:
    """Tell whether a folder is a Delta table."""
    jvm: Any = spark._jvm  # noqa: SLF001
    return bool(jvm.io.delta.tables.DeltaTable.isDeltaTable(spark._jsparkSession, folder))  # noqa: SLF001


def forget_table(spark: SparkSession, table: str) -> None:
    """Drop an Iceberg table from the cache of its catalog, which would keep one that another program deletes."""
    jvm: Any = spark._jvm  # noqa: SLF001
    found = jvm.org.apache.iceberg.spark.Spark3Util.catalogAndIdentifier(spark._jsparkSession, table)  # noqa: SLF001
    found.catalog().invalidateTable(found.identifier())


def newest_summary(spark: SparkSession, table: str, name: str) -> dict[str, str] | None:
    """Return the summary of the newest snapshot with a property, among an Iceberg table's current one and its parents.

    Commits of maintenance lack the property.
    """
    jvm: Any = spark._jvm  # noqa: SLF001
    loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, table)  # noqa: SLF001
    snapshot = loaded.currentSnapshot()
    while snapshot is not None:
        summary = snapshot.summary()
        if summary.get(name) is not None:
            return dict(summary)
        parent = snapshot.parentId()
        snapshot = None if parent is None else loaded.snapshot(parent)
    return None


class _Callable:
    """A function that Java calls on the thread of Python that waits for Java."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self.error: Exception | None = None

    def call(self) -> None:
        """Run it, and keep its error."""
        try:
            self._run()
        except Exception as error:  # noqa: BLE001  # the caller raises it
            self.error = error

    class Java:
        """The interface, as py4j reads it."""

        implements: ClassVar = ["java.util.concurrent.Callable"]


def with_snapshot_properties(spark: SparkSession, properties: Mapping[str, str], statement: str) -> None:
    """Run a statement whose Iceberg snapshot gets properties; SQL has no option for them before Iceberg 1.11."""
    java_gateway.ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]  # noqa: SLF001
    jvm: Any = spark._jvm  # noqa: SLF001
    java_map, inside = jvm.java.util.HashMap(), _Callable(lambda: spark.sql(statement))
    for name, value in properties.items():
        java_map.put(name, value)
    kind = jvm.java.lang.Class.forName("java.lang.RuntimeException")
    jvm.org.apache.iceberg.spark.CommitMetadata.withCommitProperties(java_map, inside, kind)
    if inside.error is not None:
        raise inside.error


class Folders:
    """The folders in one folder of any file system of Hadoop."""

    def __init__(self, spark: SparkSession, *path: str) -> None:
        with reaching("the Hadoop file system"):
            jvm: Any = spark._jvm  # noqa: SLF001
            self._path = jvm.org.apache.hadoop.fs.Path
            self._folder = self._path("/".join(path))
            self._fs = self._folder.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001

    def names(self) -> list[str]:
        """Return the names of the folders."""
        found = self._fs.listStatus(self._folder) if self._fs.exists(self._folder) else []
        return [str(status.getPath().getName()) for status in found if status.isDirectory()]

    def path(self, name: str) -> str:
        """Return the path of a folder."""
        return str(self._path(self._folder, name).toString())

    def size(self, name: str) -> int:
        """Return the bytes of the files in a folder that Spark reads; 0 if there is none."""
        path = self._path(self._folder, name)
        found = self._fs.listStatus(path) if self._fs.exists(path) else []
        read = [one for one in found if one.isFile() and not str(one.getPath().getName()).startswith(("_", "."))]
        return sum(int(one.getLen()) for one in read)

    def delete(self, name: str) -> None:
        """Delete a folder, if it exists."""
        self._fs.delete(self._path(self._folder, name), True)  # noqa: FBT003  # recursive
