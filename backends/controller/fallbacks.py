"""What a cluster goes on with when it loses something, made before it does.

For every worker, and every machine of several, the plan on what is left is kept ready
while the cluster serves. It is made anew only where it fits no more: free memory wavers
all the time.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backends.controller.occupancy import loaded
from backends.errors import DllmError
from backends.planning.fallback import has_room
from backends.split.flags import used_workers
from backends.split.layout import ranges
from backends.split.loads import plan_loads
from backends.state import (
    ClusterState,
    DeviceMemory,
    Fallback,
    ModelInfo,
    Peer,
    Plan,
    Value,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from backends.controller.board import Board
    from backends.controller.journal import Journal
    from backends.controller.stand_in import StandIns
    from backends.machines.readers import Readers
    from backends.state import PlanMemory

    Lost = frozenset[str]

log = logging.getLogger(__name__)

QUIET_S = 5.0
"""The engine is asked only once it has served for so long, and nobody is answered."""
LOOK_S = 30.0
TICK_S = 0.5
TOO_SMALL = "What is left is too small, by what the engine says of it"


class _Facts(Value, frozen=True, kw_only=True):
    model: ModelInfo
    machines: dict[str, Peer]


class _Rest(Value, frozen=True, kw_only=True):
    """What is left without something, if that will do."""

    plan: Plan | None = None
    memory: tuple[DeviceMemory, ...] = ()
    why: str = ""

    def fits(self, facts: _Facts) -> bool:
        """Whether it can be had now."""
        plan, memory = self.plan, self.memory
        return plan is not None and has_room(plan, facts.model, facts.machines, memory)

    def shown(self, name: str, plan: Plan | None) -> Fallback:
        """The same for everybody, with the plan if that fits."""
        if plan is None:
            return Fallback(lost=name, why=self.why or TOO_SMALL)
        return Fallback(
            lost=name,
            split=ranges(plan.split),
            ctx_size=plan.ctx_size,
            memory=self.memory,
        )


class Fallbacks:
    """Keeps them ready for whatever serves in one cluster."""

    def __init__(
        self,
        board: Board,
        journal: Journal,
        readers: Readers,
        stand_ins: StandIns,
        memory: Callable[[Plan], Awaitable[PlanMemory]],
    ) -> None:
        """Show them on ``board``; ``memory`` asks the engine what a plan takes."""
        self._board = board
        self._journal = journal
        self._readers = readers
        self._stand_ins = stand_ins
        self._memory = memory
        self._plan: Plan | None = None
        self._rests: dict[Lost, _Rest] = {}
        self._trouble = ""
        """What went wrong last, which is told once."""

    async def keep(self) -> None:
        """Make them for whatever serves, until cancelled."""
        while True:
            plan = await self._served()
            try:
                await self._make(plan)
                await self._while_wanted(plan, QUIET_S)
                if self._is_quiet and plan == self._journal.record.running:
                    await self._ask(plan)
                self._trouble = ""
            except Exception as error:
                # What serves goes on all the same.
                self._tell_trouble(error)
            await self._while_wanted(plan, LOOK_S)

    def _tell_trouble(self, error: Exception) -> None:
        """Once, with its traceback where nobody foresaw it."""
        if repr(error) != self._trouble:
            self._trouble = repr(error)
            trace = None if isinstance(error, DllmError) else error
            text = "nothing is made ready for a loss now: %s"
            log.warning(text, error, exc_info=trace)

    async def _served(self) -> Plan:
        """What serves over workers, once something does."""
        while True:
            plan = self._journal.record.running
            serves = self._board.snapshot.state is ClusterState.SERVING
            if plan and serves and losses(plan):
                return plan
            await self._board.change()

    async def _while_wanted(self, plan: Plan, limit_s: float) -> None:
        """Wait for a while, or until it is another plan that runs."""
        waited_s = 0.0
        while waited_s < limit_s and plan == self._journal.record.running:
            await asyncio.sleep(TICK_S)
            waited_s += TICK_S

    @property
    def _is_quiet(self) -> bool:
        """Whether it serves, and nobody is answered."""
        snapshot = self._board.snapshot
        serves = snapshot.state is ClusterState.SERVING
        return serves and not snapshot.speed.requests_active

    async def _make(self, plan: Plan) -> None:
        """One for every loss; what still fits stays.

        Raises:
            DllmError: the memory or the model cannot be read.
        """
        if plan != self._plan:
            self._plan, self._rests = plan, {}
        facts = await self._facts(plan)
        for lost in losses(plan):
            one = self._rests.get(lost, _Rest())
            if not one.fits(facts):
                other = await self._without(plan, lost, facts)
                same = other.plan is not None and other.plan == one.plan
                self._rests[lost] = one if same else other
        self._tell(plan, facts)

    async def _facts(self, plan: Plan) -> _Facts:
        measured = self._journal.record.measured
        held = loaded(plan, measured) if measured else None
        return _Facts(
            model=await self._readers.model(plan.model),
            machines=await self._stand_ins.machines(held),
        )

    async def _without(self, plan: Plan, lost: Lost, facts: _Facts) -> _Rest:
        try:
            rest = await self._stand_ins.without(plan, (), lost, facts.machines)
        except DllmError as error:
            return _Rest(why=str(error))
        loads = plan_loads(facts.model, rest)
        return _Rest(plan=rest, memory=tuple(load.memory for load in loads))

    async def _ask(self, plan: Plan) -> None:
        """Ask the engine what they take; it is asked each thing but once.

        Raises:
            DllmError: the memory or the model cannot be read.
        """
        facts = await self._facts(plan)
        for lost, one in tuple(self._rests.items()):
            if one.plan is not None:
                told = await self._memory(one.plan)
                self._rests[lost] = replace(one, memory=told.devices)
        self._tell(plan, facts)

    def _tell(self, plan: Plan, facts: _Facts) -> None:
        ready = {
            lost: one.plan
            for lost, one in self._rests.items()
            if one.plan is not None and one.fits(facts)
        }
        self._stand_ins.keep_ready(plan, ready)
        if plan == self._journal.record.running:
            self._board.update(
                fallbacks=tuple(
                    one.shown(name, ready.get(lost))
                    for lost, name in losses(plan).items()
                    if (one := self._rests.get(lost))
                )
            )


def losses(plan: Plan) -> dict[Lost, str]:
    """The workers that may be lost at once, and what they are together.

    Each by itself, and those of another machine than the head's together: with it go
    those without layers, too, which a plan on what is left might use.
    """
    used = used_workers(plan)
    each = {frozenset({worker.name}): worker.name for worker in used}
    machines = dict.fromkeys(w.peer for w in used if w.peer != plan.head)
    return each | {
        frozenset(w.name for w in plan.workers if w.peer == machine): machine
        for machine in machines
    }
