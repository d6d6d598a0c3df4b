"""Counts of requests, for the controller and for ``/metrics``."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from aiohttp import web
from msgspec.structs import replace

from backends.state.snapshots import KeyCounts, RequestCounts

if TYPE_CHECKING:
    from prometheus_client.core import Metric


Count = Literal[
    "waiting",
    "in_flight",
    "passed",
    "failed",
    "left",
    "refused",
    "replayed",
    "continued",
]
KEYS_MAX = 256
"""The counts of so many keys are told; those of a key used longer ago are forgotten."""
METRICS = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GAUGES = ("waiting", "in_flight", "fragile")
TOTALS = ("passed", "failed", "left", "refused", "held", "replayed", "continued")
KEY_TOTALS = ("requests", "limited")


class Counters:
    """The counts now, and when they change."""

    def __init__(self) -> None:
        self.counts = RequestCounts()
        self._changed = asyncio.Event()

    def add(self, name: Count, number: int = 1) -> None:
        self._set(**{name: getattr(self.counts, name) + number})

    def add_of_key(self, name: str, **more: int) -> None:
        keys = dict(self.counts.keys)
        before = keys.pop(name, KeyCounts())
        keys[name] = replace(
            before, **{what: getattr(before, what) + n for what, n in more.items()}
        )
        # The end of a request in flight is still to be counted.
        idle = next((key for key, counts in keys.items() if not counts.in_flight), None)
        if len(keys) > KEYS_MAX and idle is not None:
            del keys[idle]
        self._set(keys=keys)

    @contextmanager
    def during(self, name: Literal["waiting", "in_flight"]) -> Iterator[None]:
        if name == "waiting" and not self.counts.waiting:
            self._set(held_longest_s=0.0)
        self.add(name)
        try:
            yield
        finally:
            self.add(name, -1)

    def stir(self) -> None:
        """Have the counts told again, for what stands beside them has changed."""
        self._set()

    def went_on(self, waited_s: float, *, again: bool) -> None:
        """A request that was held goes on to llama-server, once more or at last."""
        longest_s = max(waited_s, self.counts.held_longest_s)
        self._set(held=self.counts.held + (not again), held_longest_s=longest_s)

    def paused(self, pause_s: float) -> None:
        """A stream that broke off goes on: its client saw it pause for so long."""
        self._set(held_longest_s=max(pause_s, self.counts.held_longest_s))

    def _set(self, **changes: Any) -> None:
        self.counts = replace(self.counts, **changes)
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    def change(self) -> Coroutine[Any, Any, object]:
        """Wait for the next change from now on, also where it is awaited later."""
        return self._changed.wait()


def families(counts: RequestCounts) -> Iterator[Metric]:
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


def metrics(counts: RequestCounts, of_server: bytes) -> web.Response:
    """Both; without a llama-server what the gateway counts alone."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Figures(Collector):
        def collect(self) -> Iterator[Metric]:
            return families(counts)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures())
    body = of_server + generate_latest(registry)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
