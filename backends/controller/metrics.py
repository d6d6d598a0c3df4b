"""The snapshot as Prometheus text, for scrapers of the controller's socket."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from backends.gateway.counters import families
from backends.state import ClusterSnapshot, ClusterState

LINK_FIGURES = {
    "generation.tokens_per_pass": 1.0,
    "generation.trips_per_pass": 1.0,
    "generation.bytes_up_per_pass": 1.0,
    "generation.bytes_down_per_pass": 1.0,
    "round_trips_per_token": 1.0,
    "bytes_up_per_token": 1.0,
    "bytes_down_per_token": 1.0,
    "rtt_ms": 1e-3,
    "head_ms_per_token": 1e-3,
    "up_ms_per_token": 1e-3,
    "compute_ms_per_token": 1e-3,
    "down_ms_per_token": 1e-3,
    "wait_ms_per_token": 1e-3,
}
"""Fields of a link, and the factor to Prometheus' base units."""
LINK_TOTALS = ("passes", "tokens", "trips")
LINK_BYTES = {
    "bytes_up": "llama-server said to the worker",
    "bytes_down": "the worker said to llama-server",
    "wire_bytes_up": "crossed for that between a pair of relays",
    "wire_bytes_down": "crossed for that between a pair of relays",
    "weight_bytes_home": "of weights the worker's relay took from its own disk",
    "weight_bytes_sent": "of weights crossed between a pair of relays",
}
"""Fields of a link, and what these bytes are."""
DRAFT_TOTALS = ("drafted", "accepted", "passes")
COMMAND_FIGURES = (
    *("count", "bytes_up", "bytes_down", "wire_bytes_up", "wire_bytes_down"),
    *("answered", "errors"),
)


def prometheus_text(snapshot: ClusterSnapshot) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(snapshot))
    return generate_latest(registry).decode()


class _Figures(Collector):
    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        now = self._snapshot
        serving = float(now.state is ClusterState.SERVING)
        yield GaugeMetricFamily("dllm_serving", "1 while a model serves", serving)
        drained = float(now.drained_since is not None)
        words = "1 while requests wait because somebody said so"
        yield GaugeMetricFamily("dllm_drained", words, drained)
        rate = now.speed.tok_per_s or 0.0
        yield GaugeMetricFamily("dllm_tokens_per_second", "Generated now", rate)
        memory = GaugeMetricFamily(
            "dllm_process_memory_bytes", "Resident memory", labels=["process"]
        )
        for process in now.processes:
            memory.add_metric([process.name], process.rss_bytes or 0)
        yield memory
        yield from self._drafts()
        if now.requests is not None:
            yield from families(now.requests)
        yield from map(self._link, LINK_FIGURES)
        yield from map(self._total, LINK_TOTALS)
        yield self._how("mode", "is met")
        yield self._how("way", "leads to its worker")
        yield from map(self._bytes, LINK_BYTES)
        yield from map(self._command, COMMAND_FIGURES)

    def _drafts(self) -> Iterator[Metric]:
        counts = self._snapshot.speed.acceptance
        for name in DRAFT_TOTALS if counts else ():
            words = f"Of a draft, since llama-server started: {name}"
            yield CounterMetricFamily(
                f"dllm_draft_{name}", words, getattr(counts, name)
            )

    def _link(self, field: str) -> Metric:
        figure = field.rpartition(".")[2]
        words = figure.replace("_ms", "").replace("_", " ")
        name = f"dllm_link_{figure.replace('_ms', '_seconds')}"
        family = GaugeMetricFamily(name, f"Of one link: {words}", labels=["worker"])
        for link in self._snapshot.links:
            value = attrgetter(field)(link)
            if value is not None:
                family.add_metric([link.worker], value * LINK_FIGURES[field])
        return family

    def _total(self, figure: str) -> Metric:
        family = CounterMetricFamily(
            f"dllm_link_{figure}",
            f"Of one link, generated since the controller follows it: {figure}",
            labels=["worker"],
        )
        for link in self._snapshot.links:
            family.add_metric([link.worker], getattr(link.generation, figure))
        return family

    def _how(self, field: str, words: str) -> Metric:
        family = GaugeMetricFamily(
            f"dllm_link_{field}", f"1 for how a link {words}", labels=["worker", field]
        )
        for link in self._snapshot.links:
            if value := getattr(link, field):
                family.add_metric([link.worker, value], 1)
        return family

    def _bytes(self, field: str) -> Metric:
        words = f"Of one link, bytes that {LINK_BYTES[field]}"
        family = CounterMetricFamily(f"dllm_link_{field}", words, labels=["worker"])
        for link in self._snapshot.links:
            if (value := getattr(link, field)) is not None:
                family.add_metric([link.worker], value)
        return family

    def _command(self, figure: str) -> Metric:
        family = CounterMetricFamily(
            f"dllm_command_{figure}",
            f"Of one RPC command on one link: {figure.replace('_', ' ')}",
            labels=["worker", "command"],
        )
        for link in self._snapshot.links:
            for name, command in link.commands.items():
                if (value := getattr(command, figure)) is not None:
                    family.add_metric([link.worker, name], value)
        return family
