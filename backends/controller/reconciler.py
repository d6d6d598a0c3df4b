"""Bring one plan up and keep it up: take-over, watch, recovery."""

from __future__ import annotations

import asyncio
import logging
import secrets
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backends.controller.builder import Builder, launch_steps
from backends.controller.discovery import Discovery
from backends.controller.evidence import failed_at
from backends.controller.gateway import ApiPortTaken, Gateway
from backends.controller.loading import Loading
from backends.controller.recovery import Recovery
from backends.controller.relays import Links
from backends.controller.serving import Activity, Serving
from backends.controller.site import draft_path
from backends.controller.stand_in import StandIns
from backends.controller.steps import StepBoard
from backends.controller.stopping import Stopper
from backends.controller.together import until_over
from backends.controller.unwatched import (
    TUNNELS_LOST,
    UnwatchedDeaths,
    ended_unwatched,
    needs_tunnels,
)
from backends.controller.watch import Watch
from backends.controller.ways import Ways
from backends.errors import (
    DllmError,
    ModelError,
    NeedsAnswer,
    PeerUnreachable,
    ProcessFailed,
)
from backends.link.relay import worker_relay_name
from backends.planning.blueprint import machines_of, process_name
from backends.planning.commands import SERVER
from backends.speculation.auto import AutoDraft, measure
from backends.speculation.methods import with_method
from backends.state import (
    AUTO_DRAFT,
    NO_DRAFT,
    ClusterState,
    DraftNow,
    ProcessRole,
    Step,
    StepState,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from backends.controller.builder import Built
    from backends.controller.event_recorders import EventRecorder
    from backends.controller.gateway import ApiPorts
    from backends.controller.journal import Journal
    from backends.controller.snapshot_store import SnapshotStore
    from backends.link.way import LinkRoute
    from backends.machines.machine import Machines
    from backends.machines.readers import Readers
    from backends.planning.blueprint import Facts
    from backends.speculation.auto import TrialBook
    from backends.state import Leftover, MeasuredSplit, Plan

log = logging.getLogger(__name__)

SECRET_BYTES = 32
FAULT_PAUSES_S = (0.0, 1.0, 5.0, 30.0)
"""After faults of ours, before what serves is looked after again."""


class Reconciler:
    """Keeps one plan up; a caller may cancel it at any time and take it up again.

    It reports to ``left`` the processes that could not be stopped, and events to
    ``recorder``. At ``gateway_socket`` the gateway gets its target.
    """

    def __init__(
        self,
        cluster: str,
        machines: Machines,
        store: SnapshotStore,
        journal: Journal,
        readers: Readers,
        api_ports: ApiPorts,
        left: Callable[[Iterable[Leftover]], None],
        recorder: EventRecorder,
        gateway_socket: Path,
        trials: TrialBook,
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._machines = machines
        self._readers = readers
        self._store = store
        self._journal = journal
        self._recorder = recorder
        self._clock = clock
        self.links = Links(store)
        self.serving = Serving(store, self.links.heed, self.links.rows)
        self._steps = StepBoard(clock, self._steps_changed)
        self._ways = Ways(self.stir)
        self.stopper = Stopper(cluster, machines, self._steps)
        self._watch = Watch(machines, self._ways, clock)
        self.gateway = Gateway(
            cluster, machines, store, recorder, gateway_socket, clock
        )
        self.discovery = Discovery(
            cluster,
            machines,
            readers,
            self._ways,
            self._steps,
            api_ports,
            self._secret,
            self._has_served,
            lambda: journal.record.goal.api,
            self.gateway.keeps_port,
        )
        self._builder = Builder(
            machines,
            self.discovery,
            self.stopper,
            self._ways,
            self._steps,
            self.gateway,
            left,
            clock,
        )
        self._loading = Loading(
            cluster,
            machines,
            self._steps,
            self._watch,
            self.links.weight_bytes,
            self.links.home_bytes,
            self.links.weights,
        )
        self.stand_ins = StandIns(machines, readers, store, recorder, journal)
        self._recovery = Recovery(
            machines,
            store,
            journal,
            recorder,
            self.discovery,
            self.gateway,
            self.stopper,
            self.stand_ins,
            clock,
        )
        self._unwatched = UnwatchedDeaths(journal, self._recovery.breaker)
        self.auto = AutoDraft(store, recorder, trials, measure=measure)
        self._begun_at = 0.0

    def _secret(self) -> str:
        # A goal gets its secret at the first need, and keeps it.
        if not self._journal.record.secret:
            self._journal.change(secret=secrets.token_hex(SECRET_BYTES))
        return self._journal.record.secret

    def _has_served(self) -> bool:
        return bool(self._journal.record.server)

    def begin(self, mended: str = "") -> None:
        """Forget what was mended before; ``mended`` says why this begins anew."""
        self._recovery.begin(mended)
        self._steps.reset()
        if not mended:
            self.links.forget_labs()
            self.stand_ins.forget()
            self.auto.forget()

    def stir(self) -> None:
        """Look again: a machine or a way came or went."""
        self._watch.stir()

    def announce(self) -> None:
        """Show the goal as being pursued; what was before is of no more interest."""
        record = self._journal.record
        plan = record.running
        state = ClusterState.STARTING if plan else ClusterState.STOPPING
        self._store.begin(record.goal.generation, plan, state)
        self._store.update(
            leftovers=record.leftovers,
            drained_since=record.drained_since,
            rolled_back=record.rolled_back,
        )

    async def let_go(self) -> None:
        """Close every way, and leave the gateway to itself."""
        await self.gateway.let_go()
        await self._ways.keep(())

    async def keep_up(self, plan: Plan, *, adopted: bool) -> None:
        """Bring a plan up, watch it, mend what can be mended; ends only by raising."""
        keeping = asyncio.create_task(self.gateway.keep(self._watch.report))
        try:
            await self._keep_up(plan, adopted=adopted)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _keep_up(self, plan: Plan, *, adopted: bool) -> None:
        running = self._journal.record.running or plan
        pauses_s = chain(FAULT_PAUSES_S, repeat(FAULT_PAUSES_S[-1]))
        if not adopted:
            await self._machines.reached(machines_of(plan))
        while True:
            try:
                if adopted:
                    await self._take_up(running)
                    adopted = False
                await self._bring_up_for(plan, running)
                running = plan
            except NeedsAnswer:
                raise
            except PeerUnreachable as error:
                self.announce()
                before = running
                running = await self._recovery.with_or_without(running, error)
                # What an earlier controller left of another plan is no trouble.
                adopted = adopted and running == before
            except ApiPortTaken as error:
                self._recovery.require_other_port(error, running)
            except ProcessFailed as error:
                # Adopted or not: the machine may have been off meanwhile.
                adopted = False
                running = await self._recovery.again_or_without(running, error)
            except DllmError as error:
                adopted = False
                running = await self._recovery.without_refused(running, error)
            except Exception as error:
                if not self._server_runs:
                    raise
                # A fault of ours is no reason to end what serves: it is taken up anew.
                log.exception("cluster %s is looked after again", self._cluster)
                self._recorder.failed(failed_at("The controller failed", error))
                await asyncio.sleep(next(pauses_s))

    @property
    def _server_runs(self) -> bool:
        servers = (r for _, r in self.stopper.found() if r.role is ProcessRole.SERVER)
        return self._has_served() and any(record.alive for record in servers)

    async def _bring_up_for(self, plan: Plan, running: Plan) -> None:
        """Keep up what stands in for a plan; returns once the plan can be had."""
        if running == plan:
            # Also a worker that was given up is tried anew.
            self._journal.change(stand_in=None, given_up=())
            await self._bring_up(plan)
        self._journal.change(stand_in=running)
        over = self.stand_ins.over(plan, running)
        self._recovery.tell(await until_over(self._bring_up(running), over))

    async def _bring_up(self, plan: Plan) -> None:
        """Make it so with the best draft, and watch it; returns only by raising."""
        if plan.server.draft != AUTO_DRAFT:
            self._store.update(draft_now=None)
            await self._bring_up_as(await self._without_lost_draft(plan))
        while True:
            draft = self.auto.begins(plan)
            chosen = with_method(plan, draft)
            if await self._without_lost_draft(chosen) != chosen:
                self.auto.give_up(draft)
                continue
            over = self.auto.over(plan, draft)
            try:
                why = await until_over(self._bring_up_as(chosen), over)
                self._recovery.goes_on(why)
            except ProcessFailed as error:
                # No reason to end what served well without that draft.
                if error.evidence.process != SERVER or not self.auto.blames(draft):
                    raise
                self._recorder.failed(replace(error.evidence, hint=""))
                self.auto.give_up(draft)

    async def _without_lost_draft(self, plan: Plan) -> Plan:
        """The plan, without its draft if that was there when it served and is gone."""
        if self._journal.record.served_since is None:
            return plan
        try:
            await draft_path(plan, self._machines, self._readers)
        except ModelError as error:
            why = f"{error.what}: it serves without a draft"
            self._recorder.waiting(why)
            self._store.update(draft_now=DraftNow(draft=NO_DRAFT, why=why))
            return with_method(plan, NO_DRAFT)
        return plan

    async def _bring_up_as(self, plan: Plan) -> None:
        """Make exactly this so and watch it; returns only by raising."""
        self.announce()
        self._begun_at = self._clock()
        self._store.update(message=self._recovery.mended)
        self._steps.reset(*launch_steps(plan))
        await self._let_answers_end(plan)
        self._watch.forget()
        built = await self._builder.build(plan)
        self._watch.expected = built.expected
        self._store.update(
            engine=built.facts.engines[plan.head].info, model=built.facts.model
        )
        sockets = await self.discovery.sockets(plan)
        facts = built.facts
        why = {name: one.why for name, one in facts.pairings.items()}
        async with self.links.following(
            sockets,
            self._ways.rtt_ms,
            why.__getitem__,
            partial(self._route, facts),
            plan.server.draft_max,
        ):
            await self._serve(plan, built)

    def _route(self, facts: Facts, worker: str) -> LinkRoute:
        port = facts.ports.get(worker_relay_name(worker), 0)
        return self._ways.route(worker, facts.pairings[worker].data, port)

    async def _let_answers_end(self, plan: Plan) -> None:
        """Before touching what serves, wait for answers that could not be continued.

        After trouble there are none: it has broken them already. An earlier controller
        may have begun to wait.
        """
        if served := self._journal.record.replaces:
            self.gateway.take_up(served)
        api = self.discovery.api
        restarts = self.gateway.restarts(api, self.discovery.demanded_port(plan))
        began, count = self._clock(), self.gateway.breaks(plan, restarts=restarts)
        if count:
            step = Step(id="drain", title="Let answers end", detail=f"{count} of them")
            self._steps.reset(step, *launch_steps(plan))
        with self._steps.step("drain"):
            left = await self.gateway.let_end(plan, api.drain_s, restarts=restarts)
        self._journal.change(replaces=None)
        if count or left:
            self._recorder.let_end(count, left, self._clock() - began)

    async def _serve(self, plan: Plan, built: Built) -> None:
        record = self._journal.record
        known = record.measured if record.server == built.server else None
        port = await self.discovery.server_way(plan, built.facts.ports[SERVER])
        measured = await self._loading.loaded(plan, built, port, known)
        self.gateway.serves(plan, port, built.server, self.discovery.api.wait_s)
        self.auto.serves(port)
        since = record.served_since or self._clock()
        taken_up = known is not None and not self._recovery.mended
        self._tell(plan, measured, taken_up=taken_up)
        self._journal.change(
            measured=measured,
            server=built.server,
            served_since=since,
            failure=None,
            before=None,
        )
        self._store.update(
            state=ClusterState.SERVING,
            measured=measured,
            api_url=self.gateway.access.url(built.api_port),
            served_since=since,
        )
        activity = Activity(
            self.links.carried_bytes,
            self._machines.get(plan.head).host,
            process_name(self._cluster, SERVER),
        )
        with self._recovery.breaker.serving(), self._unwatched.serving():
            try:
                await self.serving.until_trouble(port, self._watch, activity.since)
            except DllmError:
                self.gateway.holds(plan, self.discovery.api.wait_s)
                raise

    def _tell(self, plan: Plan, measured: MeasuredSplit, *, taken_up: bool) -> None:
        if taken_up:
            self._recorder.taken_up(plan)
            return
        seconds = self._clock() - self._begun_at
        self._recorder.serving(
            plan, measured, seconds, again=bool(self._recovery.mended)
        )

    # --- taking up ----------------------------------------------------------------

    async def _take_up(self, plan: Plan) -> None:
        await self._machines.reached(machines_of(plan))
        await self._require_undisturbed(plan)

    async def _require_undisturbed(self, plan: Plan) -> None:
        """Blame who ended; our tunnels ended with the controller before us.

        Raises:
            ProcessFailed: a process of the cluster ended while nobody watched.
        """
        at = self._clock()
        failure = await ended_unwatched(self._cluster, plan, self._machines, at)
        if failure is not None:
            self._unwatched.add(failure)
        if not self._has_served():
            return
        if failure is not None:
            raise ProcessFailed(failure)
        if needs_tunnels(plan):
            self._recovery.tell(TUNNELS_LOST)

    def _steps_changed(self) -> None:
        steps = self._steps.steps
        loading = any(s.id == "load" and s.state is StepState.RUNNING for s in steps)
        state = ClusterState.LOADING if loading else self._store.snapshot.state
        self._store.update(steps=steps, state=state)
