"""This machine with a home of its own, in the place of a peer over SSH."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any, Generic, TypeVar, cast

import asyncssh
from msgspec.structs import replace

from backends.config import PeerConfig
from backends.errors import MachineError
from backends.machines.agent import AgentSession
from backends.machines.facts import MachineInfo
from backends.machines.local import PipeStream, local_agent_for_now
from backends.machines.machine import Machine
from backends.machines.peer import SshPeer
from backends.machines.provisioning import InstallTarget, Provisioned, provision
from backends.machines.shell import (
    RUN_TIMEOUT_S,
    Greeting,
    ShellResult,
    greeting_of,
    script,
)
from backends.machines.ssh.connection import NOISE, Connection, ConnectionState
from backends.paths import Paths, relay_binary
from backends.state import EngineInfo, PeerWork, ProvisionMode

RTT_MS = 1.5


def write_program(path: Path, answer: str, code: int = 0, padding: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"#!/bin/sh\necho '{answer}'\nexit {code}\n"
    path.write_bytes(text.encode() + b"#" * padding)
    path.chmod(0o755)
    return path


class _Open(asyncssh.SSHServer):
    """Lets everybody in, while a test has files open."""

    def begin_auth(self, username: str) -> bool:
        return False


class LocalShell:
    """Runs scripts under ``sh`` with ``HOME`` set to a directory.

    ``sh`` may be another one, such as ``("busybox", "sh")``.
    """

    builds = True
    connected = True
    flows = True

    def __init__(self, home: Path, *, sh: tuple[str, ...] = ("sh",)) -> None:
        self.home = home
        self.env = {"HOME": str(home), "PATH": os.environ["PATH"]}
        self.scripts: list[str] = []
        """Every script that was run, in order."""
        self.name = "mini"
        self.greeting = Greeting()
        self._sh = sh

    def program(self, name: str, answer: str, code: int = 0) -> None:
        write_program(self.home / "bin" / name, answer, code)
        self.env["PATH"] = f"{self.home}/bin:{os.environ['PATH']}"

    async def connect(self) -> None:
        told = await self.run(script("greet"))
        self.greeting = greeting_of(told.stdout)

    @contextlib.asynccontextmanager
    async def files(self) -> AsyncIterator[asyncssh.SFTPClient]:
        """As the protocol says; where a test serves this machine's files."""
        server = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=_Open,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            sftp_factory=asyncssh.SFTPServer,
        )
        options: dict[str, Any] = {"username": "me", "config": None}
        try:
            async with (
                asyncssh.connect(
                    "127.0.0.1", server.get_port(), known_hosts=None, **options
                ) as connection,
                connection.start_sftp_client() as client,
            ):
                yield client
        finally:
            server.close()

    async def ping_ms(self) -> float:
        return 0.01

    async def noise(self, heard: Callable[[int], None]) -> None:
        await self.run(NOISE, on_line=lambda line: heard(len(line) + 1))

    async def run(
        self,
        script: str,
        *args: str,
        timeout_s: float | None = RUN_TIMEOUT_S,
        check: bool = True,
        on_line: Callable[[str], None] | None = None,
    ) -> ShellResult:
        """As the protocol says."""
        self.scripts.append(script)
        child = await asyncio.create_subprocess_exec(
            *(*self._sh, "-c", script, "sh", *args),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.env,
            cwd=self.home,
            start_new_session=True,
            limit=1 << 24,
        )
        assert child.stdout is not None
        assert child.stderr is not None
        errors = asyncio.create_task(child.stderr.read())
        lines: list[str] = []
        try:
            async with asyncio.timeout(timeout_s):
                async for raw in child.stdout:
                    lines.append(raw.decode())
                    if on_line is not None:
                        on_line(lines[-1].rstrip("\n"))
                code = await child.wait()
                stderr = (await errors).decode()
        except TimeoutError:
            raise MachineError(f"no answer within {timeout_s} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            await child.wait()
            errors.cancel()
        if check and code != 0:
            raise MachineError(
                f"exit {code}: {(stderr.strip().splitlines() or [''])[-1]}"
            )
        return ShellResult(code=code, stdout="".join(lines), stderr=stderr)


class LocalPeer:
    """A peer of which the console knows nothing but how to reach it."""

    def __init__(self, connection: LocalShell, run_dir: Path) -> None:
        self.connection = connection
        self.name = connection.name
        self.differs: dict[str, object] = {}
        """Facts of its machine that are not those of ours."""
        self._run_dir = run_dir
        self._helper = ""
        self._agent: AgentSession | None = None

    async def agent_at(self, helper: str) -> AgentSession:
        if self._agent is None:
            self._helper = helper
            self._agent = _Agent(self)
        await self._agent.connect()
        return self._agent

    async def end_agent(self) -> None:
        if self._agent is not None:
            await self._agent.close()
            self._agent = None

    async def open_stream(self) -> PipeStream:
        process = await asyncio.create_subprocess_exec(
            *(self._helper, "agent", "--run-dir", str(self._run_dir)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=self.connection.env,
            start_new_session=True,
        )
        return PipeStream(process)


Target = TypeVar("Target", bound=InstallTarget)


@dataclass
class Installer(Generic[Target]):
    """Provisions one peer with all as usual, and keeps what is reported."""

    peer: Target
    engine: EngineInfo
    paths: Paths
    helper: Path = field(default_factory=relay_binary)
    works: list[PeerWork] = field(default_factory=list)

    async def __call__(self, mode: ProvisionMode = ProvisionMode.AUTO) -> Provisioned:
        async with local_agent_for_now(self.paths.run_dir) as agent:
            head = await agent.machine()
        return await provision(
            self.peer,
            head=head,
            engine=self.engine,
            helper=self.helper,
            paths=self.paths,
            report=self.works.append,
            mode=mode,
        )

    async def until(self, text: str) -> asyncio.Task[Provisioned]:
        """Begin, and return once that was reported."""
        running = asyncio.create_task(self())
        while not (running.done() or any(text in w.detail for w in self.works)):
            await asyncio.wait([running], timeout=0.001)
        return running


class _Agent(AgentSession):
    """The agent of this machine, which may tell of another."""

    def __init__(self, peer: LocalPeer) -> None:
        super().__init__(peer.name, peer.open_stream)
        self._peer = peer

    async def machine(self) -> MachineInfo:
        return replace(await super().machine(), **self._peer.differs)


def ssh_peer(name: str, connection: Connection, paths: Paths, head_id: str) -> SshPeer:
    """One that is not run: nobody supervises the connection, nobody probes."""

    async def settle(_: Machine) -> None:
        pass

    made = SshPeer(
        name,
        PeerConfig(ssh=name),
        paths=paths,
        inventory=cast("Any", None),
        head_id=head_id,
        changed=lambda: None,
        settle=settle,
        serves=lambda _: False,
    )
    made.connection = connection
    connection.state = ConnectionState(rtt_ms=RTT_MS)
    return made
