"""How a peer over SSH is shown while its cable is out, and what is asked of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from backends.config import PeerConfig
from backends.machines.local import local_agent
from backends.machines.local_inventory import LocalInventory
from backends.machines.peer import SshPeer
from backends.paths import relay_binary
from backends.state import PeerState
from tests.hosts.reaching import until
from tests.kit.clusters import paths_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from backends.machines.machine import Machine as KnownMachine
    from tests.hosts.machine import Machine
    from tests.hosts.network import Network

# Tells every call of it, and its banner, in a file.
_ENGINE = """#!/bin/sh
echo "$0 $*" >>"$HOME/calls"
case "$1" in
  --version) echo "version: 1 (abc)" ;;
  -H) echo "Starting RPC server v7.0.0"; exec sleep 600 ;;
esac
"""

# Knows its version, but not yet how to look after processes.
_OLD_HELPER = b"""#!/bin/sh
[ "$1" = --version ] && echo "dllm-relay 0.0.1" && exit
echo "dllm-relay: unknown command '$1'" >&2
exit 2
"""


class Watched:
    """A peer that is looked after, with all it ever was."""

    def __init__(self, name: str, home: Path) -> None:
        paths = paths_in(home)
        self.serves = False
        self.told: list[PeerState] = []
        self.known = SshPeer(
            name,
            PeerConfig(ssh=name, engine="~/engine"),
            paths=paths,
            inventory=LocalInventory(paths, local_agent(paths.run_dir)),
            head_id="cafe",
            changed=lambda: self.told.append(self.known.peer.state),
            settle=_nothing_to_settle,
            serves=lambda _: self.serves,
        )


async def _nothing_to_settle(machine: KnownMachine) -> None:
    pass


@contextlib.asynccontextmanager
async def watched(name: str, home: Path) -> AsyncIterator[Watched]:
    peer = Watched(name, home)
    task = asyncio.create_task(peer.known.run())
    try:
        yield peer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def is_looked_at(*peers: Watched) -> None:
    for each in peers:
        await until(
            lambda each=each: (  # type: ignore[misc]
                each.known.connected
                and each.known.peer.facts
                and each.known.peer.rtt_ms
            ),
            "a first look",
        )


@pytest.mark.trial
async def test_a_silent_peer_is_suspect_and_delays_nobody(network: Network) -> None:
    network.write_ssh_config()
    home = network.home
    async with watched("ada", home) as ada, watched("bob", home) as bob:
        await is_looked_at(ada, bob)
        state = ada.known.peer.state
        ada.told.clear()
        going = time.time()
        network.peer("ada").link_down()
        down = time.time()
        await until(lambda: ada.known.peer.silent_since is not None, "suspicion")
        silent = ada.known.peer
        assert silent.silent_since is not None
        assert going - 3 < silent.silent_since < down + 1
        assert silent.rtt_ms is None, "no figure of a link that is silent"
        await until(lambda: "no answer for" in ada.known.peer.note, "the note")
        assert bob.known.peer.silent_since is None
        await asyncio.sleep(10)
        assert set(ada.told) == {state}, "its state stays what it was"
        network.peer("ada").link_up()
        await until(lambda: ada.known.peer.silent_since is None, "an answer")
        await until(lambda: ada.known.peer.rtt_ms is not None, "fresh figures")
        assert "no answer" not in ada.known.peer.note
        assert set(ada.told) == {state}


async def test_a_reset_connection_is_noticed_at_once(network: Network) -> None:
    network.write_ssh_config()
    async with watched("ada", network.home) as ada:
        await is_looked_at(ada)
        looked_at = ada.known.peer.facts
        await asyncio.to_thread(network.peer("ada").stop_sshd)
        # Long before a machine that is but silent is given up.
        await until(lambda: not ada.known.connected, "the loss", 20)
        assert ada.known.peer.rtt_ms is None
        await asyncio.to_thread(network.peer("ada").start_sshd)
        await is_looked_at(ada)
        assert ada.known.peer.facts != looked_at, "it reports anew"


def with_engine(peer: Machine, helper: bytes) -> None:
    """Give a peer an engine and a helper."""
    relay = ".cache/dllm-tui/relay/0.0.1/dllm-relay"
    programs = {relay: helper}
    for name in ("llama-server", "ggml-rpc-server"):
        programs[f"engine/{name}"] = _ENGINE.encode()
    for name, content in programs.items():
        file = peer.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(0o755)


@pytest.mark.trial
async def test_a_helper_that_is_too_old_is_to_be_replaced(network: Network) -> None:
    network.write_ssh_config()
    with_engine(network.peer("ada"), _OLD_HELPER)
    async with watched("ada", network.home) as ada:
        await is_looked_at(ada)
        peer = ada.known.peer
        assert peer.state is PeerState.NO_ENGINE
        assert "is of another version (unknown command 'agent')" in peer.note
        assert "dllm-tui peers setup ada" in peer.note
        await asyncio.to_thread(
            with_engine, network.peer("ada"), relay_binary().read_bytes()
        )
        await ada.known.look()
        facts = ada.known.peer.facts
        assert facts is not None
        assert facts.relay_version
        assert [e.directory for e in facts.engines] == [
            f"{network.peer('ada').remote_home}/engine"
        ]


async def test_no_engine_is_started_where_one_serves(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    with_engine(peer, relay_binary().read_bytes())
    async with watched("ada", network.home) as ada:
        await is_looked_at(ada)
        assert "--list-devices" in calls(peer)
        before = ada.known.peer.facts
        assert before is not None
        (peer.home / "calls").unlink()
        ada.serves = True
        await ada.known.look()
        assert calls(peer) == set()
        after = ada.known.peer.facts
        assert after is not None
        assert after.at > before.at
        assert after.engines == before.engines
        assert after.bandwidth_mb_s == before.bandwidth_mb_s, "not measured again"
        ada.serves = False
        await ada.known.look()
        assert "--list-devices" in calls(peer)


async def test_a_peer_that_is_watched_forks_nothing(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    with_engine(peer, relay_binary().read_bytes())
    async with watched("ada", network.home) as ada:
        before = peer.count_forks()
        await is_looked_at(ada)
        first = peer.count_forks() - before
        before = peer.count_forks()
        await asyncio.sleep(3)
        assert peer.count_forks() - before == 1, "the counting itself"
        ada.serves = True
        await ada.known.look()
        assert peer.count_forks() - before < first / 2, "compilers are not asked again"


def calls(peer: Machine) -> set[str]:
    """With what any of its engine's programs was called."""
    file = peer.home / "calls"
    lines = file.read_text().splitlines() if file.exists() else []
    return {line.split()[1] for line in lines}
