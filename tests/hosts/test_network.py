"""The test network is what the other tests take it for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.hosts.network import Network
from tests.kit.waiting import wait_until

if TYPE_CHECKING:
    from tests.hosts.machine import Machine


def ssh(network: Network, peer: Machine, command: str) -> str:
    argv = ["ssh", "-F", str(network.config_file), "-o", "BatchMode=yes"]
    return subprocess.check_output(
        [*argv, peer.name, command], text=True, env=network.env(), timeout=60
    ).strip()


def test_peers_are_apart(network: Network) -> None:
    network.write_ssh_config()
    seen = [
        ssh(network, peer, "hostname; ls -A ~; ls -A /tmp") for peer in network.peers
    ]
    assert seen == [f"{peer.name}\n.ssh" for peer in network.peers]
    boots = {
        ssh(network, p, "cat /proc/sys/kernel/random/boot_id") for p in network.peers
    }
    assert len(boots) == len(network.peers)


def test_peers_reach_each_other_over_both_families(network: Network) -> None:
    ada, bob, _ = network.peers
    for address in (bob.address, bob.address6):
        assert ada.run(["ssh-keyscan", "-t", "ed25519", address]).stdout.split()[2]


def test_the_root_file_system_cannot_be_written(network: Network) -> None:
    peer = network.peer("ada")
    assert peer.run(["touch", "/usr/lib/x"], check=False).returncode != 0
    assert peer.run(["touch", f"{peer.remote_home}/x"]).returncode == 0
    assert (peer.home / "x").exists()


def test_the_home_is_emptied_between_tests(network: Network) -> None:
    assert [path.name for path in network.peer("ada").home.iterdir()] == [".ssh"]


def test_reboot_keeps_the_disk_only(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("bob")
    ssh(
        network,
        peer,
        "echo kept >~/kept; setsid sleep 600 >/dev/null 2>&1 </dev/null &",
    )
    wait_until(lambda: peer.processes() == ["sleep 600"], "the sleep")
    before = ssh(network, peer, "cat /proc/sys/kernel/random/boot_id; touch /tmp/gone")
    peer.kill_everything()
    assert peer.processes() == []
    assert ssh(network, peer, "cat ~/kept; ls /tmp") == "kept"
    assert ssh(network, peer, "cat /proc/sys/kernel/random/boot_id") != before


def test_sshd_and_cable(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("cy")
    peer.stop_sshd()
    assert not peer.is_listening()
    peer.start_sshd()
    assert peer.is_listening()
    peer.link_down()
    assert not peer.is_listening()
    peer.link_up()
    wait_until(peer.is_listening, "the link")


def test_small_disk(network: Network) -> None:
    peer = network.peer("ada")
    peer.limit_disk(1 << 20, ".cache")
    argv = ["dd", "if=/dev/zero", f"of={peer.remote_home}/.cache/x", "bs=1M", "count=2"]
    assert "No space left" in peer.run(argv, check=False).stderr


def test_orphans_are_collected(network: Network) -> None:
    peer = network.peer("ada")
    peer.run(["sh", "-c", "(sleep 0.1 &) &"])
    wait_until(lambda: not peer.processes(), "the end of the orphan")
    assert "Z" not in peer.run(["ps", "-eo", "stat"]).stdout


def test_nothing_stays_when_the_owner_is_killed() -> None:
    code = (
        "import os, signal; from tests.hosts.network import Network; n = Network();"
        "print(n._cable, n.directory, n.peers[0].container.pid, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    argv = [sys.executable, "-c", code]
    out = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    cable, directory, pid = out.stdout.split()
    wait_until(lambda: not Path("/proc", pid).exists(), "its end")
    wait_until(lambda: not Path("/sys/class/net", cable).exists(), "the cable's end")
    Network().close()
    assert not Path(directory).exists()


def test_a_program_of_ours_runs_with_the_heads_home(network: Network) -> None:
    argv = ["sh", "-c", "echo $HOME"]
    out = subprocess.check_output(argv, env=network.env(), text=True)
    assert out.strip() == str(network.home)
