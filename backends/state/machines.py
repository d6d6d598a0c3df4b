"""Machines and what computes on them."""

from __future__ import annotations

from enum import StrEnum

from backends.state.base import Value


class DeviceKind(StrEnum):
    """What computes behind a device."""

    CPU = "cpu"
    CUDA = "cuda"
    METAL = "metal"
    VULKAN = "vulkan"
    HIP = "hip"
    OTHER = "other"


class Device(Value, frozen=True, kw_only=True):
    """Something that can hold layers."""

    id: str
    """``worker1/CPU``: unique in the cluster; what a split names."""
    name: str
    """``CPU``, ``CUDA0``, ``MTL0``: what the engine calls it on its own machine."""
    kind: DeviceKind = DeviceKind.OTHER
    description: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    budget_bytes: int | None = None
    """What the user allows; None means all that is free."""
    memory_pool: str = ""
    """Devices with the same pool draw on the same physical memory."""

    @property
    def usable_bytes(self) -> int:
        """Bytes a plan may put here: the user's budget, else what is free."""
        return self.free_bytes if self.budget_bytes is None else self.budget_bytes


class PeerRole(StrEnum):
    """What a peer does in the present plan."""

    HEAD = "head"
    WORKER = "worker"
    IDLE = "idle"


class PeerState(StrEnum):
    """How a peer is."""

    READY = "ready"
    STARTING = "starting"
    SERVING = "serving"
    FAILED = "failed"
    UNREACHABLE = "unreachable"


class Peer(Value, frozen=True, kw_only=True):
    """A machine (or a local worker standing for one) the console knows."""

    name: str
    role: PeerRole = PeerRole.IDLE
    state: PeerState = PeerState.READY
    transport: str = "local"
    rtt_ms: float | None = None
    devices: tuple[Device, ...] = ()
    note: str = ""
