"""The readings of machines: the script on a planted /sys and /proc, and its parsing."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from backends.doctor import installation
from backends.doctor.check import Verdict
from backends.doctor.installation import CHECKS
from backends.doctor.peer_checks import (
    FULL_DISK_BYTES,
    health_checks,
    protocols,
    reached,
)
from backends.machines import health
from backends.machines.keep_awake import holds_awake, keep_awake_argv, keep_awake_name
from backends.state import EngineInfo, EngineSource, Peer, PeerState
from backends.state.health import MachineHealth
from tests.kit.clusters import paths_in

GIB = 1 << 30
FINE = MachineHealth(
    machine="ada",
    os="Linux",
    disk_free_bytes=100 * GIB,
    disk_total_bytes=200 * GIB,
    memory_total_bytes=16 * GIB,
    memory_available_bytes=8 * GIB,
)


def planted(root: Path, **files: str) -> str:
    """The output of the script of Linux where these files stand in for the kernel's."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    script = health._LINUX
    for place in ("/proc/pressure", "/sys/", "/etc/systemd", "/proc/self/cgroup"):
        script = script.replace(place, f"{root}{place}")
    done = subprocess.run(
        ["sh", "-c", script, "sh", "0"], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout


def core(root: Path, number: int, **values: int) -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu{number}/cpufreq"
    return {f"{folder}/{name}": f"{value}\n" for name, value in values.items()}


def test_the_script_reads_what_the_kernel_tells(tmp_path: Path) -> None:
    told = planted(
        tmp_path,
        **{
            "proc/pressure/memory": "some avg10=12.50 avg60=1.00 avg300=0.10 total=9\n"
            "full avg10=3.00 avg60=0.00 avg300=0.00 total=1\n",
            "sys/class/thermal/thermal_zone0/temp": "94000\n",
            "sys/class/thermal/thermal_zone0/trip_point_0_type": "passive\n",
            "sys/class/thermal/thermal_zone0/trip_point_0_temp": "95000\n",
            "proc/self/cgroup": "0::/user.slice/one.scope\n",
            "sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/user.slice/one.scope/cpu.max": "max 100000\n",
            "sys/power/state": "freeze mem\n",
            "etc/systemd/logind.conf": "[Login]\n#IdleAction=ignore\n"
            "IdleAction = hibernate\n",
        },
        **core(tmp_path, 0, scaling_max_freq=2_000_000, cpuinfo_max_freq=4_000_000),
        **core(tmp_path, 1, scaling_max_freq=4_000_000, cpuinfo_max_freq=4_000_000),
    )
    found = health.parsed(told)
    assert health._pressure(found) == {"memory": 12.5}
    throttled = list(health._throttled(found, usable=4))
    assert throttled == [
        "a core may run at 2.00 GHz at most, of 4.00 GHz",
        "a sensor is at 94 °C, slowed down from 95 °C",
        "a control group allows its processes 1.5 of 4 cores",
    ]
    (sleeps,) = health._sleeps(found)
    assert sleeps == "logind lets it hibernate when idle (IdleAction)"
    assert "disk" in found


def test_a_machine_without_any_of_it_is_fine(tmp_path: Path) -> None:
    found = health.parsed(planted(tmp_path))
    assert health._pressure(found) == {}
    assert list(health._throttled(found, usable=4)) == []
    assert list(health._sleeps(found)) == []


@pytest.mark.parametrize(
    ("text", "throttled"),
    [
        (
            "highest 0 4000000\nclock 0 1200000\nspun 1\n",
            "a busy core runs at 1.20 GHz",
        ),
        ("highest 0 4000000\nclock 0 1200000\n", ""),
        ("highest 0 4000000\nclock 0 3900000\nspun 1\n", ""),
        ("before 0 7\nafter 0 9\n", "a core was too hot just now"),
        ("before 0 7\nafter 0 7\n", ""),
        ("quota -1 100000\n", ""),
        ("quota max 100000\n", ""),
        ("limit 70\n", "macOS limits its processor to 70 % of its speed"),
        ("limit 100\n", ""),
        ("quota x\nheat\nclock 1\nlimit y\nhighest 0 abc\n", ""),
    ],
)
def test_throttling(text: str, throttled: str) -> None:
    found = list(health._throttled(health.parsed(text), usable=2))
    assert len(found) == bool(throttled)
    assert all(throttled in one for one in found)


@pytest.mark.parametrize(
    ("text", "sleeps"),
    [
        (
            "states freeze mem\ngnome 'suspend' 900\n",
            "GNOME lets it suspend after 900 s",
        ),
        ("states freeze mem\ngnome 'nothing' 900\n", ""),
        ("states freeze mem\ngnome 'suspend' 0\n", ""),
        ("states freeze mem\ntarget masked\ngnome 'suspend' 900\n", ""),
        ("states freeze\ngnome 'suspend' 900\n", ""),
        ("sleep 10\n", "macOS lets it sleep after 10 minutes (pmset)"),
        ("sleep 0\n", ""),
    ],
)
def test_sleep_settings(text: str, sleeps: str) -> None:
    assert "".join(health._sleeps(health.parsed(text))) == sleeps


@pytest.mark.parametrize(
    ("free_bytes", "verdict"),
    [(FULL_DISK_BYTES - 1, Verdict.FAIL), (GIB, Verdict.WARN), (4 * GIB, Verdict.OK)],
)
async def test_a_full_disk_is_a_fault_here_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_bytes: int, verdict: Verdict
) -> None:
    usage = SimpleNamespace(free=free_bytes)
    monkeypatch.setattr(installation, "disk_usage", lambda _: usage)
    assert (await CHECKS["directories"](paths_in(tmp_path))).verdict is verdict


