"""Small text files below one folder, on any file system of Hadoop."""

from pathlib import Path
from typing import Any, Final

from floodmark.schemas.errors import CorruptSnapshotError
from floodmark.spark_jobs.internals.jvm import reaching
from floodmark.spark_jobs.internals.local_files import Files, LocalFiles
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from typing_extensions import override

_APPEARS_WHEN_CLOSED: Final = "fs.capability.outputstream.abortable"
"""Hadoop's name for object stores, in which a file appears, whole, when it is closed.

They have no rename: they copy and delete, and to overwrite a file they first delete it.
"""


def files(spark: SparkSession, folder: str) -> Files:
    """Return the files below a folder: without Hadoop if it is on a local disk.

    Raises:
        UnsupportedSparkError: if Hadoop's classes cannot be reached.
    """
    with reaching("the Hadoop file system"):
        jvm: Any = spark._jvm  # noqa: SLF001
        path = jvm.org.apache.hadoop.fs.Path(folder)
        system = path.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001
        if system.getUri().getScheme() == "file":
            return LocalFiles(Path(system.makeQualified(path).toUri().getPath()))
        return HadoopFiles(spark, path, system)


class HadoopFiles(Files):
    """The text files below a folder, through a file system of Hadoop."""

    def __init__(self, spark: SparkSession, folder: Any, system: Any) -> None:  # noqa: ANN401  # of the JVM
        with reaching("the Hadoop file system"):
            jvm: Any = spark._jvm  # noqa: SLF001
            self._fs_package = jvm.org.apache.hadoop.fs
            self._folder, self._fs = folder, system
            self._context = self._fs_package.FileContext.getFileContext(system.getUri(), system.getConf())
            self._io = jvm.org.apache.commons.io.IOUtils
            gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
            self._overwrite = gateway.new_array(self._fs_package.Options.Rename, 1)
            self._overwrite[0] = self._fs_package.Options.Rename.OVERWRITE

    def _path(self, name: str) -> Any:  # noqa: ANN401  # a JVM path
        return self._fs_package.Path(self._folder, name)

    @override
    def exists(self, name: str) -> bool:
        return bool(self._fs.exists(self._path(name)))

    @override
    def numbers(self, name: str) -> list[int]:
        path = self._path(name)
        names = [str(status.getPath().getName()) for status in self._fs.listStatus(path)] if self.exists(name) else []
        return [int(found) for found in names if found.isdecimal()]

    @override
    def read(self, name: str) -> str | None:
        path = self._path(name)
        if not self._fs.exists(path):
            return None
        try:
            stream = self._fs.open(path)
            try:
                return str(self._io.toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Py4JJavaError as error:
            reason = str(error.java_exception).splitlines()[0]
            raise CorruptSnapshotError(where=str(path), reason=reason, advice="restore an intact copy") from error

    @override
    def write(self, name: str, text: str) -> None:
        path = self._path(name)
        if self._fs.hasPathCapability(self._folder, _APPEARS_WHEN_CLOSED):
            self._fill(path, text)
        else:
            draft = self._path(f"{name}.draft")
            self._fill(draft, text)
            self._context.rename(draft, path, self._overwrite)

    def _fill(self, path: Any, text: str) -> None:  # noqa: ANN401  # a JVM path
        stream = self._fs.create(path, True)  # noqa: FBT003  # overwrite
        try:
            stream.write(bytearray(text.encode()))
        except BaseException:
            if stream.hasCapability(_APPEARS_WHEN_CLOSED):
                stream.abort()  # close() would make an incomplete file appear
            raise
        stream.close()

    @override
    def delete(self, name: str) -> None:
        self._fs.delete(self._path(name), False)  # noqa: FBT003  # not recursive
