"""A peer that its owner lends us: a worker, by the sentence of an invitation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import asyncssh

from backends.errors import MachineError
from backends.machines.peer import SshPeer
from backends.machines.shell import transfer_error
from backends.machines.ssh.connection import ConnectionPhase
from backends.machines.ssh.files import Meter, upload
from backends.machines.ssh.lent import LentConnection, ThroughHost
from backends.mesh.dialling import Dialled
from backends.mesh.messages import PART
from backends.mesh.quic_place import parse_quic_place
from backends.models.identity import identity_of
from backends.state import PeerWork, Transport
from backends.state.models import Delivered

if TYPE_CHECKING:
    from backends.config import PeerConfig
    from backends.link.transport import LinkTransport, TransportSpec
    from backends.machines.peer_downloads import Wanted
    from backends.machines.shell import Greeting
    from backends.machines.ssh.connection import ConnectionState
    from backends.machines.ssh.tunnels import Tunnel
    from backends.mesh.dialling import Dial
    from backends.mesh.quic_dial import QuicDialler

DIALS = "dials"
"""In place of its places: it dials us."""


class LentPeer(SshPeer):
    """Implements ``Machine`` for a worker alone: never the head, nothing is installed.

    ``awaited`` makes the dial of one that dials us, by its host key. ``quic`` dials the
    others by QUIC, too, where their settings have a place for that.
    """

    transport = Transport.INVITED

    def __init__(
        self,
        name: str,
        config: PeerConfig,
        *,
        awaited: Callable[[str, Callable[[], None]], Dial],
        quic: QuicDialler,
        **known: Any,
    ) -> None:
        self._awaited = awaited
        self._quic = quic
        super().__init__(name, config, **known)

    def _connected_by(self, name: str, config: PeerConfig) -> LentConnection:
        key, place = config.host_key or "", config.worker or ""
        dial: Dial
        if place == DIALS:
            dial = self._awaited(key, lambda: self.connection.poke())
        else:
            dial = Dialled(place.split())
            if config.quic:
                dial = self._quic.beside(dial, parse_quic_place(config.quic))
            if config.via:
                dial = ThroughHost(dial, config.via, place.split())
        self._invited = LentConnection(name, dial, key, self._paths.console_key_file)
        self._invited.is_busy = self._is_busy
        return self._invited

    def _is_busy(self) -> bool:
        works = (self._work, self._looking)
        return self._agent.is_asked or any(task and not task.done() for task in works)

    def _on_state(self, state: ConnectionState) -> None:
        super()._on_state(state)
        connected = state.phase is ConnectionPhase.CONNECTED
        self._show(path=self._invited.path if connected else None)

    async def _greeting(self) -> Greeting:
        self._prober.lent = self._invited.hello.models
        return self.connection.greeting

    @property
    def _remedy(self) -> str:
        return f"Its owner installs one there: dllm-tui engine get, on {self.name}."

    async def provision(self, mode: object) -> str:
        self._not_ours("its owner installs engines there: dllm-tui engine get, on it")

    async def deliver(self, wanted: Sequence[Wanted], *_: object) -> Delivered:
        """Send whole models of this machine, where its owner lets us add some."""
        await self._reach()
        hello = self._invited.hello
        if not hello.writable or not all(file.source for file in wanted):
            self._not_ours(
                "it takes only whole models of this machine, and only with "
                "--models-writable"
            )
        delivered = await self._at_work(self._sent(wanted, hello.models[0]))
        await self._look_anew()
        return delivered

    async def _sent(self, wanted: Sequence[Wanted], folder: str) -> Delivered:
        title = f"Getting {wanted[0].name} on {self.name}"
        size_bytes = sum(file.size_bytes for file in wanted)

        def tell(text: str, done: float) -> None:
            self._report(PeerWork(title=title, progress=done, detail=text))

        meter = Meter(size_bytes, tell)
        try:
            async with self.connection.files() as sftp:
                for file in wanted:
                    await self._send(sftp, file, f"{folder}/{file.name}", meter)
        except (asyncssh.Error, OSError) as error:
            raise transfer_error(self.name, error) from error
        return Delivered(
            peer=self.name,
            path=f"{folder}/{wanted[0].name}",
            size_bytes=size_bytes,
            how="from this machine",
            verified_by="its size and samples",
        )

    async def _send(
        self, sftp: asyncssh.SFTPClient, file: Wanted, target: str, meter: Meter
    ) -> None:
        assert file.source is not None
        identity = await asyncio.to_thread(identity_of, file.source)
        if await sftp.exists(target):
            if await self.agent.identity(target) != identity:
                raise MachineError(f"Another file is {target} on {self.name} already")
            return
        half = f"{target}{PART}"
        await upload(sftp, file.source, half, meter)
        if await self.agent.identity(half) != identity:
            raise MachineError(
                f"{half} on {self.name} is not what was sent",
                "Its owner may remove it; then repeat.",
            )
        await sftp.rename(half, target)

    async def clean(self) -> int:
        self._not_ours("nothing of ours is installed there")

    def _not_ours(self, why: str) -> NoReturn:
        raise MachineError(f"{self.name} is lent by its owner: {why}")

    async def _socket_folder(self, run_dir: str) -> str:
        return run_dir

    async def way_from(self, way: LinkTransport, spec: TransportSpec) -> Tunnel:
        return await self.connection.forward_back(way)
