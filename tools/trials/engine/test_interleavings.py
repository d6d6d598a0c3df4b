"""Launches, stops, kills and clients that leave, in any order: the last goal holds."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import msgspec
import pytest

from backends.client.client import ControllerClient
from backends.errors import DllmError
from backends.state import Ask, ClusterSnapshot, ClusterState, Plan
from tests.engine.conftest import User
from tests.engine.driving import alive, client_of, kill_controller, settled, wanted

pytestmark = [pytest.mark.trial, pytest.mark.engine]

INTERLEAVINGS = int(os.environ.get("DLLM_TEST_INTERLEAVINGS", "50"))
SEED = int(os.environ.get("DLLM_TEST_SEED", random.randrange(1 << 32)))
SPREAD_S = 0.8
"""Within this time all requests of one interleaving begin."""


class Requests:
    """Makes requests and remembers which were answered, and how."""

    def __init__(self, client: ControllerClient, plans: list[Plan]) -> None:
        self._client = client
        self._plans = plans
        self.answered: dict[int, Plan | None] = {}
        self.unanswered: list[Plan | None] = []

    async def replace(self, plan: Plan) -> None:
        await self._asked(plan, None)

    async def up(self, plan: Plan) -> None:
        await self._asked(plan, 0)

    async def leave(self, plan: Plan) -> None:
        task = asyncio.create_task(self._asked(plan, None))
        await asyncio.sleep(0.004)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def stop(self, plan: Plan) -> None:
        await self._remembered(None, self._client.stop())

    async def kill(self, plan: Plan) -> None:
        try:
            await kill_controller(self._client)
        except (DllmError, ProcessLookupError):
            # Somebody else killed it first.
            return

    async def _asked(self, plan: Plan, replaces: int | None) -> None:
        await self._remembered(plan, self._client.launch(plan, replaces=replaces))

    async def _remembered(self, plan: Plan | None, request: object) -> None:
        self.unanswered.append(plan)
        try:
            answer: ClusterSnapshot = await request  # type: ignore[misc]
        except DllmError:
            return
        self.unanswered.remove(plan)
        self.answered[answer.generation] = plan


async def plans_for(client: ControllerClient, model: str) -> list[Plan]:
    return [
        await client.propose(Ask(model=model, workers=len(counts), counts=counts))
        for counts in ((6, 7), (5, 8), (4, 4, 5), (13,))
    ]


async def interleave(dice: random.Random, requests: Requests, plans: list[Plan]) -> str:
    """Some requests at random moments; what they were."""
    kinds = [requests.replace, requests.up, requests.stop, requests.kill]
    chosen = dice.choices([*kinds, requests.leave], k=dice.randint(2, 5))

    async def one(number: int) -> str:
        at_s, plan = dice.uniform(0, SPREAD_S), dice.choice(plans)
        await asyncio.sleep(at_s)
        await chosen[number](plan)
        return f"{at_s:.3f} {chosen[number].__name__} {plans.index(plan)}"

    return ", ".join(
        sorted(await asyncio.gather(*(one(n) for n in range(len(chosen)))))
    )


def same(one: Plan | None, other: Plan | None) -> bool:
    if one is None or other is None:
        return one is other
    beside: dict[str, Any] = {"asked": None, "prompt_cache_mib": None}
    replaced = msgspec.structs.replace
    return replaced(one, **beside) == replaced(other, **beside)


@pytest.mark.timeout(60 + 20 * INTERLEAVINGS)
async def test_the_last_goal_holds(
    user: User, demo_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However requests cross, one goal is last, and it alone runs in the end."""
    print(f"seed {SEED}, {INTERLEAVINGS} interleavings")
    dice = random.Random(SEED)
    client = client_of(user, monkeypatch)
    plans = await plans_for(client, demo_model)
    before = await client.snapshot()
    earlier: list[Plan | None] = []
    for number in range(INTERLEAVINGS):
        requests = Requests(client, plans)
        story = await interleave(dice, requests, plans)
        last = max(requests.answered, default=0)
        snapshot = await settled(client, last)
        told = f"seed {SEED}, interleaving {number}: {story}; {snapshot.failure}"
        assert snapshot.state is not ClusterState.FAILED, told
        running = snapshot.plan
        if snapshot.generation == before.generation:
            assert same(running, before.plan), told
        elif snapshot.generation == last:
            assert same(running, requests.answered[last]), told
        else:
            # One whose client left may still have been checked when all was settled.
            asked = [*requests.unanswered, *earlier]
            assert any(same(running, plan) for plan in asked), told
        assert alive(snapshot) == wanted(running), told
        assert snapshot.leftovers == (), told
        before, earlier = snapshot, requests.unanswered
    await asyncio.to_thread(user.run, "stop", "--all")
    await asyncio.to_thread(user.assert_nothing_left)
