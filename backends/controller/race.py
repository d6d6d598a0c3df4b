"""A race on one cluster: launch each plan, ask it, and go back to what served before.

One plan after the other has all machines to itself, so neither slows the other. The
race belongs to the client that reads it: when that leaves, the cluster goes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from backends.controller.cluster import Cluster
from backends.controller.measured_answers import MeasuredAnswers
from backends.controller.preparation import Preparations
from backends.errors import ControllerError, DllmError, ProcessFailed, UsageError
from backends.planning.memory_fit import is_same
from backends.state import (
    Actor,
    ClusterState,
    Lab,
    Plan,
    Preview,
    Step,
    StepState,
)
from backends.state.races import (
    Contestant,
    RaceDelta,
    RaceFigures,
    RacePiece,
    RaceRequest,
    RaceStage,
)

log = logging.getLogger(__name__)

WARM_UP, WARM_UP_TOKENS = "Say hello.", 8
"""The first answer after a load is slower: caches and pages are cold."""
SETTLED_S = 2.0
"""Relays and controller have counted an answer after so long."""


class Superseded(ControllerError):
    """A person launched or stopped the cluster meanwhile: that holds."""


async def raced(
    cluster: Cluster, preparations: Preparations, asked: RaceRequest, by: Actor
) -> AsyncGenerator[RaceDelta, None]:
    """Race two plans; closing the generator goes back to what served before.

    Raises:
        UsageError: both are the same plan, of different models, or the prompt is empty.
        DllmError: neither plan can be launched.
        Superseded: another launch or stop came.
    """
    if not asked.prompt.strip():
        raise UsageError("The prompt is empty", "Give some text.")
    with cluster.comparing("race"):
        race = _Race(cluster, preparations, asked, by)
        previews = [
            await _prepared(preparations, cluster, one) for one in asked.contestants
        ]
        _require_comparable([one for one in previews if isinstance(one, Preview)])
        failed = [one for one in previews if isinstance(one, DllmError)]
        if len(failed) == len(previews):
            raise failed[0]
        for side, preview in enumerate(previews):
            if isinstance(preview, Preview):
                (told,) = await preparations.forecasts(
                    cluster, preview.plan, [race.labs], asked.tokens
                )
                yield RaceDelta(side=side, plan=preview.plan, predicted=told)
        try:
            for side, preview in enumerate(previews):
                if isinstance(preview, DllmError):
                    yield _failed(side, preview)
                    continue
                async with aclosing(race.run(side, preview.plan)) as deltas:
                    async for delta in deltas:
                        yield delta
        finally:
            await asyncio.shield(race.go_back())
        async for step in race.returning():
            yield RaceDelta(going_back=step)


async def _prepared(
    preparations: Preparations, cluster: Cluster, one: Contestant
) -> Preview | DllmError:
    what = one.plan or one.ask
    if what is None:
        raise UsageError(f"{one.name} is no plan", "Give a plan or a request for one.")
    try:
        preview = await preparations.prepare(cluster, what)
    except DllmError as error:
        return error
    return preview if preview.refusal is None else ProcessFailed(preview.refusal)


def _require_comparable(previews: list[Preview]) -> None:
    if len(previews) < 2:
        return
    one, two = (preview.plan for preview in previews)
    if is_same(one, two):
        raise UsageError(
            "A and B are the same plan: there is nothing to compare",
            "Choose another split or draft for one of them.",
        )
    if one.model != two.model:
        raise UsageError(
            f"A runs {one.model}, and B {two.model}: a race has one model",
            "Choose two plans of one model.",
        )


def _failed(side: int, error: DllmError) -> RaceDelta:
    return RaceDelta(
        side=side, stage=RaceStage.FAILED, failure=error.failure(time.time())
    )


class _Race:
    def __init__(
        self,
        cluster: Cluster,
        preparations: Preparations,
        asked: RaceRequest,
        by: Actor,
    ) -> None:
        self._cluster = cluster
        self._preparations = preparations
        self._asked = asked
        self._by = by
        self._before = cluster.baseline
        self._generation = cluster.goal.generation
        self._answers = MeasuredAnswers(cluster)
        self._stuck: DllmError | None = None

    @property
    def labs(self) -> dict[str, Lab | None]:
        return self._before.labs

    async def run(self, side: int, plan: Plan) -> AsyncGenerator[RaceDelta, None]:
        began = time.monotonic()
        stood = self._generation
        step = Step(id="prepare", title="Check the plan")
        yield RaceDelta(side=side, stage=RaceStage.LAUNCHING, step=step)
        try:
            await self._launch(plan)
            async for step in self._launching():
                yield RaceDelta(side=side, step=step)
            launch_s = time.monotonic() - began if self._generation != stood else 0.0
            warming = Step(id="warm-up", title="Warm up")
            yield RaceDelta(side=side, step=warming)
            async for _ in self._answers.ask(WARM_UP, WARM_UP_TOKENS):
                pass
            yield RaceDelta(side=side, stage=RaceStage.ANSWERING)
            async with aclosing(self._answered(launch_s)) as told:
                async for delta in told:
                    yield RaceDelta(
                        side=side, pieces=delta.pieces, figures=delta.figures
                    )
            yield RaceDelta(side=side, stage=RaceStage.DONE)
        except Superseded:
            raise
        except DllmError as error:
            if self._is_superseded:
                raise self._superseded() from error
            yield _failed(side, error)

    async def _launch(self, plan: Plan) -> None:
        cluster = self._cluster
        plan, facts = await self._preparations.launchable(cluster, plan)
        settings = await cluster.require_possible(plan)
        if self._is_superseded:
            raise self._superseded()
        goal = await cluster.want(
            plan,
            cluster.goal.generation,
            api=settings,
            facts=facts,
            labs=self._before.labs,
            goes_back_to=self._before,
            by=self._by,
            why="for a race",
        )
        self._generation = goal.generation

    async def _launching(self) -> AsyncGenerator[Step, None]:
        """Yield the step under way until our plan serves."""
        told = None
        while True:
            now = self._cluster.store.snapshot
            back = now.rolled_back
            if back is not None and back.generation == self._generation:
                raise ProcessFailed(back.failure)
            if self._is_superseded:
                raise self._superseded()
            if now.generation == self._generation:
                if now.state is ClusterState.FAILED and now.failure is not None:
                    raise ProcessFailed(now.failure)
                if now.state is ClusterState.SERVING:
                    if self._cluster.is_degraded:
                        raise ControllerError(
                            "A worker went away: less than this plan runs",
                            "See dllm-tui status.",
                        )
                    return
            step = next((s for s in now.steps if s.state is StepState.RUNNING), None)
            if step is not None and step != told:
                told = step
                yield step
                # It may have changed while that was written.
                continue
            await self._cluster.store.change()

    async def _answered(self, launch_s: float) -> AsyncGenerator[RaceDelta, None]:
        """Yield the pieces of the answer, and last its figures."""
        answers, asked = self._answers, self._asked
        first_s, began = None, time.monotonic()
        async with aclosing(answers.ask(asked.prompt, asked.tokens)) as deltas:
            async for delta in deltas:
                at_s = time.monotonic() - began
                if text := delta.reasoning + delta.text:
                    first_s = at_s if first_s is None else first_s
                    yield RaceDelta(pieces=(RacePiece(at_s, text),))
        timings = answers.timings("Ask for more tokens, or something else.")
        store = self._cluster.store
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLED_S):
                while store.snapshot.speed.requests_active:
                    await store.change()
        found = [link.round_trips_per_token or 0.0 for link in store.snapshot.links]
        trips = sum(found) if any(found) else None
        yield RaceDelta(
            figures=RaceFigures(
                tok_per_s=timings.tok_per_s,
                tokens=timings.tokens,
                first_token_s=first_s,
                trips_per_token=trips,
                launch_s=launch_s,
                disturbed=answers.disturbed,
            )
        )

    # --- the way back ---------------------------------------------------------------

    @property
    def _is_superseded(self) -> bool:
        goal, back = self._cluster.goal, self._cluster.store.snapshot.rolled_back
        ours = back is not None and back.generation == self._generation
        return goal.generation != self._generation and not ours

    def _superseded(self) -> Superseded:
        plan = self._cluster.pursued
        what = f"launched {plan.model}" if plan else "stopped the cluster"
        return Superseded(
            f"The race ended: somebody {what} meanwhile",
            "That holds; race again when it serves.",
        )

    async def go_back(self) -> None:
        """Want again what was wanted before, unless a person asked for something."""
        if self._is_superseded:
            return
        cluster, before = self._cluster, self._before
        try:
            goal = await cluster.want(
                before.plan,
                cluster.goal.generation,
                api=before.api,
                labs=before.labs,
                by=self._by,
                why="after a race",
            )
        except DllmError as error:
            log.warning("the race did not go back: %s", error)
            # Another request may have come first, and holds then.
            self._stuck = None if self._is_superseded else error
        else:
            self._generation = goal.generation

    async def returning(self) -> AsyncGenerator[Step, None]:
        """Yield what the cluster does until it is as it was before the race."""
        if self._stuck is not None:
            raise self._stuck
        if self._before.plan is None:
            yield Step(id="stop", title="Stop")
            await self._cluster.store.reached(self._generation)
            return
        async with aclosing(self._launching()) as steps:
            async for step in steps:
                yield step
