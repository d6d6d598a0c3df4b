"""The plan on what is left of its machines, for while one of them is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from backends.errors import PlanError
from backends.planning.checking import check_plan
from backends.planning.prompt_cache import with_prompt_cache
from backends.planning.proposal import plan_devices
from backends.planning.room import require_room
from backends.planning.sharing import shared_out
from backends.split.layout import devices

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from backends.state import ModelInfo, Peer, Plan


def plan_without(
    plan: Plan, lost: Collection[str], model: ModelInfo, machines: Mapping[str, Peer]
) -> Plan:
    """The same without some machines, shared out by memory over its other devices.

    Raises:
        PlanError: the head is among them, or the others cannot hold the model.
    """
    if plan.head in lost:
        raise PlanError(f"{plan.head}, which runs llama-server, is gone")
    workers = tuple(worker for worker in plan.workers if worker.peer not in lost)
    known = set(devices(plan.split))
    there = plan_devices(plan.head, workers, machines)
    left = [device for device in there if device.id in known]
    if not left:
        raise PlanError("No device of the plan is left")
    split = shared_out(model, left, plan.ctx_size, head=plan.head, server=plan.server)
    found = replace(plan, workers=workers, split=split)
    check_plan(found, model)
    require_room(found, model, left)
    return with_prompt_cache(found, model, there)
