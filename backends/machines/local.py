"""The agent of the machine we run on."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from backends.engine.ask import read_engine
from backends.errors import MachineError
from backends.machines.agent import AgentSession
from backends.paths import Paths, relay_binary
from backends.state import EngineInfo
from backends.tasks import end_tasks

_MARKER = "DLLM_PROCESS_DIR"
_END_TIMEOUT_S = 2.0
_WORDS_BYTES_MAX = 4096


class PipeStream:
    """A program we started, by its standard input and output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._words = b""
        self._listening = asyncio.create_task(self._listen())

    async def read(self, most_bytes: int) -> bytes:
        assert self._process.stdout is not None
        data = await self._process.stdout.read(most_bytes)
        if not data:
            # So that its last words are there when they are asked for.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._listening), _END_TIMEOUT_S)
        return data

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        await end_tasks(self._listening)

    def last_words(self) -> str:
        text = self._words.decode(errors="replace").strip()
        return text.rpartition("\n")[2].removeprefix("dllm-relay: ")

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(_WORDS_BYTES_MAX):
            self._words = (self._words + data)[-_WORDS_BYTES_MAX:]


def local_agent(
    run_dir: Path,
    *,
    name: str = "local",
    relay: Path | None = None,
    stop_at_end: bool = False,
) -> AgentSession:
    """The machine we run on, over the processes in ``run_dir``.

    The first call starts its agent; the caller closes it at the end. With
    ``stop_at_end`` all processes there end with it, also if we are killed.
    """

    directory = os.path.abspath(run_dir)

    async def start() -> PipeStream:
        # What it starts must not look like part of whatever started us.
        env = {key: value for key, value in os.environ.items() if key != _MARKER}
        program = str(relay or relay_binary())
        try:
            process = await asyncio.create_subprocess_exec(
                *(program, "agent", "--run-dir", directory),
                *(["--stop-at-end"] if stop_at_end else []),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise MachineError(f"{program} cannot be run ({error})") from error
        return PipeStream(process)

    return AgentSession(name, start, restarts=True)


async def describe_here(found: EngineInfo, paths: Paths) -> EngineInfo:
    """Describe an engine of this machine, by an agent for this one question."""
    async with local_agent_for_now(paths.run_dir) as agent:
        return (await read_engine(agent, found, paths)).info


@contextlib.asynccontextmanager
async def local_agent_for_now(run_dir: Path) -> AsyncIterator[AgentSession]:
    """The machine we run on, for a question or two."""
    agent = local_agent(run_dir)
    try:
        yield agent
    finally:
        await agent.close()
