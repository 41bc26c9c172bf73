"""Spark's classes as the JVM maps them, made once and kept: a session and its first batch come in half the time.

A new JVM reads, checks and links some 15,000 classes before Spark's first batch.  With a shared archive of them (class
data sharing, JEP 350) it maps a file instead.

A program that finds none goes on without, and when it ends leaves a process behind that makes one
(`class_archive_maker`).
"""

import atexit
import functools
import hashlib
import logging
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark
from floodmark.producers.embedded.jars import cache, java

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
LOG: Final = "class-archive.log"
"""What the last maker said, in the cache."""
SEAL: Final = b"\nmade by floodmark\n"
"""The last bytes of an archive, which the maker writes and the JVM does not read."""

MAKER: Final = "floodmark.spark_jobs.class_archive_maker"
_DAY: Final = 86_400
_log = logging.getLogger(__name__)


def archive_options() -> str:
    """Return the options by which a JVM begins with the archive; empty where there is none, and all works without.

    Where none has been made, a process of low priority makes it once this program has ended, some 20 s of work.

    Raises:
        JavaError: where there is no Java.
    """
    archive = archive_path()
    if is_whole(archive):
        with suppress(OSError):  # a cache that is only read
            os.utime(archive)  # the maker deletes those that were not used for the longest time
        # What does not fit is passed over without a word on the error output of the user's program.
        return f'"-XX:SharedArchiveFile={archive}" -Xshare:auto -Xlog:cds*=off'
    if is_given_up(archive):
        _log.info("there is no archive of Spark's classes, sessions start slower: see %s", cache() / LOG)
    else:
        _make_at_exit(archive)
    return ""


def is_whole(archive: Path) -> bool:
    """Tell whether a maker has finished it, and nothing of it is gone: the JVM would map one without its end."""
    with suppress(OSError), archive.open("rb") as file:
        file.seek(-len(SEAL), os.SEEK_END)
        return file.read() == SEAL
    return False


def is_given_up(archive: Path) -> bool:
    """Tell whether a maker has found within a day that it cannot be made: the file is empty then."""
    with suppress(OSError):
        status = archive.stat()
        return not status.st_size and time.time() - status.st_mtime < _DAY
    return False


def archive_path() -> Path:
    """Return where the archive of this Java and this Spark belongs.

    Its name stands for what the JVM compares before it maps one: its own image, and the place, name, size and time of
    each jar.  So another environment has its own, and one that was installed anew gets a new one.

    Raises:
        JavaError: where there is no Java.
    """
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "jars").resolve()
    seen = [_image(java()), str(jars), os.environ.get("SPARK_CONF_DIR", "")]
    seen += [_stamp(jar) for jar in sorted(jars.glob("*.jar"))]
    key = hashlib.sha256("\n".join(seen).encode()).hexdigest()[:12]
    return cache() / f"spark-{pyspark.__version__}-{key}.jsa"


def _image(found: str) -> str:
    """Tell one Java from another: by the file of its own classes; only where that is not seen it is run and asked."""
    modules = Path(found).resolve().parent.parent / "lib" / "modules"
    if modules.exists():
        return _stamp(modules)
    return subprocess.run([found, "-version"], capture_output=True, text=True, check=True).stderr  # noqa: S603  # as `java` found


def _stamp(file: Path) -> str:
    status = file.stat()
    return f"{file} {status.st_size} {int(status.st_mtime)}"


@functools.cache
def _make_at_exit(archive: Path) -> None:
    """Start the maker when this program ends: only then nothing that its user waits for is delayed."""
    atexit.register(start_maker, archive)


def start_maker(archive: Path) -> None:
    """Start a process that makes the archive, and outlives this one; it holds none of its pipes."""
    gateway = "PYSPARK_GATEWAY"  # the maker needs a JVM of its own
    environment = {name: value for name, value in os.environ.items() if not name.startswith(gateway)}
    with suppress(OSError):
        maker = subprocess.Popen(  # noqa: S603  # a module of this package
            [sys.executable, "-m", MAKER, str(archive)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
        maker.returncode = 0  # nobody asks for its end, and Python need not warn that it runs on
