"""A machine reached over SSH, as the cluster uses it."""

from __future__ import annotations

import asyncio
import logging
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from backends.data_place import AUTO, place_of
from backends.engine.protocols import protocols_match
from backends.errors import EngineError, HostError, ModelError, PeerUnreachable
from backends.machines.agent.agent_host import AgentHost
from backends.machines.agent.upkeep import LEASE_S
from backends.machines.machine import called_alike, stand_ins
from backends.machines.ssh.tunnel_way import TunnelWay
from backends.models.folders import named_folders
from backends.models.identity import identity_of
from backends.paths import SOCKET_PATH_BYTES_MAX, make_private
from backends.places import at_peer
from backends.state import PeerFacts, Transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.data_place import DataPlace
    from backends.engine.ask import Engine
    from backends.link.way import Way, WaySpec
    from backends.machines.ssh.connection import SshConnection
    from backends.machines.ssh.held import HeldSession
    from backends.machines.ssh.tunnels import Tunnel
    from backends.paths import Paths
    from backends.state import ModelInfo

log = logging.getLogger(__name__)

ANY_USER = "any user of {machine} can reach the worker"

# Where a user's files go, by the XDG rules, on any Unix; nothing is made there yet.
_AGENT_LINE = (
    'exec "$1" host --run-dir "${XDG_STATE_HOME:-$HOME/.local/state}/dllm-tui/run/$2"'
)
_SSH_CONNECTION = 'printf %s "${SSH_CONNECTION-}"'
_MAKE_FOLDER = 'umask 077; mkdir -p -- "$1"'
# Others may write to /tmp too: a folder there is ours alone, or none of ours.
_OWN_FOLDER = """\
folder=/tmp/dllm-$(id -u)-$1
mkdir -m 700 -- "$folder" 2>/dev/null
if [ -L "$folder" ] || [ ! -O "$folder" ] || ! chmod 700 -- "$folder"; then
  echo "$folder belongs to somebody else: remove it there" >&2
  exit 1
fi
printf %s "$folder"
"""
_NUMBERED_BYTES = len("/12345678.sock")


