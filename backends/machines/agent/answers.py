"""What an agent answers about a machine, and what we make of it."""

from __future__ import annotations

from backends.state import Device, DeviceKind, Value
from backends.units import format_count


class LimitTold(Value, frozen=True, kw_only=True):
    """A limit that a control group sets."""

    limit_bytes: int
    available_bytes: int


class MemoryTold(Value, frozen=True, kw_only=True):
    """Main memory, as the kernel tells."""

    total_bytes: int
    available_bytes: int
    limits: tuple[LimitTold, ...] = ()
    cpu: str = ""
    cores: int = 1


def device_of(memory: MemoryTold, host: str) -> Device:
    """Main memory as the device the engine calls CPU; the narrowest limit counts."""
    limits = [limit.limit_bytes for limit in memory.limits]
    available = [limit.available_bytes for limit in memory.limits]
    cores = format_count(memory.cores, "core")
    return Device(
        id=f"{host}/CPU",
        name="CPU",
        kind=DeviceKind.CPU,
        description=f"{' '.join(memory.cpu.split())}, {cores}",
        total_bytes=min([memory.total_bytes, *limits]),
        free_bytes=min([memory.available_bytes, *available]),
        memory_pool=host,
    )
