"""What Prometheus is shown of `Metrics`: names, types and labels by its conventions, with a meaning each.

Counters end in ``_total`` and begin at 0 with each start of an instance, so that ``rate`` and ``increase`` are right
over restarts.  Times are seconds, moments Unix time; rules take a delay as ``time() - moment``, which goes on growing
while nobody reports.  What is unknown, or not measured by a kind, is absent.
"""

from dataclasses import dataclass
from typing import Final, Literal

LABELS: Final = ("kind", "name", "topic")
"""Of every metric: who, and the topic that it writes to (empty: none)."""


@dataclass(frozen=True, slots=True)
class Exported:
    """One metric of Prometheus."""

    name: str
    type: Literal["counter", "gauge"]
    meaning: str
    fields: dict[str, str]
    """Where its values stand in `Metrics`, and the value of the label for each."""
    label: str | None = None
    """A label beside `LABELS`."""
    scale: float = 1.0


def _counter(name: str, meaning: str, field: str) -> Exported:
    return Exported(f"floodmark_{name}_total", "counter", meaning, {field: ""})


def _gauge(name: str, meaning: str, field: str, scale: float = 1.0) -> Exported:
    return Exported(f"floodmark_{name}", "gauge", meaning, {field: ""}, scale=scale)


METRICS: Final = (
    _counter("records", "Records read or written.", "records"),
    _counter(
        "late_events",
        "Events too late: for a source behind its own promise, for a job behind its watermark, for an injector behind "
        "their arrival by more than the late tolerance.",
        "late_events",
    ),
    _counter(
        "early_events", "Events ahead of their arrival by more than the early tolerance; dropped.", "early_events"
    ),
    _counter(
        "out_of_order_events",
        "Events behind the watermark, within the late tolerance; adjusted or dropped.",
        "out_of_order_events",
    ),
    _counter("dropped_events", "Events dropped for their time.", "dropped"),
    Exported(
        "floodmark_unusable_records_total",
        "counter",
        "Records whose value, event time or mark cannot be used; a job skips them, an injector passes them on.",
        {
            "unreadable": "unreadable",
            "missing_event_time": "missing_event_time",
            "out_of_range": "out_of_range",
            "unreadable_marks": "unreadable_mark",
        },
        label="reason",
    ),
    _counter("lost_rows", "Rows that marks have counted and that are not there.", "lost"),
    _counter("surplus_rows", "Rows that no mark has counted.", "surplus"),
    _counter("fenced_marks", "Marks of older epochs or memberships: zombies.", "fenced"),
    _gauge(
        "failed_records", "Records not delivered, nor sent again since; the watermark is held below them.", "failed"
    ),
    _gauge("watermark_timestamp_seconds", "The watermark, Unix time; absent: unknown.", "watermark", 1e-3),
    _gauge(
        "processing_time_delay_seconds",
        "Age of the oldest work that may not be done, over all stages up to here, at the last report; 0: none.",
        "processing_time_delay_seconds",
    ),
)
"""Those with values of `Metrics`."""

STATE: Final = Exported("floodmark_state", "gauge", "1 for the state that it is in, 0 for the others.", {}, "state")
UPDATED: Final = Exported("floodmark_updated_timestamp_seconds", "gauge", "When it last reported, Unix time.", {})
HOLDERS: Final = Exported(
    "floodmark_holders", "gauge", "How many places hold its watermark; absent: it was not asked.", {}
)
HOLDER_LABELS: Final = ("input_topic", "partition", "source", "state")
HELD: Final = Exported(
    "floodmark_holder_since_timestamp_seconds",
    "gauge",
    "Since when a place holds its watermark, Unix time; NaN: not known. The first 20 places.",
    {},
)

ALL: Final = (*METRICS, STATE, UPDATED, HOLDERS, HELD)


def labels_of(metric: Exported) -> tuple[str, ...]:
    """Return the names of a metric's labels.

    >>> labels_of(STATE)
    ('kind', 'name', 'topic', 'state')
    """
    if metric is HELD:
        return (*LABELS, *HOLDER_LABELS)
    return LABELS if metric.label is None else (*LABELS, metric.label)
