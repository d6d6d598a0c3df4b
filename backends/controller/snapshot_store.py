"""The shared snapshot, sent to subscribers at most four times a second."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any

import msgspec

from backends.config import Config
from backends.controller.memory_usage import with_memory
from backends.machine_names import LOCAL
from backends.planning.memory_fit import ClusterMemory, room_for
from backends.planning.proposal import local_workers, worker_devices
from backends.split.layout import ranges
from backends.state import (
    ClusterSnapshot,
    ClusterState,
    Device,
    Failure,
    Peer,
    PeerData,
    PeerRole,
    PeerState,
    Plan,
    Speed,
    WorkerSpec,
)

log = logging.getLogger(__name__)

PERIOD_S = 0.25
FREE_STEP_BYTES = 64 << 20
_NOTHING_SERVES: dict[str, Any] = {
    "fallbacks": (),
    "api_url": None,
    "speed": Speed(),
    "served_since": None,
    "last_run": None,
}
_NOTHING_RUNS: dict[str, Any] = {
    **_NOTHING_SERVES,
    "message": "",
    "steps": (),
    "measured": None,
    "failure": None,
    "links": (),
}


class SnapshotStore:
    """Holds the newest snapshot; subscribers get it when it has changed.

    ``settings`` returns the settings as last read, for the workers shown while idle.
    The store calls ``told`` after every change.
    """

    def __init__(
        self,
        settings: Callable[[], Config],
        *,
        cluster: str = "default",
        told: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._told = told
        self._memory: Device | None = None
        self._memory_there: tuple[Device, ...] = ()
        self._others: tuple[ClusterMemory, ...] = ()
        self._known: tuple[Peer, ...] = ()
        self._data: dict[str, PeerData] = {}
        """By peer, how its data went last."""
        self._changed = asyncio.Event()
        self._closed = False
        self.snapshot = ClusterSnapshot(
            cluster=cluster, controller_pid=os.getpid(), at=time.time()
        )

    def update(self, **changes: Any) -> None:
        """Change fields of the snapshot; the same values again change nothing."""
        changed = msgspec.structs.replace(self.snapshot, **changes)
        if changed == self.snapshot:
            return
        plan = changed.plan
        self.snapshot = msgspec.structs.replace(
            changed,
            seq=self.snapshot.seq + 1,
            at=time.time(),
            planned=ranges(plan.split) if plan else (),
            peers=self._peers(changed),
        )
        self._wake()
        try:
            self._told()
        except Exception:
            # Who changes it has more to do than to show it.
            log.exception("a change was not shown everywhere")

    def begin(self, generation: int, plan: Plan | None, state: ClusterState) -> None:
        plan = plan or self.snapshot.plan
        self.update(**_NOTHING_RUNS, generation=generation, state=state, plan=plan)

    def idle(self) -> None:
        self.update(**_NOTHING_RUNS, state=ClusterState.IDLE, plan=None)

    def failed(self, failure: Failure) -> None:
        self.update(
            **_NOTHING_SERVES,
            state=ClusterState.FAILED,
            failure=failure,
            message=failure.sentence,
            draft_now=None,
        )

    def show_memory(
        self,
        memory: Device,
        there: Iterable[Device] = (),
        others: Iterable[ClusterMemory] = (),
    ) -> None:
        """Main memory was read anew: ours, and that of some other machines."""
        self._memory = _steady(memory)
        self._memory_there = tuple(map(_steady, there))
        self._others = tuple(others)
        self.update(peers=self._peers(self.snapshot))

    def show_peers(self, known: Sequence[Peer]) -> None:
        """Other machines changed: how they are, apart from what the plan does there."""
        self._known = tuple(known)
        self.update(peers=self._peers(self.snapshot))

    def close(self) -> None:
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    async def change(self) -> None:
        changed = self._changed
        await changed.wait()

    async def reached(self, generation: int) -> None:
        """Wait until a generation serves, failed, ended or was replaced."""
        settled = (ClusterState.SERVING, ClusterState.FAILED, ClusterState.IDLE)
        while (now := self.snapshot).generation <= generation and (
            now.generation < generation or now.state not in settled
        ):
            await self.change()

    async def changes(self) -> AsyncGenerator[ClusterSnapshot, None]:
        """The snapshot now, then whenever it changes, at most four a second."""
        while not self._closed:
            changed = self._changed
            yield self.snapshot
            await asyncio.sleep(PERIOD_S)
            await changed.wait()

    def _peers(self, snapshot: ClusterSnapshot) -> tuple[Peer, ...]:
        """This machine, its workers (those of a launch while idle), other machines."""
        if self._memory is None:
            return ()
        gpus = snapshot.engine.devices if snapshot.engine else ()
        own = (self._memory, *(gpu for gpu in gpus if gpu.id.startswith(f"{LOCAL}/")))
        known = with_memory(self._known, self._memory_there)
        machines = [Peer(name=LOCAL, devices=own, note="this machine"), *known]
        here, *known = room_for(machines, None, self._others)
        is_head = snapshot.plan is None or snapshot.plan.head == LOCAL
        workers = (
            Peer(
                name=worker.name,
                role=PeerRole.WORKER,
                state=_peer_state(snapshot, worker.name),
                devices=worker_devices(worker, here),
            )
            for worker in self._local_workers(snapshot)
        )
        return (
            msgspec.structs.replace(
                here,
                role=PeerRole.HEAD if is_head else PeerRole.IDLE,
                state=_peer_state(snapshot, None) if is_head else PeerState.READY,
            ),
            *workers,
            *(_in_cluster(self._with_data(peer, snapshot), snapshot) for peer in known),
        )

    def _with_data(self, peer: Peer, snapshot: ClusterSnapshot) -> Peer:
        """A peer with how its data go now, or went last."""
        if peer.data is None:
            return peer
        if now := _data_now(peer, snapshot):
            self._data[peer.name] = now
        last = self._data.get(peer.name, PeerData())
        data = msgspec.structs.replace(
            last, wanted=peer.data.wanted, now=now is not None
        )
        return msgspec.structs.replace(peer, data=data)

    def _local_workers(self, snapshot: ClusterSnapshot) -> Sequence[WorkerSpec]:
        if snapshot.plan is not None:
            return [w for w in snapshot.plan.workers if w.peer == LOCAL]
        if any(peer.state is PeerState.READY for peer in self._known):
            return ()
        return local_workers(self._settings().workers, None, os.cpu_count() or 1)


def _data_now(peer: Peer, snapshot: ClusterSnapshot) -> PeerData | None:
    """Return how data go to the workers of a peer; None if the plan uses none."""
    plan = snapshot.plan
    names = {w.name for w in plan.workers if w.peer == peer.name} if plan else ()
    links = [link for link in snapshot.links if link.worker in names and link.way]
    if not links:
        return None
    ways = dict.fromkeys(link.way for link in links)
    why = next((link.way_reason for link in links if link.way_reason), "")
    return PeerData(ways=tuple(ways), why=why, now=True)


def _in_cluster(peer: Peer, snapshot: ClusterSnapshot) -> Peer:
    plan = snapshot.plan
    if plan is None:
        return peer
    workers = [w.name for w in plan.workers if w.peer == peer.name]
    if plan.head != peer.name and not workers:
        return peer
    role = PeerRole.HEAD if plan.head == peer.name else PeerRole.WORKER
    if peer.state is not PeerState.READY:
        return msgspec.structs.replace(peer, role=role)
    state = _peer_state(snapshot, workers[0] if workers else None)
    return msgspec.structs.replace(peer, role=role, state=state)


def _peer_state(snapshot: ClusterSnapshot, worker: str | None) -> PeerState:
    """The head's state is the cluster's; a worker's also depends on its process."""
    if snapshot.failure and worker and snapshot.failure.process == worker:
        return PeerState.FAILED
    return {
        ClusterState.STARTING: PeerState.STARTING,
        ClusterState.LOADING: PeerState.STARTING,
        ClusterState.SERVING: PeerState.SERVING,
    }.get(snapshot.state, PeerState.READY)


def _steady(memory: Device) -> Device:
    # Free memory changes all the time: coarse steps keep the screen still.
    free = memory.free_bytes // FREE_STEP_BYTES * FREE_STEP_BYTES
    return msgspec.structs.replace(memory, free_bytes=free)
