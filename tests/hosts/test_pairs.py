"""Relays in pairs: started by the cluster, with keys, mended, and nothing left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.conftest import wait_for
from tests.hosts.test_cluster_faults import serve, serving_again
from tests.hosts.user import MODEL, answer, prepared

if TYPE_CHECKING:
    from tests.hosts.machine import Machine
    from tests.hosts.network import Network
    from tests.hosts.user import HeadUser

BESIDE = "worker-relay-bob"


def link(user: HeadUser) -> dict[str, Any]:
    """The only link, once its figures are there: replies cross as they are."""

    def known() -> dict[str, Any] | None:
        (one,) = user.status()["links"]
        crossed = one["wire_bytes_down"]
        in_full = crossed is None or crossed > one["bytes_down"]
        return one if one["bytes_down"] and in_full else None

    found: dict[str, Any] = wait_for(known, "figures of the link")
    return found


def process(user: HeadUser, name: str) -> dict[str, Any]:
    return next(p for p in user.status()["processes"] if p["name"] == name)


def relays(network: Network) -> list[str]:
    """Command lines of the relays beside workers on bob."""
    lines = network.peer("bob").processes()
    return [line for line in lines if "dllm-relay worker" in line]


def test_a_worker_elsewhere_is_met_by_a_pair_directly_with_a_key(
    network: Network, user: HeadUser
) -> None:
    prepared(user, "bob")
    bob = network.peer("bob")
    before = ssh_bytes(bob.address)
    user.run("up", "--model", MODEL, "--peer", "bob", "--detach")
    paired = answer(user)
    seen = link(user)
    assert seen["mode"] == "pair"
    assert "bob" in seen["why"]
    assert seen["rtt_ms"] > 0
    beside = process(user, BESIDE)
    assert beside["peer"] == "bob"
    assert len(relays(network)) == 1
    shown = user.run("status").stdout
    assert re.search(r"link +bob +pair +direct, \d+\.\d\d ms.*crossed ↑ ", shown)
    # Data go directly, to the relay at one address.
    assert (seen["way"], seen["way_reason"]) == ("direct", "")
    assert seen["weight_bytes_sent"] > 1 << 20
    assert seen["wire_bytes_up"] > seen["weight_bytes_sent"]
    assert ssh_bytes(bob.address) - before < seen["wire_bytes_up"] // 10
    open_ports = [o for o in bob.listening() if not o.startswith("127.0.0.1:")]
    assert open_ports == [f"{bob.address}:{beside['port']}"]
    key_file = assert_key_is_told_to_nobody(user, bob, beside["argv"])
    user.run("stop")
    assert not key_file.exists()
    assert relays(network) == []
    assert bob.listening() == []
    user.run("up", "--model", MODEL, "--peer", "bob", "--relay", "single", "--detach")
    assert answer(user) == paired
    alone = link(user)
    assert (alone["mode"], alone["wire_bytes_up"]) == ("metered", None)
    assert "never" in alone["why"]
    assert relays(network) == []


def assert_key_is_told_to_nobody(user: HeadUser, bob: Machine, argv: list[str]) -> Path:
    """Where it is for as long as the relay runs."""
    file = bob.inside(argv[argv.index("--key-file") + 1])
    key = file.read_text().strip()
    assert len(key) == 64
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o077 == 0
    head = process(user, "relay-bob")
    for place in ("cmdline", "environ"):
        assert key.encode() not in Path(f"/proc/{head['pid']}/{place}").read_bytes()
    assert key not in " ".join(argv)
    assert key not in user.run("status", "--json").stdout
    for text in (user.home / ".local" / "state").rglob("*"):
        if text.is_file() and text.name != "private":
            assert key.encode() not in text.read_bytes(), text
    return file


@pytest.mark.trial
def test_a_killed_relay_is_mended(network: Network, user: HeadUser) -> None:
    serve(user, "bob")
    before, worker = answer(user), user.pid("bob")
    for name in ("relay-bob", BESIDE):
        killed = process(user, name)["pid"]
        if name == BESIDE:
            network.peer("bob").run(["kill", "-9", str(killed)])
        else:
            os.kill(killed, signal.SIGKILL)
        status = serving_again(user, f"{name} was killed by SIGKILL")
        assert "started again" in status["message"]
        assert process(user, name)["pid"] != killed
        assert user.pid("bob") == worker, "the worker need not start again"
        assert answer(user) == before
        assert link(user)["mode"] == "pair"


@pytest.mark.trial
def test_another_controller_keeps_worker_and_relay(
    network: Network, user: HeadUser
) -> None:
    serve(user, "bob")
    before = answer(user)
    kept = {user.pid("bob"), user.pid(BESIDE)}
    user.kill_controller()
    user.wait_serving(120)
    assert {user.pid("bob"), user.pid(BESIDE)} == kept
    assert answer(user) == before
    assert link(user)["mode"] == "pair"
    user.run("stop")
    assert network.peer("bob").processes() == []


@pytest.mark.trial
def test_a_relay_that_died_unwatched_is_started_again(
    network: Network, user: HeadUser
) -> None:
    """With what hangs on it: that has lost its tunnels anyway."""
    serve(user, "bob")
    before, worker, died = answer(user), user.pid("bob"), user.pid(BESIDE)
    user.kill_controller()
    network.peer("bob").run(["kill", "-9", str(died)])
    wait_for(lambda: len(relays(network)) == 0, "the relay is gone")
    wait_for(lambda: user.status()["state"] == "serving", "serving again", 120)
    assert user.pid("bob") == worker
    assert answer(user) == before
    assert link(user)["mode"] == "pair"


@pytest.mark.trial
def test_weights_that_this_machine_has_stay_home(
    network: Network, user: HeadUser
) -> None:
    """Of a model that is read at the peer which is the head."""
    prepared(user, "ada")
    path = user.json("models", "copy", MODEL, "ada")["path"]
    on_ada = ("--model", f"ada:{path}", "--head", "ada")
    user.run("up", *on_ada, "--peer", "local", "--detach")
    assert answer(user)
    seen = link(user)
    assert (seen["worker"], seen["weight_bytes_sent"]) == ("local-CPU", 0)
    assert seen["weight_bytes_home"] > os.path.getsize(MODEL) // 2


# --- Data of a pair go by the tunnel where the port is out of reach ---

APART = "198.51.100.7"
"""Of a network that nobody here knows the way to."""


def ssh_bytes(address: str) -> int:
    """What went to that machine's sshd over all connections that stand now."""
    argv = ["ss", "-Htin", "dst", address, "dport", "=", ":22"]
    shown = subprocess.check_output(argv, text=True)
    return sum(map(int, re.findall(r"bytes_sent:(\d+)", shown)))


