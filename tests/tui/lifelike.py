"""Peers that behave like machines of their own: for looking at the console."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from backends.errors import ControllerError, HostError
from backends.state import (
    Peer,
    PeerAnswer,
    PeerState,
    PeerWork,
    ProvisionMode,
    Transport,
)
from tests.tui import peer_scenes as people
from tests.tui.scripted import LifelikeCluster

STEP_S = 0.15
STEPS = 40


class LifelikePeers(LifelikeCluster):
    """A new peer asks about its key, has no engine, and gets one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._cancelled: set[str] = set()

    def _tell(self, name: str, **changes: Any) -> Peer:
        assert self.now is not None
        peers = {peer.name: peer for peer in self.now.peers}
        peers[name] = msgspec.structs.replace(peers[name], **changes)
        self.push(msgspec.structs.replace(self.now, peers=tuple(peers.values())))
        return peers[name]

    async def add_peer(
        self,
        name: str,
        *,
        ssh: str | None = None,
        bare: str | None = None,
        token: str | None = None,
    ) -> Peer:
        """It is reached within a second; ``nowhere`` is not."""
        assert self.now is not None
        if any(peer.name == name for peer in self.now.peers):
            raise ControllerError(f"There is a peer {name} already", "Remove it first.")
        way = Transport.BARE if bare else Transport.SSH
        peer = Peer(
            name=name,
            state=PeerState.PROBING,
            transport=way,
            address=ssh or bare or "",
        )
        self.push(msgspec.structs.replace(self.now, peers=(*self.now.peers, peer)))
        self._reaching = asyncio.create_task(self._reach(name))
        return peer

    async def _reach(self, name: str) -> None:
        await asyncio.sleep(1)
        if name == "nowhere":
            note = f"The name {name} is not known. Is it spelled right?"
            self._tell(name, state=PeerState.UNREACHABLE, note=note)
        else:
            question = people.HOST_KEY
            self._tell(name, state=PeerState.ASKING, question=question)

    async def answer_peer(self, name: str, answer: PeerAnswer) -> Peer:
        self._tell(name, state=PeerState.PROBING, question=None, note="")
        await asyncio.sleep(1)
        return self._tell(name, state=PeerState.NO_ENGINE, note=people.EVE.note)

    async def remove_peer(self, name: str) -> None:
        assert self.now is not None
        peers = tuple(peer for peer in self.now.peers if peer.name != name)
        self.push(msgspec.structs.replace(self.now, peers=peers))

    async def provision_peer(
        self, name: str, mode: ProvisionMode = ProvisionMode.AUTO
    ) -> Peer:
        """A few seconds of progress."""
        for step in range(STEPS):
            if name in self._cancelled:
                self._cancelled.discard(name)
                self._tell(name, state=PeerState.NO_ENGINE, work=None)
                raise HostError(f"The work at {name} was ended")
            self._tell(name, state=PeerState.PROVISIONING, work=_work(name, step))
            await asyncio.sleep(STEP_S)
        return self._tell(
            name,
            state=PeerState.READY,
            work=None,
            note="",
            devices=tuple(
                msgspec.structs.replace(device, id=f"{name}/{device.name}")
                for device in people.ADA.devices
            ),
            facts=people.ADA_FACTS,
            rtt_ms=0.7,
        )

    async def cancel_work(self, name: str) -> Peer:
        self._cancelled.add(name)
        return self._peer(name)


def _work(name: str, step: int) -> PeerWork:
    return PeerWork(
        title=f"Installing on {name}",
        detail=f"compiling ggml-cpu ({step} of {STEPS} files)",
        progress=step / STEPS,
    )
