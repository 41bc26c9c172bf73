"""A standalone cluster of Spark, of real processes on this machine, which can be killed; and programs that run on it.

Executors see nothing of the tests: they run an interpreter of their own, which has all that this one has but Floodmark.
"""

import os
import re
import sysconfig
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import floodmark
import pyspark
from floodmark import producers, schemas, spark_jobs
from floodmark.producers.clients.consumers import Closing
from floodmark.spark_jobs.class_archive import archive_options
from floodmark.spark_jobs.session import local_jars
from support.harness import until
from support.processes import Process
from typing_extensions import override

_SPARK = Path(pyspark.__file__).parent
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_LIMIT = 90


def package_zip(folder: Path) -> Path:
    """Zip the package, as ``--py-files`` takes it: with entries for its folders, which Python 3.11 looks for."""
    target = folder / "floodmark.zip"
    with zipfile.ZipFile(target, "w") as archive:
        archive.mkdir("floodmark")
        for path in Path(floodmark.__path__[0]).glob("*.py"):
            archive.write(path, Path("floodmark", path.name))
        for package in (schemas, producers, spark_jobs):
            root = Path(package.__path__[0]).resolve()
            for path in (root, *sorted(root.rglob("*"))):
                if "__pycache__" not in path.parts:
                    archive.write(path, Path("floodmark", path.relative_to(root.parent)))
    return target


def bare_python(folder: Path) -> Path:
    """Make an environment with all libraries of this one but Floodmark; returns its interpreter."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for library in Path(sysconfig.get_path("purelib")).iterdir():
        if "floodmark" not in library.name and library.name != "__pycache__":
            (packages / library.name).symlink_to(library)
    return folder / "bin" / "python"


def environment(**more: str) -> dict[str, str]:
    """Return what a process of the cluster sees: nothing of this one's Python."""
    hidden = ("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return {**plain, "SPARK_HOME": str(_SPARK), "SPARK_LOCAL_IP": "127.0.0.1", **more}


def _java_options() -> str:
    """Return options by which a JVM starts quickly, which most of these do nothing else for long."""
    return f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {archive_options(record=False)}".strip()


class Standalone(Closing):
    """A master and workers of two cores and 1 GB each; leaving the block ends all that runs there.

    Args:
        folder: for logs, the workers' folders and the interpreter of the executors.
        workers: how many.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._started: list[Process] = []
        folder.mkdir()
        self.python = bare_python(folder / "python")
        self.package = package_zip(folder)
        port = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = self._daemon("master", "org.apache.spark.deploy.master.Master", *port)
        until(lambda: bool(_MASTER.findall(master.log())), "a master", _LIMIT)
        (self.url,) = _MASTER.findall(master.log())
        self.workers = [self.add_worker() for _ in range(workers)]
        until(lambda: all("Successfully registered" in worker.log() for worker in self.workers), "workers", _LIMIT)

    def add_worker(self) -> Process:
        """Start one more worker, a machine of its own as far as Spark sees."""
        name = f"worker-{len(self._started)}"
        host = f"127.0.0.{len(self._started)}"  # a speculative task needs another host
        place = ["--host", host, "--webui-port", "0", "--work-dir", str(self._folder / name / "work")]
        size = ["--cores", "2", "--memory", "1g"]
        return self._daemon(name, "org.apache.spark.deploy.worker.Worker", *place, *size, self.url)

    def submit(
        self, name: str, program: Path, options: Mapping[str, object], jars: Sequence[str], settings: Mapping[str, str]
    ) -> Process:
        """Start a driver, in a folder with local disks of its own, by ``spark-submit`` with the package shipped.

        Args:
            name: of the driver and its folder.
            program: a Python program; the tests' folder is on its path, Floodmark only as it is shipped.
            options: of the program.
            jars: beside those that Kafka needs.
            settings: of Spark.
        """
        folder = self._folder / name
        local = folder / "local"
        local.mkdir(parents=True)
        own = {
            "spark.ui.enabled": "false",
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.executor.memory": "500m",
            "spark.driver.memory": "700m",
            "spark.local.dir": str(local),
            "spark.pyspark.python": str(self.python),
            "spark.driver.extraJavaOptions": _java_options(),
            "spark.executor.extraJavaOptions": _java_options(),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            **settings,
        }
        command = [str(_SPARK / "bin" / "spark-submit"), "--master", self.url, "--py-files", str(self.package)]
        command += ["--jars", ",".join([local_jars(), *jars])]
        for key, value in own.items():
            command += ["--conf", f"{key}={value}"]
        command += [str(program)]
        command += [f"--{option}={value}" for option, value in options.items()]
        tests = str(Path(__file__).parents[1])
        seen = environment(PYTHONPATH=tests, PYTHONUNBUFFERED="1", TMPDIR=str(local))
        return self._keep(Process(name, command, folder, seen))

    @override
    def close(self) -> None:
        """End all that was started here."""
        for process in reversed(self._started):
            process.kill()

    def _daemon(self, name: str, kind: str, *arguments: str) -> Process:
        seen = environment(SPARK_DAEMON_MEMORY="256m", SPARK_DAEMON_JAVA_OPTS=_java_options())
        command = [str(_SPARK / "bin" / "spark-class"), kind, *arguments]
        return self._keep(Process(name, command, self._folder / name, seen))

    def _keep(self, process: Process) -> Process:
        self._started.append(process)
        return process
