"""Makes the archive of Spark's classes, in a process of its own: one at a time, whole or not at all.

    python -m floodmark.spark_jobs.class_archive_maker ARCHIVE

A maker that is killed leaves nothing that a session would map, and no lock: the kernel frees it with its process.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from floodmark.spark_jobs.class_archive import JAVA_OPTIONS, LOG, MAKER, SEAL, is_given_up, is_whole
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

_LOCK: Final = "class-archive.lock"
_DRAFTS: Final = "class-archive-drafts"
_MAGIC: Final = 4
_KEPT: Final = 4
_LOWEST: Final = 19
_TIMEOUT: Final = 3600
_BATCHES: Final = 2


def give_way() -> None:
    """Take only what processor time others leave."""
    os.nice(_LOWEST)
    if os.getsid(0) == os.getpid():
        # Linux shares time out among sessions before it looks at the processes within them.
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(_LOWEST), encoding="ascii")


def make(archive: Path) -> None:
    """Make it, unless it is there, or another process makes one.

    Where it cannot be made, an empty file says so to the sessions of a day, and the log in the cache says why.

    Raises:
        OSError: where the cache cannot be written.
        TimeoutExpired: where others left no time for it in an hour; it is left to another program.
    """
    folder = archive.parent
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / _LOCK) as alone:
        if not alone or is_whole(archive) or is_given_up(archive):
            return
        drafts = folder / _DRAFTS
        shutil.rmtree(drafts, ignore_errors=True)  # of one that was killed
        drafts.mkdir()
        with tempfile.TemporaryDirectory(dir=drafts) as place:
            draft = Path(place, archive.name)
            (folder / LOG).write_text(_train_apart(draft), encoding="utf-8")
            _seal(draft)
            draft.replace(archive)
        drafts.rmdir()
        _delete_unused(folder)


@contextmanager
def _alone(lock: Path) -> Iterator[bool]:
    """Tell whether this is the only maker that lives."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _train_apart(draft: Path) -> str:
    """Run `train` in a process of its own, and return what it said."""
    # The JVM writes after the end of the program that has started it, and holds the pipes until then.
    command = [sys.executable, "-m", MAKER, "--train", str(draft)]
    done = subprocess.run(  # noqa: S603  # this module
        command, cwd=draft.parent, capture_output=True, text=True, check=False, timeout=_TIMEOUT
    )
    return done.stdout + done.stderr


def _seal(draft: Path) -> None:
    """Mark what the JVM has written as whole, on the disk; make it empty where there is nothing, or no beginning.

    The JVM writes the beginning last, so one that was killed leaves zeros there.
    """
    draft.touch()
    draft.chmod(0o644)
    with draft.open("r+b") as file:
        if any(file.read(_MAGIC)):
            file.seek(0, os.SEEK_END)
            file.write(SEAL)
        else:
            file.truncate(0)
        file.flush()
        os.fsync(file.fileno())


def _delete_unused(folder: Path) -> None:
    """Keep the archives that were used last: each environment has its own, and some have gone."""
    archives = sorted(folder.glob("spark-*.jsa"), key=lambda path: path.stat().st_mtime)
    for archive in archives[:-_KEPT]:
        archive.unlink()


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
    if sys.argv[1] == "--train":
        train(Path(sys.argv[2]))
    else:
        give_way()
        make(Path(sys.argv[1]))
