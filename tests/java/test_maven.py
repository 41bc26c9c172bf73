"""Maven builds the Java library, without Spark; the other tests of this folder compile and run the same sources."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from floodmark.producers.embedded.broker import KAFKA_VERSION

SCHEMAS = Path(__file__).parents[2] / "schemas"
REQUIRED = os.environ.get("FLOODMARK_REQUIRE_MAVEN") == "1"
BOTH = shutil.which("mvn") and shutil.which("javac")


@pytest.mark.skipif(not REQUIRED and not BOTH, reason="Maven and a JDK are not installed")
def test_maven_builds_and_tests_it(tmp_path):
    library = shutil.copytree(SCHEMAS / "java", tmp_path / "schemas" / "java")
    shutil.copy(SCHEMAS / "vectors.json", tmp_path / "schemas")
    command = ["mvn", "--batch-mode", "--no-transfer-progress", "package"]
    done = subprocess.run(command, cwd=library, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "Tests run: 4, Failures: 0" in done.stdout
    jars = {jar.name for jar in library.glob("*/target/*.jar")}
    assert jars == {f"floodmark-{module}-0.1.0.jar" for module in ("marks", "flink", "streams")}


def test_maven_uses_the_versions_that_the_other_tests_run():
    poms = "".join(path.read_text(encoding="utf-8") for path in (SCHEMAS / "java").rglob("pom.xml"))
    fixtures = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    assert f"<kafka.version>{KAFKA_VERSION}<" in poms
    for version in re.findall(r"<flink.version>(.+?)<|flink-connector-kafka</artifactId>\s*<version>(.+?)<", poms):
        assert f'"{"".join(version)}"' in fixtures
    assert "spark" not in poms
