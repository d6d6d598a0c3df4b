"""One cluster: a goal that holds until a person changes it, and a loop that pursues it.

Only ``want`` changes the goal; only the loop acts. So two requests can never act at
once, and whoever waits for one can leave without consequence.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from backends.controller.event_log import CONTROLLER
from backends.controller.event_recorders import EventRecorder
from backends.controller.evidence import unexpected
from backends.controller.journal import Goal, Record
from backends.controller.leftovers import Leftovers
from backends.controller.reconciler import Reconciler
from backends.controller.stand_in import require_there
from backends.errors import ControllerError, DllmError, PeerUnreachable
from backends.gateway.target import GATEWAY
from backends.planning.blueprint import needed_names, short_name
from backends.planning.room import is_same
from backends.split.flags import check_exact, compile_split
from backends.state import ClusterState, RolledBack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from backends.controller.event_log import EventLog
    from backends.controller.gateway import ApiPorts
    from backends.controller.journal import Journal
    from backends.controller.processes import ProcessBook
    from backends.controller.snapshot_store import SnapshotStore
    from backends.gateway.access import ApiSettings
    from backends.machines.machine import Machine, Machines
    from backends.machines.readers import Readers
    from backends.planning.blueprint import Facts
    from backends.speculation.auto import TrialBook
    from backends.state import Actor, Failure, Leftover, Plan

log = logging.getLogger(__name__)

REACH_S = 10.0


class Order:
    """Numbers the requests to one cluster: the latest wins, however long its checks."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._followed = 0

    def number(self) -> int:
        """Return the number of a request that comes now."""
        return next(self._numbers)

    def follow(self, number: int) -> None:
        """The wish of that number is about to hold.

        Raises:
            ControllerError: one that came later holds.
        """
        if number < self._followed:
            raise ControllerError(
                "Another request came after this launch, while it was checked, and "
                "holds: nothing was launched",
                "See dllm-tui status; launch again if you still want it.",
            )
        self._followed = number


