"""A peer over SSH for tests that look after its connection themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from backends.config import PeerConfig
from backends.machines.peer import SshPeer

if TYPE_CHECKING:
    from backends.machines.machine import Machine
    from backends.machines.ssh.connection import SshConnection
    from backends.paths import Paths

RTT_MS = 1.5


def ssh_peer(
    name: str, connection: SshConnection, paths: Paths, head_id: str
) -> SshPeer:
    """One that is not run: nobody supervises the connection, nobody probes."""

    async def settle(_: Machine) -> None:
        pass

    made = SshPeer(
        name,
        PeerConfig(ssh=name),
        paths=paths,
        readers=cast("Any", None),
        head_id=head_id,
        changed=lambda: None,
        settle=settle,
        serves=lambda _: False,
    )
    made.connection = connection
    made.peer = replace(made.peer, rtt_ms=RTT_MS)
    return made
