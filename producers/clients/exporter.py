"""Metrics for Prometheus: needs the extra ``floodmark[metrics]``, and opens a port where it serves them itself."""

import math
from typing import Any

from floodmark.producers.clients.metrics import MEANINGS, Metrics
from floodmark.schemas.errors import UsageError


class PrometheusExporter:
    """Gauges named ``floodmark_<metric>`` with the labels ``kind`` and ``name``.

    Args:
        registry: of prometheus-client; default: its global one.

    Raises:
        UsageError: where prometheus-client is not installed.
    """

    def __init__(self, registry: Any = None) -> None:  # noqa: ANN401  # of an extra
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
        """Show new values; NaN where one is unknown."""
        values = metrics.as_dict()
        for name, gauge in self._gauges.items():
            value = math.nan if values[name] is None else values[name]
            gauge.labels(kind=metrics.kind, name=metrics.name).set(value)


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