def send_data_to_bob(user: HeadUser, place: str) -> None:
    """Set where his data go; what comes next goes by that."""
    user.run("config", "set", "peers.bob.data", place)


def test_a_port_out_of_reach_costs_the_tunnel_and_is_told(
    network: Network, user: HeadUser
) -> None:
    prepared(user, "bob")
    bob = network.peer("bob")
    bob.run(["ip", "addr", "add", f"{APART}/32", "dev", "lo"])
    send_data_to_bob(user, APART)
    subprocess.run(["ip", "route", "add", "blackhole", f"{APART}/32"], check=True)
    try:
        user.run("up", "--model", MODEL, "--peer", "bob", "--detach")
        assert answer(user)
        seen = link(user)
    finally:
        subprocess.run(["ip", "route", "del", "blackhole", f"{APART}/32"], check=True)
        bob.run(["ip", "addr", "del", f"{APART}/32", "dev", "lo"])
    port = process(user, BESIDE)["port"]
    assert f"{APART}:{port}" in bob.listening()
    assert seen["way"] == "tunnel"
    assert seen["way_reason"].startswith(f"cannot reach {APART}:{port}: ")
    user.run("stop")
    send_data_to_bob(user, "tunnel")
    user.run("up", "--model", MODEL, "--peer", "bob", "--detach")
    assert answer(user)
    seen = link(user)
    assert (seen["way"], seen["way_reason"]) == (
        "tunnel",
        'its settings say data = "tunnel"',
    )
    assert all(each.startswith("127.0.0.1:") for each in bob.listening())
