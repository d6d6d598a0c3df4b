"""A sweep on a running cluster: slow links step by step, and measure each step.

It belongs to the client that reads it: when that leaves, the links are as they were.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from msgspec.structs import replace

from backends.bench.results import DISTURBED_CORES, BusyTime
from backends.controller.chat_api import QuestionQueue, require_serving
from backends.controller.cluster import Cluster
from backends.controller.preparation import Preparations
from backends.controller.race import TOO_SHORT
from backends.errors import ControllerError, ProcessFailed
from backends.places import LOCAL
from backends.state import (
    ChatDelta,
    ChatMessage,
    ChatRequest,
    ChatTimings,
    Lab,
    Plan,
    Sampling,
)
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
            answers = _Answers(cluster, generation)
            for at, labs in enumerate(networks):
                sweep = replace(sweep, measuring=at)
                yield sweep
                answers.require_same()
                for worker in workers:
                    await cluster.links.set_lab(worker, labs[worker])
                point = await answers.measure(sweep.points[at], asked.tokens)
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


class _Answers:
    def __init__(self, cluster: Cluster, generation: int) -> None:
        self._cluster = cluster
        self._generation = generation
        self._queue = QuestionQueue()

    async def measure(self, point: SweepPoint, tokens: int) -> SweepPoint:
        """The point with the speed of an answer under the present lab."""
        await self._answer(WARM_UP_TOKENS)
        limit = min(int(point.predicted_tok_per_s * ANSWER_S), tokens)
        snapshot = self._cluster.store.snapshot
        pids = [p.pid for p in snapshot.processes if p.pid and p.peer == LOCAL]
        busy, began = BusyTime(pids), time.monotonic()
        timings, others = await self._answer(max(limit, TOKENS_MIN))
        others |= busy.other_cores(time.monotonic() - began) > DISTURBED_CORES
        return replace(
            point,
            tok_per_s=timings.tok_per_s,
            tokens=timings.tokens,
            disturbed=others,
        )

    async def _answer(self, tokens: int) -> tuple[ChatTimings, bool]:
        """The timings of an answer, and whether others asked meanwhile."""
        request = ChatRequest(
            messages=(ChatMessage(role="user", content=PROMPT),),
            sampling=Sampling(temperature=0.0, seed=1, max_tokens=tokens),
        )
        last, others = ChatDelta(), False
        async with aclosing(self._queue.answer(self._cluster, request)) as deltas:
            async for delta in deltas:
                self.require_same()
                if delta.failure is not None:
                    raise ProcessFailed(delta.failure)
                others |= self._cluster.store.snapshot.speed.requests_active > 1
                last = delta
        if last.timings is None or not last.timings.tok_per_s:
            if last.done:
                raise ControllerError(TOO_SHORT, "Try another model.")
            raise ControllerError("The answer was cut off", "See dllm-tui status.")
        return last.timings, others

    def require_same(self) -> None:
        if self._cluster.goal.generation != self._generation:
            raise ControllerError(
                "The sweep ended: somebody launched or stopped the cluster",
                "That holds; sweep again when it serves.",
            )
