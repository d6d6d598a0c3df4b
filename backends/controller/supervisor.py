"""The reconcile loop: one desired plan, and whatever it takes to make it so."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from backends.config import API_PORT_DEFAULT
from backends.controller.evidence import require_alive
from backends.controller.journal import Record
from backends.controller.launch import SERVER, Launcher, Running, launch_steps
from backends.controller.speed import SpeedMeter
from backends.controller.steps import StepBoard
from backends.engine.http import ServerClient
from backends.errors import ControllerError, DllmError, ProcessFailed
from backends.split.flags import check_exact, compile_split
from backends.state import ClusterState, Failure, ProcessRole, Speed, Step, StepState

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.controller.board import Board
    from backends.controller.journal import Journal
    from backends.controller.links import Links
    from backends.controller.readers import Engine, Readers
    from backends.peers.host import Host
    from backends.state import MeasuredSplit, ModelInfo, Plan

log = logging.getLogger(__name__)

WATCH_S = 0.5
# Every question about the slots costs llama-server a page of its debug log.
WATCH_IDLE_S = 1.0
# A dying worker takes llama-server with it; give both the time to be seen dead, so that
# the worker is blamed.
SETTLE_S = 0.5
STOP_GRACE_S = 5.0


class Supervisor:
    """Owns the cluster of one host: launches, adopts, watches and stops it."""

    def __init__(
        self,
        host: Host,
        board: Board,
        journal: Journal,
        readers: Readers,
        links: Links,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Use these parts; nothing runs before ``adopt`` or ``launch``."""
        self._host = host
        self._board = board
        self._journal = journal
        self._readers = readers
        self._links = links
        self._clock = clock
        self.meter = SpeedMeter()
        self._task: asyncio.Task[None] | None = None
        self._steps = StepBoard(clock, self._steps_changed)
        self._launcher = Launcher(
            host,
            self._steps,
            readers,
            relay_socket=links.socket,
            default_api_port=self._api_ports,
            found=self._found,
            clock=clock,
        )

    @property
    def busy(self) -> bool:
        """Whether something runs, starts or stops."""
        return self._task is not None and not self._task.done()

    async def adopt(self) -> None:
        """Take over what an earlier controller started, or report how it ended."""
        remembered = self._journal.load()
        alive = [record for record in await self._host.records() if record.alive]
        await self._board.refresh(self._host)
        if remembered.plan is not None and alive:
            self._pursue(self._run(remembered.plan, remembered))
        elif remembered.plan is not None:
            await self._report_ended(remembered.plan)
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
            await self._stop_processes()
        except DllmError as error:
            await self._fail(error)
            return
        await self._run(plan, self._journal.record)

    async def _run(self, plan: Plan, remembered: Record) -> None:
        """Bring a plan up (or adopt it) and watch it until something breaks."""
        try:
            running = await self._bring_up(plan, remembered)
            async with self._links.following(running.relayed):
                await self._watch(running)
        except DllmError as error:
            await self._fail(error)
        except Exception as error:
            log.exception("the cluster failed unexpectedly")
            await self._fail(
                ControllerError(
                    f"The controller failed: {type(error).__name__}: {error}",
                    "Its log (controller.log) has the details.",
                )
            )

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
        await self._board.refresh(self._host)
        self._board.update(
            state=ClusterState.SERVING,
            measured=running.measured,
            api_url=f"http://127.0.0.1:{running.api_port}/v1",
            served_since=since,
        )
        return running

    async def _known(self, remembered: Record) -> MeasuredSplit | None:
        """The remembered measurement, if it is of the llama-server that runs now."""
        server = await self._host.record(SERVER)
        same = server is not None and server.alive
        if server is not None and same and server.pid == remembered.server_pid:
            return remembered.measured
        return None

    async def _watch(self, running: Running) -> None:
        """Look after a serving cluster; returns only by raising."""
        self.meter = SpeedMeter()
        async with ServerClient(running.api_port) as client:
            while True:
                try:
                    await require_alive(
                        self._host, running.process_names, self._clock()
                    )
                except ProcessFailed:
                    await asyncio.sleep(SETTLE_S)
                    await require_alive(
                        self._host, running.process_names, self._clock()
                    )
                    raise
                slots = await client.slots()
                self._board.update(speed=self.meter.read(slots, time.monotonic()))
                await self._board.refresh(self._host)
                busy = self._board.snapshot.speed.requests_active
                await asyncio.sleep(WATCH_S if busy else WATCH_IDLE_S)

    async def _stop_all(self) -> None:
        """Stop everything because it was asked for."""
        self._journal.save(Record())
        try:
            await self._stop_processes()
        except DllmError as error:
            await self._fail(error)
            return
        self._board.idle()

    async def _stop_processes(self) -> None:
        """Stop llama-server, then the workers, each verified gone.

        Ended ones are stopped too, without a word: they may have left children.
        """
        known = await self._host.records()
        records = [record for record in known if record.alive]
        records.sort(key=lambda record: record.role is ProcessRole.WORKER)
        self._steps.reset(
            *(Step(id=f"stop:{r.name}", title=f"Stop {r.name}") for r in records)
        )
        if records:
            self._board.update(state=ClusterState.STOPPING, api_url=None, speed=Speed())
        for record in records:
            with self._steps.step(f"stop:{record.name}"):
                await self._host.stop(record.name, STOP_GRACE_S)
        for record in known:
            if not record.alive:
                await self._host.stop(record.name, STOP_GRACE_S)
        await self._board.refresh(self._host)

    async def _fail(self, error: DllmError) -> None:
        """Show what went wrong and leave nothing running."""
        failure = error.failure(self._clock())
        log.error("%s", failure.sentence)
        self._journal.save(Record())
        with contextlib.suppress(DllmError):
            for record in await self._host.records():
                await self._host.stop(record.name, STOP_GRACE_S)
        await self._board.refresh(self._host)
        self._board.failed(failure)

    async def _report_ended(self, plan: Plan) -> None:
        """The cluster ended while nobody watched: say how."""
        self._journal.save(Record())
        self._board.update(plan=plan)
        names = [record.name for record in await self._host.records()]
        names.sort(key=lambda name: name == SERVER)
        try:
            await require_alive(self._host, names, self._clock())
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
