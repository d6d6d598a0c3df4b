"""Predict the effect of a launch by asking the machines; start nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.controller.beside import check_whole
from backends.controller.discovery import stats_of
from backends.controller.engines import draft_path, engines_of
from backends.controller.pairs import pairings
from backends.errors import DllmError, PlanError
from backends.planning.blueprint import machines_of
from backends.planning.checking import check_plan
from backends.planning.commands import Site, commands, gateway_command
from backends.planning.prompt_cache import with_prompt_cache
from backends.planning.proposal import plan_devices
from backends.planning.remarks import remarks
from backends.planning.room import require_room
from backends.split.flags import used_workers
from backends.split.layout import ranges
from backends.split.loads import plan_loads
from backends.state import Preview

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.machines.machine import Machines
    from backends.machines.readers import Readers
    from backends.state import Device, Failure, ModelInfo, Peer, Plan


async def preview(
    cluster: str,
    plan: Plan,
    machines: Machines,
    readers: Readers,
    peers: Sequence[Peer],
) -> Preview:
    """Memory and command lines of a plan; ``peers`` as they are now, ours first.

    Raises:
        PlanError: the plan cannot be meant, or llama.cpp cannot follow it.
        EngineError: a machine has no engine that fits.
        PeerUnreachable: a machine cannot be reached.
    """
    by_name = {peer.name: peer for peer in peers}
    await machines.reached(machines_of(plan))
    model = await readers.model(plan.model)
    check_plan(plan, model)
    await check_whole(plan)
    devices = plan_devices(plan.head, plan.workers, by_name)
    plan = with_prompt_cache(plan, model, devices)
    return Preview(
        plan=plan,
        layers=ranges(plan.split),
        memory=tuple(load.memory for load in plan_loads(model, plan)),
        available_bytes={device.id: device.usable_bytes for device in devices},
        commands=(
            *commands(plan, await _site(cluster, plan, model, machines, readers)),
            gateway_command(cluster, plan, readers.api_now().access),
        ),
        notes=remarks(plan, model, devices, by_name),
        refusal=_refusal(plan, model, devices),
    )


async def sound(plan: Plan, readers: Readers, peers: Sequence[Peer]) -> Plan:
    """The plan as it can be launched, with all that its machines' memory decides.

    Nothing was touched then. A model that cannot be read is for the launch to report.

    Raises:
        PlanError: the plan breaks what every plan keeps to, or a device is too small
            for its share, and the plan is not forced.
    """
    by_name = {peer.name: peer for peer in peers}
    try:
        model = await readers.model(plan.model)
    except DllmError:
        return plan
    check_plan(plan, model)
    await check_whole(plan)
    devices = plan_devices(plan.head, plan.workers, by_name)
    require_room(plan, model, devices)
    return with_prompt_cache(plan, model, devices)


def _refusal(plan: Plan, model: ModelInfo, devices: Sequence[Device]) -> Failure | None:
    try:
        require_room(plan, model, devices)
    except PlanError as error:
        return error.failure()
    return None


async def _site(
    cluster: str, plan: Plan, model: ModelInfo, machines: Machines, readers: Readers
) -> Site:
    """The programs of every machine that takes part, and the place of the model."""
    head = machines.get(plan.head)
    engines = await engines_of(plan, machines)
    relay = head.relay_program() if plan.relay and used_workers(plan) else ""
    return Site(
        engines=engines,
        relay=relay,
        model_path=await head.model_path(model),
        sparse=model.sparse is not None,
        draft_path=await draft_path(plan, machines, readers),
        stats=stats_of(cluster, plan, head) if plan.relay else {},
        pairings=await pairings(plan, model, machines, lambda: ""),
    )
