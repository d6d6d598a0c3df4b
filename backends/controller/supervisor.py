"""The reconcile loop: one desired plan, and whatever it takes to make it so."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from backends.config import API_PORT_DEFAULT
from backends.controller.bare import blamed
from backends.controller.evidence import look_at, require_alive
from backends.controller.journal import Record
from backends.controller.launch import (
    SERVER,
    Launcher,
    Running,
    launch_steps,
    needs_ways,
    processes_of,
)
from backends.controller.places import LOCAL
from backends.controller.speed import SpeedMeter
from backends.controller.steps import StepBoard
from backends.controller.stopping import Stopper
from backends.engine.http import ServerClient
from backends.errors import (
    ControllerError,
    DllmError,
    ProcessFailed,
)
from backends.link.relay import relay_name
from backends.split.flags import check_exact, compile_split
from backends.state import ClusterState, Failure, Speed, StepState

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.controller.board import Board
    from backends.controller.journal import Journal
    from backends.controller.links import Links
    from backends.controller.machines import Machine, Machines
    from backends.controller.readers import Engine, Readers
    from backends.state import MeasuredSplit, ModelInfo, Plan

log = logging.getLogger(__name__)

WATCH_S = 0.5
# Every question about the slots costs llama-server a page of its debug log.
WATCH_IDLE_S = 1.0
# A dying worker takes llama-server with it; give both the time to be seen dead, so that
# the worker is blamed.
SETTLE_S = 0.5
# A relay that dies again and again has a reason that a restart does not mend.
RESTARTS_MAX = 3
RESTART_WINDOW_S = 600.0
TUNNELS_LOST = (
    "The controller was replaced and its tunnels ended: llama-server was started again"
)


class Supervisor:
    """Owns the cluster: launches, adopts, watches, mends and stops it."""

    def __init__(
        self,
        machines: Machines,
        board: Board,
        journal: Journal,
        readers: Readers,
        links: Links,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Use these parts; nothing runs before ``adopt`` or ``launch``."""
        self._machines = machines
        self._board = board
        self._journal = journal
        self._readers = readers
        self._links = links
        self._clock = clock
        self.meter = SpeedMeter()
        self._restarts: list[float] = []
        self._mended = ""
        self._task: asyncio.Task[None] | None = None
        self._steps = StepBoard(clock, self._steps_changed)
        self._stopper = Stopper(machines, board, self._steps)
        self._launcher = Launcher(
            machines,
            self._steps,
            readers,
            default_api_port=self._api_ports,
            found=self._found,
            looked=lambda: board.show_processes(machines),
            clock=clock,
        )

    @property
    def busy(self) -> bool:
        """Whether something runs, starts or stops."""
        return self._task is not None and not self._task.done()

    async def adopt(self) -> None:
        """Take over what an earlier controller started, or report how it ended."""
        remembered = self._journal.load()
        records = await self._machines.get(LOCAL).look()
        alive = [record for record in records if record.alive]
        await self._board.refresh(self._machines)
        plan = remembered.plan
        if plan is not None and (needs_ways(plan) or plan.head != LOCAL):
            self._pursue(self._rejoin(plan, remembered))
        elif plan is not None and alive:
            self._pursue(self._run(plan, remembered))
        elif plan is not None:
            await self._report_ended(plan)
        elif alive:
            log.warning("stopping %d processes without a plan", len(alive))
            self._pursue(self._stop_all())

    async def launch(self, plan: Plan) -> None:
        """Run this plan instead of whatever runs now.

        Raises:
            PlanError: llama.cpp cannot follow the plan; nothing has been touched.
            ControllerError: it already runs.
        """
        check_exact(plan, compile_split(plan, {w.name: 0 for w in plan.workers}))
        snapshot = self._board.snapshot
        if self.busy and snapshot.plan == plan:
            raise ControllerError(
                "This plan is running already", "Stop it first to start it afresh."
            )
        await self._cancel()
        self._restarts.clear()
        self._mended = ""
        self._announce(plan)
        self._pursue(self._restart(plan))

    async def stop(self) -> None:
        """Stop the cluster; returns once stopping has begun."""
        await self._cancel()
        self._pursue(self._stop_all())

    async def wait(self) -> None:
        """Until the present undertaking is over."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def leave(self) -> None:
        """Give up watching; everything keeps running for the next controller."""
        await self._cancel()

    async def settle(self, machine: Machine) -> None:
        """Stop what runs on a machine that came back and no plan wants any more.

        Raises:
            PeerUnreachable: it is gone again.
        """
        await self._stopper.settle(machine, self._journal.record.plan)

    def _pursue(self, work: object) -> None:
        self._task = asyncio.ensure_future(work)  # type: ignore[call-overload]

    async def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # --- undertakings -------------------------------------------------------

    async def _restart(self, plan: Plan) -> None:
        """Stop what runs, then run a plan."""
        self._journal.save(Record(plan=plan))
        try:
            await self._stopper.stop_all()
        except DllmError as error:
            await self._fail(error)
            return
        await self._run(plan, self._journal.record)

    async def _rejoin(self, plan: Plan, remembered: Record) -> None:
        """Run a plan over several machines again after the controller was replaced.

        Its tunnels ended with the controller, so llama-server has lost its workers and
        is started anew; the workers themselves have not noticed.
        """
        self._announce(plan)
        try:
            await self._machines.reached(
                {placed.machine for placed in processes_of(plan)}
            )
            if needs_ways(plan):
                self._mended = TUNNELS_LOST
                log.warning("%s", self._mended)
                await self._stopper.stop_head(plan)
        except DllmError as error:
            await self._fail(error)
            return
        await self._run(plan, remembered)

    async def _run(self, plan: Plan, remembered: Record) -> None:
        """Bring a plan up (or adopt it) and watch it until something breaks."""
        try:
            while True:
                try:
                    running = await self._bring_up(plan, remembered)
                    await self._follow(running, plan)
                except ProcessFailed as error:
                    await self._require_mendable(error)
                    await self._mend(plan, error)
                    remembered = self._journal.record
        except DllmError as error:
            await self._fail(await blamed(error, plan))
        except Exception as error:
            log.exception("the cluster failed unexpectedly")
            await self._fail(
                ControllerError(
                    f"The controller failed: {type(error).__name__}: {error}",
                    "Its log (controller.log) has the details.",
                )
            )

    async def _follow(self, running: Running, plan: Plan) -> None:
        """Watch a serving cluster and its relays; returns only by raising."""
        head = self._machines.get(plan.head)
        sockets = {name: await head.reach_stats(name) for name in running.relayed}
        ways = {w.name: (w.peer, plan.head) for w in plan.workers if not w.endpoint}

        def tunnel_rtt_ms(worker: str) -> float | None:
            ends = set(ways.get(worker, ()))
            return self._machines.rtt_ms(*ends) if len(ends) > 1 else None

        async with self._links.following(sockets, tunnel_rtt_ms):
            await self._watch(running)

    async def _require_mendable(self, error: ProcessFailed) -> None:
        """Let a failure stand unless a relay died, and not too often.

        Raises:
            ProcessFailed: the error itself.
        """
        now = self._clock()
        self._restarts = [at for at in self._restarts if now - at < RESTART_WINDOW_S]
        relay = error.evidence.process.startswith(relay_name(""))
        if not relay or len(self._restarts) >= RESTARTS_MAX:
            raise error
        self._restarts.append(now)

    async def _mend(self, plan: Plan, error: ProcessFailed) -> None:
        """Make room for a new relay: llama-server's connection ended with the old one.

        The workers stay; they have seen a client leave, as after any stop.
        """
        log.warning("%s: starting it again with llama-server", error.what)
        await self._stopper.stop_head(plan)
        self._journal.save(Record(plan=plan))
        self._mended = f"{error.what}: it was started again, with llama-server"

    def _announce(self, plan: Plan) -> None:
        """Show a plan as starting; what was before is no longer of interest."""
        self._board.update(
            state=ClusterState.STARTING,
            message="",
            plan=plan,
            measured=None,
            failure=None,
            api_url=None,
            speed=Speed(),
            links=(),
            served_since=None,
        )

    async def _bring_up(self, plan: Plan, remembered: Record) -> Running:
        self._announce(plan)
        self._board.update(message=self._mended)
        self._steps.reset(*launch_steps(plan))
        running = await self._launcher.bring_up(plan, await self._known(remembered))
        since = remembered.served_since or self._clock()
        self._journal.save(
            Record(
                plan=plan,
                measured=running.measured,
                server_pid=running.server_pid,
                served_since=since,
            )
        )
        await self._board.refresh(self._machines)
        self._board.update(
            state=ClusterState.SERVING,
            measured=running.measured,
            api_url=f"http://127.0.0.1:{running.api_port}/v1",
            served_since=since,
        )
        return running

    async def _known(self, remembered: Record) -> MeasuredSplit | None:
        """The remembered measurement, if it is of the llama-server that runs now."""
        plan = remembered.plan
        head = self._machines.get(plan.head if plan else LOCAL)
        server = await head.host.record(SERVER)
        same = server is not None and server.alive
        if server is not None and same and server.pid == remembered.server_pid:
            return remembered.measured
        return None

    async def _watch(self, running: Running) -> None:
        """Look after a serving cluster; returns only by raising."""
        self.meter = SpeedMeter()
        async with ServerClient(running.api_port) as client:
            while True:
                await self._require_all(running)
                slots = await client.slots()
                self._board.update(speed=self.meter.read(slots, time.monotonic()))
                await self._board.refresh(self._machines)
                busy = self._board.snapshot.speed.requests_active
                await asyncio.sleep(WATCH_S if busy else WATCH_IDLE_S)

    async def _require_all(self, running: Running) -> None:
        """See that everything runs; whoever died first is blamed.

        Raises:
            ProcessFailed: a process ended.
            PeerUnreachable: the connection to a machine broke.
        """
        await look_at(self._machines, running.processes)
        try:
            await require_alive(self._machines, running.processes, self._clock())
        except ProcessFailed:
            await asyncio.sleep(SETTLE_S)
            await look_at(self._machines, running.processes)
            await require_alive(self._machines, running.processes, self._clock())
            raise

    async def _stop_all(self) -> None:
        """Stop everything because it was asked for."""
        await self._stopper.reach_again(self._journal.record.plan)
        self._journal.save(Record())
        try:
            await self._stopper.stop_all()
        except DllmError as error:
            await self._fail(error)
            return
        self._board.idle()

    async def _fail(self, error: DllmError) -> None:
        """Show what went wrong and leave nothing running."""
        failure = error.failure(self._clock())
        log.error("%s", failure.sentence)
        self._journal.save(Record())
        with contextlib.suppress(DllmError):
            await self._stopper.end_all()
        await self._board.refresh(self._machines)
        self._board.failed(failure)

    async def _report_ended(self, plan: Plan) -> None:
        """The cluster ended while nobody watched: say how."""
        self._journal.save(Record())
        self._board.update(plan=plan)
        try:
            await require_alive(self._machines, processes_of(plan), self._clock())
            failure = Failure(what="The cluster ended while no controller watched it")
        except DllmError as error:
            failure = error.failure(self._clock())
        self._board.failed(failure)

    # --- what the launcher asks and tells ------------------------------------

    def _api_ports(self) -> tuple[int | None, int]:
        return self._readers.config().api_port, API_PORT_DEFAULT

    def _found(self, engine: Engine, model: ModelInfo) -> None:
        self._board.update(engine=engine.info, model=model)

    def _steps_changed(self) -> None:
        steps = self._steps.steps
        loading = any(s.id == "load" and s.state is StepState.RUNNING for s in steps)
        state = ClusterState.LOADING if loading else self._board.snapshot.state
        self._board.update(steps=steps, state=state)
