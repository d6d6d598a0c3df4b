"""The need and the room of each device, and a sentence if a plan does not fit.

Clusters of ours on the same machines are neither forgotten nor counted twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec.structs import replace

from backends.errors import PlanError
from backends.planning.proposal import plan_devices
from backends.speculation.memory import loads_with_draft
from backends.split.device_memory import (
    DeviceLoad,
    ours_by_pool,
    overcommitted,
    plan_loads,
    pool_of,
    room_bytes,
)
from backends.split.layout import is_head_cpu
from backends.state import (
    Device,
    DeviceKind,
    DeviceMemory,
    ModelInfo,
    Peer,
    Plan,
    Transport,
    Value,
)
from backends.units import format_bytes, format_count

_HINT = "Give it fewer layers (--split), a smaller context (--context), or --force it."


class ClusterMemory(Value, frozen=True, kw_only=True):
    plan: Plan
    memory: tuple[DeviceMemory, ...]
    """Measured or predicted."""
    loaded: bool
    arrived_bytes: dict[str, int] = {}
    """Bytes that have come so far, by device, while it loads."""

    def taken(self, machines: Mapping[str, Peer]) -> dict[str, int]:
        return self._by_pool(machines, {})

    def to_come(self, machines: Mapping[str, Peer]) -> dict[str, int]:
        return {} if self.loaded else self._by_pool(machines, self.arrived_bytes)

    def _by_pool(
        self, machines: Mapping[str, Peer], arrived: Mapping[str, int]
    ) -> dict[str, int]:
        head = self.plan.head
        devices = plan_devices(head, self.plan.workers, machines)
        return ours_by_pool(self.memory, devices, head=head, arrived=arrived)


def room_for(
    machines: Sequence[Peer],
    mine: ClusterMemory | None,
    others: Sequence[ClusterMemory],
) -> list[Peer]:
    """The machines with what is free there for a plan that takes the place of ``mine``.

    Main memory is read whenever somebody asks: it shows what has come of each cluster,
    and not what is still to come. Other devices are asked only while nothing of ours is
    at work there: what they tell is from before, and shows nothing of us.
    """
    by_name = {machine.name: machine for machine in machines}
    read, asked = Counter[str](), Counter[str]()
    if mine is not None:
        read.update(mine.taken(by_name))
        read.subtract(mine.to_come(by_name))
    for other in others:
        read.subtract(other.to_come(by_name))
        asked.subtract(other.taken(by_name))

    def now(peer: Peer, device: Device) -> Device:
        is_read = device.kind is DeviceKind.CPU and peer.transport != Transport.BARE
        n_bytes = (read if is_read else asked)[pool_of(device)]
        most = max(device.total_bytes, device.free_bytes)
        free_bytes = min(max(device.free_bytes + n_bytes, 0), most)
        return replace(device, free_bytes=free_bytes)

    return [
        replace(peer, devices=tuple(now(peer, device) for device in peer.devices))
        for peer in machines
    ]


def require_room(
    plan: Plan,
    model: ModelInfo,
    devices: Sequence[Device],
    told: Sequence[DeviceMemory] = (),
    *,
    protocol: str = "",
) -> None:
    """Refuse a plan of which some device cannot hold its share, unless it is forced.

    ``told`` is the engine's answer for this plan; it counts before our arithmetic.
    ``protocol`` is the RPC version of the head's engine.
    """
    if plan.asked is not None and plan.asked.force:
        return
    loads = plan_loads(model, plan, told, protocol=protocol)
    known = {device.id: device for device in devices}
    misfits = overcommitted(loads, devices)
    together = [load for load in loads if load.device in misfits]
    for load in together:
        usable_bytes = known[load.device].usable_bytes
        if load.total_bytes > usable_bytes:
            raise PlanError(
                f"{load.device} is too small for its share: "
                f"{format_count(load.n_layers, 'layer')} need "
                f"{_exactly(load.total_bytes)}, available are {_exactly(usable_bytes)}",
                _HINT,
            )
    if together:
        needed = sum(load.total_bytes for load in together)
        there = max(known[load.device].free_bytes for load in together)
        raise PlanError(
            f"{' and '.join(load.device for load in together)} share one memory, too "
            f"small for both: needed are {_exactly(needed)}, available "
            f"{_exactly(there)}",
            _HINT,
        )
    _require_room_for_draft(plan, loads, known)


def _require_room_for_draft(
    plan: Plan, loads: Sequence[DeviceLoad], devices: Mapping[str, Device]
) -> None:
    both = loads_with_draft(loads, plan.speculation)
    misfits = overcommitted(both, tuple(devices.values()))
    for alone, load in zip(loads, both, strict=True):
        added = load.total_bytes - alone.total_bytes
        if not added or load.device not in misfits:
            continue
        raise PlanError(
            f"{load.device} is too small for the draft model: it needs "
            f"{_exactly(added)} beside {format_bytes(alone.total_bytes)} of the model, "
            f"available are {_exactly(devices[load.device].usable_bytes)}",
            "Take a smaller draft (--draft) or context (--context), or --force it.",
        )


def _exactly(n_bytes: int) -> str:
    return f"{format_bytes(n_bytes)} ({n_bytes} bytes)"


OPTION = "--cache-ram"
OPTIONS = frozenset({OPTION, "-cram"})
MIB = 1 << 20
MOST_MIB = 8192
"""llama-server's own bound."""
STEP_MIB = 128
PART = 0.5
"""Of what is left: the rest is for whatever else the head does."""


def with_prompt_cache(
    plan: Plan, model: ModelInfo, devices: Sequence[Device], *, protocol: str = ""
) -> Plan:
    """The plan with a bound from what it leaves of the head's main memory.

    ``devices`` are those of the plan, with what is free there for it. None is set if
    nothing is known of the head's memory, or if the user sets one.
    """
    plan = replace(plan, prompt_cache_mib=None)
    if not OPTIONS.isdisjoint(plan.extra_args):
        return plan
    left = _left_bytes(plan, model, devices, protocol)
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


def _left_bytes(
    plan: Plan, model: ModelInfo, devices: Sequence[Device], protocol: str
) -> int | None:
    cpu = next((d for d in devices if is_head_cpu(d.id, plan.head)), None)
    if cpu is None or not room_bytes(cpu, {}):
        return None
    there = {d.id for d in devices if pool_of(d) == pool_of(cpu)}
    alone = plan_loads(model, plan, protocol=protocol)
    loads = loads_with_draft(alone, plan.speculation)
    taken = sum(load.total_bytes for load in loads if load.device in there)
    return room_bytes(cpu, {}) - taken


def prompts_kept_mib(argv: Sequence[str]) -> int | None:
    pairs = pairwise(argv)
    found = [value for name, value in pairs if name in OPTIONS]
    return int(found[-1]) if found and found[-1].isdecimal() else None
