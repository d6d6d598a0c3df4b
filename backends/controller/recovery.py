"""Decide how to go on after trouble: the same plan again, another port, or less."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from backends.controller.breaker import DEATHS_MAX, GIVEN_UP, Breaker
from backends.controller.memory_usage import still_held
from backends.controller.stand_in import told_stand_in
from backends.engine.explain import lost_port
from backends.errors import (
    DllmError,
    NeedsAnswer,
    NeverListened,
    PeerUnreachable,
    ProcessFailed,
)
from backends.link.relay import is_relay
from backends.machines.bare import blamed
from backends.planning.blueprint import machines_of
from backends.planning.commands import SERVER
from backends.state import PeerState

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.controller.discovery import Discovery
    from backends.controller.event_recorders import EventRecorder
    from backends.controller.gateway import Gateway
    from backends.controller.journal import Journal
    from backends.controller.snapshot_store import SnapshotStore
    from backends.controller.stand_in import StandIns
    from backends.controller.stopping import Stopper
    from backends.machines.machine import Machines
    from backends.planning.room import ClusterMemory
    from backends.state import Failure, Peer, Plan

log = logging.getLogger(__name__)

TOO_OFTEN = "{what}, {times} times within two minutes of serving"
# A machine that is gone ends nothing for so long after its last sign of life.
BACK_WITHIN_S = 60.0
BACK_POLL_S = 1.0
GOES_ON = "The cluster goes on by itself when the machine is back."


class DiedTooOften(ProcessFailed):
    """Starting it again mends nothing."""


class Recovery:
    """Judges each trouble of one plan, and tells what was done about it."""

    def __init__(
        self,
        machines: Machines,
        store: SnapshotStore,
        journal: Journal,
        recorder: EventRecorder,
        discovery: Discovery,
        gateway: Gateway,
        stopper: Stopper,
        stand_ins: StandIns,
        clock: Callable[[], float],
    ) -> None:
        self._machines = machines
        self._store = store
        self._journal = journal
        self._recorder = recorder
        self._discovery = discovery
        self._gateway = gateway
        self._stopper = stopper
        self._stand_ins = stand_ins
        self._clock = clock
        self.breaker = Breaker(clock)
        self.mended = ""
        """The last repair; empty after a beginning."""

    def begin(self, mended: str) -> None:
        """Forget what was before; ``mended`` says why this begins anew."""
        self.breaker.reset()
        self.mended = mended

    def tell(self, text: str, event: str = "") -> None:
        """Say what was mended, here and wherever the cluster is shown next.

        The event_log may tell less of it: the ``event`` before says why.
        """
        self.mended = text
        self._recorder.mended(event or text)
        log.warning("%s", text)

    def goes_on(self, text: str) -> None:
        """Remember the reason for a new beginning; it is reported already."""
        self.mended = text
        log.info("%s", text)

    async def again_or_without(self, running: Plan, error: ProcessFailed) -> Plan:
        """Return the plan to bring up after an end: the same, or one without it."""
        if error.worker and isinstance(error, NeverListened):
            return await self.without_refused(running, error)
        try:
            self._require_mendable(await blamed(error, running), error)
        except DiedTooOften as failed:
            return await self._without_worker(running, failed)
        return running

    async def with_or_without(self, running: Plan, error: PeerUnreachable) -> Plan:
        """Wait for a machine that is gone, or go on without it.

        Raises:
            PeerUnreachable: it did not come back, and the rest cannot do it alone.
            NeedsAnswer: it asks something, and nothing has served yet.
        """
        try:
            await self._back(running, error)
        except (PeerUnreachable, NeedsAnswer):
            record = self._journal.record
            if record.served_since is None:
                raise
            try:
                rest = await self._stand_ins.instead_of(running, self._held(running))
            except DllmError as why:
                what = f"{error.what}, and what is left cannot do it: {why.what}"
                raise PeerUnreachable(what, _hint(GOES_ON, why)) from why
            if rest != running:
                how = told_stand_in(rest, running)
                self.tell(f"{error.what}: went on without it, {how}")
            return rest
        return running

    async def without_refused(self, running: Plan, error: DllmError) -> Plan:
        """Drop a machine that is there and cannot start a worker again."""
        if not error.worker or self._journal.record.served_since is None:
            raise error
        failure = error.failure(self._clock())
        failure = msgspec.structs.replace(failure, process=error.worker)
        return await self._without_worker(running, ProcessFailed(failure))

    async def _without_worker(self, running: Plan, failed: ProcessFailed) -> Plan:
        """Drop a worker that fails on a reachable machine."""
        worker = failed.evidence.process
        if worker not in {one.name for one in running.workers}:
            raise failed
        held = self._held(running)
        try:
            rest = await self._stand_ins.instead_of(running, held, worker)
        except DllmError as why:
            what = f"{failed.what}, and what is left cannot do it: {why.what}"
            hint = _hint(failed.hint, why)
            raise ProcessFailed(
                msgspec.structs.replace(failed.evidence, what=what, hint=hint)
            ) from why
        self._recorder.failed(failed.evidence)
        how = told_stand_in(rest, running)
        self.tell(f"{failed.what}: went on without {worker}, {how}")
        return rest

    def _held(self, running: Plan) -> ClusterMemory | None:
        processes = (one.record for one in self._stopper.found())
        return still_held(running, self._journal.record, processes)

    async def _back(self, plan: Plan, error: PeerUnreachable) -> None:
        """Wait for machines to come back, until they are gone for a minute.

        Raises:
            PeerUnreachable: one did not.
        """
        self._gateway.holds(plan, self._discovery.api.wait_s)
        self.mended = f"{error.what}; the cluster went on when it was back"
        self._store.update(message=f"{error.what}: waiting for it")
        self._recorder.waiting(f"{error.what}: waiting for it")
        log.warning("%s: waiting for it", error.what)
        deadline = self._away_since(plan) + BACK_WITHIN_S
        while True:
            try:
                await self._machines.reached(machines_of(plan))
            except NeedsAnswer:
                raise
            except PeerUnreachable:
                if self._clock() >= deadline:
                    break
                await asyncio.sleep(BACK_POLL_S)
            else:
                return
        raise PeerUnreachable(error.what, f"{GOES_ON} Or launch without it.")

    def _away_since(self, plan: Plan) -> float:
        """Unix seconds of the last sign of life of the machine longest gone.

        Whoever asks for a cluster that never served may be switching it on just now.
        """
        now = self._clock()
        if self._journal.record.served_since is None:
            return now
        names = set(machines_of(plan))
        peers = (peer for peer in self._machines.values() if peer.name in names)
        return min((_away_since(peer, now) for peer in peers), default=now)

    def _require_mendable(self, error: DllmError, died: ProcessFailed) -> None:
        """Let a failure stand unless starting again mends it, and not too often.

        ``error`` says whose end made that process die.

        Raises:
            DllmError: the error itself.
        """
        failure = error.failure(self._clock())
        is_ours = error is died or failure.process != SERVER
        mended = self._mended_by_starting_again(failure) if is_ours else ""
        if not mended:
            raise error
        if self.breaker.trips(failure.process):
            what = TOO_OFTEN.format(what=failure.what, times=DEATHS_MAX)
            failure = msgspec.structs.replace(failure, what=what, hint=GIVEN_UP)
            raise DiedTooOften(failure) from died
        self._recorder.failed(msgspec.structs.replace(failure, hint=""))
        again = f"{failure.process} {mended.removeprefix('it ')}"
        self.tell(f"{error.what}: {mended}", again)

    def _mended_by_starting_again(self, failure: Failure) -> str:
        """Return the sentence about a restart; empty if a restart would not help.

        A worker or llama-server that never served has a reason that stays.
        """
        if failure.process == SERVER and lost_port(failure.log_tail):
            return "it was started again with another port"
        served = self._journal.record.served_since is not None
        if failure.process == SERVER:
            return "it was started again" if served else ""
        if served or is_relay(failure.process):
            return "it was started again, with llama-server"
        return ""

    def require_other_port(self, error: DllmError, plan: Plan) -> None:
        """Give the API another port than one that was taken from it.

        Raises:
            DllmError: the error itself, where nobody allowed another one.
        """
        if self._discovery.demanded_port(plan) is not None:
            raise error
        self._discovery.lose_port()
        again = "the gateway was started again with another port"
        self.tell(f"{error.what}: {again}")


def _away_since(peer: Peer, now: float) -> float:
    if peer.silent_since is not None:
        return peer.silent_since
    if peer.state is PeerState.UNREACHABLE and peer.since is not None:
        return peer.since
    return now


def _hint(first: str, why: DllmError) -> str:
    return " ".join(filter(None, (first, why.hint)))
