"""The longest context with which a model fits: predicted, then asked of llama.cpp."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from backends.errors import PlanError
from backends.server_settings import CTX_MIN
from backends.split.layout import ranges
from backends.split.loads import overcommitted, plan_loads
from backends.state import Fit, MemorySource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from backends.state import Device, ModelInfo, Plan, PlanMemory

CTX_STEP = 256
"""Contexts are tried in such steps, in tokens."""
ASKS_MAX = 6
"""Questions to llama.cpp for one model; each takes some tenths of a second."""


async def longest_fit(
    made: Callable[[int], Plan],
    most: int,
    model: ModelInfo,
    devices: Callable[[Plan], Sequence[Device]],
    asked: Callable[[Plan], Awaitable[PlanMemory]],
) -> Fit:
    """Find the longest context up to ``most``.

    Args:
        made: makes the plan of a context, or raises a ``PlanError``.
        most: tokens.
        model: the model, of which the header suffices.
        devices: those of a plan, with what is free there.
        asked: gives the memory of a plan by llama.cpp, or the prediction.
    """
    sizes = [*range(CTX_STEP, most, CTX_STEP), most]
    try:
        low, plan = await asyncio.to_thread(_longest, made, sizes)
    except PlanError as error:
        return Fit(why=error.what)
    best, why, below, above = None, "", -1, low + 1
    for _ in range(ASKS_MAX):
        memory = await asked(plan)
        misfits = _misfits(plan, model, memory, devices(plan))
        if not misfits:
            best, below = _fit(plan, memory), low
        else:
            why, above = f"{', '.join(misfits)} would be too small", low
        if memory.note or above - below <= 1:
            break
        low = (below + above) // 2
        try:
            plan = await asyncio.to_thread(made, sizes[low])
        except PlanError as error:
            why = error.what
            break
    return best or Fit(why=why)


def _longest(made: Callable[[int], Plan], sizes: Sequence[int]) -> tuple[int, Plan]:
    """The index of the longest context that has a plan, and that.

    Raises:
        PlanError: not even the shortest fits.
    """
    try:
        return len(sizes) - 1, made(sizes[-1])
    except PlanError:
        found = made(sizes[0]) if len(sizes) > 1 else made(CTX_MIN)
    low, high = 0, len(sizes) - 1
    while high - low > 1:
        middle = (low + high) // 2
        try:
            low, found = middle, made(sizes[middle])
        except PlanError:
            high = middle
    return low, found


def _misfits(
    plan: Plan, model: ModelInfo, memory: PlanMemory, devices: Sequence[Device]
) -> list[str]:
    told = {one.device: one for one in memory.devices}
    loads = [
        load.as_told(told[load.device]) if load.device in told else load
        for load in plan_loads(model, plan)
    ]
    return sorted(overcommitted(loads, devices))


def _fit(plan: Plan, memory: PlanMemory) -> Fit:
    source = MemorySource.PREDICTED if memory.note else MemorySource.ENGINE
    return Fit(
        ctx_size=plan.ctx_size,
        n_layer=plan.split.n_layer,
        layers=ranges(plan.split),
        memory=memory.devices,
        source=source,
        note=memory.note,
    )
