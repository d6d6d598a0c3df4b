"""Main memory as a device, container limits included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

from backends.machines.facts import LimitTold, MemoryTold, device_of
from backends.state import DeviceKind

if TYPE_CHECKING:
    from backends.machines.agent import AgentSession

GIB = 1 << 30


async def test_this_machine(host: AgentSession) -> None:
    device = await host.memory()
    assert (device.id, device.name, device.kind) == ("local/CPU", "CPU", DeviceKind.CPU)
    assert device.memory_pool == "local"
    assert 0 < device.free_bytes <= device.total_bytes
    assert device.total_bytes <= psutil.virtual_memory().total
    assert "core" in device.description
    assert device.budget_bytes is None


def told(*limits: tuple[int, int]) -> MemoryTold:
    return MemoryTold(
        total_bytes=8 * GIB,
        available_bytes=6 * GIB,
        limits=tuple(LimitTold(limit_bytes=a, available_bytes=b) for a, b in limits),
        cpu="Some   CPU",
        cores=4,
    )


def test_without_a_limit_it_is_the_machine_s() -> None:
    device = device_of(told(), "box")
    assert (device.total_bytes, device.free_bytes) == (8 * GIB, 6 * GIB)
    assert device.description == "Some CPU, 4 cores"


def test_the_narrowest_limit_of_all_levels_counts() -> None:
    """What is left may be least at another level than the one with the least limit."""
    device = device_of(told((4 * GIB, GIB), (2 * GIB, 2 * GIB), (100 * GIB, GIB)), "b")
    assert (device.total_bytes, device.free_bytes) == (2 * GIB, GIB)
