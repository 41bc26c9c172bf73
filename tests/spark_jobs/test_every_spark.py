"""The supported Sparks beside the installed one: what touches internals of Spark runs on each, in its own process.

On the newest, which a new user installs, more of what a job does runs, too.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
import pytest
from floodmark.producers.embedded.jars import cache

ROOT = Path(__file__).parents[2]
OLDEST = "4.0.0"
SPARKS = ("4.1.1", "4.2.0", "4.3.0")
_LIMIT = 900


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
            command += ["--config-settings=--build-option=--compression=stored"]  # half of the work is to compress jars
            subprocess.run([*command, f"pyspark=={version}"], check=True, timeout=_LIMIT)
            Path(partial, "spark").rename(target)
    return target


@pytest.mark.spark
@pytest.mark.minutes
@pytest.mark.timeout(3 * _LIMIT)
@pytest.mark.parametrize("version", SPARKS)
def test_on_another_spark(version):
    path = os.pathsep.join([str(install(version)), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "FLOODMARK_SPARK": version}
    tests = "every_spark or newest_spark" if version == SPARKS[-1] else "every_spark and not newest_spark"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", tests, "tests/spark_jobs"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=2 * _LIMIT
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
