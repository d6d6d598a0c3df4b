"""Histories of machines are sampled, matched with devices, and told only once."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from backends.controller import usage_monitor as module
from backends.controller.processes import ProcessBook
from backends.controller.usage_monitor import UsageMonitor, sample_of, with_devices
from backends.errors import MachineError
from backends.state import (
    ClusterSnapshot,
    ClusterState,
    Device,
    DeviceKind,
    GpuUsage,
    Link,
    MachineHistory,
    MachineUsage,
    Speed,
    UsageReport,
    UsageSample,
)
from tests.kit.clusters import plan_on
from tests.kit.machines import Cast

GIB = 1 << 30
USAGE = MachineUsage(
    cores_permille=(500, 1000),
    memory_total_bytes=8 * GIB,
    memory_available_bytes=6 * GIB,
    agent_cpu_ms=100,
    agent_rss_bytes=GIB,
    gpus=(GpuUsage(name="H100", load_percent=93), GpuUsage(name="T4")),
)


def device(name: str, description: str, kind: DeviceKind = DeviceKind.CUDA) -> Device:
    return Device(id=f"local/{name}", name=name, kind=kind, description=description)


def test_a_sample_has_what_clusters_do_on_the_machine() -> None:
    plan = plan_on("local", "ada", "bob")
    worker = next(one for one in plan.workers if one.peer == "ada")
    snapshot = ClusterSnapshot(
        plan=plan,
        state=ClusterState.SERVING,
        speed=Speed(tok_per_s=12.5),
        links=(
            Link(worker=worker.name, bytes_per_s_up=1000.0, bytes_per_s_down=500.0),
            Link(worker="other", bytes_per_s_up=1.0, bytes_per_s_down=1.0),
        ),
    )
    head = sample_of("local", 7, USAGE, [snapshot])
    assert head == UsageSample(
        at=7, cpu=0.75, memory=0.25, gpus=(0.93, None), tok_per_s=12.5
    )
    there = sample_of("ada", 7, None, [snapshot])
    assert there == UsageSample(at=7, link_bytes_per_s=1500.0)
    idle = replace(snapshot, state=ClusterState.LOADING)
    assert sample_of("local", 7, None, [idle]) == UsageSample(at=7)


def test_a_gpu_has_the_engines_name_only_where_no_other_can_be_meant() -> None:
    cpu = device("CPU", "EPYC", DeviceKind.CPU)
    one, two = device("CUDA0", "NVIDIA H100 80GB"), device("CUDA1", "NVIDIA T4")
    h100, t4 = GpuUsage(name="NVIDIA H100"), GpuUsage(name="NVIDIA T4")

    def names(gpus: list[GpuUsage], *devices: Device) -> list[str]:
        return [gpu.device for gpu in with_devices(gpus, devices)]

    # AMD's driver tells no name, and here none is needed.
    assert names([GpuUsage(vendor="amd")], cpu, device("ROCm0", "RX 7900")) == ["ROCm0"]
    assert names([t4, h100], cpu, one, two) == ["CUDA1", "CUDA0"]
    # Drivers and engines may count twins in different orders.
    assert names([h100, h100], one, device("CUDA1", "NVIDIA H100 80GB")) == ["", ""]
    assert names([h100, t4], cpu) == ["", ""]


class World:
    """A monitor of some machines; what they use is as ``usages`` says."""

    def __init__(self, *names: str) -> None:
        self.cast = Cast(*names)
        self.usages: dict[str, MachineUsage | Exception] = {}
        for name in ("local", *names):
            host = self.cast.machines[name].processes
            host.pid = 42  # type: ignore[attr-defined]
            host.usage = lambda name=name: self._usage(name)  # type: ignore[attr-defined]
        book = ProcessBook(cast("Any", self.cast), lambda: None)
        store = SimpleNamespace(snapshot=ClusterSnapshot())
        self.plans: list[object] = []
        self.first = SimpleNamespace(store=store)
        self.monitor = UsageMonitor(
            cast("Any", Clusters(book, self)), cast("Any", self.cast)
        )

    async def _usage(self, name: str) -> MachineUsage:
        told = self.usages.get(name, USAGE)
        if isinstance(told, Exception):
            raise told
        return told


class Clusters:
    def __init__(self, book: ProcessBook, world: World) -> None:
        self.book = book
        self.plans = world.plans
        self._first = world.first

    def get(self) -> SimpleNamespace:
        return self._first

    def __iter__(self) -> Any:
        return iter([self._first])


async def test_a_report_tells_why_a_machine_has_no_figures() -> None:
    world = World("ada")
    world.usages["ada"] = MachineError("The helper on ada is too old for that")
    report = await world.monitor.report("default")
    here, ada = report.machines
    assert here.now == USAGE
    assert len(here.samples) == 1
    assert (ada.now, ada.why) == (None, "The helper on ada is too old for that")
    # It is not asked every second.
    world.usages["ada"] = USAGE
    await world.monitor._sample()
    assert world.monitor._known["ada"].now is None
    # Also a gap is told with its time.
    assert ada.samples == (UsageSample(at=here.samples[0].at),)
    names = [(one.name, one.peer) for one in report.processes]
    assert names == [("controller", "local"), ("agent", "local")]


async def test_a_console_that_comes_back_finds_the_time_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SAMPLE_S", 0.001)
    clock = iter(range(1000, 2000))
    monkeypatch.setattr(time, "time", lambda: next(clock))
    world = World()
    world.plans.append(object())
    running = asyncio.create_task(world.monitor.run())
    reports = world.monitor.reports("default")
    first = await anext(reports)
    await reports.aclose()
    assert world.monitor.watchers == 0
    async with asyncio.timeout(60):
        while len(world.monitor._known["local"].samples) < 5:  # noqa: ASYNC110 -- it tells nobody
            await asyncio.sleep(0.001)
    running.cancel()
    later = await world.monitor.report("default")
    assert later.machines[0].samples[0] == first.machines[0].samples[0]


async def test_nothing_is_sampled_while_nobody_looks_and_nothing_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SAMPLE_S", 0.0)
    world = World()
    running = asyncio.create_task(world.monitor.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not world.monitor._known
    running.cancel()


def test_a_stream_repeats_no_sample() -> None:
    def report(*times: int) -> UsageReport:
        samples = tuple(UsageSample(at=at) for at in times)
        return UsageReport(machines=(MachineHistory(machine="local", samples=samples),))

    first, second = report(1, 2, 3), report(2, 3, 4)
    frame = second.newest(first)
    assert [sample.at for sample in frame.machines[0].samples] == [4]
    joined = frame.after(first)
    assert [sample.at for sample in joined.machines[0].samples] == [1, 2, 3, 4]
    assert first.newest(None) == first
    # A controller that began anew tells all it has; nothing is there twice.
    again = report(3, 4).after(first)
    assert [sample.at for sample in again.machines[0].samples] == [1, 2, 3, 4]
