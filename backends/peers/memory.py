"""The machine's main memory, as the device the engine calls CPU."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

import psutil

from backends.state import Device, DeviceKind

_SYSCTL_TIMEOUT_S = 2.0
_CGROUP_ROOT = Path("/sys/fs/cgroup")


def cpu_device(host: str) -> Device:
    """Main memory of this machine: total and what can be had without swapping.

    A container's limit counts where it is lower than what the machine has.
    """
    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    limit = _cgroup_limit(_CGROUP_ROOT)
    if limit is not None:
        total, free = min(total, limit[0]), min(free, limit[1])
    return Device(
        id=f"{host}/CPU",
        name="CPU",
        kind=DeviceKind.CPU,
        description=_description(),
        total_bytes=total,
        free_bytes=free,
        memory_pool=host,
    )


@cache
def _description() -> str:
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    return f"{_cpu_name()}, {cores} core{'' if cores == 1 else 's'}"


def _cpu_name() -> str:
    name = _mac_cpu_name() if sys.platform == "darwin" else _linux_cpu_name()
    return name or platform.machine()


def _linux_cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
    return " ".join(next(names, "").split())


def _mac_cpu_name() -> str:
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SYSCTL_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _cgroup_limit(root: Path) -> tuple[int, int] | None:
    """Bytes a version 2 container allows and leaves free; None without a limit."""
    try:
        limit = int((root / "memory.max").read_text())
        used = int((root / "memory.current").read_text())
        stat = (root / "memory.stat").read_text()
    except (OSError, ValueError):
        # No container, or "max".
        return None
    fields = dict(line.split() for line in stat.splitlines())
    # The page cache is given back on demand.
    return limit, max(limit - used + int(fields.get("inactive_file", 0)), 0)
