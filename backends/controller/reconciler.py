"""Bring one cluster to what is wanted, and keep it there.

A cluster is in one phase at a time. The work of a phase ends with a trigger, and
``TRANSITIONS`` says which phase comes next. A person's request, or a machine that is
back, ends the work at once: ``REQUESTS`` holds from every phase.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import partial
from itertools import chain, repeat

from msgspec.structs import replace

from backends.controller.builder import Builder, Built
from backends.controller.calibration_store import RunRecorder
from backends.controller.context import ClusterContext
from backends.controller.degraded_plan import DegradedPlans
from backends.controller.drafting import gains_now
from backends.controller.exit_reasons import failed_at, unexpected
from backends.controller.journal import Record
from backends.controller.launch_facts import Discovery, draft_path
from backends.controller.memory_usage import machines_now
from backends.controller.recovery import Recovery
from backends.controller.serving import Load, Serving, Watch
from backends.controller.steps import launch_steps
from backends.controller.stopping import ClusterProcesses
from backends.errors import (
    ControllerError,
    DllmError,
    ModelError,
    NeedsAnswer,
    PeerUnreachable,
    ProcessFailed,
)
from backends.gateway.control_messages import GATEWAY
from backends.machines.machine import Machine
from backends.planning.blueprint import (
    SERVER,
    machines_of,
    needed_names,
    process_name,
    short_name,
)
from backends.speculation.auto import AutoDraft, measure
from backends.speculation.methods import with_method
from backends.state import (
    AUTO_DRAFT,
    NO_DRAFT,
    ClusterState,
    DraftNow,
    Failure,
    Plan,
    RolledBack,
    Step,
)
from backends.tasks import end_tasks, first_of, forever


class Phase(StrEnum):
    REACHING = "reaching"
    """Wait for the machines of a launch."""
    ADOPTING = "adopting"
    """Look what became of what an earlier controller left."""
    DRAINING = "draining"
    """Let answers end that the plan would break."""
    STARTING = "starting"
    """Start what the plan lacks, and stop what it does not want."""
    LOADING = "loading"
    """Wait for llama-server to load the model."""
    SERVING = "serving"
    """Wait for trouble, or for something better to run."""
    WAITING = "waiting"
    """A machine is away: wait for it a while, then take the degraded plan."""
    RECOVERING = "recovering"
    """Something ended or was refused: find the plan to go on with."""
    PAUSING = "pausing"
    """The controller failed, and what serves goes on: look after it a little later."""
    FAILED = "failed"
    """Stop everything. Wait for a request, or for the machine that is missing."""
    STOPPING = "stopping"
    """Stop everything, because a person said so."""
    IDLE = "idle"
    """No plan is wanted, and no process runs."""
    LEFT_ALONE = "left alone"
    """The journal or the machines are not known: touch nothing."""


class Trigger(StrEnum):
    LAUNCHED = "launched"
    STOPPED = "stopped"
    FOUND = "found"
    """The journal of an earlier controller wants a plan."""
    FOUND_FAILED = "found failed"
    """It says that nothing more is tried."""
    UNKNOWN = "unknown"
    """It, or the settings, cannot be read."""

    DONE = "done"
    BACK = "back"
    """All is there again, and nobody has looked at it since."""
    ALL_BACK = "all back"
    """The full plan can run in place of the degraded one."""
    OTHER_DRAFT = "other draft"
    """``--draft auto`` wants to run another draft."""
    AGAIN = "again"
    """A person wants a process to be started again."""
    LATE = "late"
    """A process came that nothing wants."""

    UNREACHABLE = "unreachable"
    ENDED = "ended"
    """A process ended that should not have."""
    REFUSED = "refused"
    """Any other error that is expected."""
    ASKED = "asked"
    """A machine asks the user something."""
    FAULT = "fault"
    """An error that nobody thought of."""


REQUESTS = {
    Trigger.LAUNCHED: Phase.REACHING,
    Trigger.STOPPED: Phase.STOPPING,
    Trigger.FOUND: Phase.ADOPTING,
    Trigger.FOUND_FAILED: Phase.FAILED,
    Trigger.UNKNOWN: Phase.LEFT_ALONE,
}
"""From every phase."""

TROUBLE = {
    Trigger.UNREACHABLE: Phase.WAITING,
    Trigger.ENDED: Phase.RECOVERING,
    Trigger.REFUSED: Phase.RECOVERING,
    Trigger.FAULT: Phase.PAUSING,
}

TRANSITIONS: dict[Phase, dict[Trigger, Phase]] = {
    Phase.REACHING: {Trigger.DONE: Phase.DRAINING},
    Phase.ADOPTING: {Trigger.DONE: Phase.DRAINING, **TROUBLE},
    Phase.DRAINING: {Trigger.DONE: Phase.STARTING, **TROUBLE},
    Phase.STARTING: {Trigger.DONE: Phase.LOADING, **TROUBLE},
    Phase.LOADING: {Trigger.DONE: Phase.SERVING, **TROUBLE},
    Phase.SERVING: {
        Trigger.ALL_BACK: Phase.DRAINING,
        Trigger.OTHER_DRAFT: Phase.DRAINING,
        Trigger.AGAIN: Phase.DRAINING,
        **TROUBLE,
    },
    Phase.WAITING: {Trigger.DONE: Phase.DRAINING, Trigger.BACK: Phase.ADOPTING},
    Phase.RECOVERING: {Trigger.DONE: Phase.DRAINING},
    Phase.PAUSING: {Trigger.DONE: Phase.DRAINING, Trigger.BACK: Phase.ADOPTING},
    Phase.STOPPING: {Trigger.DONE: Phase.IDLE},
    Phase.IDLE: {Trigger.LATE: Phase.STOPPING},
    Phase.FAILED: {Trigger.LATE: Phase.FAILED, Trigger.FAULT: Phase.LEFT_ALONE},
    Phase.LEFT_ALONE: {},
}
"""Whatever is not in a row leads to ``FAILED``."""

WITH_LINKS = (Phase.LOADING, Phase.SERVING)
AT_REST = (Phase.FAILED, Phase.STOPPING, Phase.IDLE, Phase.LEFT_ALONE)


def next_phase(phase: Phase, trigger: Trigger) -> Phase:
    return REQUESTS.get(trigger) or TRANSITIONS[phase].get(trigger, Phase.FAILED)


def trigger_of(error: Exception) -> Trigger:
    match error:
        case NeedsAnswer():
            return Trigger.ASKED
        case PeerUnreachable():
            return Trigger.UNREACHABLE
        case ProcessFailed():
            return Trigger.ENDED
        case DllmError():
            return Trigger.REFUSED
        case _:
            return Trigger.FAULT


log = logging.getLogger(__name__)

FAULT_PAUSES_S = (0.0, 1.0, 5.0, 30.0)
"""After faults of ours, before what serves is looked after again."""
REACH_S = 10.0


def fault_pauses_s() -> Iterator[float]:
    return chain(FAULT_PAUSES_S, repeat(FAULT_PAUSES_S[-1]))


class Reconciler:
    """Does the work of each phase; ``begin`` takes what was asked for."""

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        self._machines = context.machines
        self._store = context.store
        self._journal = context.journal
        self._recorder = context.recorder
        self._steps = context.steps
        self._links = context.links
        self._gateway = context.gateway
        self.discovery = Discovery(context)
        self.processes = ClusterProcesses(context)
        self.degraded = DegradedPlans(context)
        runs = RunRecorder(
            context.calibrations,
            context.store,
            context.links.passes,
            partial(machines_now, context.machines, context.inventory),
        )
        self.serving = Serving(context.store, context.links, runs)
        self.auto = AutoDraft(
            *(context.store, context.recorder, context.trials),
            measure=measure,
            predict=partial(gains_now, context),
        )
        self._watch = Watch(context)
        self._builder = Builder(context, self.discovery, self.processes)
        self._recovery = Recovery(context, self.processes, self.degraded)
        self._work_of = {
            Phase.REACHING: self._reach,
            Phase.ADOPTING: self._adopt,
            Phase.DRAINING: self._drain,
            Phase.STARTING: self._start,
            Phase.LOADING: self._load,
            Phase.SERVING: self._serve,
            Phase.WAITING: self._wait,
            Phase.RECOVERING: self._recover,
            Phase.PAUSING: self._pause,
            Phase.FAILED: self._fail,
            Phase.STOPPING: self._stop,
            Phase.IDLE: self._idle,
            Phase.LEFT_ALONE: self._rest,
        }
        self.phase = Phase.IDLE
        self._before = Phase.IDLE
        self._request: Trigger | None = None
        self._task: asyncio.Task[Trigger] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._is_resting = False
        self._error: Exception | None = None
        """The error that led to the present phase."""
        self._pauses_s = fault_pauses_s()
        self._draft = NO_DRAFT
        self._again = asyncio.Event()
        """Set when the builder is to start something again."""
        self._begun_at = 0.0
        self._plan: Plan
        """The plan that is brought up, with the draft that was chosen for it."""
        self._built: Built
        self._port: int

    # --- from phase to phase --------------------------------------------------------

    async def run(self) -> None:
        """Go from phase to phase until cancelled; what runs keeps running then."""
        try:
            while True:
                trigger = self._request or await self._outcome()
                self._request = None
                self._before, self.phase = self.phase, next_phase(self.phase, trigger)
                if self.phase not in WITH_LINKS:
                    await self._links.unfollow()
                await self._keep_gateway(self.phase not in AT_REST)
        finally:
            await self._links.unfollow()
            await self._keep_gateway(False)

    async def _outcome(self) -> Trigger:
        self._task = asyncio.create_task(self._work())
        try:
            await asyncio.wait([self._task])
        finally:
            self._break_off()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._request is not None:
            self._error = None
        return self._request or self._task.result()

    async def _work(self) -> Trigger:
        try:
            return await self._work_of[self.phase]()
        except Exception as error:
            if not isinstance(error, DllmError):
                name = self._context.name
                log.exception("cluster %s failed unexpectedly", name)
            self._error = error
            return trigger_of(error)

    async def _keep_gateway(self, is_wanted: bool) -> None:
        keeper = self._keeper
        if is_wanted and keeper is None:
            keeping = self._gateway.keep(self._watch.report)
            self._keeper = asyncio.create_task(keeping)
        elif not is_wanted and keeper is not None:
            self._keeper = None
            await end_tasks(keeper)

    @property
    def is_at_rest(self) -> bool:
        """Return true if nothing is done until something is asked for."""
        return self._is_resting and self._request is None

    async def _rest(self) -> Trigger:
        self._is_resting = True
        try:
            await forever()
        finally:
            self._is_resting = False

    # --- what is asked for ----------------------------------------------------------

    def begin(self, trigger: Trigger, mended: str = "") -> None:
        """Turn to what is wanted now; ``mended`` says why, if nobody asked for it."""
        self._ask(trigger)
        self._forget(mended)
        self.announce()

    def _ask(self, trigger: Trigger) -> None:
        self._request = trigger
        # Not a step more for the goal before: it would be taken for this one's.
        self._break_off()

    def _break_off(self) -> None:
        # Once: a second time would break off what it does to end whole.
        if self._task is not None and not self._task.cancelling():
            self._task.cancel()

    def _forget(self, mended: str) -> None:
        self._builder.again.clear()
        self._again.clear()
        self._error = None
        self._draft = NO_DRAFT
        self._pauses_s = fault_pauses_s()
        self._recovery.begin(mended)
        self._steps.reset()
        if not mended:
            self.degraded.forget()
            self.auto.forget()

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

    def take_up(self) -> None:
        record = self._journal.record
        self._request = Trigger.FOUND if record.goal.plan else Trigger.STOPPED
        if record.goal.plan is not None:
            self.announce()
        if record.failure is not None:
            self._request = Trigger.FOUND_FAILED
            self._store.failed(record.failure)

    def leave_alone(self, error: DllmError) -> None:
        self._ask(Trigger.UNKNOWN)
        failure = error.failure(time.time())
        self._journal.record = replace(self._journal.record, failure=failure)
        self._recorder.failed(failure)
        self._store.failed(failure)

    @property
    def is_left_alone(self) -> bool:
        now = next_phase(self.phase, self._request) if self._request else self.phase
        return now is Phase.LEFT_ALONE

    @property
    def wanted(self) -> Plan | None:
        """The full plan that runs or is being brought up."""
        record = self._journal.record
        return None if record.failure is not None else record.goal.plan

    def restart(self, name: str) -> None:
        """Start one process again, and those that depend on it.

        Answers that this would break end first.
        """
        if self._store.snapshot.state is not ClusterState.SERVING:
            raise ControllerError(
                f"{name} can only be restarted while a model serves",
                "See dllm-tui status; dllm-tui processes kill ends a process at once.",
            )
        self._builder.again.add(name)
        self._again.set()

    def look(self) -> None:
        """Processes changed: one that came so late that nothing wants it is ended."""
        self._context.news.set()
        settled = self.wanted is None and self.is_at_rest and not self.is_left_alone
        if settled and any(record.alive for _, record in self.processes.found()):
            self._ask(Trigger.LATE)

    async def settle(self, machine: Machine) -> None:
        """End what runs on a machine that came back and is not wanted any more."""
        if self.is_left_alone:
            return
        await self.processes.settle(machine, self.wanted)
        record = self._journal.record
        others = set(self.processes.machines_missing()) - {machine.name}
        if not others and machine.name in record.waits_for:
            # Nothing but this machine was missing.
            log.warning("%s is back: going on", machine.name)
            self._journal.change(failure=None, waits_for=())
            mended = f"{machine.name} is back: the cluster was started again"
            self._recorder.mended(mended)
            self.begin(Trigger.LAUNCHED, mended)

    # --- the way to serving ---------------------------------------------------------

    async def _reach(self) -> Trigger:
        await self._machines.reached(machines_of(self._running))
        return Trigger.DONE

    @property
    def _running(self) -> Plan:
        plan = self._journal.record.running
        assert plan is not None, "a plan is wanted"
        return plan

    async def _adopt(self) -> Trigger:
        await self._machines.reached(machines_of(self._running))
        await self._recovery.require_undisturbed(self._running)
        return Trigger.DONE

    async def _drain(self) -> Trigger:
        """Choose the draft, and let answers end that could not be continued.

        After trouble there are none: it has broken them already. An earlier controller
        may have begun to wait.
        """
        record = self._journal.record
        if record.stand_in is None:
            # Also a worker that was given up is tried anew.
            self._journal.change(given_up=())
        self._plan = plan = await self._with_draft(self._running)
        self.announce()
        self._begun_at = time.time()
        self._store.update(message=self._recovery.mended)
        self._steps.reset(*launch_steps(plan))
        if record.replaces is not None:
            self._gateway.take_up(record.replaces)
        api, port = self._context.api, self._context.demanded_port(plan)
        is_wanted_anew = GATEWAY in self._builder.again
        restarts = is_wanted_anew or self._gateway.restarts(api, port)
        began, count = time.time(), self._gateway.breaks(plan, restarts=restarts)
        if count:
            step = Step(id="drain", title="Let answers end", detail=f"{count} of them")
            self._steps.reset(step, *launch_steps(plan))
        with self._steps.step("drain"):
            left = await self._gateway.let_end(plan, api.drain_s, restarts=restarts)
        self._journal.change(replaces=None)
        if count or left:
            self._recorder.let_end(count, left, time.time() - began)
        return Trigger.DONE

    async def _with_draft(self, plan: Plan) -> Plan:
        if plan.server.draft != AUTO_DRAFT:
            self._store.update(draft_now=None)
            return await self._without_lost_draft(plan)
        await self.auto.foresee(plan)
        while True:
            self._draft = self.auto.begins(plan)
            chosen = with_method(plan, self._draft)
            if await self._without_lost_draft(chosen) == chosen:
                return chosen
            self.auto.give_up(self._draft)

    async def _without_lost_draft(self, plan: Plan) -> Plan:
        if self._journal.record.served_since is None:
            return plan
        try:
            await draft_path(plan, self._machines, self._context.inventory)
        except ModelError as error:
            why = f"{error.what}: it serves without a draft"
            self._recorder.waiting(why)
            self._store.update(draft_now=DraftNow(draft=NO_DRAFT, why=why))
            return with_method(plan, NO_DRAFT)
        return plan

    async def _start(self) -> Trigger:
        plan = self._plan
        self._watch.forget()
        self._again.clear()
        self._built = built = await self._builder.build(plan)
        self._watch.built = built
        engine = built.facts.engines[plan.head].info
        self._store.update(engine=engine, model=built.facts.model)
        sockets = await self.discovery.sockets(plan)
        self._links.follow(plan, built.facts, sockets)
        return Trigger.DONE

    async def _load(self) -> Trigger:
        plan, built, record = self._plan, self._built, self._journal.record
        known = record.measured if record.server == built.server else None
        there = built.facts.ports[SERVER]
        self._port = await self.discovery.server_way(plan, there)
        load = Load(self._context, self._watch, plan, built)
        measured = await load.measured(self._port, known)
        self._gateway.serves(plan, self._port, built.server, self._context.api.wait_s)
        self.auto.serves(self._port)
        if known is not None and not self._recovery.mended:
            self._recorder.taken_up(plan)
        else:
            again = bool(self._recovery.mended)
            took_s = time.time() - self._begun_at
            self._recorder.serving(plan, measured, took_s, again=again)
        self._context.book.settle(self._context.name, record.goal.generation)
        since = self._journal.record.served_since or time.time()
        self._journal.change(
            measured=measured,
            server=built.server,
            served_since=since,
            failure=None,
            before=None,
        )
        # A controller killed from here on leaves one that knows it.
        await self._journal.written()
        self._store.update(
            state=ClusterState.SERVING,
            measured=measured,
            api_url=self._gateway.access.url(built.api_port),
            served_since=since,
        )
        return Trigger.DONE

    async def _serve(self) -> Trigger:
        agent = self._machines.get(self._plan.head).agent
        log_name = process_name(self._context.name, SERVER)
        with self._recovery.breaker.serving():
            try:
                trigger, why = await first_of(
                    self._watch.until_trouble(),
                    self._until_all_back(),
                    self._until_other_draft(),
                    self._until_again(),
                    self.serving.follow(self._port, agent, log_name),
                )
            except DllmError:
                self._gateway.holds(self._plan, self._context.api.wait_s)
                raise
        if trigger is Trigger.ALL_BACK:
            self._journal.change(stand_in=None)
            self._recovery.tell(why)
        else:
            self._recovery.mended = why
        return trigger

    async def _until_all_back(self) -> tuple[Trigger, str]:
        plan, running = self._journal.record.goal.plan, self._running
        if plan is None or plan == running:
            await forever()
        why = await self.degraded.until_all_back(plan, running)
        return Trigger.ALL_BACK, why

    async def _until_other_draft(self) -> tuple[Trigger, str]:
        if self._running.server.draft != AUTO_DRAFT:
            await forever()
        why = await self.auto.over(self._running, self._draft)
        return Trigger.OTHER_DRAFT, why

    async def _until_again(self) -> tuple[Trigger, str]:
        await self._again.wait()
        names = ", ".join(sorted(self._builder.again))
        return Trigger.AGAIN, f"{names} was restarted because a person said so"

    # --- after trouble --------------------------------------------------------------

    async def _wait(self) -> Trigger:
        assert isinstance(self._error, PeerUnreachable)
        self.announce()
        before = self._running
        rest = await self._recovery.with_or_without(before, self._error)
        self._go_on_with(rest)
        # What an earlier controller left of another plan is no trouble.
        return self._back if rest == before else Trigger.DONE

    @property
    def _back(self) -> Trigger:
        return Trigger.BACK if self._before is Phase.ADOPTING else Trigger.DONE

    async def _recover(self) -> Trigger:
        match self._error:
            case ProcessFailed(evidence=died) if (
                died.process == SERVER and self.auto.blames(self._draft)
            ):
                # No reason to end what served well without that draft.
                self._recorder.failed(replace(died, hint=""))
                self.auto.give_up(self._draft)
            case DllmError() as error:
                plan = await self._recovery.plan_after(self._running, error)
                self._go_on_with(plan)
        return Trigger.DONE

    def _go_on_with(self, plan: Plan) -> None:
        if plan != self._running:
            self._journal.change(stand_in=plan)

    async def _pause(self) -> Trigger:
        """A fault of ours is no reason to end what serves."""
        assert self._error is not None
        if not self._context.has_served or not self.processes.server_runs:
            raise self._error
        self._recorder.failed(failed_at("The controller failed", self._error))
        await asyncio.sleep(next(self._pauses_s))
        return self._back

    # --- the end --------------------------------------------------------------------

    async def _stop(self) -> Trigger:
        """Stop every process, and remember the ones out of reach."""
        found = self.processes.found()
        leftovers = self._journal.record.leftovers
        idle = self._store.snapshot.state is ClusterState.IDLE
        if idle and not leftovers and not found:
            return Trigger.DONE
        alive = [record.name for _, record in found if record.alive]
        if alive:
            self._store.update(state=ClusterState.STOPPING, api_url=None)
        self._gateway.ends("Nothing serves: the cluster was stopped")
        await self._reach_again({one.peer for one in leftovers})
        left = await self.processes.stop_all(shown=True)
        await self._let_go()
        self._context.api_ports.release(self._context.name)
        self._recorder.stopped(list(map(short_name, alive)), left)
        return Trigger.DONE

    async def _idle(self) -> Trigger:
        if self._store.snapshot.state is not ClusterState.IDLE:
            self._store.idle()
        return await self._rest()

    async def _reach_again(self, names: Iterable[str]) -> None:
        # Machines that are just being reached are given the time to be stopped too.
        with contextlib.suppress(DllmError, TimeoutError):
            async with asyncio.timeout(REACH_S):
                await self._machines.reached(names)
            for name in names:
                await self.settle(self._machines.get(name))

    async def _let_go(self) -> None:
        await self._gateway.let_go()
        await self._context.ways.keep(())

    async def _fail(self) -> Trigger:
        """Go back to the plan that served before, or leave nothing running."""
        error, self._error = self._error, None
        if error is None:
            await self.processes.stop_all(but=self._survivors)
            return await self._rest()
        expected = error if isinstance(error, DllmError) else unexpected(error)
        record = self._journal.record
        has_served = record.served_since is not None
        failure = replace(expected.failure(time.time()), served=has_served)
        log.error("%s", failure.sentence)
        self._recorder.failed(failure)
        if record.before is not None and not has_served:
            self._roll_back(failure)
            return Trigger.LAUNCHED
        is_away = isinstance(expected, PeerUnreachable)
        self._journal.change(
            failure=failure,
            waits_for=self.processes.machines_missing() if is_away else (),
            measured=None,
            server="",
            served_since=None,
            stand_in=None,
        )
        self._gateway.ends(f"Nothing serves: {failure.what}")
        try:
            await self.processes.stop_all(but=self._survivors)
            await self._let_go()
        except Exception:
            # Whatever it is: the failure is shown, and the next word is heard.
            name = self._context.name
            log.exception("not everything of cluster %s was stopped", name)
        names = needed_names(record.goal.plan) if record.goal.plan else {}
        self.processes.remember(self.processes.away(names))
        self._store.failed(failure)
        return await self._rest()

    @property
    def _survivors(self) -> tuple[str, ...]:
        # The gateway survives the failure of the server: it answers 503 with the
        # reason.
        failure = self._journal.record.failure
        is_kept = failure is not None and failure.served and failure.process != GATEWAY
        return (GATEWAY,) if is_kept else ()

    def _roll_back(self, failure: Failure) -> None:
        """Make what served before the failed launch the goal again."""
        record = self._journal.record
        before, failed = record.before, record.goal.generation
        assert before is not None, "something served"
        goal = replace(
            before,
            generation=failed + 1,
            rolled_back_to=before.rolled_back_to or before.generation,
        )
        self._journal.save(
            Record(
                goal=goal,
                rolled_back=RolledBack(generation=failed, failure=failure),
                goes_back_to=record.goes_back_to,
                drained_since=record.drained_since,
                leftovers=self.processes.after(before.plan),
                labs=record.labs,
            )
        )
        text = f"The launch failed ({failure.what}): back to the plan before it"
        self._recorder.rolled_back(text)
        self._forget(text)
        self.announce()
