"""The two-stage pipeline on Kafka in a container, through testcontainers."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from floodmark.producers import create_topics
from floodmark.producers.clients.admin import require_topics
from floodmark.producers.embedded.broker import free_port
from floodmark.schemas import FloodmarkError
from floodmark.spark_jobs.demo import flights, jobs, outcome
from floodmark.spark_jobs.demo.processes import Children
from floodmark.spark_jobs.demo.run import Watch
from support.harness import until
from testcontainers.core.container import DockerContainer

import docker

pytestmark = [pytest.mark.docker, pytest.mark.spark]

IMAGE = os.environ.get("FLOODMARK_KAFKA_IMAGE", "apache/kafka:4.1.0")
REQUIRED = os.environ.get("FLOODMARK_REQUIRE_DOCKER") == "1"
DAYS = 7
DOCKER = Path(__file__).parent.parent.parent / "docker"


def _skip_or_fail(reason):
    if REQUIRED:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """Start Kafka in a container, on loopback."""
    try:
        client = docker.from_env()
        client.ping()
        if not client.images.list(IMAGE):
            if IMAGE.startswith("floodmark/"):
                subprocess.run([str(DOCKER / "build-image.sh"), sys.executable, IMAGE], check=True)
            else:
                client.images.pull(IMAGE)
        client.close()
    except docker.errors.DockerException as error:
        _skip_or_fail(f"no Docker engine, or no image {IMAGE}: {error}")
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    port = free_port()
    settings = {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@127.0.0.1:9093",
        "KAFKA_LISTENERS": f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://127.0.0.1:9093",
        # The same port inside and outside: the broker calls itself by its advertised address.
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "KAFKA_LOG_DIRS": "/var/lib/kafka/data",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }
    container = DockerContainer(IMAGE)
    container.ports[f"{port}/tcp"] = ("127.0.0.1", port)
    for name, value in settings.items():
        container = container.with_env(name, value)
    with container:
        address = f"127.0.0.1:{port}"
        until(lambda: _answers(address), "Kafka in the container", 120)
        yield address


def _answers(address):
    try:
        create_topics({"bootstrap.servers": address, "socket.timeout.ms": 2000}, {"probe": 1})
    except FloodmarkError:
        return False
    return True


def test_two_stages_in_containers_equal_a_batch_computation(servers, tmp_path):
    config = {"bootstrap.servers": servers}
    create_topics(config, dict.fromkeys(jobs.SCHEMAS, 4))
    assert require_topics(config, list(jobs.SCHEMAS)) == dict.fromkeys(jobs.SCHEMAS, 4)
    watch = Watch(config)
    try:
        with Children(tmp_path, servers) as children:
            for name in (jobs.WAVES, jobs.DAYS):
                children.start(name, jobs.__name__, name=name, checkpoint_location=tmp_path / "state" / name)
            for origin in flights.ORIGINS:
                children.start(origin, flights.__name__, origin=origin, days=DAYS, seconds=10)

            def ended():
                children.check()
                watch.poll()
                return watch.ended(jobs.DAYS)

            until(ended, "the end of the pipeline", 240)
            until(children.check, "the end of the jobs", 60)
        landed = flights.landed(flights.load(DAYS))
        waves = outcome.waves(landed, jobs.GAP)
        assert outcome.differences(watch.rows(jobs.WAVES), waves) == 0
        days = outcome.daily(waves, jobs.DAY)
        assert outcome.differences(watch.rows(jobs.DAYS), days) == 0
    finally:
        watch.close()


def test_the_compose_file_and_the_image_script_are_sound():
    for script in (DOCKER / "build-image.sh", DOCKER / "kafka" / "start.sh"):
        subprocess.run(["bash", "-n", str(script)], check=True)
    assert "127.0.0.1:9092:9092" in (DOCKER / "compose.yaml").read_text(encoding="utf-8")