class Cluster:
    """Pursues one goal over the machines while ``run`` runs."""

    def __init__(
        self,
        name: str,
        machines: Machines,
        store: SnapshotStore,
        journal: Journal,
        readers: Readers,
        book: ProcessBook,
        api_ports: ApiPorts,
        event_log: EventLog,
        gateway_socket: Path,
        trials: TrialBook,
    ) -> None:
        self.name = name
        self.store = store
        self._machines = machines
        self._journal = journal
        self.recorder = EventRecorder(event_log, name)
        self._leftovers = Leftovers(name, machines, store, journal, book)
        self._reconciler = Reconciler(
            name,
            machines,
            store,
            journal,
            readers,
            api_ports,
            self._leftovers.remember,
            self.recorder,
            gateway_socket,
            trials,
            time.time,
        )
        self._api_ports = api_ports
        self.gateway = self._reconciler.gateway
        self.links = self._reconciler.links
        self.serving = self._reconciler.serving
        self.auto = self._reconciler.auto
        self._stopper = self._reconciler.stopper
        self.order = Order()
        self._word = asyncio.Lock()
        self._turn = asyncio.Event()
        self._hands_off = False
        self._work: asyncio.Task[None] | None = None
        self._looked_at: tuple[Plan, int] | None = None
        self._looked_s = 0.0
        self._load()
        self._adopted: Goal | None = self.goal
        """The goal of an earlier controller, until this one has taken it up."""

    # --- the goal ----------------------------------------------------------------

    @property
    def goal(self) -> Goal:
        """Return the last goal that a client set."""
        return self._journal.record.goal

    @property
    def stands(self) -> bool:
        """Return true if the goal failed and the cluster waits for a new one."""
        return self._journal.record.failure is not None

    @property
    def pursued(self) -> Plan | None:
        """The plan that runs or is being brought up."""
        return None if self.stands else self.goal.plan

    @property
    def wait_s(self) -> float:
        """Longest wait of a request while nothing serves."""
        return self._reconciler.discovery.api.wait_s

    @property
    def busy(self) -> bool:
        """Return true if a process runs, starts, stops, or is still to be ended."""
        return (
            not self._rests
            or self.pursued is not None
            or bool(self._journal.record.leftovers)
            or self._journal.is_behind
        )

    async def want(
        self,
        plan: Plan | None,
        replaces: int | None = None,
        *,
        api: ApiSettings | None = None,
        number: int | None = None,
        facts: Facts | None = None,
        by: Actor = CONTROLLER,
    ) -> Goal:
        """Set the goal: a plan to run, or None for nothing; ``by`` is who asks.

        ``replaces`` is the generation that is to be replaced, 0 for nothing; None for
        whatever there is. ``api`` is how the API is given out from here on. ``number``
        is that of its ``order``, where it took a while until now. ``facts`` are those
        of a preparation. Asking for what is pursued already changes nothing.

        Raises:
            PlanError: llama.cpp cannot follow the plan; nothing has changed.
            ControllerError: another request came first, or later and holds; or the
                journal cannot be written. A plan is not begun then; a stop is done, and
                lasts as long as this controller.
        """
        if plan is not None:
            check_exact(plan, compile_split(plan, {}))
        number = self.order.number() if number is None else number
        async with self._word:
            current = self.goal.generation if self.pursued else 0
            if replaces not in (None, current, self.goal.generation):
                raise self._came_first()
            self.order.follow(number)
            record = self._journal.record
            same = plan is not None and is_same(plan, self.pursued)
            if same and record.stand_in is None and api in (None, self.goal.api):
                return self.goal
            before, goal = (
                self.goal,
                Goal(generation=self.goal.generation + 1, plan=plan, api=api),
            )
            record = self._record_of(goal, same=same)
            # What changes meanwhile is about the goal before.
            unkept = await self._kept(lambda _: record)
            if plan is not None or before.plan is not None:
                self.recorder.wanted(plan, by)
            self._hands_off = self.gateway.is_drained = False
            self._reconciler.discovery.expect(plan, facts)
            self._begin()
        if unkept is not None:
            raise ControllerError(
                f"The cluster ends, but another controller would start it again: "
                f"{unkept.what}",
                f"{unkept.hint} Then stop it once more.",
            )
        return goal

    def _record_of(self, goal: Goal, *, same: bool) -> Record:
        """The journal of another goal; of the ``same`` plan, what runs stays known."""
        record = self._journal.record
        served = self.gateway.served or record.replaces
        known = record if same and record.stand_in is None else Record()
        return msgspec.structs.replace(
            known,
            goal=goal,
            before=self._last_good() if goal.plan else None,
            rolled_back=None,
            leftovers=self._leftovers.after(goal.plan),
            replaces=served if goal.plan else None,
            served_since=None,
            drained_since=None,
        )

    def _last_good(self) -> Goal | None:
        record = self._journal.record
        if record.failure is not None:
            return None
        return record.before if record.served_since is None else record.goal

    async def _kept(self, change: Callable[[Record], Record]) -> ControllerError | None:
        """Write what was asked for before it is done; why a stop is not written.

        Raises:
            ControllerError: a plan cannot be written; nothing was done.
        """
        if self._hands_off:
            self._journal.set_aside()
        try:
            await self._journal.commit(change)
        except ControllerError as error:
            record = change(self._journal.record)
            if record.goal.plan is not None:
                raise ControllerError(
                    f"{error.what}: nothing was changed", error.hint
                ) from error
            self._journal.record = record
            return error
        return None

    async def drain(self, *, on: bool, by: Actor = CONTROLLER) -> None:
        """Let what runs at the API end and what comes wait, or go on.

        It holds until somebody says otherwise, or launches or stops the cluster.

        Raises:
            ControllerError: there is nothing to drain, or it cannot be written.
        """
        async with self._word:
            record = self._journal.record
            is_drained = record.drained_since is not None
            if self.pursued is None and not is_drained:
                raise ControllerError(
                    "Nothing runs: there is nothing to drain",
                    "See dllm-tui status; dllm-tui up launches a model.",
                )
            if on == is_drained:
                return
            since = time.time() if on else None
            await self._kept(partial(msgspec.structs.replace, drained_since=since))
            self.store.update(drained_since=since)
            self.recorder.drained(by, on=on)
            self.gateway.drain(on)

    def _came_first(self) -> ControllerError:
        plan = self.pursued
        what = f"{plan.model} is {self.store.snapshot.state.value}" if plan else "ended"
        return ControllerError(
            f"Another request came first: {what} (generation {self.goal.generation})",
            "See dllm-tui status; repeat with --replace to replace it.",
        )

    async def look_at_fallbacks(self, max_age_s: float) -> None:
        """Show what it would go on with after a loss; not anew before that is old."""
        plan = self._journal.record.running
        if plan is None or self.store.snapshot.state is not ClusterState.SERVING:
            return
        seen, now = (plan, self.goal.generation), time.monotonic()
        if seen == self._looked_at and now - self._looked_s < max_age_s:
            return
        self._looked_at, self._looked_s = seen, now
        try:
            fallbacks = await self._reconciler.stand_ins.fallbacks(plan)
        except DllmError as error:
            log.warning("what a loss would leave is not known: %s", error)
            return
        if plan == self._journal.record.running:
            self.store.update(fallbacks=fallbacks)

    async def require_possible(self, plan: Plan) -> ApiSettings:
        """See that a plan can be had as wanted, before anything is stopped for it.

        Returns how the settings want the API given out.

        Raises:
            HostError: another program, or another cluster, has the plan's port.
            PeerUnreachable: something serves, and a machine of the plan is away.
            NeedsAnswer: something serves, and such a machine asks something first.
            DllmError: the settings want the API given out as it must not or cannot be.
        """
        api = await self._reconciler.discovery.require_access()
        await self._reconciler.discovery.require_port(plan.api_port or api.port)
        if self.store.snapshot.state is ClusterState.SERVING:
            await require_there(self._machines, plan)
        return api

    def _load(self) -> None:
        """Take up what an earlier controller pursued."""
        try:
            record = self._journal.load()
        except ControllerError as error:
            log.error("%s", error)
            self.leave_alone(error)
            return
        self.store.update(generation=record.goal.generation, leftovers=record.leftovers)
        self.gateway.is_drained = record.drained_since is not None
        if record.goal.plan is not None:
            self._reconciler.announce()
        if record.failure is not None:
            self.store.failed(record.failure)

    # --- the loop ----------------------------------------------------------------

    async def run(self) -> None:
        """Pursue the goal, and every later one, until cancelled.

        What runs keeps running when this ends.
        """
        while True:
            self._turn.clear()
            adopted, self._adopted = self._adopted == self.goal, None
            self._work = work = asyncio.create_task(self._pursue(adopted=adopted))
            turn = asyncio.create_task(self._turn.wait())
            try:
                await asyncio.wait({work, turn}, return_when=asyncio.FIRST_COMPLETED)
                if not turn.done():
                    await turn
            finally:
                for task in (work, turn):
                    task.cancel()
                await asyncio.gather(work, turn, return_exceptions=True)

    async def _pursue(self, *, adopted: bool) -> None:
        """Pursue one goal from beginning to end; report errors, never raise them."""
        if self._hands_off:
            return
        goal = self.goal
        try:
            if self.stands:
                await self._stopper.stop_all(but=self._survivors)
            elif goal.plan is None:
                if not self._ended:
                    await self._end()
            else:
                await self._reconciler.keep_up(goal.plan, adopted=adopted)
        except DllmError as error:
            await self._stand(goal, error)
        except Exception as error:
            log.exception("cluster %s failed unexpectedly", self.name)
            await self._stand(goal, unexpected(error))

    @property
    def _rests(self) -> bool:
        works = self._work is not None and not self._work.done()
        return not works and not self._turn.is_set()

    @property
    def _survivors(self) -> tuple[str, ...]:
        # The gateway survives the failure of the server: it answers 503 with
        # the reason.
        failure = self._journal.record.failure
        is_kept = failure is not None and failure.served and failure.process != GATEWAY
        return (GATEWAY,) if is_kept else ()

    @property
    def _ended(self) -> bool:
        idle = self.store.snapshot.state is ClusterState.IDLE
        left = self._journal.record.leftovers
        return idle and not left and not self._stopper.found()

    async def _end(self) -> None:
        """Stop every process, and remember the ones out of reach."""
        alive = [r.name for _, r in self._stopper.found() if r.alive]
        if alive:
            self.store.update(state=ClusterState.STOPPING, api_url=None)
        self.gateway.ends("Nothing serves: the cluster was stopped")
        away = {left.peer for left in self._journal.record.leftovers}
        await self._reach_again(away)
        left = await self._stopper.stop_all(shown=True)
        await self._reconciler.let_go()
        self._leftovers.remember(left)
        self._api_ports.release(self.name)
        self.recorder.stopped(list(map(short_name, alive)), left)
        self.store.idle()

    async def _reach_again(self, names: Iterable[str]) -> None:
        """Give machines that are just being reached the time to be stopped too."""
        try:
            async with asyncio.timeout(REACH_S):
                await self._machines.reached(names)
        except (DllmError, TimeoutError):
            return
        for name in names:
            await self.settle(self._machines.get(name))

    async def _stand(self, goal: Goal, error: DllmError) -> None:
        """Show what went wrong and leave nothing running; the goal stays."""
        if goal is not self.goal:
            # What failed is not what is wanted any more: the loop turns to that.
            log.warning("%s", error)
            return
        failure = msgspec.structs.replace(
            error.failure(time.time()),
            served=self._journal.record.served_since is not None,
        )
        log.error("%s", failure.sentence)
        self.recorder.failed(failure)
        before = self._journal.record.before
        if before is not None and not failure.served:
            self._roll_back(before, failure)
            return
        self._journal.change(
            failure=failure,
            waits_for=self._leftovers.machines_missing()
            if isinstance(error, PeerUnreachable)
            else (),
            measured=None,
            server="",
            served_since=None,
            stand_in=None,
        )
        self.gateway.ends(f"Nothing serves: {failure.what}")
        left: list[Leftover] = []
        try:
            left = await self._stopper.stop_all(but=self._survivors)
            await self._reconciler.let_go()
        except Exception:
            # Whatever it is: the failure is shown, and the next word is heard.
            log.exception("not everything of cluster %s was stopped", self.name)
        names = needed_names(self.goal.plan) if self.goal.plan else {}
        self._leftovers.remember([*left, *self._leftovers.away(names)])
        if goal is self.goal:
            # Stopping took a while: another goal may have come, and is in the store.
            self.store.failed(failure)

    def _roll_back(self, before: Goal, failure: Failure) -> None:
        """A launch failed: what served before it is the goal again."""
        failed = self.goal.generation
        assert before.plan is not None, "nothing serves without a plan"
        goal = msgspec.structs.replace(
            before,
            generation=failed + 1,
            rolled_back_to=before.rolled_back_to or before.generation,
        )
        self._journal.save(
            Record(
                goal=goal,
                rolled_back=RolledBack(generation=failed, failure=failure),
                drained_since=self._journal.record.drained_since,
                leftovers=self._leftovers.after(goal.plan),
            )
        )
        text = f"The launch failed ({failure.what}): back to the plan before it"
        self.recorder.rolled_back(text)
        self._begin(text)

    async def settle(self, machine: Machine) -> None:
        """End what runs on a machine that came back and is not wanted any more.

        Raises:
            HostError: something outlived SIGKILL.
            PeerUnreachable: it is gone again.
        """
        if self._hands_off:
            return
        plan = self.pursued
        wanted = needed_names(plan) if plan else {}
        await self._stopper.settle(
            machine, lambda name: wanted.get(name) == machine.name
        )
        self._leftovers.settled(machine.name)
        self._go_on(machine.name)

    def _go_on(self, machine: str) -> None:
        """Pursue the goal again, if it stood still for want of this machine only."""
        others = set(self._leftovers.machines_missing()) - {machine}
        if others or machine not in self._journal.record.waits_for:
            return
        log.warning("%s is back: going on", machine)
        self._journal.change(failure=None, waits_for=())
        mended = f"{machine} is back: the cluster was started again"
        self.recorder.mended(mended)
        self._begin(mended)

    def _begin(self, mended: str = "") -> None:
        """Let the loop turn to the goal as it is now."""
        if self._work is not None:
            # Not a step more for the goal before: it would be taken for this one's.
            self._work.cancel()
        self._reconciler.begin(mended)
        self._reconciler.announce()
        self._turn.set()

    def stir(self) -> None:
        """Look again: a machine or a process came or went."""
        self._reconciler.stir()

    def look(self) -> None:
        """Processes changed: one that came so late that nothing wants it is ended."""
        settled = self.pursued is None and self._rests and not self._hands_off
        if settled and any(record.alive for _, record in self._stopper.found()):
            self._turn.set()

    def leave_alone(self, error: DllmError) -> None:
        """Touch nothing of what runs, until somebody decides."""
        self._hands_off = True
        failure = error.failure(time.time())
        self._journal.record = msgspec.structs.replace(
            self._journal.record, failure=failure
        )
        self.recorder.failed(failure)
        self.store.failed(failure)
