"""A real Prometheus scrapes a real exporter, and its alerts see what goes wrong."""

import time
from pathlib import Path

import pytest
import yaml
from floodmark.producers.metrics import Metrics, PrometheusExporter
from floodmark.schemas.records import Holder
from floodmark.schemas.tracker import Hold
from monitoring.prometheus_programs import served
from prometheus_client import CollectorRegistry, start_http_server
from support.harness import until

FOLDER = Path(__file__).parents[2] / "docker" / "prometheus"


class Served(PrometheusExporter):
    """An exporter that is served on loopback until it is closed."""

    def __init__(self):
        super().__init__(CollectorRegistry())
        self._server, self._thread = start_http_server(0, addr="127.0.0.1", registry=self.registry)
        self.address = f"127.0.0.1:{self._server.server_port}"

    def close(self):
        if self._thread.is_alive():
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


@pytest.fixture
def exporter():
    served_one = Served()
    yield served_one
    served_one.close()


@pytest.fixture
def prometheus(exporter, tmp_path):
    """Give a Prometheus with the project's own configuration and alerts, only more often and for other addresses."""
    settings = yaml.safe_load((FOLDER / "prometheus.yaml").read_text(encoding="utf-8"))
    settings["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    targets = [{"targets": [exporter.address]}]
    (tmp_path / "targets.yaml").write_text(yaml.safe_dump(targets), encoding="utf-8")
    (tmp_path / "alerts.yaml").write_text((FOLDER / "alerts.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    with served(tmp_path / "prometheus.yaml", tmp_path / "data") as server:
        yield server


def rule(name):
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    (found,) = (one for group in groups for one in group["rules"] if one["alert"] == name)
    return found["expr"]


def whose(found):
    return {labels.get("name") for labels, _ in found}


def test_alerts_see_what_a_scrape_brings(exporter, prometheus):
    now = time.time_ns() // 1_000_000
    well = Metrics("source", "web", topic="clicks", state="active", watermark=now, late_events=0)
    stuck = Metrics("job", "counts", topic="counts", state="active", watermark=now - 3_600_000, late_events=0)
    held = [Hold(Holder("clicks", 0, "web-2"), now - 3_600_000, "lowest watermark", since=now - 3_600_000)]
    exporter.update(well)
    exporter.update(stuck, held)

    def shown(expression):  # a slow scrape takes all of an exporter away until the next one
        return whose(prometheus.value(expression))

    until(lambda: shown("floodmark_late_events_total") == {"web", "counts"}, "the first scrape")
    until(lambda: shown("floodmark_watermark_timestamp_seconds") == {"web", "counts"}, "the watermarks")
    until(lambda: shown(rule("FloodmarkWatermarkStalled")) == {"counts"}, "the one that stands still")
    place = '{input_topic="clicks", partition="0", source="web-2"}'
    until(lambda: shown("floodmark_holder_since_timestamp_seconds" + place) == {"counts"}, "who holds it")
    until(lambda: len(prometheus.value("floodmark_holder_since_timestamp_seconds")) == 1, "nobody else")
    assert prometheus.value(rule("FloodmarkLateEvents")) == []

    exporter.update(Metrics("job", "late", topic="counts", late_events=4))  # the first that is seen of it
    until(lambda: whose(prometheus.value(rule("FloodmarkLateEvents"))) == {"late"}, "the alert")
    until(
        lambda: (
            {one["labels"]["alertname"] for one in (prometheus.get("/api/v1/alerts") or {"alerts": ()})["alerts"]}
            >= {"FloodmarkLateEvents", "FloodmarkWatermarkStalled"}
        ),
        "the alerts",
    )
    until(lambda: prometheus.value('up{job="floodmark"} == 1'), "the exporter, which is up")
    until(lambda: prometheus.value(rule("FloodmarkExporterAbsent")) == [], "the exporter, which shows somebody")


def test_a_process_that_is_gone_is_seen(exporter, prometheus):
    until(lambda: prometheus.value("up == 1"), "the first scrape")
    until(lambda: prometheus.value(rule("FloodmarkExporterDown")) == [], "an exporter that is up")
    until(lambda: prometheus.value(rule("FloodmarkExporterAbsent")), "one that shows nobody yet")
    exporter.update(Metrics("job", "counts"))
    until(lambda: prometheus.value(rule("FloodmarkExporterAbsent")) == [], "the first report")
    exporter.close()
    until(lambda: prometheus.value(rule("FloodmarkExporterDown")), "the alert")
    until(lambda: prometheus.value(rule("FloodmarkExporterAbsent")), "that it is forgotten with its process")
