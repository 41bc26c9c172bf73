"""What an injector tells of itself, in Python and over HTTP, also after a restart."""

import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from datetime import timedelta
from unittest.mock import Mock

import pytest
from floodmark.producers import TimePolicy
from floodmark.producers.cli import inject, main
from floodmark.producers.embedded.broker import free_port
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.injector import Injector
from floodmark.producers.injector.partitions import InjectedPartition
from floodmark.schemas.timestamps import EARLIEST
from prometheus_client.parser import text_string_to_metric_families
from support.harness import until
from support.injection import look, send
from typer.testing import CliRunner

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


def test_processing_time_tells_how_far_the_input_is_worked_off(kafka, topic):
    """It is that of the last record while there are more, and follows the clock where there are none."""
    raw, marked = topic(2), topic(3)
    send(kafka, raw, (10_000, 10_000), (10_000, 100_000))
    with Injector(Injection(raw, marked, JsonField("at"), POLICY), kafka.config) as injector:
        assert injector.metrics().processing_time_delay_seconds is None, "it has read nothing"
        injector.run(until_end=True)
        assert injector.metrics().processing_time_delay_seconds < 60
    _, marks, tracker = look(kafka, marked)
    said = {n: [m.record.processing_time_watermark for m in marks if m.partition == n] for n in range(3)}
    for times in said.values():
        assert times[0] == EARLIEST, "nothing was known before the first record"
        assert times == sorted(times)
    last = [m.record for m in marks][-1]
    assert last.emitted_at - 60_000 < tracker.processing_time <= last.emitted_at


def test_a_record_alone_says_that_what_comes_next_came_later():
    partition = InjectedPartition(Injection("raw", "marked", JsonField("at")).input_partition(), 0, 0)
    seen = []
    for log_time in (-1, 70, 50, 90):
        partition.take(None, None, 0, log_time, taken=90, seen=0)
        seen.append(partition.processing_time)
    assert seen == [-1, 70, 70, 90]


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


@pytest.mark.parametrize("options", [[], ["--group", "together"]], ids=["alone", "in a group"])
def test_the_command_serves_them_while_it_runs(kafka, topic, options):
    raw, marked, port = topic(1), topic(1), free_port()
    send(kafka, raw, (10_000, 10_000), (10_000, 100_000))
    command = [sys.executable, "-m", "floodmark.producers.cli.main", "inject", "--from", raw, "--to", marked]
    command += [
        "--json-field",
        "at",
        "--metrics-port",
        str(port),
        "--bootstrap-servers",
        kafka.bootstrap_servers,
        *options,
    ]
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


def test_the_command_reports_amid_a_long_transaction(kafka, topic, monkeypatch):
    """An alert says that an instance hangs which has not reported for five minutes."""
    raw, marked, exporter = topic(1), topic(1), Mock()
    send(kafka, raw, (10_000, 10_000))
    monkeypatch.setattr(inject, "serve_metrics", lambda _: exporter)
    monkeypatch.setattr(inject, "_REPORT", 0)
    command = ["inject", "--from", raw, "--to", marked, "--json-field", "at", "--interval", "50", "--until-end"]
    command += ["--metrics-port", "1", "--bootstrap-servers", kafka.bootstrap_servers]
    done = CliRunner().invoke(main.app, command)
    assert done.exit_code == 0, done.output
    assert exporter.update.call_count > 2, "not only at the start and the end"
