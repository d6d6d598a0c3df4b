"""``/metrics`` of a gateway: what it counts, and llama-server's own figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from backends.gateway.proxy import Proxy
    from backends.state.snapshots import RequestCounts

METRICS = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GAUGES = ("waiting", "in_flight", "fragile")
TOTALS = ("passed", "failed", "left", "refused", "held", "replayed", "continued")
KEY_TOTALS = ("requests", "limited")


def families(counts: RequestCounts) -> Iterator[Metric]:
    """What a gateway counts, as Prometheus has it."""
    # Imported here because a gateway that is never asked needs it not.
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name in GAUGES:
        words = f"Requests to the API now: {name.replace('_', ' ')}"
        yield GaugeMetricFamily(f"dllm_requests_{name}", words, getattr(counts, name))
    for name in TOTALS:
        words = f"Requests to the API since its gateway began: {name}"
        yield CounterMetricFamily(f"dllm_requests_{name}", words, getattr(counts, name))
    now = GaugeMetricFamily(
        "dllm_key_in_flight", "Requests with one key now", labels=["key"]
    )
    for key, of_key in counts.keys.items():
        now.add_metric([key], of_key.in_flight)
    yield now
    for name in KEY_TOTALS:
        words = f"Requests with one key since the gateway began: {name}"
        total = CounterMetricFamily(f"dllm_key_{name}", words, labels=["key"])
        for key, of_key in counts.keys.items():
            total.add_metric([key], getattr(of_key, name))
        yield total


async def metrics(proxy: Proxy, request: web.BaseRequest) -> web.Response:
    """Both; without a llama-server what the gateway counts alone."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Figures(Collector):
        def collect(self) -> Iterator[Metric]:
            return families(proxy.counts)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures())
    body = await proxy.peek(METRICS) + generate_latest(registry)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
