"""Processes on a peer over real SSH, whatever happens to sshd and to the peer."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from backends.errors import MachineError, PeerUnreachable
from backends.machines.agent import AgentSession, ProcessSpec
from backends.paths import relay_binary
from backends.state import ProcessRole, ProcessState
from tests.hosts.reaching import reached
from tests.kit.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.hosts.machine import Machine
    from tests.hosts.network import Network

LINE = 'exec "$1" agent --run-dir "$2"'
ODD = 'it\'s a "run" $(touch hacked) é'

# Counts aloud, as a worker that logs; has a child in a session of its own.
COUNTS = """
setsid sleep 600 &
i=0
while :; do i=$((i + 1)); echo "línea $i"; sleep 0.05; done
"""
DEAF = "trap '' TERM; echo ready; while :; do sleep 1; done"


def spec(code: str = COUNTS, name: str = "worker-ada") -> ProcessSpec:
    return ProcessSpec(
        name=name,
        role=ProcessRole.WORKER,
        argv=("sh", "-c", code),
        port=50052,
        ignore_sigpipe=True,
    )


@pytest.fixture
def ada(network: Network) -> Machine:
    """A peer with our helper on its disk."""
    network.write_ssh_config()
    peer = network.peer("ada")
    (peer.home / ODD).mkdir()
    shutil.copy(relay_binary(), peer.home / ODD / "dllm-relay")
    return peer


@contextlib.asynccontextmanager
async def host_on(
    peer: Machine, lease_s: float | None = None
) -> AsyncIterator[AgentSession]:
    """A new connection, as a controller that was just started makes it."""
    folder = f"{peer.remote_home}/{ODD}"
    async with reached(peer.name) as connection:
        agent = AgentSession(
            peer.name,
            lambda: connection.hold(LINE, f"{folder}/dllm-relay", f"{folder}/run"),
            lease_s=lease_s,
        )
        try:
            yield agent
        finally:
            await agent.close()


async def follow(agent: AgentSession, name: str, until: str) -> str:
    """Read a log on and on until it says something."""
    text, at, deadline = "", 0, time.monotonic() + PATIENCE_S
    while until not in text:
        assert time.monotonic() < deadline, f"no {until!r} in {text!r}"
        chunk = await agent.read_log(name, at, 4096)
        assert (chunk.offset, chunk.restarted) == (at, False)
        text, at = text + chunk.text, chunk.next_offset
        await asyncio.sleep(0.02)
    return text


async def test_a_life(ada: Machine) -> None:
    async with host_on(ada) as agent:
        started = await agent.start(spec())
        assert (started.role, started.port) == (ProcessRole.WORKER, 50052)
        text = await follow(agent, started.name, "línea 20\n")
        assert text.startswith("línea 1\nlínea 2\nlínea 3\n")
        (record,) = await agent.records()
        assert (record.pid, record.argv, record.alive) == (
            started.pid, started.argv, True,
        )  # fmt: skip
        assert record.rss_bytes
        assert await agent.port_owner(await agent.free_port()) is None
        assert (await agent.memory()).id == "ada/CPU"
        ended = await agent.stop(started.name)
        assert ended is not None
        assert (ended.state, ended.exit_signal) == (ProcessState.EXITED, 15)
        assert ada.processes() == []
        await agent.remove(started.name)
        assert await agent.records() == []
    assert not (ada.home / "hacked").exists()


async def test_sshd_killed_and_back(ada: Machine) -> None:
    async with host_on(ada) as agent:
        started = await agent.start(spec())
        ada.stop_sshd()
        with pytest.raises(PeerUnreachable):
            await agent.records()
    ada.start_sshd()
    async with host_on(ada) as other:
        (adopted,) = await other.records()
        assert (adopted.pid, adopted.alive) == (started.pid, True)
        assert await other.orphans() == []
        await follow(other, adopted.name, "línea 3\n")
        with pytest.raises(MachineError, match=f"still runs on ada.*{started.pid}"):
            await other.start(spec())
        await other.stop(adopted.name)


async def test_a_start_cut_off_is_done_or_not_done(ada: Machine) -> None:
    """However far it came when sshd was killed, with all its sessions."""
    for milliseconds in (0, 60, 200):
        async with host_on(ada) as agent:
            await agent.records()
            start = asyncio.create_task(agent.start(spec()))
            await asyncio.sleep(milliseconds / 1000)
            await asyncio.to_thread(ada.stop_sshd)
            with contextlib.suppress(PeerUnreachable):
                await start
        await asyncio.to_thread(ada.start_sshd)
        async with host_on(ada) as agent:
            record = await agent.record("worker-ada")
            assert record is None or record.alive
            await agent.stop("worker-ada")
            await agent.remove("worker-ada")
        assert ada.processes() == []


async def test_a_stop_cut_off_can_be_repeated(ada: Machine) -> None:
    async with host_on(ada) as agent:
        started = await agent.start(spec(DEAF))
        await follow(agent, started.name, "ready")
        stop = asyncio.create_task(agent.stop(started.name, grace_s=60))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(ada.stop_sshd)
        with pytest.raises(PeerUnreachable):
            await stop
    await asyncio.to_thread(ada.start_sshd)
    async with host_on(ada) as other:
        record = await other.record(started.name)
        assert record is not None
        assert record.alive
        ended = await other.stop(started.name, grace_s=0)
        assert ended is not None
        assert ended.exit_signal == 9
        assert ada.processes() == []


async def test_after_a_reboot_everything_has_ended(ada: Machine) -> None:
    async with host_on(ada) as agent:
        started = await agent.start(spec())
        await follow(agent, started.name, "línea 2\n")
    await asyncio.to_thread(ada.kill_everything)
    async with host_on(ada) as other:
        (record,) = await other.records()
        assert (record.pid, record.state) == (started.pid, ProcessState.EXITED)
        assert (record.exit_code, record.exit_signal) == (None, None)
        assert await other.orphans() == []
        assert "línea 1" in (await other.read_log(record.name, -4096, 4096)).text
        stopped = await other.stop(record.name)
        assert stopped == record
        again = await other.start(spec())
        assert again.alive
        await other.stop(again.name)


async def test_a_look_past_a_noisy_login_shell_leaves_nothing(ada: Machine) -> None:
    (ada.home / ".bashrc").write_text('echo "Welcome to {ada}!"; echo noise >&2\n')
    async with host_on(ada) as agent:
        assert await agent.records() == []
        assert agent.run_dir.endswith("/run")
        assert len(ada.agents()) == 1
    assert not (ada.home / ODD / "run").exists()
    await gone(ada)


async def test_the_agent_of_a_head_without_power_ends_with_its_lease(
    ada: Machine,
) -> None:
    """Its sshd has noticed nothing; what it started lives, and is found again."""
    try:
        async with host_on(ada, lease_s=3.0) as agent:
            started = await agent.start(spec("sleep 600", "default/w"))
            assert len(ada.agents()) == 2, "the agent, and who waits for the process"
            ada.link_down()
            await gone(ada, but=1)
    finally:
        ada.link_up()
    async with host_on(ada) as agent:
        (record,) = await agent.records()
        assert (record.pid, record.alive) == (started.pid, True)
        await agent.stop("default/w")


async def gone(peer: Machine, but: int = 0) -> None:
    """Wait until no agent runs there, ``but`` so many."""
    await until(lambda: len(peer.agents()) <= but, "the end of agents")
