"""Fixtures: a real broker and a real Spark for the whole session, a topic of its own for each test."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from floodmark.producers import EmbeddedKafka, create_topics
from floodmark.spark_jobs import local_session
from pyspark.sql import SparkSession

_numbers = itertools.count()


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


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give a real Spark, whose JVM compiles quickly rather than well: for short runs that is half of the work."""
    options = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    session = local_session("tests", settings={"spark.driver.extraJavaOptions": options})
    yield session
    session.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Give an empty place for a job's state."""
    return str(tmp_path / "checkpoint")
