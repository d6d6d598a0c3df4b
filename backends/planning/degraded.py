"""The plan on what is left of its devices, for while some of them are gone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations

from msgspec.structs import replace

from backends.errors import PlanError
from backends.planning.checking import check_plan
from backends.planning.proposal import plan_devices
from backends.planning.room import require_room, with_prompt_cache
from backends.planning.sharing import shared_out
from backends.speculation.memory import one_of, with_own_layers
from backends.split.experts import with_split
from backends.split.layout import devices
from backends.split.loads import CTX_STEP, longest
from backends.state import AUTO_DRAFT, NO_DRAFT, Device, ModelInfo, Peer, Plan


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
                return _shared_out(drafted, model, machines, protocol)
    draft = AUTO_DRAFT if plan.server.draft == AUTO_DRAFT else NO_DRAFT
    server = replace(plan.server, draft=draft)
    undrafted = replace(plan, server=server, speculation=None)
    return _shared_out(undrafted, model, machines, protocol)


def _shared_out(
    plan: Plan, model: ModelInfo, machines: Mapping[str, Peer], protocol: str
) -> Plan:
    known = set(devices(plan.split))
    there = plan_devices(plan.head, plan.workers, machines)
    left = [device for device in there if device.id in known]
    if not left:
        raise PlanError("No device of the plan is left")
    split = shared_out(model, left, plan.ctx_size, head=plan.head, server=plan.server)
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
