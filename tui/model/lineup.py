"""The machines of a plan: read from it, changed, and shown on the peers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from backends.places import LOCAL
from backends.state import Peer, PeerRole, Transport
from tui.model.draft import renamed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from backends.state import Device, Plan, WorkerSpec

NOT_STARTED = "starts with the launch"


@dataclass(frozen=True)
class Lineup:
    """Head and workers of a plan, by machine."""

    head: str
    peers: tuple[str, ...]
    """Other machines that work, in the plan's order."""
    own: int | None
    """Workers on this machine; None: as many as the configuration says."""

    @classmethod
    def of(cls, plan: Plan) -> Lineup:
        """Read it from a plan."""
        machines = [worker.peer for worker in plan.workers]
        others = dict.fromkeys(name for name in machines if name != LOCAL)
        return cls(plan.head, tuple(others), machines.count(LOCAL))

    @property
    def empty(self) -> bool:
        """True if no machine works."""
        return not self.peers and self.own == 0

    def uses(self, name: str) -> bool:
        """True if the machine works."""
        return bool(self.own) if name == LOCAL else name in self.peers

    def with_worker(self, name: str, own: int) -> Lineup:
        """One machine more; ``own`` workers if it is this one."""
        if name == LOCAL:
            return replace(self, own=own)
        return replace(self, peers=(*self.peers, name))

    def without(self, name: str) -> Lineup:
        """One machine fewer among the workers."""
        if name == LOCAL:
            return replace(self, own=0)
        return replace(self, peers=tuple(p for p in self.peers if p != name))

    def led_by(self, name: str) -> Lineup:
        """Another head. A peer is head or worker, this machine may be both.

        Where no worker is left, this machine's own take over.
        """
        lineup = replace(self, head=name)
        if name != LOCAL:
            lineup = lineup.without(name)
        return replace(lineup, own=None) if lineup.empty else lineup


@dataclass(frozen=True)
class PlannedPeers:
    """The peers as a plan has them."""

    plan: Plan

    def keeps(self, peer: Peer, running: Plan | None) -> bool:
        """True if a peer is shown; an own worker that no plan needs is not."""
        own = peer.transport == Transport.LOCAL and peer.role is PeerRole.WORKER
        plans = [self.plan] + ([running] if running else [])
        return not own or any(w.name == peer.name for p in plans for w in p.workers)

    def shown(self, peer: Peer) -> Peer:
        """A peer with its part, its devices under the names the split has for them."""
        names = self._device_names(peer.name)
        devices = tuple(
            renamed(device, names.get(device.name, device.id))
            for device in peer.devices
        )
        role = self._role(peer)
        if role is peer.role and devices == peer.devices:
            return peer
        return msgspec.structs.replace(peer, role=role, devices=devices)

    def to_come(
        self, shown: Sequence[Peer], devices: Sequence[Device]
    ) -> tuple[Peer, ...]:
        """Workers on this machine that a launch would start."""
        known = {peer.name for peer in shown}
        return tuple(
            _to_come(worker, devices)
            for worker in self.plan.workers
            if worker.name not in known and worker.peer == LOCAL
        )

    def _device_names(self, machine: str) -> Mapping[str, str]:
        """By the engine's name of a device, the split's."""
        return {
            name: device_id
            for worker in self.plan.workers
            if worker.peer == machine != LOCAL
            for name, device_id in zip(worker.devices, worker.device_ids, strict=True)
        }

    def _role(self, peer: Peer) -> PeerRole:
        if peer.name == self.plan.head:
            return PeerRole.HEAD
        works = {worker.name for worker in self.plan.workers if worker.peer == LOCAL}
        works |= {worker.peer for worker in self.plan.workers} - {LOCAL}
        return PeerRole.WORKER if peer.name in works else PeerRole.IDLE


def _to_come(worker: WorkerSpec, devices: Sequence[Device]) -> Peer:
    return Peer(
        name=worker.name,
        role=PeerRole.WORKER,
        transport=worker.peer,
        devices=tuple(d for d in devices if d.id in worker.device_ids),
        note=NOT_STARTED,
    )
