"""A machine that is lent, and a console of it, both in this process, over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncssh

from backends.machines.ssh.lent import client_over, pair
from backends.mesh.dialling import dial_any
from backends.mesh.identity import own_key, public_line
from backends.mesh.messages import AGENT, USER_BY_KEY
from backends.mesh.owner_limits import OwnerLimits
from backends.mesh.pairings import PairingFile
from backends.mesh.tenants import Tenants
from backends.mesh.token import Token
from backends.mesh.worker import Worker
from backends.paths import Paths
from backends.tasks import end_tasks
from tests.kit.clusters import paths_in

# As a worker of llama.cpp begins: it listens at -p, and takes what comes.
RPC_SERVER = f"""#!{sys.executable} -ES
import socket, sys
port = int(sys.argv[sys.argv.index("-p") + 1])
with socket.create_server(("127.0.0.1", port)) as listening:
    while True:
        peer, _ = listening.accept()
        peer.sendall(b"rpc")
        peer.close()
"""
SHOUTS = "#!/bin/sh\necho shell\n"


class LentMachine:
    """Runs a worker, and logs in to it as consoles do."""

    def __init__(self, folder: Path, limits: OwnerLimits | None = None) -> None:
        self.paths: Paths = paths_in(folder / "lent")
        self.console = paths_in(folder / "console")
        self.models = folder / "models"
        self.models.mkdir(parents=True)
        engine = self.paths.engines_dir / "some"
        engine.mkdir(parents=True)
        for name, text in (("rpc-server", RPC_SERVER), ("llama-server", SHOUTS)):
            (engine / name).write_text(text)
            (engine / name).chmod(0o755)
        self.rpc_server = str(engine / "rpc-server")
        self.pairings = PairingFile(self.paths.worker_pairings_file)
        limits = limits or OwnerLimits(models=(str(self.models),))
        self.tenants = Tenants(self.paths, self.pairings, limits, "nuc")
        self.worker = Worker(self.paths, self.pairings, self.tenants)

    def program(self, before: str, after: str) -> None:
        """Have its rpc-server do something else."""
        file = Path(self.rpc_server)
        file.write_text(file.read_text().replace(before, after))

    @property
    def key(self) -> asyncssh.SSHKey:
        return own_key(self.console.console_key_file)

    @property
    def host_key(self) -> str:
        return public_line(own_key(self.paths.worker_key_file))

    @property
    def places(self) -> tuple[str, ...]:
        return (f"127.0.0.1:{self.pairings.read().port}",)

    def token(self, life_s: float = 60.0) -> Token:
        return self.worker.invite(life_s)

    async def pair(self, token: Token | None = None) -> str:
        token = token or self.token()
        return await pair(token, self.console.console_key_file, "studio")

    @contextlib.asynccontextmanager
    async def login(self, **other: Any) -> AsyncIterator[asyncssh.SSHClientConnection]:
        given = {"username": USER_BY_KEY, "client_keys": [self.key], **other}
        link = await client_over(await dial_any(self.places), self.host_key, **given)
        try:
            yield link
        finally:
            link.close()
            await link.wait_closed()

    @contextlib.asynccontextmanager
    async def agent(self) -> AsyncIterator[Asking]:
        async with self.login() as link:
            yield await asking(link)


class Asking:
    """An agent at the other end, asked line by line."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.hello: dict[str, Any] = {}
        self._numbers = itertools.count(1)

    async def ask(self, verb: str, **members: Any) -> dict[str, Any]:
        """The answer: what is ``ok`` in it, or its error's message under ``denied``."""
        number = next(self._numbers)
        line = json.dumps({"id": number, "do": verb, **members})
        self.process.stdin.write(line.encode() + b"\n")
        while True:
            told = json.loads(await self.process.stdout.readline())
            if told.get("id") == number:
                if "ok" in told:
                    return dict(told["ok"])
                return {"denied": told["error"]["message"]}

    async def start(self, argv: list[str], name: str = "c/w", **more: Any) -> Any:
        return await self.ask("start", name=name, argv=argv, **more)


async def asking(link: asyncssh.SSHClientConnection) -> Asking:
    made = Asking(await link.create_process(subsystem=AGENT, encoding=None))
    made.hello = json.loads(await made.process.stdout.readline())
    return made


@contextlib.asynccontextmanager
async def lent(
    folder: Path,
    limits: OwnerLimits | None = None,
    *,
    announces: bool = False,
    address: str = "127.0.0.1",
) -> AsyncIterator[LentMachine]:
    machine = LentMachine(folder, limits)
    machine.worker.listen(address, 0, announces=announces)
    running = asyncio.create_task(machine.worker.run())
    try:
        yield machine
        assert not running.done(), running.exception()
    finally:
        await end_tasks(running)