class SshMachine:
    """Processes, engine and tunnels of one peer; the connection is shared by all."""

    def __init__(
        self,
        connection: SshConnection,
        head_id: str,
        paths: Paths,
        rtt_ms: Callable[[], float | None],
        data: str | None = None,
    ) -> None:
        """``head_id`` keeps our processes apart from those of other heads.

        ``rtt_ms`` tells the newest round trip; None while the machine is silent.
        ``data`` is that setting of the peer.
        """
        self.name = connection.name
        self.transport = Transport.SSH
        self.connection = connection
        self.facts = PeerFacts(at=0.0)
        self._head_id = head_id
        self._paths = paths
        self._rtt_ms = rtt_ms
        self._data = data
        self._relay = ""
        # The same one for every agent: others listen to what it tells.
        self._host = AgentHost(
            self.name, self._open_agent, restarts=True, lease_s=LEASE_S
        )
        self._sockets = ""
        self._engines: tuple[Engine, ...] = ()

    def take(self, facts: PeerFacts, engines: tuple[Engine, ...]) -> None:
        """Keep what a look found there; the engines are those that answered."""
        self.facts = facts
        self._engines = engines

    async def agent_at(self, relay: str) -> AgentHost | None:
        """Our agent there, which runs from then on; None where no helper is.

        Args:
            relay: path of ``dllm-relay`` there; empty when it is not installed.

        Raises:
            HostError: it does not run there.
            PeerUnreachable: the connection broke.
        """
        if relay != self._relay:
            await self.end_agent()
            self._relay = relay
        if not relay:
            return None
        try:
            await self._host.connect()
            self._sockets = await self._socket_folder(self._host.run_dir)
        except PeerUnreachable:
            raise
        except HostError as error:
            if not self.connection.connected:
                raise self._gone() from error
            await self.end_agent()
            raise
        return self._host

    async def _open_agent(self) -> HeldSession:
        if not self.connection.connected:
            raise self._gone()
        return await self.connection.hold(_AGENT_LINE, self._relay, self._head_id)

    async def end_agent(self) -> None:
        """Let go of the agent; what it started lives on."""
        self._relay = ""
        await self._host.close()

    @property
    def host(self) -> AgentHost:
        """Its processes.

        Raises:
            HostError: the helper is not installed there.
            PeerUnreachable: it has not been reached yet, or the connection broke.
        """
        if not self.connection.connected:
            raise self._gone()
        self.relay_program()
        return self._host

    def _gone(self) -> PeerUnreachable:
        """What became of the connection, and what follows."""
        why = self.connection.lost
        return PeerUnreachable(
            why.what if why else f"There is no connection to {self.name}",
            "What still runs there is stopped when it comes back; launch again then.",
        )

    async def engine(self, wanted: str | None, rpc_protocol: str = "") -> Engine:
        """The engine in the directory wanted, else the first that fits.

        Raises:
            EngineError: there is none, or none that speaks ``rpc_protocol``.
        """
        engines = [e for e in self._engines if wanted in (None, e.info.directory)]
        for engine in engines:
            if protocols_match(rpc_protocol, engine.info.rpc_protocol):
                return engine
        hint = f"Install the head's: dllm-tui peers provision {self.name}."
        if not engines:
            raise EngineError(f"{self.name} has no llama.cpp with RPC", hint)
        spoken = ", ".join(engine.info.rpc_protocol for engine in engines)
        raise EngineError(
            f"The engine of {self.name} speaks RPC {spoken}, the head's {rpc_protocol}",
            hint,
        )

    async def model_path(self, model: ModelInfo) -> str:
        """Where it keeps the same bytes.

        Raises:
            ModelError: it has no such file.
        """
        if there := at_peer(model.path):
            return self._own(*there)
        part, host = Path(model.path), self.host
        wanted = await asyncio.to_thread(identity_of, part)
        for found in self.facts.models:
            same_size = found.size_bytes == model.size_bytes
            # Asked anew: it may have changed since it was found.
            if same_size and await host.identity(found.path) == wanted:
                return found.path
        raise ModelError(
            f"{self.name} has no copy of {part.name}{self.searched}",
            f"Copy it there: dllm-tui peers copy {self.name} {part}.",
        )

    @property
    def searched(self) -> str:
        """The folders there that were searched for models."""
        return named_folders(self.facts.model_dirs)

    async def copies_of(self, model: ModelInfo) -> tuple[str, ...]:
        """A file of the same bytes, else those of the same name and size.

        What is in them is compared by whoever reads them.
        """
        there = at_peer(model.path)
        if there and there[0] == self.name:
            return (there[1],)
        if model.thin:
            return stand_ins(model.thin, model.path, self.facts.models)
        wanted = "" if there else await asyncio.to_thread(identity_of, Path(model.path))
        found = [f for f in self.facts.models if f.size_bytes == model.size_bytes]
        same = tuple(f.path for f in found if wanted and f.identity == wanted)
        return same[:1] or called_alike(model, found)

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

    async def data_place(self) -> DataPlace:
        """As its settings say, else the address at which its sshd was reached."""
        if self._data not in (None, AUTO):
            return place_of(self._data, "")
        told = await self.connection.run(_SSH_CONNECTION)
        return place_of(AUTO, told.stdout)

    def relay_stats(self, worker: str) -> str:
        """A socket beside its process directories."""
        return self._socket_there(f"{worker}.sock")

    async def _socket_folder(self, run_dir: str) -> str:
        """Beside its process directories, or a private one where that is too long."""
        if len(run_dir.encode()) + _NUMBERED_BYTES <= SOCKET_PATH_BYTES_MAX:
            return run_dir
        return (await self.connection.run(_OWN_FOLDER, self._head_id)).stdout

    def _socket_there(self, name: str) -> str:
        path = f"{self._sockets}/{name}"
        if len(path.encode()) <= SOCKET_PATH_BYTES_MAX:
            return path
        return f"{self._sockets}/{zlib.crc32(name.encode()):08x}.sock"

    # --- ways -------------------------------------------------------------------------

    async def stats_way(self, worker: str) -> Way:
        """A Unix socket of ours that leads to the relay's there."""
        near = self._paths.relay_socket(worker)
        return self._way(await self.connection.forward(self.relay_stats(worker), near))

    async def api_way(self, port: int) -> Way:
        """A loopback port of ours that leads to one there: API clients know no more."""
        return self._way(await self.connection.forward(port))

    async def way_to(self, port: int, spec: WaySpec) -> Way:
        """A Unix socket of ours that leads to a port there; a port if it must be."""
        if spec.tcp:
            tunnel = await self.connection.forward(port)
            return self._way(tunnel, note=ANY_USER.format(machine="this machine"))
        near = self._paths.worker_socket(spec.cluster, spec.worker)
        make_private(near.parent)
        return self._way(await self.connection.forward(port, near))

    async def way_from(self, way: Way, spec: WaySpec) -> Way:
        """A Unix socket there that leads to one of ours; a port if it must be."""
        note, tunnel = "", None
        if not spec.tcp:
            try:
                tunnel = await self._socket_back(way, spec)
            except PeerUnreachable:
                raise
            except HostError as error:
                log.warning("%s: %s", self.name, error)
                note = f"The sshd of {self.name} makes no Unix sockets: "
        if tunnel is None:
            tunnel = await self.connection.forward_back(way.endpoint)
            note += ANY_USER.format(machine=self.name)
        return self._way(tunnel, beyond=way, note=note)

    async def _socket_back(self, way: Way, spec: WaySpec) -> Tunnel:
        # Nothing may have been started there yet.
        await self.connection.run(_MAKE_FOLDER, self._sockets)
        far = self._socket_there(f"{spec.cluster}-{spec.worker}.way")
        return await self.connection.forward_back(way.endpoint, far)

    def _way(self, tunnel: Tunnel, *, beyond: Way | None = None, note: str = "") -> Way:
        return TunnelWay(tunnel, self._rtt_ms, beyond=beyond, note=note)
