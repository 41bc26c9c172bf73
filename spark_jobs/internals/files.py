"""Small text files below one folder: on any file system of Hadoop, on a local disk without Hadoop, or by Spark.

Without Hadoop's native library, as beside PySpark from PyPI, Hadoop's local file system starts ten processes
(``chmod``, ``readlink``) to write one file through `FileContext`, which takes about 50 ms.  The format is the same, a
checksum of each 512 bytes in a hidden file, so that Hadoop reads these files and the other way round.
"""

import os
import struct
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from floodmark.schemas.errors import CheckpointAccessError, CheckpointFilesError, CorruptSnapshotError
from floodmark.spark_jobs.internals.jvm import RELEASE, reaching
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from typing_extensions import override

_HEADER: Final = struct.Struct(">4si")
_MAGIC: Final = b"crc\0"
_CHUNK: Final = 512
_APPEARS_WHEN_CLOSED: Final = "fs.capability.outputstream.abortable"
"""Hadoop's name for object stores, in which a file appears, whole, when it is closed.

They have no rename: they copy and delete, and to overwrite a file they first delete it.
"""

FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"  # Spark's setting that names the class

_DAMAGED: Final = ("ChecksumException", "Is a directory", "is not a file")  # what reading again does not mend

_MANAGER: Final = "FileSystemBasedCheckpointFileManager"
_MOVED: Final = (4, 1)  # the Spark version in which file managers got a package of their own

_PACKAGE: Final = f"org.apache.spark.sql.execution.streaming{'' if RELEASE < _MOVED else '.checkpointing'}"


class Files(Protocol):
    """The text files below one folder; `CheckpointAccessError` if they cannot be read or written."""

    def exists(self, name: str) -> bool:
        """Tell whether a file or folder exists."""

    def numbers(self, name: str) -> list[int]:
        """Return the names of files in a folder that are numbers."""

    def read(self, name: str) -> str | None:
        """Return a file's text; ``None``: there is no file; `CorruptSnapshotError` if it cannot be read."""

    def write(self, name: str, text: str) -> None:
        """Write a whole file or none, even if the machine loses its power."""

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""


def files(spark: SparkSession, folder: str) -> Files:
    """Return the files below a folder: without Hadoop if it is on a local disk."""
    with reaching("the Hadoop file system"):
        jvm: Any = spark._jvm  # noqa: SLF001
        path = jvm.org.apache.hadoop.fs.Path(folder)
        system = path.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001
        if system.getUri().getScheme() == "file":
            return LocalFiles(Path(system.makeQualified(path).toUri().getPath()))
        return HadoopFiles(spark, path, system)


