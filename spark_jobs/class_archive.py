"""An archive of Spark's classes, with which later sessions start in about half the time.

A new JVM reads, checks and links about 15,000 classes before Spark's first batch.  With an archive (class data sharing,
JEP 350) it maps one file instead.  The JVM of the first session writes a draft at its end, and the next session renames
the largest.  This works with every Java from 13 on.  Each environment has an archive of its own; one that no session
has used for 30 days is deleted.
"""

import hashlib
import os
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark
from floodmark.producers.embedded.jars import cache, java

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_QUIET: Final = "-Xlog:cds*=off"  # no message if an archive does not fit
_MAGIC: Final = 4
_DAY: Final = 86_400
_UNUSED: Final = 30 * _DAY


def archive_options(*, record: bool = True) -> str:
    """Return the JVM options to use the archive, or with ``record`` to record it, for a single JVM."""
    archive = archive_path()
    for draft in archive.parent.glob(f"{archive.stem}-*.draft"):
        with suppress(OSError):  # another process renames it, or the cache is read-only
            _adopt(draft, archive)
    if archive.exists():
        with suppress(OSError):
            archive.touch()
            _delete_unused(archive.parent)
        return f'"-XX:SharedArchiveFile={archive}" -Xshare:auto {_QUIET}'
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return ""
    draft = archive.with_name(f"{archive.stem}-{uuid.uuid4().hex[:8]}.draft")
    return f'"-XX:ArchiveClassesAtExit={draft}" {_QUIET}' if record else ""


def _delete_unused(folder: Path) -> None:
    for file in (*folder.glob("spark-*.jsa"), *folder.glob("spark-*.draft")):
        if time.time() - file.stat().st_mtime > _UNUSED:
            file.unlink()


def _adopt(draft: Path, archive: Path) -> None:
    """Rename a complete draft.  The JVM writes its first bytes last; they are 0 until then."""
    with draft.open("rb") as file:
        is_complete = any(file.read(_MAGIC))
        os.fsync(file.fileno())
    if is_complete and (not archive.exists() or archive.stat().st_size < draft.stat().st_size):
        draft.replace(archive)  # a session that was killed early has written a small one
    elif is_complete or time.time() - draft.stat().st_mtime > _DAY:
        draft.unlink()


def archive_path() -> Path:
    """Return the path of the archive for this Java and this Spark.

    Its name has a hash of all that the JVM compares before it maps an archive: its own image, and the path, size and
    time of each jar.
    """
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "jars").resolve()
    seen = [_image(java()), str(jars), os.environ.get("SPARK_CONF_DIR", "")]
    seen += [_stamp(jar) for jar in sorted(jars.glob("*.jar"))]
    key = hashlib.sha256("\n".join(seen).encode()).hexdigest()[:12]
    return cache() / f"spark-{pyspark.__version__}-{key}.jsa"


def _image(found: str) -> str:
    """Identify a Java by the file of its own classes, or else by its version."""
    modules = Path(found).resolve().parent.parent / "lib" / "modules"
    if modules.exists():
        return _stamp(modules)
    return subprocess.run([found, "-version"], capture_output=True, text=True, check=True).stderr  # noqa: S603  # as `java` found


def _stamp(file: Path) -> str:
    status = file.stat()
    return f"{file} {status.st_size} {int(status.st_mtime)}"
