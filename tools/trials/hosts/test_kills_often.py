"""kill -9 of each process on a peer: the right one is blamed soon, nothing is left."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from statistics import median
from typing import TYPE_CHECKING

import pytest

from backends.state import Ask, ClusterState
from tests.engine.driving import client_of, serving, settled
from tests.hosts.proc import alive
from tests.hosts.reaching import until
from tests.hosts.user import MODEL, prepared
from tests.kit.processes import kill_all
from tools.trials.engine.test_kills_often import KILLS, pid_of, told

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from backends.client.client import ControllerClient
    from backends.state import Plan
    from tests.hosts.machine import Machine
    from tests.hosts.network import Network
    from tests.hosts.user import HeadUser

pytestmark = [pytest.mark.trial, pytest.mark.timeout(900)]


@asynccontextmanager
async def cluster(
    network: Network, user: HeadUser, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[ControllerClient, Plan]]:
    """A head on ada with a worker on bob; afterwards nothing of it is left there."""
    await asyncio.to_thread(prepared, user, "ada", "bob")
    await asyncio.to_thread(user.json, "models", "copy", MODEL, "ada")
    client = client_of(user, monkeypatch)
    yield client, await client.propose(Ask(model=MODEL, head="ada", peers=("bob",)))
    await asyncio.to_thread(user.run, "stop", "--all")
    for machine in (network.peer("ada"), network.peer("bob")):
        assert machine.processes() == []
        assert machine.listening() == []
        assert sockets_left(machine) == []
    await asyncio.to_thread(user.assert_nothing_left)


def sockets_left(machine: Machine) -> list[str]:
    """Paths of Unix sockets below the directories we use there."""
    lines = machine.run(["ss", "-Hlx"]).stdout.splitlines()
    return [line.split()[4] for line in lines if "dllm" in line]


def kill(machine: Machine, pid: int) -> None:
    machine.run(["kill", "-9", str(pid)])


async def test_who_was_killed_on_a_peer_is_told(
    network: Network, user: HeadUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {"bob": "bob", "relay-bob": "ada", "llama-server": "ada"}
    async with cluster(network, user, monkeypatch) as (client, plan):
        for name, place in where.items():
            times_s = []
            for _ in range(KILLS):
                pid = pid_of(await serving(client, plan), name)
                await asyncio.to_thread(kill, network.peer(place), pid)
                times_s.append(await told(client, name, pid))
                stopped = await client.stop()
                await settled(client, stopped.generation)
            print(f"{name}: told after {median(times_s):.2f}, {max(times_s):.2f} s")


async def test_a_killed_agent_ends_nothing(
    network: Network, user: HeadUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It only looks after them: another one takes its place, and finds them again."""
    async with cluster(network, user, monkeypatch) as (client, plan):
        before = await serving(client, plan)
        for name in ("ada", "bob"):
            for _ in range(KILLS):
                await another_agent_comes(network.peer(name))
        after = await settled(client, before.generation)
        assert after.state is ClusterState.SERVING
        assert {p.name: p.pid for p in after.processes} == {
            p.name: p.pid for p in before.processes
        }


async def another_agent_comes(machine: Machine) -> None:
    """Once those that are there are killed, every one."""
    await until(lambda: bool(machine.agents()), f"an agent on {machine.name}")
    old = machine.agents().keys()
    kill_all(alive(old))
    await until(
        lambda: bool(now := machine.agents()) and now.keys().isdisjoint(old),
        f"another agent on {machine.name}",
    )
