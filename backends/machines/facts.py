"""The facts of a machine, as its agent reports them."""

from __future__ import annotations

from backends.state import Device, DeviceKind, Value
from backends.units import format_count


class MemoryLimit(Value, frozen=True, kw_only=True):
    limit_bytes: int
    available_bytes: int


class MemoryInfo(Value, frozen=True, kw_only=True):
    total_bytes: int
    available_bytes: int
    limits: tuple[MemoryLimit, ...] = ()
    cpu: str = ""
    cores: int = 1


class System(Value, frozen=True, kw_only=True):
    """The kind of a machine: programs for one run on those of the same kind."""

    os: str = ""
    """``Linux`` or ``Darwin``."""
    arch: str = ""
    libc: str = ""
    """``glibc 2.36``, ``musl``; empty where there is but one."""


VARIABLES = (
    *("HOME", "PATH", "SSH_CONNECTION", "HF_HOME", "HF_HUB_CACHE"),
    *("HUGGINGFACE_HUB_CACHE", "OLLAMA_MODELS", "LLAMA_CACHE", "XDG_CACHE_HOME"),
)
"""They name the folders of programs and models, and the client's address."""


class MachineInfo(System, frozen=True, kw_only=True):
    memory: MemoryInfo
    hostname: str = ""
    system: str = ""
    """The distribution or release in its own words."""
    instructions: str = ""
    """The instruction sets of its processor."""
    usable: int = 1
    """Logical processors that this user's processes may use."""
    performance: int = 1
    """Physical cores of the fastest kind among them."""
    cache: str = ""
    """The folder of our engines and helpers there: ``…/dllm-tui``."""
    disk_free_bytes: int = 0
    variables: dict[str, str] = {}
    time: float = 0.0


def device_of(memory: MemoryInfo, host: str) -> Device:
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
        cores=memory.cores,
    )
