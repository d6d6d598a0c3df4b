"""Start the gateway of a cluster, keep it up, and report llama-server to it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from backends.controller.event_recorders import EventRecorder
from backends.controller.exit_reasons import Deaths, failure_of
from backends.controller.journal import ReplacedServer
from backends.controller.snapshot_store import SnapshotStore
from backends.errors import DllmError, MachineError, ProcessFailed
from backends.gateway.control import GatewayLink
from backends.gateway.control_messages import (
    GATEWAY,
    PORT_TAKEN,
    Mode,
    Target,
    gateway_argv,
)
from backends.gateway.listen_settings import ApiSettings, ListenSettings
from backends.machine_names import LOCAL
from backends.machines.agent import AgentSession, ProcessRecord, ProcessSpec
from backends.machines.machine import Machines
from backends.planning.blueprint import model_alias, process_name
from backends.state import Plan, ProcessRole, ProcessState
from backends.state.snapshots import RequestCounts

log = logging.getLogger(__name__)

LISTEN_POLL_S = 0.05
LISTEN_TIMEOUT_S = 30.0
GRACE_S = 5.0
SETTLE_S = 1.0
DRAINED = "The cluster is drained: requests go on after dllm-tui resume"
BINDING = frozenset(
    {
        *("--grammar", "--grammar-file", "-n", "--predict", "--n-predict"),
        *("-j", "--json-schema", "-jf", "--json-schema-file"),
        *("-r", "--reverse-prompt"),
    }
)
"""Arguments that hold every answer to a form or a length."""
SEEDING = frozenset({"-s", "--seed"})
"""Arguments that set the seed if a request does not."""


class ApiPortTaken(MachineError):
    """Somebody else took the port of the API, which was free when we looked."""


class Gateway:
    """Looks after one cluster's gateway; servers come and go behind it.

    ``socket`` is the control socket of the gateway; ``clock`` gives Unix seconds.
    """

    def __init__(
        self,
        cluster: str,
        machines: Machines,
        store: SnapshotStore,
        recorder: EventRecorder,
        socket: Path,
        clock: Callable[[], float],
    ) -> None:
        self._name = process_name(cluster, GATEWAY)
        self._cluster = cluster
        self._machines = machines
        self._store = store
        self._recorder = recorder
        self._socket = socket
        self._clock = clock
        self._link = GatewayLink(socket, self._counted)
        self._target: Target | None = None
        self._port: int | None = None
        self._deaths = Deaths(clock)
        self._before_hold: RequestCounts | None = None
        self.is_drained = False
        """True if new requests wait even while a server is ready."""
        self.access = ListenSettings()
        """The access rules of the API; a change takes effect at the next start."""
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()

    # --- what it is told ----------------------------------------------------------

    def holds(self, plan: Plan, hold_s: float) -> None:
        self._tell(replace(_target(plan, hold_s), mode=Mode.HOLD))

    def serves(self, plan: Plan, port: int, server: str, hold_s: float) -> None:
        target = _target(plan, hold_s)
        target = replace(target, mode=Mode.SERVE, port=port, server=server)
        self._tell(_drained(target, self.is_drained))

    def drain(self, on: bool) -> None:
        self.is_drained = on
        if self._served is not None:
            self._tell(_drained(self._served, on))

    @property
    def _served(self) -> Target | None:
        if self._port is None or self._target is None:
            return None
        return self._target if self._target.mode is Mode.SERVE else None

    @property
    def served(self) -> ReplacedServer | None:
        """The same, for a controller that comes after this one."""
        if self._served is None or self._port is None:
            return None
        return ReplacedServer(target=self._served, api_port=self._port)

    def take_up(self, served: ReplacedServer) -> None:
        """Go on with what an earlier controller left, if its gateway is there."""
        record = self._record()
        if self._target is None and record is not None and record.alive:
            self._port, self._target = served.api_port, served.target

    def restarts(self, api: ApiSettings, port: int | None) -> bool:
        """Return true if the gateway must restart to listen like this, at this port."""
        moves = port not in (None, self._port)
        return self._port is not None and (moves or api.access != self.access)

    def breaks(self, plan: Plan, *, restarts: bool = False) -> int:
        """Count the answers that would break if another plan replaced this one now.

        These are the answers of another model, else those that cannot be continued. If
        the gateway ``restarts``, all of them break.
        """
        served, counts = self._served, self._store.snapshot.requests
        if served is None or counts is None:
            return 0
        same = served.weights == _target(plan, served.hold_s).weights and not restarts
        return counts.fragile if same else counts.in_flight

    async def let_end(
        self, plan: Plan, limit_s: float, *, restarts: bool = False
    ) -> int:
        """Before a plan takes the place of what serves: let answers end.

        What comes waits meanwhile. Returns how many did not end in time.
        """
        if self._served is None:
            return 0
        self._tell(replace(self._served, drains=True))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while (
                    (counts := self._store.snapshot.requests) is None
                    or not counts.drains
                    or self.breaks(plan, restarts=restarts)
                ):
                    await self._store.change()
        return self.breaks(plan, restarts=restarts)

    def ends(self, why: str) -> None:
        """Let nobody wait: nothing will serve, so the port is the gateway's alone."""
        if self._target is not None:
            self._tell(replace(self._target, mode=Mode.END, port=0, why=why))
        self._link.release()

    def _tell(self, target: Target) -> None:
        self._target = target
        if self._port is not None:
            self._link.tell(target)

    def _counted(self, counts: RequestCounts) -> None:
        # A controller that comes later was told of none of those before it.
        before = self._store.snapshot.requests or counts
        self._store.update(requests=counts)
        # A short wait may be over by the time it is told.
        went_on = counts.held > before.held
        if (counts.waiting or went_on) and self._before_hold is None:
            self._before_hold = before
        if (before.waiting or went_on) and not counts.waiting:
            # Streams are seen to pause until their next piece has come.
            loop = asyncio.get_running_loop()
            loop.call_later(SETTLE_S, self._tell_held)

    def _tell_held(self) -> None:
        before, counts = self._before_hold, self._store.snapshot.requests
        if before is not None and counts is not None and not counts.waiting:
            self._before_hold = None
            self._recorder.held(before, counts)

    # --- the process --------------------------------------------------------------

    async def stand(self, port: int, *, anew: bool = False) -> None:
        """See that it listens at this port; ``anew``: another process than now.

        Raises:
            ApiPortTaken: another program does.
            ProcessFailed: it does not come up.
        """
        async with self._turn:
            self._port = port
            spec = ProcessSpec(
                name=self._name,
                role=ProcessRole.GATEWAY,
                argv=gateway_argv(self._cluster, port, self._socket, self.access),
                port=port,
            )
            record = self._record()
            runs = record is not None and record.state is ProcessState.RUNNING
            if anew or record is None or not runs or record.digest != spec.digest:
                await self._start(spec)
            if self._target is not None:
                self._link.tell(self._target)

    @property
    def is_silent(self) -> bool:
        return self._link.is_silent and not self._has_ended

    def keeps_port(self, port: int) -> bool:
        return self._link.holds(port)

    async def _start(self, spec: ProcessSpec) -> None:
        agent, before = self._agent, self._record()
        if before is None or before.digest != spec.digest:
            # The next one listens elsewhere.
            self._link.release()
        # The next one counts from nothing.
        self._before_hold = None
        self._store.update(requests=None)
        await agent.stop(spec.name, GRACE_S)
        await agent.remove(spec.name)
        record = await agent.start(spec)
        await self._listening(record, spec.port or 0)

    async def _listening(self, record: ProcessRecord, port: int) -> None:
        deadline = self._clock() + LISTEN_TIMEOUT_S
        while not await self._agent.listens(record.pid, port):
            now = await self._agent.record(record.name)
            dead = now is None or not now.alive
            if dead and (owner := await self._taker(now, port)):
                raise ApiPortTaken(
                    f"Port {port} is in use by {owner}",
                    "Stop that program or choose another port (--port, api_port).",
                )
            if dead or self._clock() > deadline:
                raise ProcessFailed(await failure_of(self._agent, now or record))
            await asyncio.sleep(LISTEN_POLL_S)

    async def _taker(self, ended: ProcessRecord | None, port: int) -> str | None:
        # A program that only looked at the port holds it for a moment.
        if self.keeps_port(port):
            return None
        owner = await self._agent.port_owner(port)
        lost = ended is not None and ended.exit_code == PORT_TAKEN
        return owner or ("another program" if lost else None)

    @property
    def _agent(self) -> AgentSession:
        return self._machines.get(LOCAL).agent

    def _record(self) -> ProcessRecord | None:
        return next((r for r in self._agent.seen if r.name == self._name), None)

    async def keep(self, trouble: Callable[[DllmError], None]) -> None:
        """Start it again whenever it ends, until cancelled.

        ``trouble`` is told when that cannot be done, or was done too often.
        """
        end = self._agent.subscribe(self._news.set)
        try:
            while True:
                self._news.clear()
                if self._has_ended:
                    try:
                        await self._mend()
                    except DllmError as error:
                        # Until somebody finds it another place, or begins anew.
                        self._port = None
                        trouble(error)
                await self._news.wait()
        finally:
            end()

    @property
    def _has_ended(self) -> bool:
        # A gateway that is being started counts as there.
        record = self._record()
        started = self._port is not None and not self._turn.locked()
        return started and (record is None or not record.alive)

    async def _mend(self) -> None:
        assert self._port is not None
        record, is_too_often = self._record(), self._deaths.trips(GATEWAY)
        if record is not None:
            failure = await failure_of(self._agent, record)
            if is_too_often:
                raise ProcessFailed(failure)
            self._recorder.failed(failure)
        await self.stand(self._port)
        text = f"{GATEWAY} was started again at port {self._port}; llama-server ran on"
        self._recorder.mended(text)
        log.warning("%s", text)

    async def let_go(self) -> None:
        self._port = None
        self._deaths.reset()
        await self._link.close()
        self._store.update(requests=None)


