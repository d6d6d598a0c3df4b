"""Machines that do as they are told: processes, connections, a llama-server's HTTP."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from backends.direct_address import DirectAddress
from backends.engine.ask import SPEC_TYPE, Engine
from backends.errors import (
    EngineError,
    MachineError,
    NeedsAnswer,
    PeerUnreachable,
)
from backends.link.transport import (
    PlainTransport,
    TransportKind,
    TransportSpec,
    tcp_endpoint,
    unix_endpoint,
)
from backends.machines.agent import Orphan, ProcessRecord, ProcessSpec
from backends.machines.peer import ANY_USER
from backends.planning.blueprint import short_name
from backends.planning.relay_pairs import CAN_COMPRESS, CAN_SEAL
from backends.state import (
    Device,
    EngineSource,
    LogChunk,
    ModelInfo,
    Peer,
    PeerQuestion,
    PeerState,
    ProcessRole,
    ProcessState,
    QuestionKind,
    Transport,
)
from tests.unit.planning import machines as planned

START_S = 0.05
DIES_AFTER_WORKER_S = 0.1
"""llama-server aborts so long after a worker or a relay of it."""


class Tunnel(PlainTransport):
    def __init__(self, endpoint: str, number: int) -> None:
        super().__init__(endpoint, TransportKind.TUNNEL, 3.0)
        self.incarnation = f"way {number}"
        self.open = True

    def breaks(self) -> None:
        self.open, told = False, self.on_broken
        if told is not None:
            told()


class FakeAgent:
    def __init__(self, machine: ScriptedMachine) -> None:
        self._machine = machine
        self.name = machine.name
        self.run_dir = f"/run/{machine.name}"
        self.features = (CAN_SEAL, CAN_COMPRESS)
        self.processes: dict[str, ProcessRecord] = {}
        self.logs: dict[str, str] = {}
        self.needs: dict[int, set[str]] = {}
        """Incarnations of what a process hangs on, by its pid."""
        self.lost: list[str] = []
        """Processes whose directories are gone."""
        self.taken: dict[int, str] = {}
        """Ports that other programs have."""
        self.listening: set[int] = set()
        self._subscribers: dict[object, Callable[[], None]] = {}

    @property
    def world(self) -> Cast:
        return self._machine.cast

    @property
    def seen(self) -> tuple[ProcessRecord, ...]:
        return tuple(self.processes[name] for name in sorted(self.processes))

    def subscribe(self, told: Callable[[], None]) -> Callable[[], None]:
        key = object()
        self._subscribers[key] = told
        return lambda: self._subscribers.pop(key, None) and None

    def tell(self) -> None:
        for told in tuple(self._subscribers.values()):
            told()

    def put(self, record: ProcessRecord) -> None:
        self.processes[record.name] = record
        self.tell()

    async def connect(self) -> None:
        await self._there()

    async def _there(self) -> None:
        await asyncio.sleep(0)
        self._machine.require_there()

    async def start(self, spec: ProcessSpec) -> ProcessRecord:
        await self._there()
        name, short = spec.name, short_name(spec.name)
        before = self.processes.get(name)
        assert before is None or not before.alive, f"{name} runs twice"
        if short in self.world.refused:
            raise MachineError(f"{short} cannot be started on {self.name}")
        await asyncio.sleep(START_S)
        self._machine.require_there()
        self.world.started.append(short)
        record = ProcessRecord(
            name=name,
            role=spec.role,
            state=ProcessState.RUNNING,
            pid=self.world.number(),
            argv=spec.argv,
            port=spec.port,
            started_at=asyncio.get_running_loop().time(),
            digest=spec.digest,
        )
        self.logs[name] = ""
        self.needs[record.pid] = set(spec.after.values())
        self.put(record)
        if lines := self.world.dying.get(short):
            self.logs[name] = lines.pop(0)
            if not lines:
                del self.world.dying[short]
            self.ends(name, exit_code=1)
        elif spec.port in self.taken:
            self.logs[name] = "Failed to create server socket\n"
            self.ends(name, exit_code=1)
        elif short not in self.world.deaf:
            self.listening.add(record.pid)
        return record

    def ends(self, name: str, **how: int) -> None:
        record = self.processes[name]
        self.listening.discard(record.pid)
        self.put(replace(record, state=ProcessState.EXITED, **how))
        self.world.died(record)

    async def record(self, name: str) -> ProcessRecord | None:
        await self._there()
        return self.processes.get(name)

    async def records(self) -> tuple[ProcessRecord, ...]:
        await self._there()
        return self.seen

    async def stop(self, name: str, grace_s: float) -> ProcessRecord | None:
        await self._there()
        record = self.processes.get(name)
        if name in self.lost:
            self.lost.remove(name)
        if record is None or not record.alive:
            return record
        if short_name(name) in self.world.immortal:
            raise MachineError(f"{short_name(name)} outlived SIGKILL")
        self.put(replace(record, state=ProcessState.STOPPING))
        await asyncio.sleep(grace_s if short_name(name) in self.world.stubborn else 0.1)
        self._machine.require_there()
        self.world.stopped.append(short_name(name))
        self.listening.discard(record.pid)
        ended = replace(record, state=ProcessState.EXITED, exit_code=0)
        self.put(ended)
        return ended

    async def remove(self, name: str) -> None:
        await self._there()
        record = self.processes.get(name)
        assert record is None or not record.alive, f"{name} runs and is removed"
        self.processes.pop(name, None)
        self.tell()

    async def orphans(self) -> list[Orphan]:
        await self._there()
        return [Orphan(name=name, pid=1) for name in self.lost]

    async def listens(self, pid: int, port: int) -> bool:
        await self._there()
        record = next((r for r in self.seen if r.pid == pid), None)
        return pid in self.listening and record is not None and record.port == port

    async def port_owner(self, port: int) -> str | None:
        await self._there()
        ours = (short_name(r.name) for r in self.seen if r.alive and r.port == port)
        return self.taken.get(port) or next(ours, None)

    async def free_port(self) -> int:
        await self._there()
        port = 40_000 + self.world.number()
        if self.world.snatched:
            self.taken[port] = self.world.snatched.pop()
        return port

    async def read_log(self, name: str, offset: int, limit: int) -> LogChunk:
        await self._there()
        text = self.logs.get(name, "")
        start = max(len(text) + offset, 0) if offset < 0 else min(offset, len(text))
        return LogChunk(
            name=name, text=text[start:], offset=start, next_offset=len(text)
        )

    async def memory(self) -> Device:
        await self._there()
        return self._machine.device


class ScriptedMachine:
    """One machine; ``there`` says whether it can be reached."""

    def __init__(self, cast: Cast, name: str) -> None:
        self.cast = cast
        self.name = name
        self.transport = Transport.LOCAL if name == "local" else Transport.SSH
        self.device = planned.device(name, "CPU", 64 * planned.GIB)
        self.searched = " in /models"
        self.there = True
        self.away_since: float | None = None
        self.revoked = self.withheld = False
        self.tunnels: list[Tunnel] = []
        self._agent = FakeAgent(self)

    def require_there(self) -> None:
        if not self.there:
            raise PeerUnreachable(f"{self.name} cannot be reached")

    @property
    def agent(self) -> FakeAgent:
        self.require_there()
        return self._agent

    @property
    def processes(self) -> FakeAgent:
        return self._agent

    @property
    def peer(self) -> Peer:
        state = PeerState.READY if self.there else PeerState.UNREACHABLE
        known = planned.peer(self.name, self.device, state=state)
        note = f"{self.name} is not lent now" if self.withheld else known.note
        whose = {"revoked": self.revoked, "withheld": self.withheld, "note": note}
        return replace(known, since=self.away_since, **whose)

    def breaks(self) -> None:
        broken, self.tunnels = self.tunnels, []
        for tunnel in broken:
            tunnel.breaks()

    async def reached(self) -> None:
        await asyncio.sleep(0)
        if self.name in self.cast.asking:
            question = PeerQuestion(kind=QuestionKind.PASSWORD, text="Password?")
            raise NeedsAnswer(question)
        self.require_there()

    async def engine(self, wanted: str | None, rpc_protocol: str = "") -> Engine:
        if self.name in self.cast.engineless:
            raise EngineError(f"{self.name} has no llama.cpp with RPC")
        return engine_of(self.name)

    async def model_path(self, model: ModelInfo) -> str:
        return model.path

    async def copies_of(self, model: ModelInfo) -> tuple[str, ...]:
        return ()

    def relay_program(self) -> str:
        return "/bin/dllm-relay"

    async def direct_address(self) -> DirectAddress:
        return DirectAddress(why="only SSH is open")

    def relay_stats(self, worker: str) -> str:
        return f"/nowhere/{worker}.sock"

    async def stats_way(self, worker: str) -> PlainTransport:
        return PlainTransport(unix_endpoint(self.relay_stats(worker)))

    async def api_way(self, port: int) -> PlainTransport:
        return self._way(port)

    async def way_to(self, port: int, spec: TransportSpec) -> PlainTransport:
        way = self._way(port)
        if isinstance(way, Tunnel) and spec.tcp:
            way.note = ANY_USER.format(machine="this machine")
        return way

    async def way_from(self, way: PlainTransport, spec: object) -> PlainTransport:
        return way

    def _way(self, port: int) -> PlainTransport:
        self.require_there()
        if self.transport is Transport.LOCAL:
            return PlainTransport(tcp_endpoint(port))
        tunnel = Tunnel(tcp_endpoint(port), self.cast.number())
        self.tunnels.append(tunnel)
        return tunnel


class Cast:
    """All machines, and what is to go wrong on them."""

    def __init__(self, *names: str) -> None:
        self._number = 0
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.refused: set[str] = set()
        self.deaf: set[str] = set()
        self.stubborn: set[str] = set()
        self.immortal: set[str] = set()
        self.asking: set[str] = set()
        self.engineless: set[str] = set()
        self.dying: dict[str, list[str]] = {}
        """The last words of the next processes of a name, which end at once."""
        self.snatched: list[str] = []
        """Programs that take the next free ports before us."""
        self.load_s = 1.0
        self.machines = {n: ScriptedMachine(self, n) for n in ("local", *names)}

    def number(self) -> int:
        self._number += 1
        return self._number

    def get(self, name: str) -> ScriptedMachine:
        if name not in self.machines:
            raise MachineError(f"There is no peer {name}")
        return self.machines[name]

    def all(self) -> list[ScriptedMachine]:
        return [machine for machine in self.machines.values() if machine.there]

    def values(self) -> tuple[Peer, ...]:
        return tuple(m.peer for name, m in self.machines.items() if name != "local")

    async def reached(self, names: Iterable[str]) -> None:
        for name in names:
            await self.get(name).reached()

    def appears(self, machine: str, short: str, role: ProcessRole) -> None:
        """A process of the default cluster runs there, whoever started it."""
        name = f"default/{short}"
        self.machines[machine].processes.put(
            ProcessRecord(
                name=name,
                role=role,
                state=ProcessState.RUNNING,
                pid=self.number(),
                argv=(),
            )
        )

    def holder(self, short: str) -> tuple[FakeAgent, ProcessRecord]:
        for machine in self.machines.values():
            for record in machine.processes.seen:
                if short_name(record.name) == short and record.alive:
                    return machine.processes, record
        raise AssertionError(f"{short} does not run")

    def running(self) -> list[str]:
        return sorted(
            short_name(record.name)
            for machine in self.machines.values()
            for record in machine.processes.seen
            if record.alive
        )

    def died(self, record: ProcessRecord) -> None:
        """A worker or relay takes the llama-server with it that hangs on it."""
        for machine in self.machines.values():
            for one in machine.processes.seen:
                needs = machine.processes.needs.get(one.pid, set())
                is_server = one.role is ProcessRole.SERVER and one.alive
                if is_server and record.incarnation in needs:
                    asyncio.get_running_loop().call_later(
                        DIES_AFTER_WORKER_S, self._aborts, machine.processes, one
                    )

    def _aborts(self, agent: FakeAgent, server: ProcessRecord) -> None:
        now = agent.processes.get(server.name)
        if now is not None and now.alive and now.pid == server.pid:
            agent.ends(server.name, exit_signal=signal.SIGABRT)

    def server_at(self, port: int) -> ProcessRecord | None:
        for machine in self.all():
            for record in machine.processes.seen:
                if record.port == port and record.pid in machine.processes.listening:
                    return record
        return None


def engine_of(machine: str) -> Engine:
    engine = planned.engine(machine)
    info = replace(
        engine.info,
        version="9000",
        rpc_protocol="8.0.0",
        source=EngineSource.CONFIG,
        devices=(),
    )
    return replace(engine, info=info, flags=frozenset({SPEC_TYPE}))
