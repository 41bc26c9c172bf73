"""Metrics: a plain snapshot of where a source, an injector or a job stands."""

import json
import urllib.request
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from floodmark.producers import WatermarkedProducer, ascending
from floodmark.producers.embedded.broker import free_port
from floodmark.producers.metrics import Metrics, PrometheusExporter, delay, serve_metrics
from floodmark.schemas.errors import UsageError
from prometheus_client import CollectorRegistry, generate_latest


def test_every_metric_has_a_meaning_and_a_cause_in_the_reference():
    page = Path(__file__).parents[2].joinpath("producers", "METRICS.md").read_text(encoding="utf-8")
    table = page.split("\n## Metrics")[1].split("\n## ")[0]
    for field in fields(Metrics):
        assert f"`{field.name}`" in table, field.name


def test_delays():
    assert [delay(10_000, watermark) for watermark in (None, 4_000, 20_000)] == [None, 6.0, -10.0]


def test_prometheus_shows_the_same_numbers():
    exporter = PrometheusExporter(CollectorRegistry())
    exporter.update(Metrics("job", "clicks", records=7, late_events=2, watermark=1_500))
    exporter.update(Metrics("job", "views", records=1))
    text = generate_latest(exporter.registry).decode()
    assert 'floodmark_late_events_total{kind="job",name="clicks",topic=""} 2.0' in text
    assert 'floodmark_watermark_timestamp_seconds{kind="job",name="clicks",topic=""} 1.5' in text
    assert 'floodmark_records_total{kind="job",name="views",topic=""} 1.0' in text


def test_an_unknown_watermark_has_no_delay_in_any_form():
    unknown = Metrics("job", "views")
    assert json.loads(json.dumps(asdict(unknown)))["watermark_delay_seconds"] is None
    exporter = PrometheusExporter(CollectorRegistry())
    exporter.update(unknown)
    assert "floodmark_watermark_timestamp_seconds{" not in generate_latest(exporter.registry).decode()


def test_they_are_served_on_loopback():
    port = free_port()
    serve_metrics(f"127.0.0.1:{port}").update(Metrics("source", "web", records=3))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert b'floodmark_records_total{kind="source",name="web",topic=""} 3.0' in answer.read()
    with pytest.raises(UsageError, match="port must be 0-65535"):
        serve_metrics(65_536, CollectorRegistry())
    with pytest.raises(UsageError, match="another"):
        serve_metrics(port, CollectorRegistry())
    with pytest.raises(UsageError, match="invalid literal"):
        serve_metrics("127.0.0.1", CollectorRegistry())
    with pytest.raises(UsageError, match="has an exporter already"):
        serve_metrics(free_port())


@pytest.mark.kafka
def test_a_source_tells_its_own(kafka, topic):
    with WatermarkedProducer(kafka.config, topic=topic(1), source="web", strategy=ascending()) as producer:
        assert producer.metrics().watermark_delay_seconds is None
        assert producer.metrics().state == "unknown"
        for time in (5, 9):
            producer.produce(b"", event_time=time)
        producer.flush()
        producer.produce(b"", event_time=4)
        assert producer.metrics().processing_time_delay_seconds >= 0
        producer.flush()
        metrics = producer.metrics()
        assert (metrics.state, metrics.watermark, metrics.topic) == ("active", producer.watermark, producer.topic)
        assert metrics.surplus is None, "a source does not count that"
        producer.mark_idle()
        assert producer.metrics().state == "idle"
        producer.end()
        assert producer.metrics().state == "ended"
    assert (metrics.kind, metrics.name, metrics.records, metrics.late_events) == ("source", "web", 3, 1)
    assert metrics.processing_time_delay_seconds == 0
    assert metrics.watermark_delay_seconds is not None
    assert metrics.watermark_delay_seconds > 1_000_000
