"""The snapshot everybody reads, told to subscribers at most four times a second."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

import msgspec

from backends.controller.places import LOCAL
from backends.controller.proposal import local_workers, worker_device
from backends.split.layout import ranges
from backends.state import (
    ClusterSnapshot,
    ClusterState,
    Failure,
    Peer,
    PeerRole,
    PeerState,
    ProcessInfo,
    Speed,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from backends.config import Config
    from backends.controller.machines import Machines
    from backends.peers.host import ProcessRecord
    from backends.state import Device, WorkerSpec

PERIOD_S = 0.25
FREE_STEP_BYTES = 64 << 20
RSS_STEP_BYTES = 1 << 20


class Board:
    """Holds the newest snapshot; subscribers get it when it has changed."""

    def __init__(self, config: Callable[[], Config]) -> None:
        """``config`` gives the settings, for the workers shown while idle."""
        self._config = config
        self._memory: Device | None = None
        self._known: tuple[Peer, ...] = ()
        self._changed = asyncio.Event()
        self._closed = False
        self.snapshot = ClusterSnapshot(controller_pid=os.getpid(), at=time.time())

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
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    def idle(self) -> None:
        """Nothing runs and nothing is wrong."""
        self.update(
            state=ClusterState.IDLE,
            plan=None,
            measured=None,
            steps=(),
            failure=None,
            api_url=None,
            speed=Speed(),
            links=(),
            served_since=None,
            message="",
        )

    def failed(self, failure: Failure) -> None:
        """Nothing runs because something went wrong."""
        self.update(
            state=ClusterState.FAILED,
            failure=failure,
            message=failure.sentence,
            api_url=None,
            speed=Speed(),
            served_since=None,
        )

    async def refresh(self, machines: Machines) -> None:
        """Read our own memory anew, and show the processes of all as last seen."""
        self._memory = _steady(await machines.get(LOCAL).host.memory())
        self.show_processes(machines)

    def show_processes(self, machines: Machines) -> None:
        """Show the processes of all machines as last seen."""
        self.update(
            processes=tuple(
                _process(machine.name, record)
                for machine in machines.all()
                for record in machine.records
            )
        )

    def show_peers(self, known: Sequence[Peer]) -> None:
        """Other machines changed: how they are, apart from what the plan does there."""
        self._known = tuple(known)
        self.update(peers=self._peers(self.snapshot))

    def close(self) -> None:
        """End every stream of changes."""
        self._closed = True
        self._changed.set()

    async def changes(self) -> AsyncIterator[ClusterSnapshot]:
        """The snapshot now, then whenever it changes, at most four a second."""
        while not self._closed:
            changed = self._changed
            yield self.snapshot
            await asyncio.sleep(PERIOD_S)
            await changed.wait()

    # --- peers ---------------------------------------------------------------

    def _peers(self, snapshot: ClusterSnapshot) -> tuple[Peer, ...]:
        """This machine, its workers (those of a launch while idle), other machines."""
        if self._memory is None:
            return ()
        return (
            self._here(snapshot),
            *(self._local_worker(snapshot, w) for w in self._local_workers(snapshot)),
            *(_in_cluster(peer, snapshot) for peer in self._known),
        )

    def _here(self, snapshot: ClusterSnapshot) -> Peer:
        head = snapshot.plan is None or snapshot.plan.head == LOCAL
        gpus = snapshot.engine.devices if snapshot.engine and head else ()
        return Peer(
            name=LOCAL,
            role=PeerRole.HEAD if head else PeerRole.IDLE,
            state=_peer_state(snapshot, None) if head else PeerState.READY,
            devices=(self._memory, *gpus) if self._memory else gpus,
            note="this machine",
        )

    def _local_workers(self, snapshot: ClusterSnapshot) -> Sequence[WorkerSpec]:
        if snapshot.plan is not None:
            return [w for w in snapshot.plan.workers if w.peer == LOCAL]
        if any(peer.state is PeerState.READY for peer in self._known):
            return ()
        return local_workers(self._config().workers, None, os.cpu_count() or 1)

    def _local_worker(self, snapshot: ClusterSnapshot, worker: WorkerSpec) -> Peer:
        memory = self._memory
        return Peer(
            name=worker.name,
            role=PeerRole.WORKER,
            state=_peer_state(snapshot, worker.name),
            devices=(worker_device(worker, memory),) if memory else (),
        )


def _in_cluster(peer: Peer, snapshot: ClusterSnapshot) -> Peer:
    """A peer with the part it has in the present plan."""
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
    """Free memory in coarse steps: it changes all the time, the screen need not."""
    free = memory.free_bytes // FREE_STEP_BYTES * FREE_STEP_BYTES
    return msgspec.structs.replace(memory, free_bytes=free)


def _process(peer: str, record: ProcessRecord) -> ProcessInfo:
    return ProcessInfo(
        name=record.name,
        role=record.role,
        peer=peer,
        state=record.state,
        pid=record.pid,
        port=record.port,
        argv=record.argv,
        started_at=record.started_at,
        exit_code=record.exit_code,
        exit_signal=record.exit_signal,
        log_path=record.log_path,
        rss_bytes=(record.rss_bytes or 0) // RSS_STEP_BYTES * RSS_STEP_BYTES or None,
    )
