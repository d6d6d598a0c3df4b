"""``dllm-tui doctor`` finds planted faults, and names the machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.hosts.user import MODEL, answer, engine_folder, prepared
from tests.kit.models import write_llama

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.hosts.machine import Machine
    from tests.hosts.network import Network
    from tests.hosts.user import HeadUser

MIB = 1 << 20
SKEW_S = 1800
_SKEW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec* now) {
  int (*real)(clockid_t, struct timespec*) = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += SKEW_S;
  return result;
}
"""
LAME = Path(__file__).with_name("lame_worker.py")
FLASH_ATTENTION = "74 FLASH_ATTN_EXT"
EXPERTS = "30 MUL_MAT_ID"


def examined(user: HeadUser, *args: str, code: int = 0) -> dict[str, Any]:
    """The checks, by name."""
    return {check["name"]: check for check in user.json("doctor", *args, code=code)}


def blamed(check: dict[str, Any], machine: str, what: str) -> bool:
    """Whether a check names a machine, in a line that says that about it."""
    lines = check["detail"].splitlines()
    about = [line for line in lines if line.startswith(f"{machine}: ")]
    return machine in check["machines"] and any(what in line for line in about)


def test_nothing_is_found_where_nothing_is_wrong(
    network: Network, user: HeadUser
) -> None:
    prepared(user, "ada", "bob")
    checks = examined(user)
    for name in ("clocks", "disks", "cores", "sleep", "protocols", "builds", "engines"):
        assert checks[name]["verdict"] == "ok", checks[name]
    for name in ("firewall", "links", "model files", "golden", "peer ada"):
        assert checks[name]["verdict"] == "ok", checks[name]
    assert "local, ada, bob, ada + bob" in checks["golden"]["detail"]
    rows = checks["network"]["detail"].splitlines()
    assert rows[1].split() == ["head", "\\", "worker", "local", "ada", "bob"]
    here = next(row for row in rows if row.startswith("local"))
    assert "loopback" in here
    assert here.count("direct") == 2
    between = next(row for row in rows if row.startswith("ada"))
    assert "tunnel" in between, "to this machine"
    assert "direct" in between, "to bob, measured there"
    assert user.json("plans", "launches") == [], "its clusters are no launches of ours"


@pytest.mark.trial
def test_faults_of_machines(
    network: Network, user: HeadUser, tmp_path: Path, throttled: None
) -> None:
    """A skewed clock, a full disk, a throttled core and a host that may sleep."""
    ada, bob, cy = network.peers
    bob.limit_disk(400 * MIB)
    prepared(user, "ada", "bob", "cy")
    skew_clock(ada, tmp_path)
    fill_disk(bob)
    cy.put_over("/sys/power", {"state": "freeze mem disk\n"})
    cy.put_over("/etc/systemd", {"logind.conf": "[Login]\nIdleAction=suspend\n"})
    checks = examined(user, "--quick", code=1)
    assert blamed(checks["clocks"], "ada", f"+{SKEW_S}.0 s off")
    assert checks["clocks"]["machines"] == ["ada"]
    assert blamed(checks["disks"], "bob", "B free of")
    assert checks["disks"]["verdict"] == "fail"
    assert checks["disks"]["machines"] == ["bob"]
    assert blamed(checks["cores"], "cy", "may run at 0.80 GHz at most, of 3.60 GHz")
    assert blamed(checks["sleep"], "cy", "suspend when idle")
    assert checks["sleep"]["machines"] == ["cy"]


def skew_clock(machine: Machine, work: Path) -> None:
    """Let every program of its sshd see a clock that is ahead."""
    (work / "skew.c").write_text(_SKEW.replace("SKEW_S", str(SKEW_S)))
    library = machine.home / "skew.so"
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(work / "skew.c")]
    subprocess.run([*command, "-ldl"], check=True)
    preload = f"LD_PRELOAD={machine.remote_home}/skew.so"
    machine.configure(SetEnv=f"OMP_WAIT_POLICY=PASSIVE {preload}")


def fill_disk(machine: Machine) -> None:
    """Fill the disk of its home to the last block."""
    filling = f"dd if=/dev/zero of={machine.remote_home}/all bs=1M"
    machine.run(["sh", "-c", filling], check=False)


