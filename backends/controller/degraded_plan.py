"""The degraded plan: what runs while a machine is away, and until it is back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import PurePath

from msgspec.structs import replace

from backends.controller.context import ClusterContext
from backends.controller.memory_usage import loaded, machines_now
from backends.errors import DllmError, MachineError, PlanError
from backends.planning.blueprint import machines_of
from backends.planning.checking import check_plan
from backends.planning.layer_allocation import allocate_layers
from backends.planning.memory_fit import (
    ClusterMemory,
    require_room,
    room_for,
    with_prompt_cache,
)
from backends.planning.proposal import plan_devices
from backends.speculation.memory import one_of, with_own_layers
from backends.speculation.methods import methods_of
from backends.split.device_memory import CTX_STEP, longest, plan_loads
from backends.split.experts import with_split
from backends.split.flags import used_workers
from backends.split.layout import devices, ranges, ranges_text
from backends.state import (
    AUTO_DRAFT,
    NO_DRAFT,
    ClusterState,
    Device,
    Fallback,
    ModelInfo,
    Peer,
    Plan,
)
from backends.tasks import forever

STEADY_S = 15.0
"""A machine that is back is not taken back before it has stayed so long."""
STEADY_MAX_S = 3600.0
"""Twice as long each time that the cluster began anew for it, at most so long."""
IDLE_S = 5.0
"""Quiet seconds of the API before the cluster is rebuilt on the full plan."""
LOOK_S = 1.0


class DegradedPlans:
    """Finds the plan that runs in place of the wanted one while machines are away."""

    def __init__(self, context: ClusterContext) -> None:
        self._machines = context.machines
        self._inventory = context.inventory
        self._store = context.store
        self._recorder = context.recorder
        self._journal = context.journal
        self._steady_s = STEADY_S

    def forget(self) -> None:
        """Forget how often machines came and went before."""
        self._steady_s = STEADY_S

    async def instead_of(
        self, plan: Plan, held: ClusterMemory | None, worker: str = ""
    ) -> Plan:
        """The plan without the machines that are gone; itself if none is.

        ``held`` is what it still takes of memory, and gives back. ``worker`` is one
        that is given up though its machine is there.

        Raises:
            DllmError: there is none.
        """
        away = [name for name in machines_of(plan) if not await self._is_there(name)]
        if not away and not worker:
            return plan
        machines = await self.machines(held)
        rest = await self.without(plan, away, (worker,), machines)
        if worker:
            given_up = {*self._journal.record.given_up, worker}
            self._journal.change(given_up=tuple(sorted(given_up)))
        return rest

    async def fallbacks(self, plan: Plan) -> tuple[Fallback, ...]:
        measured = self._journal.record.measured
        machines = await self.machines(loaded(plan, measured) if measured else None)
        model = await self._inventory.model(plan.model)
        protocol = await self._inventory.rpc_protocol(plan)
        found = []
        for lost, name in losses(plan).items():
            try:
                rest = await self.without(plan, (), lost, machines)
            except DllmError as error:
                found.append(Fallback(lost=name, why=str(error)))
                continue
            loads = plan_loads(model, rest, protocol=protocol)
            memory = tuple(load.memory for load in loads)
            split, ctx_size = ranges(rest.split), rest.ctx_size
            found.append(
                Fallback(lost=name, split=split, ctx_size=ctx_size, memory=memory)
            )
        return tuple(found)

    async def machines(self, held: ClusterMemory | None) -> dict[str, Peer]:
        """All of them with what is free there now, and ``held`` with it."""
        now = await machines_now(self._machines, self._inventory)
        return {machine.name: machine for machine in room_for(now, held, ())}

    async def without(
        self,
        plan: Plan,
        away: Collection[str],
        workers: Collection[str],
        machines: Mapping[str, Peer],
    ) -> Plan:
        """The plan without some machines and workers, by memory.

        Raises:
            DllmError: the others cannot do it.
        """
        model = await self._inventory.model(plan.model)
        make = partial(
            plan_without,
            workers=workers,
            ctx_min=self._inventory.settings().ctx_size_min,
            protocol=await self._inventory.rpc_protocol(plan),
        )
        # Many contexts may be tried.
        return await asyncio.to_thread(make, plan, away, model, machines)

    async def _is_there(self, name: str) -> bool:
        try:
            await self._machines.reached([name])
        except MachineError:
            # Or it asks something, or is in the settings no more.
            return False
        return True

    async def until_all_back(self, plan: Plan, running: Plan) -> str:
        """Wait until all of a plan is back, and nobody is disturbed; return that."""
        gone = {*machines_of(plan)} - {*machines_of(running)}
        workers = {w.name for w in plan.workers} - {w.name for w in running.workers}
        away = " and ".join(sorted(gone or workers))
        if self._journal.record.given_up:
            await forever()
        while True:
            await self._lasting(self._steady_s, lambda: self._all_there(plan))
            policy = self._inventory.settings().rejoin
            if policy != "idle":
                if policy == "ask":
                    self._recorder.waiting(f"{away} is back: launch again to use it")
                await forever()
            await self._lasting(IDLE_S, self._is_idle)
            if await self._all_there(plan):
                self._steady_s = min(2 * self._steady_s, STEADY_MAX_S)
                return f"{away} is back: it takes part again"

    async def _lasting(
        self, duration_s: float, holds: Callable[[], Awaitable[bool]]
    ) -> None:
        lasted_s = 0.0
        while lasted_s < duration_s:
            await asyncio.sleep(LOOK_S)
            lasted_s = lasted_s + LOOK_S if await holds() else 0.0

    async def _all_there(self, plan: Plan) -> bool:
        return all([await self._is_there(name) for name in machines_of(plan)])

    async def _is_idle(self) -> bool:
        snapshot = self._store.snapshot
        asked = snapshot.requests
        busy = asked is not None and (asked.waiting or asked.in_flight)
        return snapshot.state is ClusterState.SERVING and not busy


def losses(plan: Plan) -> dict[frozenset[str], str]:
    """The workers that may be lost at once, and what they are together.

    Each by itself, and those of another machine than the head's together: with it go
    those without layers, too, which a plan on what is left might use.
    """
    used = used_workers(plan)
    each = {frozenset({worker.name}): worker.name for worker in used}
    machines = dict.fromkeys(w.peer for w in used if w.peer != plan.head)
    return each | {
        frozenset(w.name for w in plan.workers if w.peer == machine): machine
        for machine in machines
    }


def counts_text(plan: Plan) -> str:
    """``9 | 4 on studio/MTL0, nuc/CPU``."""
    return ranges_text(ranges(plan.split))


def degraded_text(plan: Plan, before: Plan) -> str:
    """Its split, and its context and draft where these are others."""
    shorter = plan.ctx_size != before.ctx_size
    context = f", context {plan.ctx_size} instead of {before.ctx_size}"
    text = counts_text(plan) + (context if shorter else "")
    kept = methods_of(plan)
    lost = [draft for draft in methods_of(before) if draft not in kept]
    if not lost:
        return text
    if before.server.draft != AUTO_DRAFT:
        return f"{text}, without its draft"
    names = (PurePath(draft).stem for draft in reversed(lost))
    return f"{text}, without the drafts of {' and '.join(names)}"


# --- the plan on what is left --------------------------------------------------------


def plan_without(
    plan: Plan,
    lost: Collection[str],
    model: ModelInfo,
    machines: Mapping[str, Peer],
    *,
    workers: Collection[str] = (),
    ctx_min: int | None = None,
    protocol: str = "",
) -> Plan:
    """The same without some machines, or workers by their names.

    It is shared out by memory over its other devices: with its own context, or where
    they cannot hold that with the longest they can, down to ``ctx_min``. A draft that
    does not fit beside it is left out: slower is better than nothing. ``auto`` goes on
    with as many of its methods as fit. ``protocol`` is the RPC version of the head's
    engine.
    """
    if plan.head in lost:
        raise PlanError(f"{plan.head}, which runs llama-server, is gone")
    kept = [w for w in plan.workers if w.peer not in lost and w.name not in workers]
    rest = replace(plan, workers=tuple(kept))
    return _in_context(
        rest, ctx_min, lambda one: _with_or_undrafted(one, model, machines, protocol)
    )


def _with_or_undrafted(
    plan: Plan, model: ModelInfo, machines: Mapping[str, Peer], protocol: str
) -> Plan:
    methods = plan.speculation.methods if plan.speculation else ()
    for count in range(len(methods), 0, -1):
        for kept in combinations(methods, count):
            with contextlib.suppress(PlanError):
                drafted = replace(plan, speculation=one_of(kept))
                return _allocate_layers(drafted, model, machines, protocol)
    draft = AUTO_DRAFT if plan.server.draft == AUTO_DRAFT else NO_DRAFT
    server = replace(plan.server, draft=draft)
    undrafted = replace(plan, server=server, speculation=None)
    return _allocate_layers(undrafted, model, machines, protocol)


def _allocate_layers(
    plan: Plan, model: ModelInfo, machines: Mapping[str, Peer], protocol: str
) -> Plan:
    known = set(devices(plan.split))
    there = plan_devices(plan.head, plan.workers, machines)
    left = [device for device in there if device.id in known]
    if not left:
        raise PlanError("No device of the plan is left")
    split = allocate_layers(
        model, left, plan.ctx_size, head=plan.head, server=plan.server
    )
    kept = with_split(plan, split)
    try:
        return _fitting(kept, model, left, protocol)
    except PlanError:
        if not kept.experts:
            raise
        return _fitting(replace(kept, experts=()), model, left, protocol)


def _fitting(
    plan: Plan, model: ModelInfo, left: Sequence[Device], protocol: str
) -> Plan:
    found = with_own_layers(plan, model, protocol)
    check_plan(found, model)
    require_room(found, model, left, protocol=protocol)
    return with_prompt_cache(found, model, left, protocol=protocol)


def _in_context(plan: Plan, ctx_min: int | None, made: Callable[[Plan], Plan]) -> Plan:
    try:
        return made(plan)
    except PlanError as error:
        found = _longest(plan, ctx_min or plan.ctx_size, made)
        if found is None:
            would_do = _longest(plan, CTX_STEP, made)
            raise PlanError(error.what, _way_out(would_do)) from None
        return found


def _longest(plan: Plan, ctx_min: int, made: Callable[[Plan], Plan]) -> Plan | None:
    shorter = range(ctx_min, plan.ctx_size, CTX_STEP)
    found = longest(shorter, lambda size: made(replace(plan, ctx_size=size)))
    return found and found[1]


def _way_out(would_do: Plan | None) -> str:
    if would_do is None:
        return "Free memory there, add a machine, or take a smaller model."
    ctx_size = would_do.ctx_size
    return (
        f"What is left holds it with a context of {ctx_size} tokens "
        f"(--context {ctx_size}): ctx_size_min = {ctx_size} or less "
        "has it go on so by itself."
    )
