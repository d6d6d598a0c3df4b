"""An agent whose client is gone without a word ends by itself; nothing else does."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from backends.machines import agent as agents
from backends.machines.agent import AgentSession
from backends.paths import relay_binary
from tests.unit.machines.processes import SLEEPER, exists
from tests.unit.machines.test_agent_channel import Scripted, line, ok

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.unit.machines.test_host_adopt import OpenHost


class Raw:
    """An agent at the end of two pipes, without a client that renews anything."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def ask(self, verb: str, **members: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line({"id": 1, "do": verb, **members}))
        while True:
            answer = json.loads(await self.process.stdout.readline())
            if answer.get("id") == 1:
                result: dict[str, Any] = answer
                return result


@contextlib.asynccontextmanager
async def raw_agent(run_dir: Path) -> AsyncIterator[Raw]:
    process = await asyncio.create_subprocess_exec(
        *(str(relay_binary()), "host", "--run-dir", str(run_dir)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Raw(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_silence_beyond_its_lease_ends_an_agent_and_nothing_it_started(
    run_dir: Path, open_host: OpenHost
) -> None:
    async with raw_agent(run_dir) as agent:
        answer = await agent.ask("start", name="default/p", argv=SLEEPER)
        started = answer["ok"]["record"]["pid"]
        assert await agent.ask("lease", seconds=0.3) == {"id": 1, "ok": {}}
        assert await asyncio.wait_for(agent.process.wait(), 20) == 0
    assert exists(started)
    host = open_host(run_dir)
    (record,) = await host.records()
    assert record.alive
    await host.stop("default/p")


async def test_any_word_renews_a_lease(run_dir: Path) -> None:
    async with raw_agent(run_dir) as agent:
        await agent.ask("lease", seconds=3.0)
        for _ in range(7):
            await asyncio.sleep(0.5)
            assert "ok" in await agent.ask("relay_version")
        await asyncio.wait_for(agent.process.wait(), 20)


@pytest.mark.parametrize("seconds", [0, -1, 1e9, "soon"])
async def test_a_lease_that_makes_no_sense_is_refused(
    run_dir: Path, seconds: object
) -> None:
    async with raw_agent(run_dir) as agent:
        answer = await agent.ask("lease", seconds=seconds)
        assert answer["error"]["kind"] == "bad_request"
        assert "ok" in await agent.ask("relay_version")


def leased(stream: Scripted, lease_s: float) -> AgentSession:
    async def open_stream() -> Scripted:
        return stream

    return AgentSession("ada", open_stream, lease_s=lease_s)


async def test_a_client_renews_its_lease_in_time_even_after_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agents, "ASK_TIMEOUT_S", 0.05)
    leases: list[float] = []
    fourth = asyncio.Event()

    def answer(request: dict[str, Any]) -> bytes:
        assert request["do"] == "lease"
        leases.append(request["seconds"])
        if len(leases) == 4:
            fourth.set()
        # The second is lost, as while a cable is out.
        return b"" if len(leases) == 2 else ok(request)

    host = leased(Scripted(answer), 0.04)
    await host.connect()
    await asyncio.wait_for(fourth.wait(), 20)
    assert set(leases) == {0.04}
    await host.close()


async def test_an_agent_that_knows_no_lease_is_asked_once() -> None:
    asked: list[str] = []

    def answer(request: dict[str, Any]) -> bytes:
        asked.append(request["do"])
        if request["do"] != "lease":
            return ok(request, port=7)
        error = {"kind": "bad_request", "message": "there is no verb 'lease'"}
        return line({"id": request["id"], "error": error})

    host = leased(Scripted(answer), 0.01)
    await host.connect()
    await asyncio.sleep(0.1)
    assert await host.free_port() == 7
    assert asked == ["lease", "free_port"]
    await host.close()
