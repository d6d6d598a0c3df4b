"""Decide how to go on after trouble: the same plan again, another port, or less."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from backends.controller.context import ClusterContext
from backends.controller.degraded_plan import DegradedPlans, degraded_text
from backends.controller.exit_reasons import (
    DEATHS_MAX,
    WINDOW_S,
    Deaths,
    ended_unwatched,
    needs_tunnels,
)
from backends.controller.gateway_process import ApiPortTaken
from backends.controller.journal import Journal
from backends.controller.memory_usage import still_held
from backends.controller.stopping import ClusterProcesses
from backends.engine.logs import lost_port
from backends.errors import (
    DllmError,
    NeedsAnswer,
    NeverListened,
    PeerUnreachable,
    ProcessFailed,
    Withheld,
)
from backends.link.relay import is_relay
from backends.machines.bare import blamed, connects
from backends.planning.blueprint import SERVER, machines_of
from backends.state import Failure, PeerState, Plan

log = logging.getLogger(__name__)

GIVEN_UP = "It is not started once more: its log may say why; launch again to try anew."
LOADING = "{what}, {times} times before it served, with no controller there"
TOO_OFTEN = "{what}, {times} times within two minutes of serving"
# A machine that is gone ends nothing for so long after its last sign of life.
BACK_WITHIN_S = 60.0
BACK_POLL_S = 1.0
GOES_ON = "The cluster goes on by itself when the machine is back."
TUNNELS_LOST = (
    "The controller was replaced and its tunnels ended: llama-server was started again"
)


class Breaker(Deaths):
    """Decides when starting again is given up: after five deaths while it serves.

    Only the time in which the cluster serves counts. A model that loads for a quarter
    of an hour does not use up the two minutes.

    Deaths that no controller saw are counted in the journal. A start that takes the
    machine down with it must not be repeated at every boot.
    """

    def __init__(self, journal: Journal) -> None:
        super().__init__(lambda: self._served_s)
        self._journal = journal
        self._served_s = 0.0

    @contextmanager
    def serving(self) -> Iterator[None]:
        """It serves while the block runs; if long, unwatched deaths are forgotten."""
        began = time.time()
        timer = asyncio.get_running_loop().call_later(
            WINDOW_S, lambda: self._journal.change(unwatched_deaths=0)
        )
        try:
            yield
        finally:
            timer.cancel()
            self._served_s += max(time.time() - began, 0.0)

    def add_unwatched(self, failure: Failure) -> None:
        """Count a death that no controller saw, with those before it."""
        record = self._journal.record
        # Before it served, what was never started is no death.
        if not record.server and not failure.argv:
            return
        before = record.unwatched_deaths
        self._journal.change(unwatched_deaths=before + 1)
        self._deaths[failure.process] = [self._served_s] * before
        if not record.server and before + 1 >= DEATHS_MAX:
            what = LOADING.format(what=failure.what, times=DEATHS_MAX)
            raise ProcessFailed(replace(failure, what=what, hint=GIVEN_UP))


class DiedTooOften(ProcessFailed):
    """Starting it again mends nothing."""


class Recovery:
    """Judges each trouble of one plan, and tells what was done about it."""

    def __init__(
        self,
        context: ClusterContext,
        processes: ClusterProcesses,
        degraded: DegradedPlans,
    ) -> None:
        self._context = context
        self._machines = context.machines
        self._recorder = context.recorder
        self._processes = processes
        self._degraded = degraded
        self.breaker = Breaker(context.journal)
        self.mended = ""
        """The last repair; empty after a beginning."""

    def begin(self, mended: str) -> None:
        """Forget what was before; ``mended`` says why this begins anew."""
        self.breaker.reset()
        self.mended = mended

    def tell(self, text: str, event: str = "") -> None:
        """Say what was mended, here and wherever the cluster is shown next."""
        self.mended = text
        self._recorder.mended(event or text)
        log.warning("%s", text)

    async def require_undisturbed(self, plan: Plan) -> None:
        """Blame who ended; our tunnels ended with the controller before us."""
        failure = await ended_unwatched(self._context.name, plan, self._machines)
        if failure is not None:
            self.breaker.add_unwatched(failure)
        if not self._context.has_served:
            return
        if failure is not None:
            raise ProcessFailed(failure)
        if needs_tunnels(plan):
            self.tell(TUNNELS_LOST)

    async def plan_after(self, running: Plan, error: DllmError) -> Plan:
        """Return the plan to bring up after trouble: the same, or one with less."""
        if isinstance(error, ApiPortTaken):
            if self._context.demanded_port(running) is not None:
                raise error
            self._context.api_ports.lose(self._context.name)
            again = "the gateway was started again with another port"
            self.tell(f"{error.what}: {again}")
            return running
        if not isinstance(error, ProcessFailed):
            return await self._without_refused(running, error)
        if error.worker and isinstance(error, NeverListened):
            return await self._without_refused(running, error)
        try:
            self._require_mendable(await blamed(error, running), error)
        except DiedTooOften as failed:
            return await self._without_worker(running, failed)
        return running

    async def with_or_without(self, running: Plan, error: PeerUnreachable) -> Plan:
        bare = {w.name: w.endpoint for w in running.workers if w.endpoint}
        worker = error.worker if error.worker in bare else ""
        try:
            await self._back(running, error, bare.get(worker, ""))
        except (PeerUnreachable, NeedsAnswer) as why:
            if self._context.record.served_since is None:
                raise
            told = why if isinstance(why, Withheld) else error
            gone = PeerUnreachable(told.what, GOES_ON)
            return await self._with_less(running, gone, worker)
        return running

    async def _without_refused(self, running: Plan, error: DllmError) -> Plan:
        if not error.worker or self._context.record.served_since is None:
            raise error
        failure = replace(error.failure(time.time()), process=error.worker)
        return await self._without_worker(running, ProcessFailed(failure))

    async def _without_worker(self, running: Plan, failed: ProcessFailed) -> Plan:
        worker = failed.evidence.process
        if worker not in {one.name for one in running.workers}:
            raise failed
        return await self._with_less(running, failed, worker)

    async def _with_less(self, running: Plan, error: DllmError, worker: str) -> Plan:
        """Take the degraded plan, without ``worker`` if one is named."""
        try:
            processes = (one.record for one in self._processes.found())
            held = still_held(running, self._context.record, processes)
            rest = await self._degraded.instead_of(running, held, worker)
        except DllmError as why:
            what = f"{error.what}, and what is left cannot do it: {why.what}"
            hint = " ".join(filter(None, (error.hint, why.hint)))
            if isinstance(error, ProcessFailed):
                failure = replace(error.evidence, what=what, hint=hint)
                raise ProcessFailed(failure) from why
            raise PeerUnreachable(what, hint) from why
        if isinstance(error, ProcessFailed):
            self._recorder.failed(error.evidence)
        if rest != running:
            how = degraded_text(rest, running)
            self.tell(f"{error.what}: went on without {worker or 'it'}, {how}")
        return rest

    async def _back(self, plan: Plan, error: PeerUnreachable, bare: str) -> None:
        """Wait for machines to come back, until they are gone for a minute.

        ``bare`` is the endpoint of a worker that nobody listens at.

        Raises:
            PeerUnreachable: one did not.
        """
        self._context.gateway.holds(plan, self._context.api.wait_s)
        self.mended = f"{error.what}; the cluster went on when it was back"
        self._context.store.update(message=f"{error.what}: waiting for it")
        self._recorder.waiting(f"{error.what}: waiting for it")
        log.warning("%s: waiting for it", error.what)
        deadline = self._away_since(plan) + BACK_WITHIN_S
        while True:
            try:
                await self._machines.reached(machines_of(plan))
                if bare:
                    await connects(bare)
            except PeerUnreachable:
                if time.time() >= deadline:
                    break
                self._require_lent(plan)
                await asyncio.sleep(BACK_POLL_S)
            else:
                return
        raise PeerUnreachable(error.what, f"{GOES_ON} Or launch without it.")

    def _away_since(self, plan: Plan) -> float:
        """Unix seconds of the last sign of life of the machine longest gone.

        Whoever asks for a cluster that never served may be switching it on just now.
        """
        signs = [time.time()]
        if self._context.record.served_since is not None:
            names = set(machines_of(plan))
            for peer in self._machines.values():
                is_away = peer.state is PeerState.UNREACHABLE
                since = peer.silent_since or (peer.since if is_away else None)
                if peer.name in names and since is not None:
                    signs.append(since)
        return min(signs)

    def _require_lent(self, plan: Plan) -> None:
        for peer in self._machines.values():
            taken = peer.withheld or peer.revoked
            if taken and peer.name in machines_of(plan):
                # Its owner has taken it away: it does not come back by itself.
                raise Withheld(peer.note.partition(". ")[0])

    def _require_mendable(self, error: DllmError, died: ProcessFailed) -> None:
        """Let a failure stand unless starting again mends it, and not too often."""
        failure = error.failure(time.time())
        is_ours = error is died or failure.process != SERVER
        mended = self._mended_by_starting_again(failure) if is_ours else ""
        if not mended:
            raise error
        if self.breaker.trips(failure.process):
            what = TOO_OFTEN.format(what=failure.what, times=DEATHS_MAX)
            failure = replace(failure, what=what, hint=GIVEN_UP)
            raise DiedTooOften(failure) from died
        self._recorder.failed(replace(failure, hint=""))
        again = f"{failure.process} {mended.removeprefix('it ')}"
        self.tell(f"{error.what}: {mended}", again)

    def _mended_by_starting_again(self, failure: Failure) -> str:
        """Return the sentence about a restart; empty if a restart would not help.

        A worker or llama-server that never served has a reason that stays.
        """
        if failure.process == SERVER and lost_port(failure.log_tail):
            return "it was started again with another port"
        served = self._context.record.served_since is not None
        if failure.process == SERVER:
            return "it was started again" if served else ""
        if served or is_relay(failure.process):
            return "it was started again, with llama-server"
        return ""
