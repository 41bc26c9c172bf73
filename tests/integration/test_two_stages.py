"""The two-stage pipeline on Kafka in a container, through testcontainers."""

import subprocess
from collections.abc import Iterator

import pytest
from floodmark.producers import create_topics
from floodmark.producers.clients.admin import require_topics
from floodmark.schemas import FloodmarkError
from floodmark.spark_jobs.demo import flights, jobs, outcome
from floodmark.spark_jobs.demo.processes import Children
from floodmark.spark_jobs.demo.run import Watch
from integration.compose import DOCKER, services
from support.harness import until

pytestmark = [pytest.mark.docker, pytest.mark.spark]

DAYS = 7


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with services("kafka") as started:
        address = started.address["9092"]
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
