"""What Prometheus is shown: names and types by its conventions, counters right over restarts, nothing unknown."""

import math
import socket
from dataclasses import fields
from pathlib import Path

import pytest
from floodmark.producers.metrics import (
    ALL,
    METRICS,
    STATES,
    Metrics,
    PrometheusExporter,
    serve_metrics,
)
from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import Holder
from floodmark.schemas.tracker import Hold
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).parents[2].joinpath("producers", "METRICS.md").read_text(encoding="utf-8")
KEPT_AS_LABELS_OR_STATE = {"kind", "name", "topic", "state", "epoch", "before"}
IN_PYTHON_ALONE = {"watermark_delay_seconds"}  # Prometheus is shown the watermark itself, and takes it from its clock


@pytest.fixture
def exporter():
    return PrometheusExporter(CollectorRegistry())


def samples(exporter):
    """Return what a scrape sees: the value of each series, by its name and the values of its labels."""
    text = generate_latest(exporter.registry).decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(exporter, metric, /, **labels):
    return {
        tuple(dict(key[1:]).get(label) for label in labels): value
        for key, value in samples(exporter).items()
        if key[0] == metric and labels.items() <= dict(key[1:]).items()
    }


def value(exporter, metric, /, **labels):
    (one,) = of(exporter, metric, **labels).values()
    return one


def test_every_field_is_shown_or_is_a_label():
    shown = {field for metric in METRICS for field in metric.fields}
    assert {field.name for field in fields(Metrics)} == shown | KEPT_AS_LABELS_OR_STATE | IN_PYTHON_ALONE


def test_names_follow_the_conventions():
    for metric in ALL:
        assert metric.name.startswith("floodmark_")
        assert metric.name.endswith("_total") == (metric.type == "counter"), metric.name
        about_time = any(word in metric.name for word in ("timestamp", "delay", "lag"))
        assert metric.name.endswith("_seconds") == about_time, metric.name


def test_the_page_explains_what_a_scrape_shows(exporter):
    families = text_string_to_metric_families(generate_latest(exporter.registry).decode())
    scraped = {(f"{one.name}_total" if one.type == "counter" else one.name, one.type) for one in families}
    table = PAGE.split("\n## Metrics")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines() if row.startswith("| `flood")]
    assert {(name.strip("`"), kind) for name, kind, *_ in rows} == scraped
    own = {metric.name: metric for metric in ALL}
    for name, _, unit, labels, of_metrics, meaning in rows:
        metric = own[name.strip("`")]
        assert (unit == "seconds" or unit.startswith("Unix time")) == metric.name.endswith("_seconds"), name
        assert tuple(labels.replace("`", "").split(", ") if labels else ()) == metric.further, name
        for of_field, label in metric.fields.items():
            assert f"`{label or of_field}`" in of_metrics + meaning, label


def test_each_kind_of_state_is_one_series(exporter):
    exporter.update(Metrics("source", "web", state="idle"))
    states = {state: value(exporter, "floodmark_state", name="web", state=state) for state in STATES}
    assert states == {"active": 0, "idle": 1, "ended": 0, "unknown": 0}


def test_what_is_unknown_or_not_measured_is_absent(exporter):
    exporter.update(Metrics("job", "clicks", late_events=2, watermark=None))
    names = {key[0] for key in samples(exporter)}
    assert names == {
        "floodmark_records_total",
        "floodmark_late_events_total",
        "floodmark_state",
        "floodmark_updated_timestamp_seconds",
    }


def test_times_are_seconds(exporter):
    exporter.update(Metrics("job", "clicks", watermark=1_500, processing_time_delay_seconds=0.5))
    assert value(exporter, "floodmark_watermark_timestamp_seconds", name="clicks") == 1.5
    assert value(exporter, "floodmark_processing_time_delay_seconds", name="clicks") == 0.5


def test_reasons_are_a_label_and_add_up(exporter):
    exporter.update(Metrics("job", "clicks", unreadable=1, missing_event_time=2, out_of_range=3, unreadable_marks=4))
    found = of(exporter, "floodmark_unusable_records_total", name="clicks", reason="out_of_range")
    assert list(found.values()) == [3]
    reasons = {dict(key[1:])["reason"] for key in samples(exporter) if key[0] == "floodmark_unusable_records_total"}
    assert reasons == {"unreadable", "missing_event_time", "out_of_range", "unreadable_mark"}


