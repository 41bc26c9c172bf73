"""Download and cache Java libraries, with the Ivy inside pyspark, so that only Java is needed."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from floodmark.schemas.errors import JarDownloadError, JavaError

JAVA: Final = 17
_LONGEST: Final = 900  # seconds for a download
_UNREACHABLE: Final = re.compile(r"Server access error|Host \S+ not found|SERVER ERROR")


def java() -> str:
    """Return the path of a Java that is new enough, or raise `JavaError`."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    advice = "install one (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
    if found is None or not Path(found).exists():
        raise JavaError(expected=f"{JAVA} or newer", found=f"none at {found}" if found else "none", advice=advice)
    release = Path(found).resolve().parent.parent / "release"  # it saves a run of Java
    if release.is_file() and _is_new_enough(release.read_text(encoding="utf-8", errors="replace")):
        return found
    said = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603
    if not _is_new_enough(said):
        first = said.strip().splitlines()[0] if said.strip() else "one that does not answer"
        raise JavaError(expected=f"{JAVA} or newer", found=first, advice=advice)
    return found


def _is_new_enough(text: str) -> bool:
    """Tell it from the output of ``java -version``, or from the file ``release``."""
    version = re.search(r'(?:version |JAVA_VERSION=)"(\d+)', text)
    return version is not None and int(version.group(1)) >= JAVA


def cache() -> Path:
    """Return the cache folder: ``$FLOODMARK_CACHE``, else ``$XDG_CACHE_HOME/floodmark``."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("FLOODMARK_CACHE") or Path(home, "floodmark"))


def fetch(organisation: str, module: str, version: str, *, alone: bool = False) -> list[Path]:
    """Return the jars of a module and its dependencies (``alone``: without these), from the cache or a download."""
    name = f"{module}-{version}" + "-alone" * alone
    target = cache() / name
    if not target.exists():
        import fcntl  # noqa: PLC0415  # missing on Windows, where only producers run

        folder = target.parent
        folder.mkdir(parents=True, exist_ok=True)
        # Into a temporary folder first, so that an interrupted download leaves no incomplete target.
        with (folder / "download.lock").open("wb") as lock, tempfile.TemporaryDirectory(dir=folder) as partial:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two downloads at once fail, because they write to one cache of Ivy
            if not target.exists():  # another process may have been faster
                sys.stderr.write(f"floodmark: downloading {module} {version} into {folder}, once\n")
                what = ["-dependency", organisation, module, version, *["-notransitive"] * alone, "-confs", "default"]
                retrieve(what, Path(partial), cache() / f"{name}.log", f"{organisation}:{module}:{version}")
                shutil.copytree(partial, f"{partial}.whole")
                Path(f"{partial}.whole").rename(target)
    return sorted(target.glob("*.jar"))


def retrieve(what: list[str], target: Path, log: Path, name: str) -> None:
    """Download files with Ivy; raises `JavaError` and `JarDownloadError`."""
    spark = find_spec("pyspark")
    ivy = sorted(Path(spark.origin).parent.glob("jars/ivy-*.jar")) if spark and spark.origin else []
    if not ivy:
        raise JarDownloadError(name=name, reason="this needs Ivy, a part of pyspark", advice="pip install pyspark")
    command = [*(java(), "-jar", str(ivy[-1])), *what, *("-retrieve", f"{target}/[artifact]-[revision].[ext]")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        reason, advice = f"it took over {_LONGEST} s", "Check the network, and start again"
        raise JarDownloadError(name=name, reason=reason, advice=advice) from error
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode or not any(target.iterdir()):
        raise JarDownloadError(name=name, **_why(name, done.stdout + done.stderr, log))


def _why(name: str, said: str, log: Path) -> dict[str, str]:
    """Return the reason and the advice for a download that failed, by what Ivy has ``said``."""
    if f"{name.replace(':', '#', 1).replace(':', ';')}: not found" not in said or _UNREACHABLE.search(said):
        return {"reason": f"see {log}", "advice": "Check the network, and start again"}
    advice = "Install a Spark that has it: pip install 'pyspark==4.0.0'" if "spark" in name else f"See {log}"
    return {"reason": "Maven does not have this version", "advice": advice}
