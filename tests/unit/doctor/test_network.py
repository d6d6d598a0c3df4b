"""The table of ways, and what is said about a firewall and slow links."""

from __future__ import annotations

from itertools import permutations

import pytest

from backends.doctor.check import RepairKind
from backends.doctor.peer_checks import network_checks
from backends.machines.path_measurement import rounds
from backends.state import Peer, Transport
from backends.state.health import MeasuredWay


@pytest.mark.parametrize("count", range(7))
def test_every_pair_is_measured_once_and_no_machine_twice_at_a_time(count: int) -> None:
    found = rounds(count)
    pairs = [pair for these in found for pair in these]
    assert sorted(pairs) == sorted(permutations(range(count), 2))
    for these in found:
        machines = [machine for pair in these for machine in pair]
        assert len(machines) == len(set(machines))


WAYS = (
    MeasuredWay(head="local", worker="ada", way="direct", rtt_ms=0.42, rate_mb_s=117.0),
    MeasuredWay(
        head="local",
        worker="bob",
        way="tunnel",
        address="10.0.0.7:40001",
        blocked=True,
        why="cannot reach 10.0.0.7:40001: Connection timed out",
        rtt_ms=31.0,
    ),
    MeasuredWay(
        head="local", worker="cy", way="tunnel", why='its settings say data = "tunnel"'
    ),
    MeasuredWay(head="ada", worker="bob", way="direct", rtt_ms=1.0, rate_mb_s=2.5),
)


def test_the_table_and_the_verdicts() -> None:
    bare = Peer(name="box", transport=Transport.BARE, rtt_ms=0.1)
    table, firewall, links = network_checks(WAYS, [bare])
    lines = table.detail.splitlines()
    assert lines[0] == "2 direct (TLS), 2 SSH tunnel, 1 bare rpc-server"
    assert lines[1].split()[3:] == ["local", "ada", "bob", "cy", "box"]
    assert "direct 420 µs 117 MB/s" in lines[2]
    assert lines[2].split()[:2] == ["local", "loopback"]
    assert firewall.machines == ("bob",)
    assert (
        "local cannot reach it directly at 10.0.0.7:40001 (Connection timed out)"
        in (firewall.detail)
    )
    assert 'cy: its settings say data = "tunnel"' in firewall.detail
    assert [one.kind for one in firewall.repairs] == [RepairKind.USE_TUNNEL]
    assert links.machines == ("bob",)
    assert "a round trip from local takes 31.0 ms" in links.detail
    assert "the link from ada carries 2.50 MB/s" in links.detail


def test_without_peers_there_is_no_network() -> None:
    assert network_checks((), ()) == []
