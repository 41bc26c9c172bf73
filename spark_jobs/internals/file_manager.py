"""Spark's file manager: what writes the files of checkpoints, those of state among them."""

import uuid
from typing import Any, Final

from floodmark.schemas.errors import CheckpointFilesError
from floodmark.spark_jobs.internals.hadoop import Files
from floodmark.spark_jobs.internals.jvm import RELEASE, reaching
from pyspark.sql import SparkSession

FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
"""Spark's setting that names the class."""

_MANAGER: Final = "FileSystemBasedCheckpointFileManager"
_MOVED: Final = (4, 1)
"""The Spark in which file managers got a package of their own."""

_PACKAGE: Final = f"org.apache.spark.sql.execution.streaming{'' if RELEASE < _MOVED else '.checkpointing'}"


def disk_settings() -> dict[str, str]:
    """Return the settings of Spark by which its checkpoint files cost one process each on a local disk, not ten.

    They are for local disks alone: elsewhere two runs of one job could replace each other's files unseen.  The manager
    renames by ``FileSystem``, for which Spark brings Hive's: its rename keeps an existing file.  Hadoop's replaces it.
    """
    settings = {
        FILE_MANAGER: f"{_PACKAGE}.{_MANAGER}",
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    }
    # A second file for each file's checksum, beside that of Hadoop.
    checksums = {"spark.sql.streaming.checkpoint.fileChecksum.enabled": "false"}
    return settings if RELEASE < _MOVED else {**settings, **checksums}


def is_for_disks(file_manager: str) -> bool:
    """Tell whether a file manager of Spark is safe on local disks alone.

    >>> is_for_disks("org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager")
    True
    """
    return file_manager.rpartition(".")[2] == _MANAGER


def require_replacing(spark: SparkSession, checkpoint_location: str, files: Files) -> None:
    """Make sure that Spark replaces a file of state when it runs a batch again.

    Where the file of the first run stays, Spark reports nothing, and the next start loads it.  File systems are cached,
    so settings alone do not tell.

    Raises:
        CheckpointFilesError: where the existing file stays.
        UnsupportedSparkError: where Spark's file manager cannot be reached.
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
