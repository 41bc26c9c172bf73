"""Spark's file manager, which writes the files of checkpoints and of state."""

import uuid
from typing import Any, Final

from floodmark.schemas.errors import CheckpointFilesError
from floodmark.spark_jobs.internals.files import Files
from floodmark.spark_jobs.internals.jvm import RELEASE, reaching
from pyspark.sql import SparkSession

FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
"""Spark's setting that names the class."""

_MANAGER: Final = "FileSystemBasedCheckpointFileManager"
_MOVED: Final = (4, 1)
"""The Spark version in which file managers got a package of their own."""

_PACKAGE: Final = f"org.apache.spark.sql.execution.streaming{'' if RELEASE < _MOVED else '.checkpointing'}"


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
