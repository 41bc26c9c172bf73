"""Fixtures: a real broker and a real Spark for the whole session, a topic of its own for each test.

With ``-n auto``, a run of all tests is shared by three processes, each with a broker and a Spark of its own.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from floodmark.producers import EmbeddedKafka, create_topics
from floodmark.producers.channel import _CHANNELS
from floodmark.producers.embedded.broker import kafka_jars
from floodmark.schemas import FloodmarkError
from floodmark.spark_jobs import local_session
from floodmark.spark_jobs.class_archive import JAVA_OPTIONS, archive_options, archive_path
from floodmark.spark_jobs.session import local_jars
from hypothesis import settings
from pyspark.sql import SparkSession
from support.harness import LASTING, QUICK, SMALL_BATCHES
from support.recording import record_classes
from support.registry import EmbeddedRegistry, program

# A law is judged by what it finds, not by how long an example takes on a busy machine.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")

os.environ["SPARK_SUBMIT_OPTS"] = QUICK  # also the programs that tests start
for _name in ("BOOTSTRAP_SERVERS", "CONFIG", "REGISTRY", "TRIGGER_TOKEN"):  # your settings must not reach the tests
    os.environ.pop(f"FLOODMARK_{_name}", None)

_numbers = itertools.count()
_WORKERS = 3
"""They keep two cores busy while some of their tests wait."""


def _is_whole(config: pytest.Config) -> bool:
    """Tell whether all tests are run, rather than some that were named."""
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Say how many processes ``-n auto`` means: some tests, named, run in this one, which shows what they print."""
    return _WORKERS if _is_whole(config) else 0


def pytest_sessionstart(session: pytest.Session) -> None:
    """Fetch and make once what all tests share: each Spark that one starts begins with the archive of classes."""
    if _is_whole(session.config) and not hasattr(session.config, "workerinput"):
        with suppress(FloodmarkError, OSError):  # the tests that need it say so
            kafka_jars()
            local_jars()
            if not archive_path().exists():
                record_classes()
                archive_options()  # it gives the archive its name
            program()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin the part of each process with some of what takes minutes, so that none is left alone with it.

    Neighbours stay together, so that one process runs the tests that start many programs, one after the other.
    """
    long = [item for item in items if item.get_closest_marker("minutes")]
    rest = [item for item in items if not item.get_closest_marker("minutes")]
    whole, items[:] = len(items), []
    for number in range(_WORKERS):
        begun = long[len(long) * number // _WORKERS : len(long) * (number + 1) // _WORKERS]
        size = max(0, (whole - len(items)) // (_WORKERS - number) - len(begun))
        items += [*begun, *rest[:size]]
        del rest[:size]


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """Give a real broker."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def topic(kafka: EmbeddedKafka) -> Callable[..., str]:
    """Give new topics: ``topic(partitions=3)``."""

    def new(partitions: int = 2) -> str:
        name = f"topic-{next(_numbers)}"
        create_topics(kafka.config, {name: partitions})
        return name

    return new


@pytest.fixture(autouse=True)
def _stopped_producers() -> Iterator[None]:
    """Stop producers that a test leaves open: at the end of the process, each would wait for Kafka.

    A client keeps its owner, and its threads run, until each delivery report was served.
    """
    before = set(_CHANNELS)
    yield
    for channel in set(_CHANNELS) - before:
        channel.stop_background()
        channel.client.purge()
        with suppress(Exception):  # what a test's callbacks raise
            channel.client.flush(1)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRegistry]:
    """Give a real schema registry."""
    with EmbeddedRegistry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give a real Spark."""
    session = local_session("tests", settings={**SMALL_BATCHES, JAVA_OPTIONS: LASTING})
    yield session
    session.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Give an empty place for a job's state."""
    return str(tmp_path / "checkpoint")
