"""One cluster: the desired state, which holds until a person changes it.

Only ``want`` changes it; only the reconciler acts. So two requests can never act at
once, and whoever waits for one can leave without consequence.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

from msgspec.structs import replace

from backends.controller.context import ClusterContext
from backends.controller.event_log import CONTROLLER
from backends.controller.journal import Baseline, Goal, Record
from backends.controller.reconciler import Reconciler, Trigger
from backends.errors import ControllerError, DllmError, PeerUnreachable
from backends.gateway.listen_settings import ApiSettings
from backends.planning.blueprint import Facts, machines_of, process_name
from backends.planning.memory_fit import is_same
from backends.split.flags import check_exact, compile_split
from backends.state import Actor, ClusterState, Lab, Plan

log = logging.getLogger(__name__)


class LatestWins:
    def __init__(self) -> None:
        self._numbers = count(1)
        self._followed = 0

    def number(self) -> int:
        return next(self._numbers)

    def follow(self, number: int) -> None:
        if number < self._followed:
            raise ControllerError(
                "Another request came after this launch, while it was checked, and "
                "holds: nothing was launched",
                "See dllm-tui status; launch again if you still want it.",
            )
        self._followed = number


class Cluster:
    """Takes requests to one cluster; ``reconciler`` follows them while it runs."""

    def __init__(self, context: ClusterContext) -> None:
        self.name = context.name
        self.store = context.store
        self.recorder = context.recorder
        self.gateway = context.gateway
        self.links = context.links
        self._context = context
        self._journal = context.journal
        self.reconciler = Reconciler(context)
        self.serving = self.reconciler.serving
        self.auto = self.reconciler.auto
        self.order = LatestWins()
        self._word = asyncio.Lock()
        self._looked_at: tuple[Plan, int] | None = None
        self._looked_s = 0.0
        self._compares = ""
        self._load()

    @property
    def goal(self) -> Goal:
        return self._journal.record.goal

    @property
    def stands(self) -> bool:
        return self._journal.record.failure is not None

    @property
    def pursued(self) -> Plan | None:
        return self.reconciler.wanted

    @property
    def is_changing(self) -> bool:
        """Return true while another goal is being written."""
        return self._word.locked()

    @property
    def wait_s(self) -> float:
        """Longest wait of a request while nothing serves."""
        return self._context.api.wait_s

    @property
    def busy(self) -> bool:
        return (
            self.is_changing
            or not self.reconciler.is_at_rest
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
        lab: Lab | None = None,
        labs: dict[str, Lab | None] | None = None,
        goes_back_to: Baseline | None = None,
        by: Actor = CONTROLLER,
        why: str = "",
    ) -> Goal:
        """Set the goal: a plan to run, or None for nothing; ``by`` is who asks.

        ``replaces`` is the generation that is to be replaced, 0 for nothing; None for
        whatever there is. ``api`` is how the API is given out from here on. ``number``
        is that of its ``order``, where it took a while until now. ``facts`` are those
        of a preparation. The plan loads behind the ``lab``, or behind ``labs`` by
        worker, or else behind those of what it replaces. Asking for what is pursued
        already changes only the lab, if one is given. A controller that finds
        ``goes_back_to`` goes back to that. The event of it ends with ``why``: ``for a
        race``.
        """
        if plan is not None:
            check_exact(plan, compile_split(plan, {}))
        number = self.order.number() if number is None else number
        async with self._word:
            current = self.goal.generation if self.pursued else 0
            if replaces not in (None, current, self.goal.generation):
                now = self.pursued
                state = self.store.snapshot.state.value
                what = f"{now.model} is {state}" if now else "ended"
                raise ControllerError(
                    f"Another request came first: {what} "
                    f"(generation {self.goal.generation})",
                    "See dllm-tui status; repeat with --replace to replace it.",
                )
            self.order.follow(number)
            record = self._journal.record
            same = plan is not None and is_same(plan, self.pursued)
            # What a person asks for while it is only compared is theirs from then on.
            compared = record.goes_back_to if goes_back_to is None else None
            is_there = same and record.stand_in is None and compared is None
            if plan is not None and lab is not None:
                labs = {worker.name: lab for worker in plan.workers}
            elif labs is None:
                labs = record.labs if plan is not None and self.pursued else {}
            if is_there and api in (None, self.goal.api):
                if lab is not None:
                    self.require_no_comparison()
                    await self.links.ask_for(labs)
                    self._journal.change(labs=labs)
                return self.goal
            before = self.goal
            goal = Goal(generation=before.generation + 1, plan=plan, api=api)
            record = self._record_of(goal, same=same)
            record = replace(record, goes_back_to=goes_back_to, labs=labs)
            # What changes meanwhile is about the goal before.
            unkept = await self._kept(lambda _: record)
            if plan is not None or before.plan is not None:
                self.recorder.wanted(plan, by, why)
            self.gateway.is_drained = False
            self.reconciler.discovery.expect(plan, facts)
            self.reconciler.begin(Trigger.LAUNCHED if plan else Trigger.STOPPED)
            await self.links.ask_for(labs)
        if unkept is not None:
            raise ControllerError(
                f"The cluster ends, but another controller would start it again: "
                f"{unkept.what}",
                f"{unkept.hint} Then stop it once more.",
            )
        return goal

    @property
    def baseline(self) -> Baseline:
        """The present goal and labs, for a comparison to go back to."""
        plan = self.pursued
        return Baseline(
            plan=plan,
            api=self.goal.api if plan else None,
            labs=self._journal.record.labs,
        )

    async def set_lab(self, worker: str | None, lab: Lab | None, by: Actor) -> None:
        """Put a lab on a link, or take it off; without ``worker`` on all links."""
        async with self._word:
            self.require_no_comparison()
            await self.links.set_lab(worker, lab)
            self._journal.change(labs=dict(self.links.asked_labs))
        self.recorder.lab(worker, lab, by)

    @contextmanager
    def comparing(self, what: str) -> Iterator[None]:
        """Let one comparison at a time use the cluster, and nobody else its lab."""
        self.require_no_comparison()
        record = self._journal.record
        if record.drained_since is not None:
            raise ControllerError(
                "The cluster is drained: it answers nobody",
                "Let it go on with dllm-tui resume.",
            )
        if record.stand_in is not None or record.waits_for:
            raise ControllerError(
                "A worker of the cluster is away: there is nothing to compare with",
                "See dllm-tui status; compare when it is back.",
            )
        self._compares = what
        try:
            yield
        finally:
            self._compares = ""

    @property
    def is_degraded(self) -> bool:
        """Return true if less than the plan asked for runs."""
        return self._journal.record.stand_in is not None

    def require_no_comparison(self) -> None:
        if self._compares:
            raise ControllerError(
                f"A {self._compares} is under way on this cluster",
                "Wait for its end, or cancel it where it was begun.",
            )

    async def go_back(self) -> None:
        """Go back to what stood before a comparison that another controller began."""
        before = self._journal.record.goes_back_to
        if before is None or self.reconciler.is_left_alone:
            return
        log.info("a comparison was cut off: going back to what stood before it")
        if is_same(before.plan, self.pursued) if before.plan else not self.pursued:
            await self.end_comparison(before, self.goal.generation)
        else:
            await self.want(before.plan, api=before.api, labs=before.labs)

    def begin_comparison(self, before: Baseline) -> None:
        """Note what to go back to, for a controller that finds the goal as it is."""
        self._journal.change(goes_back_to=before)

    async def end_comparison(self, before: Baseline, generation: int) -> None:
        """Put the labs back, unless another goal has come since."""
        if self.goal.generation == generation:
            await self.links.ask_for(before.labs)
            self._journal.change(goes_back_to=None)

    def _record_of(self, goal: Goal, *, same: bool) -> Record:
        """The journal of another goal; of the ``same`` plan, what runs stays known."""
        record = self._journal.record
        served = self.gateway.served or record.replaces
        known = record if same and record.stand_in is None else Record()
        last_good = record.before if record.served_since is None else record.goal
        return replace(
            known,
            goal=goal,
            before=last_good if goal.plan else None,
            rolled_back=None,
            leftovers=self.reconciler.processes.after(goal.plan),
            replaces=served if goal.plan else None,
            served_since=None,
            drained_since=None,
        )

    async def _kept(self, change: Callable[[Record], Record]) -> ControllerError | None:
        """Write what was asked for before it is done; why a stop is not written."""
        if self.reconciler.is_left_alone:
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
        """
        async with self._word:
            record = self._journal.record
            is_drained = record.drained_since is not None
            if self.pursued is None and not is_drained:
                raise ControllerError(
                    f"Nothing runs: there is nothing to {'drain' if on else 'resume'}",
                    "See dllm-tui status; dllm-tui up launches a model.",
                )
            if on == is_drained:
                return
            since = time.time() if on else None
            await self._kept(partial(replace, drained_since=since))
            self.store.update(drained_since=since)
            self.recorder.drained(by, on=on)
            self.gateway.drain(on)

    def restart(self, name: str, by: Actor) -> None:
        """Start a process again as the reconciler does it; returns at once."""
        self.reconciler.restart(name)
        self.recorder.restarted(name, by)

    async def kill(self, machine: str, name: str, by: Actor) -> None:
        """End a process at once; what the goal wants of it is started again."""
        agent = self._context.machines.get(machine).agent
        self.recorder.killed(name, machine, by)
        await agent.stop(process_name(self.name, name), grace_s=0.0)

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
            fallbacks = await self.reconciler.degraded.fallbacks(plan)
        except DllmError as error:
            log.warning("what a loss would leave is not known: %s", error)
            return
        if plan == self._journal.record.running:
            self.store.update(fallbacks=fallbacks)

    async def require_possible(self, plan: Plan) -> ApiSettings:
        """See that a plan can be had as wanted, before anything is stopped for it.

        Returns how the settings want the API given out.
        """
        discovery = self.reconciler.discovery
        api = await discovery.require_access()
        await discovery.require_port(plan.api_port or api.port)
        if self.store.snapshot.state is ClusterState.SERVING:
            try:
                await self._context.machines.reached(machines_of(plan))
            except PeerUnreachable as error:
                raise PeerUnreachable(
                    f"{error.what}; what serves now is left as it is",
                    "Launch again when the machine is back, or without it.",
                ) from error
        return api

    def _load(self) -> None:
        try:
            record = self._journal.load()
        except ControllerError as error:
            log.error("%s", error)
            self.reconciler.leave_alone(error)
            return
        self.links.asked_labs = record.labs
        self.store.update(generation=record.goal.generation, leftovers=record.leftovers)
        self.gateway.is_drained = record.drained_since is not None
        self.reconciler.take_up()
