"""Data between the relays of a pair: directly where that goes, else by the tunnel."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from tests.hosts.test_pairs import BESIDE, link, process
from tests.hosts.user import MODEL, answer, prepared

if TYPE_CHECKING:
    from tests.hosts.network import Network
    from tests.hosts.user import HeadUser

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


def test_data_go_directly_where_the_port_is_reached(
    network: Network, user: HeadUser
) -> None:
    prepared(user, "bob")
    bob = network.peer("bob")
    before = ssh_bytes(bob.address)
    user.run("up", "--model", MODEL, "--peer", "bob", "--detach")
    assert answer(user)
    seen = link(user)
    assert (seen["way"], seen["way_reason"]) == ("direct", "")
    assert seen["weight_bytes_sent"] > 1 << 20
    assert seen["wire_bytes_up"] > seen["weight_bytes_sent"]
    assert ssh_bytes(bob.address) - before < seen["wire_bytes_up"] // 10
    port = process(user, BESIDE)["port"]
    open_ports = [o for o in bob.listening() if not o.startswith("127.0.0.1:")]
    assert open_ports == [f"{bob.address}:{port}"], "of the relay, at one address"
    shown = user.run("status").stdout
    assert re.search(r"link +bob +pair +direct, \d+\.\d\d ms", shown)
    user.run("stop")
    assert bob.listening() == []


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
