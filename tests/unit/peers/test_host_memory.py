"""Main memory as a device, container limits included."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import psutil
import pytest

from backends.peers import memory
from backends.state import DeviceKind

if TYPE_CHECKING:
    from pathlib import Path

    from backends.peers.local import LocalHost

GIB = 1 << 30


async def test_this_machine(host: LocalHost) -> None:
    device = await host.memory()
    assert (device.id, device.name, device.kind) == ("local/CPU", "CPU", DeviceKind.CPU)
    assert device.memory_pool == "local"
    assert 0 < device.free_bytes <= device.total_bytes
    assert device.total_bytes <= psutil.virtual_memory().total
    assert "core" in device.description
    assert device.budget_bytes is None


def cgroup(folder: Path, limit: str, used: int, cache: int) -> Path:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\n")
    return folder


def test_a_container_s_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cgroup(tmp_path, str(GIB), GIB // 2, GIB // 4)
    monkeypatch.setattr(memory, "_CGROUP_ROOT", folder)
    device = memory.cpu_device("box")
    assert device.total_bytes == GIB
    assert device.free_bytes == GIB - GIB // 2 + GIB // 4


@pytest.mark.parametrize("limit", ["max", "", "nonsense"])
def test_no_limit_is_no_limit(tmp_path: Path, limit: str) -> None:
    assert memory._cgroup_limit(cgroup(tmp_path, limit, 1, 1)) is None
    assert memory._cgroup_limit(tmp_path / "nothing") is None


def test_free_memory_is_never_negative(tmp_path: Path) -> None:
    assert memory._cgroup_limit(cgroup(tmp_path, "100", 150, 0)) == (100, 0)


def test_a_machine_that_does_not_tell_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_linux_cpu_name", lambda: "")
    monkeypatch.setattr(memory, "_mac_cpu_name", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert memory._cpu_name() == "riscv64"