def test_one_source_that_writes_to_two_topics_is_two(exporter):
    for topic, records in (("clicks", 3), ("views", 4)):
        exporter.update(Metrics("source", "web", records=records, topic=topic))
    assert value(exporter, "floodmark_records_total", topic="clicks") == 3
    assert value(exporter, "floodmark_records_total", topic="views") == 4


@st.composite
def lives(draw):
    """Make up the starts of one instance: what each had taken up, and what it had counted at each report."""
    durable = draw(st.booleans())  # a job goes on with what its checkpoint counted; a source begins at 0
    stored, made = 0, []
    for epoch in range(draw(st.integers(1, 4))):
        before = stored if durable else 0
        # A source takes back a record that Kafka's client refused; a batch that failed was counted, and is not stored.
        counts = draw(st.lists(st.integers(0, 20), min_size=1, max_size=6))
        made.append((epoch, before, [before + count for count in counts]))
        stored = draw(st.integers(before, before + max(counts)))
    return made


@given(lives())
def test_counters_rise_by_what_was_counted_whatever_restarts(made):
    """Law: `increase` over all scrapes, with Prometheus' rule of resets, is what the instances have counted."""
    exporter = PrometheusExporter(CollectorRegistry())
    last, increase, counted = 0, 0, 0
    for epoch, before, reports in made:
        for late in reports:
            exporter.update(Metrics("job", "a", late_events=late, epoch=epoch, before={"late_events": before}))
            shown = value(exporter, "floodmark_late_events_total", name="a")
            increase += shown - last if shown >= last else shown
            last = shown
        counted += max(reports) - before
    # Where an instance has counted more at its first report than the one before ever did, no reader sees the reset.
    assert increase <= counted
    assert last == max(made[-1][2]) - made[-1][1]


def test_a_count_that_goes_back_is_no_reset(exporter):
    for records in (100, 99, 99):
        exporter.update(Metrics("source", "web", records=records, epoch=1))
    assert value(exporter, "floodmark_records_total", name="web") == 100
    exporter.update(Metrics("source", "web", records=3, epoch=2))
    exporter.update(Metrics("source", "web", records=101, epoch=1))
    assert value(exporter, "floodmark_records_total", name="web") == 3, "a zombie is not shown"


def test_failed_records_go_down_when_they_are_sent_again(exporter):
    for failed in (2, 0):
        exporter.update(Metrics("source", "web", failed=failed))
    assert value(exporter, "floodmark_failed_records", name="web") == 0


def test_holders_are_named_each_once_and_not_too_many(exporter):
    holds = [
        Hold(Holder("clicks", 0, "web"), None, "unreadable mark", since=3_000),
        Hold(Holder("clicks", 0, "web"), None, "has promised nothing yet", since=4_000),
        Hold(Holder("clicks", 1, "web"), 5, "lowest watermark"),
        Hold(Holder("views"), 5, "all sources are idle"),
        *(Hold(Holder("clicks", number), None, "nobody has reported") for number in range(2, 40)),
    ]
    exporter.update(Metrics("job", "counts"), holds)
    assert value(exporter, "floodmark_holders", name="counts") == 42
    found = {
        (labels["input_topic"], labels["partition"], labels["source"], labels["state"]): since
        for (name, *pairs), since in samples(exporter).items()
        if name == "floodmark_holder_since_timestamp_seconds" and (labels := dict(pairs))
    }
    assert len(found) == 19, "20 holds, of which two are one place"
    assert found["clicks", "0", "web", "unknown"] == 3
    assert math.isnan(found["clicks", "1", "web", "active"])
    assert ("views", "", "", "idle") in found
    exporter.update(Metrics("job", "counts"), [])
    assert value(exporter, "floodmark_holders", name="counts") == 0
    assert not of(exporter, "floodmark_holder_since_timestamp_seconds", name="counts")


def test_one_that_was_stopped_on_purpose_is_forgotten(exporter):
    stopped, other = Metrics("job", "clicks"), Metrics("job", "views")
    for metrics in (stopped, other):
        exporter.update(metrics)
    exporter.forget(stopped)
    assert {dict(key[1:])["name"] for key in samples(exporter)} == {"views"}


def test_a_port_that_is_taken_leaves_no_trace():
    registry = CollectorRegistry()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="another"):
            serve_metrics(taken.getsockname()[1], registry)
    PrometheusExporter(registry).update(Metrics("source", "web"))
