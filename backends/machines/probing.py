"""Looking at a machine: its agent tells what it is and what is installed there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from backends.engine.ask import Engine, list_devices, read_engine
from backends.engine.install import MANIFEST, SERVER, WORKER_NAMES
from backends.engine.versions import protocols_match
from backends.errors import EngineError, MachineError, ModelError, PeerUnreachable
from backends.machine_queries import FoundFile, MachineQueries
from backends.machines.agent import AgentSession
from backends.machines.artifacts import MARKER
from backends.machines.facts import MachineInfo, device_of
from backends.machines.provisioning import tools_of
from backends.machines.shell import AgentShell
from backends.machines.ssh.connection import Connection
from backends.models.layers import printable_path
from backends.models.search import (
    Folder,
    ModelCandidate,
    configured_folders,
    distinct,
    search,
)
from backends.paths import Paths
from backends.state import (
    NOT_JSON,
    Device,
    EngineInfo,
    EngineSource,
    ModelFile,
    PeerFacts,
    PeerState,
    Value,
)

if TYPE_CHECKING:
    from backends.config import PeerConfig


ENGINES_MAX = 8
RTT_TRIES = 3
BANDWIDTH_S = 0.5
# sshd gives many a machine a PATH without these.
_PLACES = ("/usr/local/bin", "/opt/homebrew/bin", "~/.local/bin")


class _Manifest(Value, frozen=True, kw_only=True):
    """The part of ``engine.json`` that is used here."""

    rpc_protocol: str = ""
    backends: tuple[str, ...] = ()
    built_at: float = 0.0


async def find_engines(
    agent: MachineQueries, told: MachineInfo, configured: str | None
) -> list[EngineInfo]:
    """The engines of a machine, the preferred first; none is started.

    The configured one, then those in our cache, the newest first, then that on PATH.
    """
    home = told.variables.get("HOME", "/")
    own = [_expanded(configured, home)] if configured else []
    path = [*told.variables.get("PATH", "").split(":"), *_PLACES]
    on_path = [_expanded(folder, home) for folder in path]
    servers = await agent.find([f for f in on_path if f[:1] == "/"], suffix=SERVER)
    seen = {file.path.rpartition("/")[0] for file in servers}
    first = [folder for folder in on_path if folder in seen][:1]
    cached = f"{told.cache}/engines"
    programs: dict[str, set[str]] = defaultdict(set)
    here = [*own, *(f"{folder}/bin" for folder in own)]
    for files in await asyncio.gather(
        agent.find([cached], depth=2),
        agent.find(here, suffix="-server"),
        agent.find(first, suffix="-server"),
    ):
        for file in files:
            folder, _, name = file.path.rpartition("/")
            programs[folder].add(name)
    ours = [folder for folder in programs if folder.startswith(f"{cached}/")]
    made = await asyncio.gather(*(_manifest(agent, f, programs[f]) for f in ours))
    manifests = dict(zip(ours, made, strict=True))
    ours.sort(key=lambda folder: -manifests[folder].built_at)
    found: dict[str, EngineInfo] = {}
    for source, folders in (
        (EngineSource.CONFIG, here),
        (EngineSource.CACHE, ours),
        (EngineSource.PATH, first),
    ):
        for folder in folders:
            names = programs[folder]
            workers = [name for name in WORKER_NAMES if name in names]
            if SERVER in names and workers:
                manifest = manifests.get(folder, _Manifest())
                engine = EngineInfo(
                    directory=folder,
                    source=EngineSource.PROVISIONED if MARKER in names else source,
                    server_path=f"{folder}/{SERVER}",
                    worker_path=f"{folder}/{workers[0]}",
                    rpc_protocol=manifest.rpc_protocol,
                    backends=manifest.backends,
                )
                found.setdefault(folder, engine)
    return list(found.values())[:ENGINES_MAX]


async def _manifest(agent: MachineQueries, folder: str, names: set[str]) -> _Manifest:
    with contextlib.suppress(*NOT_JSON):
        if MANIFEST in names:
            text = await agent.read(f"{folder}/{MANIFEST}")
            return msgspec.json.decode(text, type=_Manifest)
    return _Manifest()


def _expanded(folder: str, home: str) -> str:
    whole = f"{home}/{folder[2:]}" if folder.startswith("~/") else folder
    return whole.rstrip("/")


async def rtt_ms(shell: Connection) -> float:
    """The shortest of a few round trips: the others had to wait for something."""
    return min([await shell.ping_ms() for _ in range(RTT_TRIES)])


async def bandwidth_mb_s(shell: Connection) -> float | None:
    """MB/s from there to here, between the first and the last piece that came."""
    times: list[float] = []
    sizes: list[int] = []

    def listen(n_bytes: int) -> None:
        times.append(time.monotonic())
        sizes.append(n_bytes)

    with contextlib.suppress(TimeoutError, MachineError):
        async with asyncio.timeout(BANDWIDTH_S):
            await shell.noise(listen)
    if len(times) < 2 or times[-1] <= times[0]:
        return None
    return sum(sizes[1:]) / (times[-1] - times[0]) / 1e6


def state_of(facts: PeerFacts, ours: str, hint: str) -> tuple[PeerState, str]:
    """State and note of a peer; ``ours`` is the RPC protocol of our own engine."""
    if not facts.relay_version:
        absent = "The helper dllm-relay is not there"
        why = facts.problems[0] if facts.relay_path else absent
        return PeerState.NO_ENGINE, f"{why.rstrip('.')}. {hint}"
    if not facts.engines:
        return PeerState.NO_ENGINE, f"No llama.cpp with RPC there. {hint}"
    spoken = [engine.rpc_protocol for engine in facts.engines]
    if not any(protocols_match(ours, theirs) for theirs in spoken):
        theirs = ", ".join(spoken)
        what = f"It speaks RPC {theirs}, this machine RPC {ours}."
        return PeerState.MISMATCH, f"{what} {hint}"
    return PeerState.READY, ""


MODELS_S = 10.0
"""Longest search for models; folders on a disk that is gone answer nothing."""
IDENTITIES_S = 2.0
"""Longest time a probe reads identities of models; the next one goes on."""
IDENTITIES_AT_ONCE = 4


class Prober:
    """Looks at one peer, and asks there only what it does not know yet."""

    def __init__(
        self, connection: Connection, config: PeerConfig, paths: Paths
    ) -> None:
        self._connection = connection
        self._config = config
        self._paths = paths
        self._devices: tuple[Device, ...] = ()
        self._identities: dict[FoundFile, str] = {}
        self.lent: tuple[str, ...] | None = None
        """The only folders that its owner lets us search; None: all are ours."""

    async def look(
        self, agent: AgentSession, known: PeerFacts, *, light: bool
    ) -> tuple[PeerFacts, tuple[Engine, ...]]:
        """Ask the agent for each thing not known yet; the facts and the engines.

        The round trip and, for at most half a second, the bandwidth are measured.

        ``light`` leaves out what would hold up an engine that serves there: its devices
        and the bandwidth are then as they were.
        """
        started, at = time.monotonic(), time.time()
        rtt = await rtt_ms(self._connection)
        told = await agent.machine()
        ahead_s = told.time - (time.time() - rtt / 2000)
        found = await find_engines(agent, told, self._config.engine)
        engines, problems = await self._engines(agent, found, light)
        home = Path(told.variables.get("HOME", "/"))
        folders = configured_folders(self._config.model_dirs, home, told.variables)
        if self.lent is not None:
            folders = tuple(Folder("models", Path(path)) for path in self.lent)
        models, problem = await self._models(agent, folders, known)
        # Asking compilers for their versions takes a while.
        compiler, cmake = known.compiler, known.cmake
        if self._connection.builds and not (compiler and cmake):
            tools = await tools_of(AgentShell(agent, self._connection))
            compiler = tools["cxx"].text if "cxx" in tools else ""
            cmake = f"cmake {tools['cmake'].version}" if "cmake" in tools else ""
        measures = not light and not self._connection.flows
        speed = await bandwidth_mb_s(self._connection) if measures else None
        cpu = device_of(told.memory, agent.name)
        facts = PeerFacts(
            at=at,
            os=told.os,
            arch=told.arch,
            libc=told.libc,
            system=told.system,
            hostname=told.hostname,
            cores=told.usable,
            performance_cores=told.performance,
            memory_bytes=cpu.total_bytes,
            memory_free_bytes=cpu.free_bytes,
            devices=tuple(map(self._budgeted, (cpu, *self._devices))),
            disk_free_bytes=told.disk_free_bytes,
            engines=tuple(engine.info for engine in engines),
            relay_version=agent.version,
            compiler=compiler,
            cmake=cmake,
            problems=(*problems, *filter(None, [problem])),
            models=models,
            model_dirs=tuple(_shortened(folder.path, home) for folder in folders),
            clock_offset_s=ahead_s,
            rtt_ms=rtt,
            bandwidth_mb_s=speed or known.bandwidth_mb_s,
            seconds=time.monotonic() - started,
        )
        return facts, engines

    async def _engines(
        self, agent: MachineQueries, found: Sequence[EngineInfo], light: bool
    ) -> tuple[tuple[Engine, ...], list[str]]:
        """Split engines into those that run and problems; the first has its devices."""
        asked = await asyncio.gather(*(self._engine(agent, e, light) for e in found))
        problems = [problem for problem in asked if isinstance(problem, str)]
        engines = [engine for engine in asked if not isinstance(engine, str)]
        if not engines:
            self._devices = ()
            return (), problems
        first = engines[0].info
        if not light:
            try:
                self._devices = await list_devices(agent, first)
            except EngineError as error:
                problems.append(error.what)
        elif not self._devices:
            self._devices = first.devices
        seen = replace(first, devices=tuple(map(self._budgeted, self._devices)))
        return (replace(engines[0], info=seen), *engines[1:]), problems

    async def _engine(
        self, agent: MachineQueries, found: EngineInfo, light: bool
    ) -> Engine | str:
        try:
            return await read_engine(agent, found, self._paths, light=light)
        except EngineError as error:
            return error.what

    def _budgeted(self, device: Device) -> Device:
        return replace(device, budget_bytes=self._config.budget_bytes(device.name))

    async def _models(
        self, agent: MachineQueries, folders: Iterable[Folder], known: PeerFacts
    ) -> tuple[tuple[ModelFile, ...], str]:
        """The models there, and what is wrong with any; where none can be listed, as
        they were.
        """
        try:
            async with asyncio.timeout(MODELS_S):
                every = distinct(await search(agent, folders))
                whole = [each for each in every if each.size_bytes and not each.problem]
                found, problem = _named(whole)
                await self._identify(agent, [each.files[0] for each in found])
        except PeerUnreachable:
            raise
        except (MachineError, TimeoutError) as error:
            why = f"Its models cannot be listed: {error or 'they take too long'}"
            return known.models, why
        models = (
            ModelFile(
                path=each.files[0].path,
                name=each.name,
                size_bytes=each.size_bytes,
                source=each.source,
                identity=self._identities.get(each.files[0], ""),
            )
            for each in found
        )
        return tuple(models), problem

    async def _identify(
        self, agent: MachineQueries, files: Sequence[FoundFile]
    ) -> None:
        until = time.monotonic() + IDENTITIES_S
        kept = {f: self._identities[f] for f in files if f in self._identities}
        self._identities = kept
        unread = [file for file in files if file not in kept]
        while unread and time.monotonic() < until:
            now, unread = unread[:IDENTITIES_AT_ONCE], unread[IDENTITIES_AT_ONCE:]
            told = await asyncio.gather(*(_identity(agent, file) for file in now))
            kept.update(zip(now, told, strict=True))


def _shortened(folder: Path, home: Path) -> str:
    return f"~/{folder.relative_to(home)}" if home in folder.parents else str(folder)


def _named(every: Iterable[ModelCandidate]) -> tuple[list[ModelCandidate], str]:
    """Split models into those whose names can be shown, and a problem of the rest."""
    named, problem = [], ""
    for found in every:
        try:
            printable_path(found.path)
        except ModelError as error:
            problem = error.what
        else:
            named.append(found)
    return named, problem


async def _identity(agent: MachineQueries, file: FoundFile) -> str:
    try:
        return await agent.identity(file.path)
    except PeerUnreachable:
        raise
    except MachineError:
        return ""
