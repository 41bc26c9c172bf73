"""What is measured of time handling, as plain values, and for Prometheus.

The names and meanings follow Azure Stream Analytics' metrics (late, early and out-of-order input events, watermark
delay); the README says what each is likely to be caused by.  `Metrics` is plain; `PrometheusExporter` needs the extra
``floodmark[metrics]``.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

from floodmark.schemas.errors import UsageError

MEANINGS: Final = {
    "records": "Records read.",
    "late_events": "Events behind their arrival by more than the late tolerance; adjusted or dropped.",
    "early_events": "Events ahead of their arrival by more than the early tolerance; dropped.",
    "out_of_order_events": "Events behind the watermark, within the late tolerance; adjusted or dropped.",
    "unreadable": "Records without a readable event time; passed on, or skipped by a job.",
    "dropped": "Events dropped for their time.",
    "failed": "Records that were not delivered, nor sent again since; the watermark is held below them.",
    "lost": "Rows that marks have counted and that are not there.",
    "surplus": "Rows that no mark has counted.",
    "fenced": "Marks of older epochs or memberships: zombies.",
    "watermark_delay_seconds": "Wall clock less the watermark; -1: the watermark is unknown.",
    "processing_time_delay_seconds": "Age of the oldest record that is not yet acknowledged; 0: there is none.",
}


@dataclass(frozen=True, slots=True)
class Metrics:
    """The counters of a source, an injection or a job since it began, and its delays now.

    >>> Metrics("job", "clicks", late_events=2).as_dict()["late_events"]
    2
    """

    kind: str
    """``source``, ``injector`` or ``job``."""
    name: str
    records: int = 0
    late_events: int = 0
    early_events: int = 0
    out_of_order_events: int = 0
    unreadable: int = 0
    dropped: int = 0
    failed: int = 0
    lost: int = 0
    surplus: int = 0
    fenced: int = 0
    watermark_delay_seconds: float = -1.0
    processing_time_delay_seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return it as a plain value."""
        return asdict(self)


def delay(now: int, watermark: int | None) -> float:
    """Return how far a watermark is behind the clock, seconds; -1 where it is unknown, 0 where it is ahead.

    >>> delay(5_000, 3_500), delay(5_000, None)
    (1.5, -1.0)
    """
    return -1.0 if watermark is None else max(0.0, (now - watermark) / 1_000)


class PrometheusExporter:
    """Gauges named ``floodmark_<metric>`` with the labels ``kind`` and ``name``.

    Args:
        registry: of prometheus-client; default: its global one.

    Raises:
        UsageError: where prometheus-client is not installed.
    """

    def __init__(self, registry: Any = None) -> None:  # noqa: ANN401  # of an extra
        """Register them."""
        try:
            from prometheus_client import REGISTRY, Gauge  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise UsageError(reason="metrics need prometheus-client: pip install 'floodmark[metrics]'") from error
        self.registry = registry or REGISTRY
        self._gauges = {
            name: Gauge(f"floodmark_{name}", meaning, ["kind", "name"], registry=self.registry)
            for name, meaning in MEANINGS.items()
        }

    def update(self, metrics: Metrics) -> None:
        """Show new values."""
        values = metrics.as_dict()
        for name, gauge in self._gauges.items():
            gauge.labels(kind=metrics.kind, name=metrics.name).set(values[name])


def serve_metrics(port: int, registry: Any = None) -> PrometheusExporter:  # noqa: ANN401  # of an extra
    """Serve Prometheus metrics on the loopback address.

    Args:
        port: where.
        registry: see `PrometheusExporter`.

    Raises:
        UsageError: where prometheus-client is not installed or the port is taken.
    """
    exporter = PrometheusExporter(registry)
    from prometheus_client import start_http_server  # noqa: PLC0415  # an extra

    try:
        start_http_server(port, addr="127.0.0.1", registry=exporter.registry)
    except OSError as error:
        raise UsageError(reason=f"metrics cannot be served on port {port}: {error}; choose another") from error
    return exporter
