"""What an injector tells of itself, in Python and over HTTP, also after a restart."""

import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from datetime import timedelta

import pytest
from floodmark.producers import TimePolicy
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.injector import Injector
from prometheus_client.parser import text_string_to_metric_families
from support.harness import until
from support.injection import send
from support.prometheus import free_port

pytestmark = pytest.mark.kafka
POLICY = TimePolicy(late=timedelta(seconds=5))


def test_counters_go_on_over_a_restart_and_say_what_was_before(kafka, topic):
    raw, marked = topic(2), topic(2)
    injection = Injection(raw, marked, JsonField("at"), POLICY)
    send(kafka, raw, (10_000, 10_000), (10_000, 100_000))
    with Injector(injection, kafka.config) as injector:
        assert injector.metrics().state == "unknown"
        assert [str(hold) for hold in injector.holders()] == [f"{raw}/{n}: has told no event time yet" for n in (0, 1)]
        injector.run(until_end=True)
        first = injector.metrics()
        assert [str(hold) for hold in injector.holders()] == [f"{raw}/0: lowest watermark"], (
            "the other follows the clock"
        )
    assert (first.records, first.late_events, first.unreadable, first.missing_event_time) == (2, 1, 0, 0)
    assert (first.topic, first.state, first.lost) == (marked, "active", None)
    assert set(first.before.values()) == {0}

    send(kafka, raw, (10_000, 200_000))
    with Injector(injection, kafka.config) as injector:
        injector.run(until_end=True)
        second = injector.metrics()
        (hold,) = injector.holders()
    assert (second.records, second.late_events, second.before["late_events"]) == (1, 2, 1)
    assert second.epoch > first.epoch
    assert (second.state, second.watermark) == ("active", hold.watermark)


def scrape(port):
    """Return the value of each series by its name; nothing while nobody serves them."""
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
        return {
            (sample.name, sample.labels.get("partition") or sample.labels.get("state")): sample.value
            for family in families
            for sample in family.samples
            if sample.name.startswith("floodmark_")
        }
    return {}


def test_the_command_serves_them_while_it_runs(kafka, topic):
    raw, marked, port = topic(1), topic(1), free_port()
    send(kafka, raw, (10_000, 10_000), (10_000, 100_000))
    command = [sys.executable, "-m", "floodmark.producers.cli.main", "inject", "--from", raw, "--to", marked]
    command += ["--json-field", "at", "--metrics-port", str(port), "--bootstrap-servers", kafka.bootstrap_servers]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: scrape(port).get(("floodmark_late_events_total", None)) == 1, "the late event")
        shown = scrape(port)
        assert shown["floodmark_records_total", None] == 2
        assert shown["floodmark_state", "active"] == 1
        assert shown["floodmark_holders", None] == 1
        assert ("floodmark_holder_since_timestamp_seconds", "0") in shown
        updated = ("floodmark_updated_timestamp_seconds", None)
        until(lambda: scrape(port).get(updated, 0) > shown[updated], "a report without a record")
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0, running.stderr.read()
    finally:
        running.kill()
        running.communicate()