@pytest.fixture
def throttled(network: Network) -> None:
    """The last machine's cores are not let run as fast as they can."""
    cores = {
        f"cpu{core}/cpufreq/{name}": f"{khz}\n"
        for core in range(2)
        for name, khz in (
            ("cpuinfo_max_freq", 3_600_000),
            ("scaling_max_freq", 800_000),
            ("scaling_cur_freq", 800_000),
        )
    }
    online = {"online": "0-1\n", "possible": "0-1\n", "present": "0-1\n"}
    network.peer("cy").put_over("/sys/devices/system/cpu", {**cores, **online})


@pytest.mark.trial
def test_a_machine_that_gets_a_part_of_a_core(network: Network, user: HeadUser) -> None:
    prepared(user, "ada")
    with half_a_core(network.peer("ada")):
        checks = examined(user, "--quick")
    assert blamed(checks["cores"], "ada", "allows its processes 0.5 of")


@contextlib.contextmanager
def half_a_core(machine: Machine) -> Iterator[None]:
    """All that runs on it, and all it starts from here on, gets half of a core."""
    group = Path(f"/sys/fs/cgroup/cpu/dllm-test-{os.getpid()}")
    if not Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists():
        pytest.skip("no control groups of version 1")
    group.mkdir()
    try:
        (group / "cpu.cfs_quota_us").write_text("50000")
        for pid in machine.container.pids():
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.procs").write_text(left)
        group.rmdir()


def test_faults_of_the_network(network: Network, user: HeadUser) -> None:
    """A blocked port, a slow link, and a host that went to sleep."""
    ada, bob, cy = network.peers
    prepared(user, "ada", "bob", "cy")
    with blocked(ada):
        bob.limit_rate("20mbit")
        cy.link_down()
        checks = examined(user, "--quick")
        table = checks["network"]["detail"]
        # Its agent does not hear that nobody is there any more.
        cy.kill_everything()
    assert blamed(checks["firewall"], "ada", "local cannot reach it directly")
    assert "through the SSH tunnel" in checks["firewall"]["detail"]
    assert checks["firewall"]["machines"] == ["ada"]
    row = next(line for line in table.splitlines() if line.startswith("local"))
    assert row.index("tunnel") < row.index("direct")
    assert blamed(checks["links"], "bob", "the link from local carries")
    asleep = checks["peer cy"]
    assert asleep["machines"] == ["cy"]
    assert "sleep" in asleep["fix"]


@contextlib.contextmanager
def blocked(machine: Machine) -> Iterator[None]:
    """No port of a machine but its sshd's can be reached from here."""
    rule = ["to", machine.address, "ipproto", "tcp", "dport", "1024-60999", "prohibit"]
    subprocess.run(["ip", "rule", "add", *rule], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "rule", "del", *rule], check=True)


@pytest.mark.trial
def test_faults_of_engines_and_keys(network: Network, user: HeadUser) -> None:
    """Another build, two engines, and a host key that changed."""
    ada, bob, cy = network.peers
    prepared(user, "ada", "bob", "cy")
    call_itself(engine_folder(ada) / "llama-server", "9999 (deadbeef1)")
    second = bob.home / ".local" / "bin"
    shutil.copytree(engine_folder(bob), second)
    call_itself(second / "llama-server", "1234 (0ddba11)")
    user.run("peers", "probe", "ada", "bob")
    cy.new_host_key()
    cy.stop_sshd()
    cy.start_sshd()
    checks = examined(user, "--quick")
    assert blamed(checks["builds"], "ada", "9999 (deadbeef1)")
    assert checks["builds"]["machines"] == ["ada"]
    assert blamed(checks["engines"], "bob", "before 1234 (0ddba11)")
    assert checks["engines"]["machines"] == ["bob"]
    assert checks["peer cy"]["machines"] == ["cy"]
    assert "key" in checks["peer cy"]["fix"]


def call_itself(server: Path, version: str) -> None:
    """Let an engine say that it is of another build."""
    real = server.with_name(f"{server.name}.real")
    server.rename(real)
    server.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "version: {version}" >&2 && exit\n'
        f'exec "${{0}}.real" "$@"\n'
    )
    server.chmod(0o755)


