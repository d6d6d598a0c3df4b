"""A machine reached over SSH, as the cluster uses it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from backends.controller.places import at_peer
from backends.controller.readers import Engine
from backends.engine.ask import parse_flags
from backends.engine.find import EngineLocation, EngineSource
from backends.engine.protocols import protocols_match
from backends.errors import EngineError, HostError, ModelError, PeerUnreachable
from backends.models.identity import identity_of
from backends.paths import SOCKET_PATH_BYTES_MAX
from backends.peers.probe import read_identities
from backends.peers.remote_host import RemoteHost
from backends.state import DeviceKind, EngineInfo, PeerFacts, Transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.peers.host import Host, ProcessRecord
    from backends.peers.ssh.connection import SshConnection
    from backends.peers.ssh.tunnels import Tunnel
    from backends.state import ModelInfo, PeerEngine

# Where a user's files go, by the XDG rules, on any Unix.
_FOLDERS_SCRIPT = """
state=${XDG_STATE_HOME:-$HOME/.local/state}
mkdir -p "$state/dllm-tui/run/$1" && chmod 700 "$state/dllm-tui/run/$1" || exit 1
printf '%s\\n' "$state/dllm-tui/run/$1"
"""


class SshMachine:
    """Processes, engine and tunnels of one peer; the connection is shared by all."""

    def __init__(
        self, connection: SshConnection, head_id: str, socket: Callable[[str], Path]
    ) -> None:
        """``head_id`` keeps our processes apart from those of other heads.

        ``socket`` tells where our end of a relay's socket goes.
        """
        self.name = connection.name
        self.transport = Transport.SSH
        self.connection = connection
        self.facts = PeerFacts(at=0.0)
        self.records: tuple[ProcessRecord, ...] = ()
        self._head_id = head_id
        self._socket = socket
        self._run_dir = ""
        self._relay = ""
        self._host: RemoteHost | None = None
        self._tunnels: list[Tunnel] = []

    async def prepare(self, facts: PeerFacts, relay: str) -> None:
        """Take what a probe found; ``relay`` is the path of ``dllm-relay`` there.

        Raises:
            HostError: its directories cannot be made.
            PeerUnreachable: the connection broke.
        """
        self.facts = facts
        if not self._run_dir:
            done = await self.connection.run(_FOLDERS_SCRIPT, self._head_id)
            self._run_dir = done.stdout.strip()
        self._relay = relay
        self._host = RemoteHost(self.connection, run_dir=self._run_dir, relay=relay)

    @property
    def host(self) -> Host:
        """Its processes.

        Raises:
            PeerUnreachable: it has not been reached yet, or the connection broke.
        """
        if self._host is None or not self.connection.connected:
            raise self._gone()
        return self._host

    def _gone(self) -> PeerUnreachable:
        """What became of the connection, and what follows."""
        why = self.connection.lost
        return PeerUnreachable(
            why.what if why else f"There is no connection to {self.name}",
            "What still runs there is stopped when it comes back; launch again then.",
        )

    async def look(self) -> tuple[ProcessRecord, ...]:
        """Its process directories now; as last seen while it is silent.

        Raises:
            PeerUnreachable: the connection broke.
        """
        try:
            self.records = tuple(await self.host.records())
        except PeerUnreachable:
            raise
        except HostError:
            # A link that is down for a moment; the connection tells when it is more.
            if not self.connection.connected:
                raise self._gone() from None
        return self.records

    async def engine(self, wanted: str | None, rpc_protocol: str = "") -> Engine:
        """The engine in the directory wanted, else the first that fits.

        Raises:
            EngineError: there is none, or none that speaks ``rpc_protocol``.
        """
        found = self._fitting(wanted, rpc_protocol)
        location = EngineLocation(
            directory=found.directory,
            server_path=found.server_path,
            worker_path=found.worker_path,
            source=EngineSource.CACHE if found.ours else EngineSource.PATH,
        )
        info = EngineInfo(
            directory=found.directory,
            source=location.source.value,
            server_path=found.server_path,
            worker_path=found.worker_path,
            version=found.version,
            rpc_protocol=found.rpc_protocol,
            devices=tuple(
                d for d in self.facts.devices if d.kind is not DeviceKind.CPU
            ),
        )
        return Engine(location=location, info=info, flags=await self._flags(found))

    def _fitting(self, wanted: str | None, rpc_protocol: str) -> PeerEngine:
        engines = [
            e for e in self.facts.engines if wanted is None or e.directory == wanted
        ]
        for engine in engines:
            if protocols_match(rpc_protocol, engine.rpc_protocol):
                return engine
        hint = f"Install the head's: dllm-tui peers provision {self.name}."
        if not engines:
            raise EngineError(f"{self.name} has no llama.cpp with RPC", hint)
        spoken = ", ".join(e.rpc_protocol for e in engines)
        raise EngineError(
            f"The engine of {self.name} speaks RPC {spoken}, the head's {rpc_protocol}",
            hint,
        )

    async def _flags(self, engine: PeerEngine) -> frozenset[str]:
        """The options its llama-server knows."""
        done = await self.connection.run('"$1" --help 2>&1', engine.server_path)
        return parse_flags(done.stdout)

    async def model_path(self, model: ModelInfo) -> str:
        """Where it keeps the same bytes.

        Raises:
            ModelError: it has no such file.
        """
        if there := at_peer(model.path):
            return self._own(*there)
        part = Path(model.path)
        wanted = await asyncio.to_thread(identity_of, part)
        size_bytes = (await asyncio.to_thread(part.stat)).st_size
        same = [m.path for m in self.facts.models if m.size_bytes == size_bytes]
        for found in await read_identities(self.connection, *same) if same else ():
            if found.identity == wanted:
                return found.path
        raise ModelError(
            f"{self.name} has no copy of {part.name}",
            f"Copy it there: dllm-tui peers copy {self.name} {part}.",
        )

    def _own(self, peer: str, path: str) -> str:
        if peer != self.name:
            raise ModelError(
                f"{path} is on {peer}, and {self.name} has no copy of it",
                f"Make {peer} the head (--head {peer}).",
            )
        return path

    def relay_program(self) -> str:
        """Path of ``dllm-relay`` there.

        Raises:
            HostError: it is not installed there.
        """
        if not self._relay:
            raise HostError(
                f"The helper program dllm-relay is not on {self.name}",
                f"Install it: dllm-tui peers provision {self.name}.",
            )
        return self._relay

    def relay_stats(self, worker: str) -> str:
        """A socket beside its process directories; in /tmp where that is too long."""
        path = f"{self._run_dir}/{worker}.sock"
        if len(path.encode()) > SOCKET_PATH_BYTES_MAX:
            return f"/tmp/dllm-{self._head_id}-{worker}.sock"
        return path

    async def reach_stats(self, worker: str) -> Path:
        """A socket of ours that leads to the relay's there."""
        ours = self._socket(worker)
        ours.unlink(missing_ok=True)
        tunnel = await self.connection.forward_to_path(self.relay_stats(worker), ours)
        self._tunnels.append(tunnel)
        return ours

    async def reach_port(self, port: int, at: int = 0) -> int:
        """A loopback port of ours that leads to one there."""
        tunnel = await self.connection.forward_to_port(port, at)
        self._tunnels.append(tunnel)
        return tunnel.port

    async def offer_port(self, port: int) -> int:
        """A loopback port there that leads to one of ours."""
        tunnel = await self.connection.forward_from_port(port)
        self._tunnels.append(tunnel)
        return tunnel.port

    async def close_ways(self) -> None:
        """Close every tunnel."""
        tunnels, self._tunnels = self._tunnels, []
        for tunnel in tunnels:
            with contextlib.suppress(HostError, OSError):
                await tunnel.close()