def _drained(target: Target, on: bool) -> Target:
    return replace(target, drains=on, why=DRAINED if on else "")


def _target(plan: Plan, hold_s: float) -> Target:
    """Return the target that the gateway is given for a plan.

    Another file or adapter gives other answers. The further arguments may contain a
    key, so the target carries only a digest of them.
    """
    answers = "\0".join((plan.model, *plan.extra_args)).encode()
    return Target(
        model=model_alias(plan),
        weights=hashlib.sha256(answers).hexdigest()[:16],
        bound=not BINDING.isdisjoint(plan.extra_args),
        slots=plan.server.slots,
        seeded=not SEEDING.isdisjoint(plan.extra_args),
        hold_s=hold_s,
    )


FIRST_TRIED = 10
"""So many ports from the default one on are tried before any free one is taken."""


class ApiPorts:
    """The API port of each cluster: a cluster takes its port before it listens."""

    def __init__(self) -> None:
        self._chosen: dict[str, int] = {}
        self._lost: set[int] = set()

    def owner(self, port: int) -> str | None:
        return next((name for name, p in self._chosen.items() if p == port), None)

    def choose(self, cluster: str, port: int) -> bool:
        """Take a port for a cluster; False if another has it."""
        if self.owner(port) not in (None, cluster):
            return False
        self._chosen[cluster] = port
        return True

    def candidates(self, cluster: str, first: int) -> list[int]:
        """Ports to try in this order: clients know the one there was before."""
        before = self._chosen.get(cluster)
        tried = [port for port in range(first, first + FIRST_TRIED) if port != before]
        there = [before, *tried] if before else tried
        return [port for port in there if port not in self._lost]

    def lose(self, cluster: str) -> None:
        """The port of a cluster was another program's, though it looked free."""
        port = self._chosen.pop(cluster, None)
        if port is not None:
            self._lost.add(port)

    def release(self, cluster: str) -> None:
        self._chosen.pop(cluster, None)