@pytest.mark.trial
def test_faults_of_files(network: Network, user: HeadUser) -> None:
    """Another file of the name, and a bit that flipped in the middle of one."""
    ada, bob, _ = network.peers
    prepared(user, "ada", "bob")
    ours = network.home / ".models" / "m.gguf"
    for home in (network.home, ada.home, bob.home):
        (home / ".models").mkdir(exist_ok=True)
    write_llama(ours, n_layer=8, n_embd=512, n_ff=2048)
    write_llama(ada.home / ".models" / "m.gguf", n_layer=2, n_embd=64, n_ff=128)
    shutil.copy(ours, bob.home / ".models" / "m.gguf")
    flip_a_bit(bob.home / ".models" / "m.gguf")
    user.run("peers", "probe", "ada", "bob")
    checks = examined(user, str(ours), code=1)
    assert blamed(checks["model files"], "ada", "m.gguf there is another file")
    assert checks["model files"]["machines"] == ["ada"]
    assert blamed(checks["tensors"], "bob", "1 of ")
    assert checks["tensors"]["verdict"] == "fail"
    assert checks["tensors"]["machines"] == ["bob"]


def flip_a_bit(file: Path) -> None:
    """One bit, at a place that no identity of a file reads."""
    from backends.models.identity import identity_of, sampled

    before, size = identity_of(file), file.stat().st_size
    read = sorted(sampled(size))
    at = next(
        start + length + 64
        for (start, length), (after, _) in pairwise(read)
        if after - start - length > MIB
    )
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ 1]))
    assert identity_of(file) == before


@pytest.mark.trial
def test_workers_that_compute_wrongly(network: Network, user: HeadUser) -> None:
    """A missing operator and bad memory are each named; what is right, too."""
    ada, bob, cy = network.peers
    prepared(user, "ada", "bob", "cy")
    make_lame(bob, f"lacks {FLASH_ATTENTION}")
    make_lame(cy, "miscalculates")
    user.run("peers", "probe", "bob", "cy")
    golden = examined(user, code=1)["golden"]
    assert golden["verdict"] == "fail"
    assert golden["machines"] == ["bob", "cy"]
    assert blamed(golden, "bob", "lacks the operator FLASH_ATTN_EXT")
    assert blamed(golden, "cy", "its answer is another")
    assert ada.processes() == []


def make_lame(machine: Machine, fault: str) -> None:
    worker = engine_folder(machine) / "ggml-rpc-server"
    worker.rename(worker.with_name(f"{worker.name}.real"))
    shutil.copy(LAME, worker)
    worker.chmod(0o755)
    (worker.parent / "fault").write_text(fault)


@pytest.mark.trial
def test_an_operator_that_a_model_needs_is_tried_before_a_launch(
    network: Network, user: HeadUser
) -> None:
    """The demo model has no experts; that of the user has."""
    bob = network.peer("bob")
    prepared(user, "ada", "bob")
    model = network.home / "experts.gguf"
    write_llama(model, n_layer=4, n_embd=128, n_ff=256, n_expert=8)
    make_lame(bob, f"lacks {EXPERTS}")
    user.run("peers", "probe", "bob")
    checks = examined(user, str(model), code=1)
    assert checks["golden"]["verdict"] == "ok", checks["golden"]
    assert checks["operators"]["machines"] == ["bob"]
    assert blamed(checks["operators"], "bob", "lacks the operator MUL_MAT_ID")
    assert not list((user.home / "state/dllm-tui/doctor").iterdir())


@pytest.mark.trial
def test_a_repair_is_done_after_a_yes(network: Network, user: HeadUser) -> None:
    user.run("peers", "add", "ada")
    checks = examined(user, "--quick")
    (repair,) = checks["peer ada"]["repairs"]
    assert repair["text"] == "Install this machine's engine and helper on ada"
    asks = user.run("doctor", "--quick", "--fix", code=2)
    assert "--yes" in asks.stderr, "no terminal, no answer"
    done = user.run("doctor", "--quick", "--fix", "--yes")
    assert "Installed engine and helper on ada" in done.stderr
    assert examined(user, "--quick")["peer ada"]["verdict"] == "ok"


@pytest.mark.trial
def test_what_serves_goes_on_meanwhile(network: Network, user: HeadUser) -> None:
    prepared(user, "ada")
    user.run("up", "--model", MODEL, "--peer", "ada", "--detach")
    before = {p["name"]: p["pid"] for p in user.status()["processes"]}
    said = answer(user)
    checks = examined(user)
    assert "beside what serves" in checks["golden"]["detail"]
    # On a busy machine a round trip may be slow enough to be told instead.
    assert "MB/s" not in checks["links"]["detail"]
    assert checks["weights"]["verdict"] == "ok"
    assert {p["name"]: p["pid"] for p in user.status()["processes"]} == before
    assert answer(user) == said