def test_each_topic_names_the_machine() -> None:
    sick = replace(
        FINE,
        machine="bob",
        clock_offset_s=-75.0,
        disk_free_bytes=FULL_DISK_BYTES - 1,
        memory_available_bytes=GIB // 8,
        pressure_percent={"memory": 30.0, "io": 1.0, "cpu": 99.0},
        throttled=("a core was too hot just now",),
        sleeps=("GNOME lets it suspend after 900 s",),
    )
    checks = {
        check.name: check
        for check in health_checks([FINE, sick], ["bob"], keep_awake=False)
    }
    assert {check.machines for check in checks.values()} == {("bob",)}
    assert "−75.0 s off" in checks["clocks"].detail
    assert checks["disks"].verdict is Verdict.FAIL
    assert "waits 30 % of the time for memory" in checks["load"].detail
    assert "core" not in checks["load"].detail, "it serves: that is our own work"
    assert checks["sleep"].repairs
    awake = health_checks([sick], [], keep_awake=True)
    assert next(c for c in awake if c.name == "sleep").verdict is Verdict.OK
    tried = health_checks([FINE, sick], ["bob"], keep_awake=True)
    refused = next(check for check in tried if check.name == "sleep")
    assert refused.machines == ("bob",)
    assert "nothing there holds it awake" in refused.detail


def test_a_machine_that_cannot_be_read_is_named() -> None:
    away = MachineHealth(machine="cy", unread="it did not answer within 16 s")
    first, *_ = health_checks([FINE, away], [], keep_awake=False)
    assert (first.name, first.machines) == ("readings", ("cy",))


def test_who_can_work_for_whom() -> None:
    none = EngineInfo(
        directory="", source=EngineSource.PATH, server_path="", worker_path=""
    )
    engines = {
        name: replace(none, rpc_protocol=protocol)
        for name, protocol in (("local", "7.0.0"), ("ada", "8.0.0"))
    }
    check = protocols(engines)
    assert check.machines == ("ada",)
    assert check.detail.splitlines() == [
        "who can work for whom",
        "head \\ worker  local  ada",
        "local          ✓      ✗",
        "ada            ✗      ✓",
        "ada (8.0.0) cannot work for local (7.0.0)",
        "local (7.0.0) cannot work for ada (8.0.0)",
    ]
    assert protocols({"local": engines["local"]}).verdict is Verdict.OK


@pytest.mark.parametrize("note", ["Is it on?", "No route to it.", "No route to it"])
def test_what_to_do_about_a_silent_peer_follows_its_note(note: str) -> None:
    fix = reached(Peer(name="cy", state=PeerState.UNREACHABLE, note=note)).fix
    assert fix.startswith(f"{note.rstrip('.')}{'' if note[-1] == '?' else '.'} It may")


def test_what_keeps_a_machine_awake() -> None:
    assert keep_awake_argv("Darwin")[0] == "caffeinate"
    assert "systemd-inhibit" in keep_awake_argv("Linux")[-1]
    assert holds_awake(keep_awake_name("mini"))
    assert not holds_awake("mini")
