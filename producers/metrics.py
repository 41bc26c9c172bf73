"""The metrics of time handling, as plain values and for Prometheus, which needs ``floodmark[metrics]``.

Counters start at 0 with each start of an instance, so that ``rate`` and ``increase`` are right over restarts.  Times
are seconds, moments Unix time.  Unknown values are absent.  The page METRICS.md has the meanings and likely causes.
"""

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal, get_args

from floodmark.producers.clients.clock import Clock
from floodmark.schemas.errors import UsageError
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.schemas.tracker import Hold

State = Literal["active", "idle", "ended", "unknown"]
"""Of an instance: its watermark counts, readers need not wait for it, it has finished, or it has no watermark."""

STATES: Final[tuple[State, ...]] = get_args(State)
LABELS: Final = ("kind", "name", "topic")  # of every metric; ``topic`` is the output topic, empty if there is none


@dataclass(frozen=True, slots=True)
class Metrics:
    """The counters of a source, an injector or a job since it started, and its current state; ``None``: it has none."""

    kind: str
    """``source``, ``injector``, ``job`` or ``trigger``."""
    name: str
    records: int = 0
    late_events: int | None = None
    early_events: int | None = None
    out_of_order_events: int | None = None
    unreadable: int | None = None
    dropped: int | None = None
    failed: int | None = None
    """Decreases when records are sent again."""
    lost: int | None = None
    surplus: int | None = None
    fenced: int | None = None
    watermark_delay_seconds: float | None = None
    """Clock minus watermark; below 0: the watermark is ahead of the clock; ``None``: unknown, or all has ended."""
    local_lag_seconds: float | None = None
    """Of a job: the watermark of what it has read, minus its output watermark; ``None``: unknown, or all has ended."""
    processing_time_delay_seconds: float | None = None
    """Age of the oldest unfinished work (source: unacknowledged record) up to this stage; 0: none; ``None``: unknown"""
    missing_event_time: int | None = None
    out_of_range: int | None = None
    unreadable_marks: int | None = None
    waiting_shards: int | None = None
    """Of a job whose executors write: the shards of the running batch that are not committed yet; 0: none."""
    topic: str | None = None
    """Output topic; ``None``: none."""
    watermark: int | None = None
    """Epoch milliseconds; ``None``: unknown."""
    state: State = "unknown"
    epoch: int = 0
    """Higher at each start of the instance."""
    before: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Counts of earlier starts, by the name of the counter."""


def delay(now: int, watermark: int | None) -> float | None:
    """Return how many seconds a watermark is behind the clock (epoch milliseconds); ``None``: unknown, or the end."""
    return None if watermark is None or watermark == END_OF_TIME else (now - watermark) / 1_000


def age(now: int, since: int | None) -> float | None:
    """Return the age of the oldest unfinished work, seconds, at least 0; ``None``: unknown.

    >>> age(5_000, 3_500), age(5_000, 6_000)
    (1.5, 0.0)
    """
    return None if since is None else max(0.0, (now - since) / 1_000)


def state_of(watermark: int | None, *, idle: bool = False, ended: bool = False) -> State:
    """Return the state of an instance.

    >>> state_of(None), state_of(5), state_of(None, idle=True), state_of(5, ended=True)
    ('unknown', 'active', 'idle', 'ended')
    """
    if ended:
        return "ended"
    if idle:
        return "idle"
    return "unknown" if watermark is None else "active"


@dataclass(frozen=True, slots=True)
class Exported:
    """One metric of Prometheus."""

    name: str
    type: Literal["counter", "gauge"]
    meaning: str
    fields: dict[str, str]  # the fields of `Metrics` with its values, and the value of the further label for each
    further: tuple[str, ...] = ()  # the labels beside `LABELS`
    scale: float = 1.0


def _counter(name: str, meaning: str, field: str = "") -> Exported:
    return Exported(f"floodmark_{name}_total", "counter", meaning, {field or name: ""})


def _gauge(name: str, meaning: str, field: str = "", scale: float = 1.0) -> Exported:
    return Exported(f"floodmark_{name}", "gauge", meaning, {field or name: ""}, scale=scale)


METRICS: Final = (
    _counter("records", "Records read or written."),
    _counter(
        "late_events",
        "Late events: of a source, behind its own watermark; of a job, behind its input watermark; of an injector, "
        "over its late tolerance.",
    ),
    _counter("early_events", "Events ahead of their arrival by more than the early tolerance; dropped."),
    _counter("out_of_order_events", "Events behind the watermark, within the late tolerance; adjusted or dropped."),
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
        ("reason",),
    ),
    _counter("lost_rows", "Rows that marks have counted but readers did not find.", "lost"),
    _counter("surplus_rows", "Rows that no mark has counted.", "surplus"),
    _counter("fenced_marks", "Marks of older epochs or memberships: zombies.", "fenced"),
    _gauge(
        "failed_records", "Records not delivered, nor sent again since; the watermark is held below them.", "failed"
    ),
    _gauge("watermark_timestamp_seconds", "The watermark, Unix time; absent: unknown.", "watermark", 1e-3),
    _gauge(
        "local_lag_seconds",
        "Watermark of what a job has read minus its output watermark, at the last report; absent: unknown.",
        "local_lag_seconds",
    ),
    _gauge(
        "processing_time_delay_seconds",
        "Age of the oldest work that may be unfinished, over all stages up to this one, at the last report; 0: none.",
    ),
    _gauge("waiting_shards", "Shards of the job's batch that the executors have not committed yet."),
)
"""Those with values of `Metrics`."""

_STATE: Final = Exported("floodmark_state", "gauge", "1 for the current state, 0 for the others.", {}, ("state",))
_UPDATED: Final = Exported("floodmark_updated_timestamp_seconds", "gauge", "When it last reported, Unix time.", {})
_HOLDERS: Final = Exported(
    "floodmark_holders", "gauge", "Number of sources and partitions that hold the watermark; absent: unknown.", {}
)
_HOLDER_SINCE: Final = Exported(
    "floodmark_holder_since_timestamp_seconds",
    "gauge",
    "Since when a place holds its watermark, Unix time; NaN: not known. The first 20 places.",
    {},
    ("input_topic", "partition", "source", "state"),
)
ALL: Final = (*METRICS, _STATE, _UPDATED, _HOLDERS, _HOLDER_SINCE)

Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class _Report:
    """The last report of one instance."""

    metrics: Metrics
    counted: dict[str, int]
    holders: Sequence[Hold] | None
    at: float

    @property
    def labels(self) -> tuple[str, str, str]:
        return self.metrics.kind, self.metrics.name, self.metrics.topic or ""

    def samples(self, metric: Exported) -> Iterator[Sample]:
        """Yield the values of one metric with their further labels; nothing if unknown."""
        if metric is _STATE:
            yield from (((state,), float(self.metrics.state == state)) for state in STATES)
        elif metric is _UPDATED:
            yield (), self.at
        elif metric is _HOLDERS:
            yield from [] if self.holders is None else [((), len(self.holders))]
        elif metric is _HOLDER_SINCE:
            yield from self._holder_times().items()
        for name, label in metric.fields.items():
            value = self.counted.get(name) if metric.type == "counter" else getattr(self.metrics, name)
            if value is not None:
                yield (label,) if metric.further else (), value * metric.scale

    def _holder_times(self) -> dict[tuple[str, ...], float]:
        found: dict[tuple[str, ...], float] = {}  # a source may hold for two reasons: only the first counts
        for hold in islice(self.holders or (), 20):  # each is a time series
            place = hold.holder
            state = "unknown" if hold.watermark is None else "idle" if place.partition is None else "active"
            partition = "" if place.partition is None else str(place.partition)
            since = math.nan if hold.since is None else hold.since / 1_000
            found.setdefault((place.topic, partition, place.source or "", state), since)
        return found


class PrometheusExporter:
    """A collector of prometheus-client: `METRICS`, of every instance that has reported.

    ``registry``: of prometheus-client, without another exporter; default: its global one.  `UsageError` if it has one,
    or prometheus-client is not installed.
    """

    def __init__(self, registry: Any = None) -> None:  # noqa: ANN401  # of an extra
        try:
            from prometheus_client import REGISTRY, core  # noqa: PLC0415  # an extra
        except ImportError as error:
            reason = "metrics need prometheus-client: pip install '.[metrics]' in the checkout"
            raise UsageError(reason=reason) from error
        self._families = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
        self._reports: dict[tuple[str, str, str], _Report] = {}
        self._lock = threading.Lock()
        self.registry = registry or REGISTRY
        try:
            self.registry.register(self)
        except ValueError as error:
            reason = "this registry has an exporter already, of an earlier call: use that one, or pass another registry"
            raise UsageError(reason=reason) from error

    def update(self, metrics: Metrics, holders: Iterable[Hold] | None = None) -> None:
        """Set the values of an instance, and the holders of its watermark (see `Job.holders`; ``None``: unknown).

        A counter starts at 0 in each epoch of an instance, and never decreases in it.  Older epochs are ignored.
        """
        counted = {
            field: max(0, value - metrics.before.get(field, 0))
            for metric in METRICS
            if metric.type == "counter"
            for field in metric.fields
            if (value := getattr(metrics, field)) is not None
        }
        new = _Report(metrics, counted, None if holders is None else tuple(holders), Clock().wall() / 1_000)
        with self._lock:
            old = self._reports.get(new.labels)
            if old is not None and old.metrics.epoch == metrics.epoch:
                counted.update({field: max(value, counted.get(field, 0)) for field, value in old.counted.items()})
            if old is None or old.metrics.epoch <= metrics.epoch:
                self._reports[new.labels] = new

    def forget(self, metrics: Metrics) -> None:
        """Remove an instance that was stopped on purpose, so that it raises no alert."""
        with self._lock:
            self._reports.pop((metrics.kind, metrics.name, metrics.topic or ""), None)

    def _family(self, metric: Exported) -> Any:  # noqa: ANN401  # of an extra
        return self._families[metric.type](metric.name, metric.meaning, labels=(*LABELS, *metric.further))

    def describe(self) -> Iterable[Any]:
        """Return the metrics without values: a registry refuses two with one name."""
        return [self._family(metric) for metric in ALL]

    def collect(self) -> Iterable[Any]:
        """Return the metrics; the registry calls this at each scrape."""
        with self._lock:
            shown = list(self._reports.values())
        for metric in ALL:
            family = self._family(metric)
            for instance in shown:
                for further, value in instance.samples(metric):
                    family.add_metric((*instance.labels, *further), value)
            yield family


def serve_metrics(port: int | str, registry: Any = None) -> PrometheusExporter:  # noqa: ANN401  # of an extra
    """Serve Prometheus metrics on a port of the loopback address; `UsageError` if that is in use, or is no port.

    ``port``: a number, or an address and a number: ``"0.0.0.0:9108"``, for a Prometheus on another machine.
    """
    exporter = PrometheusExporter(registry)
    address, _, number = str(port).rpartition(":")
    from prometheus_client import start_http_server  # noqa: PLC0415  # an extra

    try:
        start_http_server(int(number), addr=address.strip("[]") or "127.0.0.1", registry=exporter.registry)
    except (OSError, OverflowError, ValueError) as error:
        exporter.registry.unregister(exporter)
        raise UsageError(reason=f"metrics cannot be served on port {port}: {error}; choose another") from error
    return exporter
