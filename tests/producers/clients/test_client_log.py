"""What a client logs of a broker that has just started frightens nobody; the rest is said."""

import logging
import subprocess
import sys

import pytest
from floodmark.producers.clients.consumers import client_log

PROGRAM = """\
import sys
from pathlib import Path
from floodmark.producers import EmbeddedKafka, WatermarkedProducer, ascending, create_topics
with EmbeddedKafka(Path(sys.argv[1])) as kafka:
    create_topics(kafka.config, {"t": 1})
    with WatermarkedProducer(kafka.config, topic="t", source="a", strategy=ascending()) as ours:
        ours.produce(b"x", event_time=12)
        ours.end()
"""


def test_what_is_tried_again_is_not_said_and_errors_are(caplog):
    log = client_log("floodmark.test_client_log")
    assert client_log("floodmark.test_client_log").filters == log.filters
    log.warning("GETPID [x]: Failed to acquire idempotence PID: Broker: Coordinator load in progress: retrying")
    log.warning("GETPID [x]: Failed to acquire idempotence PID: Broker: Cluster authorization failed: retrying")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "authorization" in caplog.text


@pytest.mark.kafka
def test_the_first_program_of_a_new_broker_says_nothing(tmp_path):
    command = [sys.executable, "-c", PROGRAM, tmp_path / "kafka"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr == ""


@pytest.mark.parametrize("client", ["rdkafka", "web-7"])
def test_a_failure_that_each_client_repeats_is_logged_once(caplog, client):
    log = client_log(f"floodmark.test_repeats.{client}")
    text = f"FAIL [{client}#producer-%d] [thrd:k:9092/1]: Connection refused (after %dms in state CONNECT)"
    for number in range(3):
        log.error(text, number, number)
        log.error("batch 7 is retried")
    log.error("FAIL [%s#producer-9] [thrd:k:9092/1]: Disconnected", client)
    said = [record.getMessage() for record in caplog.records]
    own = ["batch 7 is retried"] * 3
    refused = f"FAIL [{client}#producer-0] [thrd:k:9092/1]: Connection refused (after 0ms in state CONNECT)"
    assert said == [refused, *own, f"FAIL [{client}#producer-9] [thrd:k:9092/1]: Disconnected"]