class LocalFiles(Files):
    """The text files below a folder of a local disk; the folder need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @override
    def exists(self, name: str) -> bool:
        with _refused(self._folder / name, "read"):
            return (self._folder / name).exists()

    @override
    def numbers(self, name: str) -> list[int]:
        folder = self._folder / name
        with _refused(folder, "read"):
            return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()] if folder.exists() else []

    @override
    def read(self, name: str) -> str | None:
        path = self._folder / name
        try:
            data = path.read_bytes()
            if _checksums(path).exists() and not _fits(data, _checksums(path).read_bytes()):
                raise corrupt(path, "its checksum does not fit")
            return data.decode()
        except FileNotFoundError:
            return None
        except (IsADirectoryError, ValueError) as error:
            raise corrupt(path, str(error)) from error
        except OSError as error:
            raise _inaccessible(path, "read", error.strerror) from error

    @override
    def write(self, name: str, text: str) -> None:
        path, data = self._folder / name, text.encode()
        draft = path.with_name(f"{path.name}.draft")
        with _refused(path, "written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # Until the new checksum is written, there is none rather than a wrong one.
            _checksums(path).unlink(missing_ok=True)
            draft.replace(path)
            draft.write_bytes(_HEADER.pack(_MAGIC, _CHUNK) + _sums(data))
            draft.replace(_checksums(path))

    @override
    def delete(self, name: str) -> None:
        path = self._folder / name
        with _refused(path, "deleted"):
            path.unlink(missing_ok=True)
            _checksums(path).unlink(missing_ok=True)


def _inaccessible(path: object, action: str, reason: str | None) -> CheckpointAccessError:
    return CheckpointAccessError(path=str(path), action=action, reason=str(reason))


@contextmanager
def _refused(path: object, action: str) -> Iterator[None]:
    """Raise `CheckpointAccessError` for what a file system raises."""
    try:
        yield
    except OSError as error:
        raise _inaccessible(path, action, error.strerror) from error
    except Py4JJavaError as error:
        raise _inaccessible(path, action, str(error.java_exception).splitlines()[0]) from error


def corrupt(path: object, reason: str) -> CorruptSnapshotError:
    """Return the error for a file that is there, and of no use."""
    return CorruptSnapshotError(where=str(path), reason=reason, advice="restore an intact copy")


def _checksums(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def _sums(data: bytes, chunk: int = _CHUNK) -> bytes:
    return b"".join(struct.pack(">I", zlib.crc32(data[at : at + chunk])) for at in range(0, len(data), chunk))


def _fits(data: bytes, checksums: bytes) -> bool:
    """Tell whether data has these checksums; an incomplete checksum file fits any data."""
    if len(checksums) < _HEADER.size:
        return True
    magic, chunk = _HEADER.unpack_from(checksums)
    return magic != _MAGIC or chunk <= 0 or checksums[_HEADER.size :] == _sums(data, chunk)


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
        path = self._path(name)
        with _refused(path, "read"):
            return bool(self._fs.exists(path))

    @override
    def numbers(self, name: str) -> list[int]:
        path = self._path(name)
        with _refused(path, "read"):
            found = self._fs.listStatus(path) if self._fs.exists(path) else []
        names = [str(status.getPath().getName()) for status in found]
        return [int(found) for found in names if found.isdecimal()]

    @override
    def read(self, name: str) -> str | None:
        path = self._path(name)
        if not self.exists(name):
            return None
        try:
            stream = self._fs.open(path)
            try:
                return str(self._io.toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Py4JJavaError as error:
            reason = str(error.java_exception).splitlines()[0]
            is_damaged = any(said in reason for said in _DAMAGED)
            raise (corrupt(path, reason) if is_damaged else _inaccessible(path, "read", reason)) from error

    @override
    def write(self, name: str, text: str) -> None:
        path = self._path(name)
        with _refused(path, "written"):
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
        path = self._path(name)
        with _refused(path, "deleted"):
            self._fs.delete(path, False)  # noqa: FBT003  # not recursive


def disk_settings() -> dict[str, str]:
    """Return the settings with which Spark starts one process per checkpoint file on a local disk instead of ten.

    They are for local disks only: elsewhere two runs of one job could replace each other's files without an error.  The
    manager renames by ``FileSystem``, for which Spark uses Hive's: its rename keeps an existing file, Hadoop's replaces
    it.
    """
    settings = {
        FILE_MANAGER: f"{_PACKAGE}.{_MANAGER}",
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    }
    # A second checksum file for each file, beside Hadoop's.
    checksums = {"spark.sql.streaming.checkpoint.fileChecksum.enabled": "false"}
    return settings if RELEASE < _MOVED else {**settings, **checksums}


def is_for_disks(file_manager: str) -> bool:
    """Tell whether a file manager of Spark is safe on local disks only."""
    return file_manager.rpartition(".")[2] == _MANAGER


def require_replacing(spark: SparkSession, checkpoint_location: str, files: Files) -> None:
    """Make sure that Spark replaces a file of state when it runs a batch again.

    If the file of the first run stays, Spark reports no error, and the next start loads it.  File systems are cached,
    so settings alone do not tell.
    """
    with reaching("CheckpointFileManager"):
        jvm: Any = spark._jvm  # noqa: SLF001
        package = jvm.org.apache.spark.sql.execution.streaming
        managers = package if RELEASE < _MOVED else package.checkpointing
        folder = jvm.org.apache.hadoop.fs.Path(checkpoint_location)
        settings = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        manager = managers.CheckpointFileManager.create(folder, settings)
    name = f"{uuid.uuid4().hex}.probe"
    path = jvm.org.apache.hadoop.fs.Path(folder, name)
    files.write(name, "existing")
    try:
        manager.createAtomic(path, True).close()  # noqa: FBT003  # overwrite
        found = manager.open(path)
        is_empty = found.read() < 0
        found.close()
    finally:
        files.delete(name)
    if not is_empty:
        raise CheckpointFilesError(
            checkpoint_location=checkpoint_location,
            file_manager=str(manager.getClass().getSimpleName()),
            file_system=str(folder.getFileSystem(settings).getClass().getName()),
        )
