"""A split being edited, with all that is needed to say what it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from backends.places import LOCAL
from backends.speculation.memory import loads_with_draft, with_draft
from backends.split.layout import ranges
from backends.split.loads import (
    DeviceLoad,
    EngineFigures,
    device_loads,
    overcommitted,
    room_bytes,
)
from backends.state import Transport

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from backends.state import (
        Device,
        DeviceMemory,
        EngineInfo,
        LayerRange,
        ModelInfo,
        Peer,
        Plan,
        ServerSettings,
        Speculation,
        Split,
    )


@dataclass(frozen=True)
class Draft:
    """One state of the edited split; a change makes a new draft."""

    model: ModelInfo
    split: Split
    ctx_size: int
    server: ServerSettings
    devices: tuple[Device, ...]
    """The known devices of the split, in any order."""
    marks: tuple[str, ...]
    """Device ids in the order of their letters: a reorder keeps letter and colour."""
    head: str = "local"
    speculation: Speculation | None = None
    """The plan's speculation method."""
    measured: tuple[DeviceMemory, ...] = ()
    """The memory by llama-server's log, if this very split runs."""
    told: tuple[EngineFigures, ...] = ()
    """The engine's answers for this model and these machines, newest last."""
    ours: tuple[tuple[str, int], ...] = ()
    """Bytes the running cluster holds by memory pool: a launch gives them back."""
    note: str = ""
    """The reason why the engine could not answer, if it should have."""

    @cached_property
    def loads(self) -> tuple[DeviceLoad, ...]:
        """Memory per share: predicted, or as the engine says, or as measured."""
        found = {
            memory.device: with_draft(memory, self.speculation)
            for memory in self.measured
        }
        return tuple(
            load.as_told(found[load.device]) if load.device in found else load
            for load in self.settled
        )

    @cached_property
    def settled(self) -> tuple[DeviceLoad, ...]:
        """Memory per share before a load: as the engine says it, else predicted."""
        loads = device_loads(
            self.model,
            self.split,
            self.ctx_size,
            head=self.head,
            server=self.server,
            told=self.told,
        )
        return loads_with_draft(loads, self.speculation)

    @property
    def is_settled(self) -> bool:
        """True if the engine has answered for this very split."""
        return any(
            told.split == self.split and told.ctx_size == self.ctx_size
            for told in self.told
        )

    @cached_property
    def misfits(self) -> frozenset[str]:
        """Devices that hold more than they have."""
        return overcommitted(self.loads, self.devices, dict(self.ours))

    @cached_property
    def ranges(self) -> tuple[LayerRange, ...]:
        """Layers per device that holds any."""
        return ranges(self.split)

    @cached_property
    def available(self) -> Mapping[str, int]:
        """Bytes a plan may put on each known device."""
        ours = dict(self.ours)
        return {device.id: room_bytes(device, ours) for device in self.devices}

    @property
    def counts(self) -> tuple[int, ...]:
        """Whole layers per share, in order."""
        return tuple(share.layers for share in self.split.shares)

    def with_split(self, split: Split) -> Draft:
        """The same with another split, of which nothing is measured yet."""
        if split == self.split:
            return self
        return replace(self, split=split, measured=(), note="")

    def mark(self, device: str) -> int:
        """Number of a device's letter and colour."""
        return self.marks.index(device) if device in self.marks else len(self.marks)


def marks_for(previous: Sequence[str], split: Split) -> tuple[str, ...]:
    """Marks of a split's devices: kept while the devices stay the same."""
    ids = [share.device for share in split.shares]
    return tuple(previous) if set(previous) == set(ids) else tuple(ids)


def known_devices(
    plan: Plan, peers: Iterable[Peer], engine: EngineInfo | None
) -> tuple[Device, ...]:
    """The devices a plan names, under the names it has for them.

    A worker computes on a device of its machine, so it shows that device's memory,
    whether it runs already or not.
    """
    peers = tuple(peers)
    found = {device.id: device for peer in peers for device in peer.devices}
    own = {device.name: device for device in engine.devices} if engine else {}
    here = [peer for peer in peers if peer.transport == Transport.LOCAL]
    own |= {device.name: device for peer in here for device in peer.devices}
    machines = {worker.place or worker.name: worker.peer for worker in plan.workers}
    devices: list[Device] = []
    for share in plan.split.shares:
        owner, _, name = share.device.partition("/")
        machine = machines.get(owner, owner)
        device = found.get(share.device) or found.get(f"{machine}/{name}")
        if device is None and machine == LOCAL:
            device = own.get(name)
        if device is not None:
            devices.append(renamed(device, share.device))
    return tuple(devices)


def renamed(device: Device, device_id: str) -> Device:
    """A machine's device under the name a split has for it."""
    if device.id == device_id:
        return device
    return msgspec.structs.replace(
        device, id=device_id, memory_pool=device.memory_pool or device.id
    )
