"""The supported Sparks beside the installed one: what touches internals of Spark runs on each, in a process of its own.

The newest connectors are not complete on every mirror: what belongs to no version of Spark is taken from the oldest.
"""

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pyspark
import pytest
from floodmark.producers.embedded.jars import cache, fetch

ROOT = Path(__file__).parents[2]
OLDEST = "4.0.0"
# Spark's version to that of its Avro package.
SPARKS = {"4.1.1": "4.1.1", "4.2.0": "4.1.1"}
_LIMIT = 540


@pytest.mark.spark
@pytest.mark.every_spark
def test_this_is_the_spark_that_was_asked_for(spark):
    assert spark.version == pyspark.__version__ == os.environ.get("FLOODMARK_SPARK", OLDEST)


def install(version):
    """Install a Spark for itself, once; an interrupted one leaves nothing that looks whole."""
    target = cache() / f"pyspark-{version}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as partial:
            command = [sys.executable, "-m", "pip", "install", "-q", "--target", f"{partial}/spark"]
            subprocess.run([*command, f"pyspark=={version}"], check=True, timeout=_LIMIT)
            Path(partial, "spark").rename(target)
    return target


def jars(version):
    """Lay out the jars as `fetch` would have, once, in a cache of its own; what is made from them is kept there."""
    folder = cache() / f"pyspark-{version}-on-{OLDEST}"
    folder.mkdir(exist_ok=True)
    both = {"spark-sql-kafka-0-10_2.13": version, "spark-avro_2.13": SPARKS[version]}
    for module, its_version in both.items():
        target = folder / f"{module}-{version}"
        if target.exists():
            continue
        own = fetch("org.apache.spark", module, its_version, alone=True)
        others = [jar for jar in fetch("org.apache.spark", module, OLDEST) if not jar.name.startswith(module)]
        with tempfile.TemporaryDirectory(dir=folder) as partial, suppress(OSError):  # another run was faster
            whole = Path(partial, target.name)
            whole.mkdir()
            for jar in [*own, *(jar for jar in others if not jar.name.startswith(("spark-tags", "scala-", "hadoop-")))]:
                (whole / jar.name).symlink_to(jar)
            whole.rename(target)
    for kept in cache().glob("kafka_2.13-*[0-9]"):
        with suppress(FileExistsError):
            (folder / kept.name).symlink_to(kept)
    return folder


@pytest.mark.spark
@pytest.mark.minutes
@pytest.mark.timeout(3 * _LIMIT)
@pytest.mark.parametrize("version", SPARKS)
def test_on_another_spark(version):
    path = os.pathsep.join([str(install(version)), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "FLOODMARK_SPARK": version,
        "FLOODMARK_CACHE": str(jars(version)),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "every_spark", "tests/spark_jobs"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=2 * _LIMIT
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
