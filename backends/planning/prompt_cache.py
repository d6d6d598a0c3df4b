"""The bound of prompts that llama-server keeps in the head's memory."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backends.speculation.memory import loads_with_draft
from backends.split.layout import is_head_cpu
from backends.split.loads import plan_loads, pool_of, room_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.state import Device, ModelInfo, Plan

OPTION = "--cache-ram"
OPTIONS = frozenset({OPTION, "-cram"})
MIB = 1 << 20
MOST_MIB = 8192
"""llama-server's own bound."""
STEP_MIB = 128
PART = 0.5
"""Of what is left: the rest is for whatever else the head does."""


def with_prompt_cache(plan: Plan, model: ModelInfo, devices: Sequence[Device]) -> Plan:
    """The plan with a bound from what it leaves of the head's main memory.

    ``devices`` are those of the plan, with what is free there for it. Where nothing is
    known of the head's memory, and where the user sets a bound, none is set here.
    """
    plan = replace(plan, prompt_cache_mib=None)
    if not OPTIONS.isdisjoint(plan.extra_args):
        return plan
    left = _left_bytes(plan, model, devices)
    if left is None:
        return plan
    steps = int(max(left, 0) * PART) // (STEP_MIB * MIB)
    return replace(plan, prompt_cache_mib=min(steps * STEP_MIB, MOST_MIB))


def is_same(plan: Plan, other: Plan | None) -> bool:
    """True if plans run the same, whatever they were made from.

    How many prompts are kept follows from the memory at the launch.
    """
    if other is None:
        return False
    kept = replace(plan, prompt_cache_mib=other.prompt_cache_mib, asked=other.asked)
    return kept == other


def _left_bytes(plan: Plan, model: ModelInfo, devices: Sequence[Device]) -> int | None:
    """Of the head's main memory, beside all that the plan puts there."""
    cpu = next((d for d in devices if is_head_cpu(d.id, plan.head)), None)
    if cpu is None or not room_bytes(cpu, {}):
        return None
    there = {d.id for d in devices if pool_of(d) == pool_of(cpu)}
    loads = loads_with_draft(plan_loads(model, plan), plan.speculation)
    taken = sum(load.total_bytes for load in loads if load.device in there)
    return room_bytes(cpu, {}) - taken


def prompts_kept_mib(argv: Sequence[str]) -> int | None:
    """The bound that a llama-server was given; None where it was given none."""
    pairs = pairwise(argv)
    found = [value for name, value in pairs if name in OPTIONS]
    return int(found[-1]) if found and found[-1].isdecimal() else None
