"""A sweep on a running cluster: slow links step by step, and measure each step.

It belongs to the client that reads it: when that leaves, the links are as they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from msgspec.structs import replace

from backends.controller.chat_api import require_serving
from backends.controller.cluster import Cluster
from backends.controller.measured_answers import MeasuredAnswers
from backends.controller.preparation import Preparations
from backends.errors import ControllerError, ProcessFailed
from backends.state import ChatTimings, Lab, Plan
from backends.state.sweeps import Sweep, SweepPoint, SweepRequest

PROMPT = "Tell a long story about a river, a mill and a fox."
ANSWER_S = 6.0
"""The answer of a slow step is cut to take about so long."""
TOKENS_MIN = 8
WARM_UP_TOKENS = 4


async def swept(
    cluster: Cluster, preparations: Preparations, asked: SweepRequest
) -> AsyncGenerator[Sweep, None]:
    """Sweep the latency of links; closing the generator puts the lab back.

    Raises:
        UsageError: there is no such link.
        ControllerError: nothing serves, or the cluster was launched or stopped.
    """
    require_serving(cluster.store.snapshot)
    workers = cluster.links.named(asked.worker)
    plan = cluster.pursued
    assert plan is not None
    with cluster.comparing("sweep"):
        before = cluster.baseline
        generation = cluster.goal.generation
        networks = [_network(before.labs, workers, ms) for ms in asked.latencies_ms]
        sweep = await _predicted(cluster, preparations, asked, plan, networks, workers)
        cluster.begin_comparison(before)
        try:
            steps = _Steps(cluster, generation)
            for at, labs in enumerate(networks):
                sweep = replace(sweep, measuring=at)
                yield sweep
                steps.require_same()
                for worker in workers:
                    await cluster.links.set_lab(worker, labs[worker])
                point = await steps.measure(sweep.points[at], asked.tokens)
                points = (*sweep.points[:at], point, *sweep.points[at + 1 :])
                sweep = replace(sweep, points=points)
        finally:
            await asyncio.shield(cluster.end_comparison(before, generation))
        yield replace(sweep, measuring=None)


def _network(
    labs: Mapping[str, Lab | None], workers: tuple[str, ...], latency_ms: float
) -> dict[str, Lab | None]:
    # Jitter and rate stay.
    slower = {
        name: replace(labs.get(name) or Lab(), latency_ms=latency_ms)
        for name in workers
    }
    return {**labs, **slower}


async def _predicted(
    cluster: Cluster,
    preparations: Preparations,
    asked: SweepRequest,
    plan: Plan,
    networks: list[dict[str, Lab | None]],
    workers: tuple[str, ...],
) -> Sweep:
    # Before the controller learns from what is measured.
    told = await preparations.forecasts(cluster, plan, networks, asked.tokens)
    points = tuple(
        SweepPoint(
            latency_ms=latency_ms,
            predicted_tok_per_s=one.tok_per_s,
            low=one.low,
            high=one.high,
        )
        for latency_ms, one in zip(asked.latencies_ms, told, strict=True)
    )
    return Sweep(model=plan.model, workers=workers, points=points)


class _Steps:
    def __init__(self, cluster: Cluster, generation: int) -> None:
        self._cluster = cluster
        self._generation = generation
        self._answers = MeasuredAnswers(cluster)

    async def measure(self, point: SweepPoint, tokens: int) -> SweepPoint:
        """The point with the speed of an answer under the present lab."""
        await self._answer(WARM_UP_TOKENS)
        limit = min(int(point.predicted_tok_per_s * ANSWER_S), tokens)
        timings = await self._answer(max(limit, TOKENS_MIN))
        return replace(
            point,
            tok_per_s=timings.tok_per_s,
            tokens=timings.tokens,
            disturbed=self._answers.disturbed,
        )

    async def _answer(self, tokens: int) -> ChatTimings:
        async with aclosing(self._answers.ask(PROMPT, tokens)) as deltas:
            try:
                async for _ in deltas:
                    self.require_same()
            except ProcessFailed:
                # It may have ended because somebody launched another plan.
                self.require_same()
                raise
        return self._answers.timings("Try another model.")

    def require_same(self) -> None:
        if self._cluster.goal.generation != self._generation:
            raise ControllerError(
                "The sweep ended: somebody launched or stopped the cluster",
                "That holds; sweep again when it serves.",
            )
