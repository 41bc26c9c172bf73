"""Fixtures: the plain reader and writer and the recipes, compiled."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from floodmark.producers.embedded.broker import KAFKA_VERSION
from floodmark.producers.embedded.jars import fetch, java

_COMPILER = "3.38.0"
_LIBRARY = Path(__file__).parents[2] / "schemas" / "java"


def compiled(classes, modules, jars):
    """Compile with Eclipse's compiler, which is a jar: the Java that this project asks for has no ``javac``.

    Returns:
        The class path.
    """
    classpath = os.pathsep.join(map(str, [classes, *jars]))
    compiler = os.pathsep.join(map(str, fetch("org.eclipse.jdt", "ecj", _COMPILER)))
    options = ["-17", "-encoding", "UTF-8", "-nowarn", "-d", str(classes), "-cp", classpath]
    main = "org.eclipse.jdt.internal.compiler.batch.Main"
    sources = [path for module in modules for path in _LIBRARY.glob(f"{module}/src/main/**/*.java")]
    command = [java(), "-cp", compiler, main, *options, *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return classpath


@pytest.fixture(scope="session")
def command(tmp_path_factory):
    """Give the words of the command that runs the reader or the writer, without its name."""
    jars = fetch("org.apache.kafka", "kafka_2.13", KAFKA_VERSION)
    classpath = compiled(tmp_path_factory.mktemp("plain"), ["marks"], jars)
    return [java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classpath]


@pytest.fixture(scope="session")
def plain(command):
    """Give a function that runs the reader or the writer: lines of JSON in, lines of JSON out."""

    def run(program, *arguments, lines=()):
        given = "".join(json.dumps(line) + "\n" for line in lines)
        whole = [*command, f"floodmark.{program}", *map(str, arguments)]
        done = subprocess.run(whole, input=given, capture_output=True, encoding="utf-8", timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def _engine(name, classes, *modules):
    jars = [jar for module in modules for jar in fetch(*module)]
    return compiled(classes, ["marks", name], jars)


@pytest.fixture(scope="session")
def flink(tmp_path_factory):
    """Give the class path of the recipe for Flink."""
    flink, connector = "org.apache.flink", ("flink-connector-kafka", "5.0.0-2.2")
    modules = [(flink, "flink-clients", "2.3.0"), (flink, "flink-connector-base", "2.3.0"), (flink, *connector)]
    return _engine("flink", tmp_path_factory.mktemp("flink"), *modules)


@pytest.fixture(scope="session")
def streams(tmp_path_factory):
    """Give the class path of the recipe for Kafka Streams."""
    module = ("org.apache.kafka", "kafka-streams", KAFKA_VERSION)
    return _engine("streams", tmp_path_factory.mktemp("streams"), module)
