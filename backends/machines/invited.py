"""A peer that its owner lends us: a worker, by the sentence of an invitation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from backends.errors import HostError
from backends.machines.peer import SshPeer
from backends.machines.ssh.invited import Dialled, InvitedConnection
from backends.state import Transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.config import PeerConfig
    from backends.link.transport import LinkTransport, TransportSpec
    from backends.machines.shell import Greeting
    from backends.machines.ssh.invited import Dial
    from backends.machines.ssh.tunnels import Tunnel
    from backends.state.models import Delivered

DIALS = "dials"
"""In place of its places: it dials us."""


class InvitedPeer(SshPeer):
    """Implements ``Machine`` for a worker alone: never the head, nothing is installed.

    ``awaited`` makes the dial of one that dials us, by its host key.
    """

    transport = Transport.INVITED

    def __init__(
        self,
        name: str,
        config: PeerConfig,
        *,
        awaited: Callable[[str, Callable[[], None]], Dial],
        **known: Any,
    ) -> None:
        self._awaited = awaited
        super().__init__(name, config, **known)

    def _connected_by(self, name: str, config: PeerConfig) -> InvitedConnection:
        key, place = config.host_key or "", config.worker or ""
        dial: Dial
        if place == DIALS:
            dial = self._awaited(key, lambda: self.connection.poke())
        else:
            dial = Dialled(place.split())
        self._invited = InvitedConnection(name, dial, key, self._paths.console_key_file)
        return self._invited

    async def _greeting(self) -> Greeting:
        self._prober.lent = self._invited.hello.models
        return self.connection.greeting

    @property
    def _remedy(self) -> str:
        return f"Its owner installs one there: dllm-tui engine get, on {self.name}."

    async def provision(self, mode: object) -> str:
        self._not_ours("its owner installs engines there: dllm-tui engine get, on it")

    async def deliver(self, *_: object) -> Delivered:
        self._not_ours("its owner gets models there: dllm-tui models get, on it")

    async def clean(self) -> int:
        self._not_ours("nothing of ours is installed there")

    def _not_ours(self, why: str) -> NoReturn:
        raise HostError(f"{self.name} is lent by its owner: {why}")

    async def _socket_folder(self, run_dir: str) -> str:
        return run_dir

    async def way_from(self, way: LinkTransport, spec: TransportSpec) -> Tunnel:
        return await self.connection.forward_back(way)
