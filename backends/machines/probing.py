"""Probing a machine: a script tells what it is, its agent what is installed there."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections import defaultdict
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from backends.engine import compiling
from backends.engine.ask import describe, list_devices
from backends.engine.versions import protocols_match
from backends.errors import EngineError, HostError, ModelError, PeerUnreachable
from backends.machines.host import MemoryTold, device_of
from backends.models.layers import printable_path
from backends.models.search import configured_folders, distinct, search
from backends.state import (
    EngineInfo,
    EngineSource,
    ModelFile,
    PeerFacts,
    PeerState,
    Value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from backends.config import PeerConfig
    from backends.engine.ask import Engine
    from backends.machines.peer import SshPeer
    from backends.machines.shell import Shell
    from backends.models.search import Folder, ModelCandidate
    from backends.paths import Paths
    from backends.questions import Asked, FoundFile
    from backends.state import Device


_BIG_SHARE = 0.6
"""Cores with this part of the largest capacity count as performance cores."""


class Processors(Value, frozen=True, kw_only=True):
    """The CPUs of a system (logical ones, by number)."""

    online: int = 0
    physical: int = 0
    """Physical cores, where the system counts them itself (macOS)."""
    first_level: int = 0
    """Physical cores of the fastest kind, on Apple silicon."""
    allowed: frozenset[int] = frozenset()
    """CPUs that this user's processes may use; empty if unknown."""
    big: frozenset[int] = frozenset()
    """Performance cores of a hybrid x86; empty on all others."""
    siblings: dict[int, frozenset[int]] = {}
    """For each CPU, those on the same physical core."""
    capacities: dict[int, int] = {}
    """Relative speed, 1024 for the fastest; empty where all are alike."""
    quotas: tuple[float, ...] = ()
    """CPUs a container may use at a time, for each limit that applies."""

    @property
    def usable(self) -> int:
        """Logical CPUs that may be used."""
        return len(self.allowed) or self.online

    @property
    def performance(self) -> int:
        """Physical performance cores that may be used: a worker's threads."""
        counted = self.first_level or self.physical or self._physical_cores()
        limits = [math.ceil(quota) for quota in self.quotas]
        return max(min([counted or self.usable, *limits]), 1)

    def _physical_cores(self) -> int:
        chosen = {n for n in self.siblings if not self.allowed or n in self.allowed}
        chosen = chosen & self.big or chosen
        fastest = max(self.capacities.values(), default=0)
        slow = {n for n, c in self.capacities.items() if c < _BIG_SHARE * fastest}
        return len({self.siblings[n] for n in chosen - slow})


def cpu_set(text: str) -> frozenset[int]:
    """The numbers in ``0-3,8``; what cannot be understood is left out."""
    found: set[int] = set()
    for piece in text.strip().split(","):
        first, _, last = piece.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


FORMAT = "1"
_KIB = 1024
_RANKS = {EngineSource.CONFIG: 0, EngineSource.PATH: 2}
"""Order of preference; engines in the cache come between these."""
_LIBC = re.compile(r"(glibc|musl)\s*([\d.]*)")
_NUMBER = re.compile(r"\d+(\.\d+)*")


class Tool(Value, frozen=True, kw_only=True):
    """A program a build may need."""

    path: str
    text: str = ""
    """The line in which it tells its version."""

    @property
    def version(self) -> str:
        """``3.25.1``; empty when its line has no number."""
        return version_in(self.text)


class Probed(Value, frozen=True, kw_only=True):
    """Everything one run of the script told."""

    os: str = ""
    arch: str = ""
    libc: str = ""
    system: str = ""
    hostname: str = ""
    cache_dir: str = ""
    """The folder of our engines there: ``…/dllm-tui``."""
    cpu_name: str = ""
    cpu_flags: frozenset[str] = frozenset()
    cores: int = 0
    performance_cores: int = 0
    memory_bytes: int = 0
    memory_free_bytes: int = 0
    disk_free_bytes: int = 0
    tools: dict[str, Tool] = {}
    """By ``cc``, ``cxx``, ``make``, ``cmake``, ``ninja``."""
    env: dict[str, str] = {}
    """Variables that move the folders of models: ``HOME``, ``HF_HOME``…"""
    engines: tuple[EngineInfo, ...] = ()
    """Engines seen, in the order of preference; none was asked."""
    engine_flags: dict[str, tuple[str, ...]] = {}
    """CMake's options by the directory of each engine with a manifest."""
    relays: dict[str, str] = {}
    """Path of each relay by the version it was installed as."""
    clock: float | None = None
    """Unix seconds there when the script began."""


class _Manifest(Value, frozen=True, kw_only=True):
    """The part of ``engine.json`` that is used here."""

    rpc_protocol: str = ""
    backends: tuple[str, ...] = ()
    built_at: float = 0.0
    flags: tuple[str, ...] = ()


class _Lines:
    """The values of each key, in the order they came."""

    def __init__(self, text: str) -> None:
        self._rows: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for line in text.splitlines():
            key, *values = line.split("\t")
            self._rows[key].append(tuple(values))

    def rows(self, key: str, width: int) -> Iterable[tuple[str, ...]]:
        """Every line of a key with at least so many values, cut to as many."""
        return (row[:width] for row in self._rows[key] if len(row) >= width)

    def one(self, key: str) -> str:
        return next((row[0].strip() for row in self.rows(key, 1)), "")

    def integer(self, key: str) -> int:
        return _integer(self.one(key))


def parse_probe(text: str) -> Probed:
    """Everything in the output of ``probe.sh``; whatever surrounds it is ignored."""
    # What a login shell prints comes before; a name of ours is not in it.
    _, begun, rest = text.rpartition(f"dllm-probe\t{FORMAT}\n")
    body, ended, _ = rest.rpartition("end\n")
    if not begun or not ended:
        raise HostError("Its answer to the probe is not complete")
    lines = _Lines(body)
    processors = _processors(lines)
    os_name, arch = next(iter(lines.rows("uname", 2)), ("", ""))
    total_bytes, free_bytes = _memory(lines)
    engines = _engines(lines)
    return Probed(
        os=os_name,
        arch=arch,
        libc=_libc(lines.one("libc")),
        system=lines.one("system"),
        hostname=lines.one("hostname"),
        cache_dir=lines.one("cache"),
        cpu_name=" ".join(lines.one("cpu_name").split()),
        cpu_flags=frozenset(lines.one("cpu_flags").split()),
        cores=processors.usable,
        performance_cores=processors.performance,
        memory_bytes=total_bytes,
        memory_free_bytes=free_bytes,
        disk_free_bytes=lines.integer("disk_free_kib") * _KIB,
        tools={k: Tool(path=p, text=t) for k, p, t in lines.rows("tool", 3)},
        env={row[0]: row[1] for row in lines.rows("env", 2)},
        engines=tuple(engine for engine, _ in engines),
        engine_flags={engine.directory: manifest.flags for engine, manifest in engines},
        relays={PurePath(p).parent.name: p for (p,) in lines.rows("relay", 1)},
        clock=parse_clock(lines.one("clock")),
    )


def version_in(text: str) -> str:
    """The last number with dots in a line (``11.1`` of ``release 11.1``)."""
    found = [match[0] for match in _NUMBER.finditer(text) if "." in match[0]]
    return found[-1] if found else ""


def parse_clock(text: str) -> float | None:
    """Unix seconds of ``date +%s.%N``; half a second is added where it lacks %N."""
    whole, _, rest = text.partition(".")
    if not whole.isdigit():
        return None
    return float(f"{whole}.{rest}") if rest.isdigit() else int(whole) + 0.5


def _integer(text: str) -> int:
    return int(text) if text.strip().isdigit() else 0


def _libc(text: str) -> str:
    match = _LIBC.search(text)
    return f"{match[1]} {match[2]}".strip() if match else ""


def _processors(lines: _Lines) -> Processors:
    quotas = [(_integer(q), _integer(p)) for q, p in lines.rows("cpu_quota", 2)]
    return Processors(
        online=lines.integer("cores"),
        physical=lines.integer("hw.physicalcpu"),
        first_level=lines.integer("hw.perflevel0.physicalcpu"),
        allowed=cpu_set(lines.one("cpus_allowed")),
        big=cpu_set(lines.one("cpus_performance")),
        siblings={_integer(n): cpu_set(s) for n, s in lines.rows("cpu_list", 2)},
        capacities={_integer(n): _integer(c) for n, c in lines.rows("cpu_capacity", 2)},
        quotas=tuple(quota / period for quota, period in quotas if period),
    )


def _memory(lines: _Lines) -> tuple[int, int]:
    """Total and available bytes, as far as a container or slice allows."""
    total = lines.integer("MemTotal") * _KIB or lines.integer("hw.memsize")
    free = lines.integer("MemAvailable") * _KIB or _vm_stat_free(lines)
    for row in lines.rows("memory_limit", 3):
        limit, used, cached = map(_integer, row)
        # The page cache is given back on demand.
        left = max(limit - used + cached, 0)
        total, free = min(total, limit), min(free, left)
    return total, free


def _vm_stat_free(lines: _Lines) -> int:
    text = "\n".join(line for (line,) in lines.rows("vm_stat", 1))
    page = re.search(r"page size of (\d+) bytes", text)
    pages = re.findall(r"^Pages (?:free|inactive):\s+(\d+)", text, re.M)
    return sum(map(int, pages)) * (int(page[1]) if page else 4096)


def _engines(lines: _Lines) -> list[tuple[EngineInfo, _Manifest]]:
    """The engines with what we know of those we built, the preferred first."""
    found = []
    for folder, server, worker, source, text in lines.rows("engine", 5):
        manifest = _manifest(text)
        with contextlib.suppress(ValueError):
            engine = EngineInfo(
                directory=folder,
                source=EngineSource(source),
                server_path=server,
                worker_path=worker,
                rpc_protocol=manifest.rpc_protocol,
                backends=manifest.backends,
            )
            found.append((engine, manifest))
    found.sort(key=lambda pair: (_RANKS.get(pair[0].source, 1), -pair[1].built_at))
    return found


def _manifest(text: str) -> _Manifest:
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(text, type=_Manifest)
    return _Manifest()


PROBE_S = 20.0
"""Longest probe; a fifth of a second is usual."""
RTT_TRIES = 3
BANDWIDTH_S = 0.5
# A megabyte that a compressing connection cannot make much smaller.
_NOISE = """\
block=$(od -An -v -tx1 -N 32768 /dev/urandom | tr -d ' \\n' | fold -w 4095)
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do printf '%s\\n' "$block"; done
"""


async def survey(
    shell: Shell,
    *parts: str,
    engine_dirs: Sequence[str] = (),
    on_line: Callable[[str], None] | None = None,
) -> Probed:
    """Describe a machine and what is installed there; no engine is started.

    Args:
        shell: the machine.
        parts: any of ``system``, ``tools``, ``engines``.
        engine_dirs: directories of engines configured for it; ``~/`` is its home.
        on_line: gets every line as it comes.
    """
    arguments = (" ".join(parts), *engine_dirs)
    result = await shell.run(script(), *arguments, timeout_s=PROBE_S, on_line=on_line)
    try:
        return parse_probe(result.stdout)
    except HostError as error:
        raise HostError(
            f"The answer of {shell.name} to the probe is not complete", error.hint
        ) from error


def script() -> str:
    """The text of ``scripts/probe.sh``, with what it shares with those of a build."""
    shared = compiling.script("common")
    return shared + compiling.script("probe", package="backends.machines.scripts")


def facts_of(probed: Probed, peer: str) -> PeerFacts:
    """The lasting part of what a probe told; of its devices the CPU."""
    tools = probed.tools
    memory = MemoryTold(
        total_bytes=probed.memory_bytes,
        available_bytes=probed.memory_free_bytes,
        cpu=probed.cpu_name or probed.arch,
        cores=probed.performance_cores,
    )
    return PeerFacts(
        at=0.0,
        os=probed.os,
        arch=probed.arch,
        libc=probed.libc,
        system=probed.system,
        hostname=probed.hostname,
        cores=probed.cores,
        performance_cores=probed.performance_cores,
        memory_bytes=probed.memory_bytes,
        memory_free_bytes=probed.memory_free_bytes,
        devices=(device_of(memory, peer),),
        disk_free_bytes=probed.disk_free_bytes,
        engines=probed.engines,
        relay_path=newest_relay(probed),
        compiler=tools["cxx"].text if "cxx" in tools else "",
        cmake=f"cmake {tools['cmake'].version}" if "cmake" in tools else "",
    )


def newest_relay(probed: Probed) -> str:
    """Path of our helper there; empty when there is none."""
    newest = max(probed.relays, key=_numbers, default="")
    return probed.relays.get(newest, "")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(piece) for piece in version.split(".") if piece.isdigit())


async def rtt_ms(shell: Shell) -> float:
    """The shortest of a few round trips: the others had to wait for something."""
    return min([await shell.rtt_ms() for _ in range(RTT_TRIES)])


async def bandwidth_mb_s(shell: Shell) -> float | None:
    """MB/s from there to here, between the first and the last line that came."""
    times: list[float] = []
    sizes: list[int] = []

    def listen(line: str) -> None:
        times.append(time.monotonic())
        sizes.append(len(line) + 1)

    with contextlib.suppress(TimeoutError, HostError):
        async with asyncio.timeout(BANDWIDTH_S):
            await shell.run(_NOISE, on_line=listen)
    if len(times) < 2 or times[-1] <= times[0]:
        return None
    return sum(sizes[1:]) / (times[-1] - times[0]) / 1e6


def judged(name: str, facts: PeerFacts, ours: str) -> tuple[PeerState, str]:
    """State and note of a peer; ``ours`` is the RPC protocol of our own engine."""
    hint = f"Provision it: dllm-tui peers setup {name}."
    if not facts.engines:
        return PeerState.NO_ENGINE, f"No llama.cpp with RPC there. {hint}"
    if not facts.relay_version:
        absent = "The helper dllm-relay is not there"
        why = facts.problems[0] if facts.relay_path else absent
        return PeerState.NO_ENGINE, f"{why.rstrip('.')}. {hint}"
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

    def __init__(self, machine: SshPeer, config: PeerConfig, paths: Paths) -> None:
        self._machine = machine
        self._config = config
        self._paths = paths
        self._devices: tuple[Device, ...] = ()
        self._identities: dict[FoundFile, str] = {}

    async def look(self, *, light: bool) -> PeerFacts:
        """Probe the peer; the machine is told of the result too.

        One script, one request for each thing not known yet, the round trip and, for
        at most half a second, the bandwidth.

        Args:
            light: whether to leave out what would hold up an engine that serves there:
                its devices and the bandwidth are then as they were.
        """
        started, at = time.monotonic(), time.time()
        shell, heard = self._machine.connection, 0.0

        def listen(line: str) -> None:
            nonlocal heard
            if line.startswith("clock\t"):
                heard = time.time()

        folders = [self._config.engine] if self._config.engine else []
        known = self._machine.facts
        # Asking compilers for their versions takes most of the script's forks.
        tools = () if known.compiler and known.cmake else ("tools",)
        parts = ("system", *tools, "engines")
        probed = await survey(shell, *parts, engine_dirs=folders, on_line=listen)
        # Only now there is a connection for certain.
        rtt = await rtt_ms(shell)
        there = probed.clock - (heard - rtt / 2000) if probed.clock and heard else 0.0
        facts, engines = await self._ask(
            facts_of(probed, self._machine.name), probed.env, light
        )
        measures = not light and not shell.flows
        speed = await bandwidth_mb_s(shell) if measures else None
        facts = replace(
            facts,
            at=at,
            compiler=facts.compiler or known.compiler,
            cmake=facts.cmake or known.cmake,
            devices=tuple(map(self._budgeted, facts.devices)),
            clock_offset_s=there,
            rtt_ms=rtt,
            bandwidth_mb_s=speed or known.bandwidth_mb_s,
            seconds=time.monotonic() - started,
        )
        self._machine.take(facts, engines)
        return facts

    async def _ask(
        self, facts: PeerFacts, env: Mapping[str, str], light: bool
    ) -> tuple[PeerFacts, tuple[Engine, ...]]:
        """Add what only an agent knows; nothing if none runs."""
        try:
            host = await self._machine.agent_at(facts.relay_path)
        except PeerUnreachable:
            raise
        except HostError as error:
            return replace(facts, problems=(error.what,)), ()
        if host is None:
            return facts, ()
        engines, problems = await self._engines(host, facts.engines, light)
        home = Path(env.get("HOME", "/"))
        folders = configured_folders(self._config.model_dirs, home, env)
        models, problem = await self._models(host, folders)
        facts = replace(
            facts,
            relay_version=host.version,
            engines=tuple(engine.info for engine in engines),
            devices=(*facts.devices, *self._devices),
            problems=(*problems, *filter(None, [problem])),
            models=models,
            model_dirs=tuple(_shortened(folder.path, home) for folder in folders),
        )
        return facts, engines

    # --- engines ------------------------------------------------------------------

    async def _engines(
        self, host: Asked, found: Sequence[EngineInfo], light: bool
    ) -> tuple[tuple[Engine, ...], list[str]]:
        """Split engines into those that run and problems; the first has its devices."""
        asked = await asyncio.gather(*(self._engine(host, e, light) for e in found))
        problems = [problem for problem in asked if isinstance(problem, str)]
        engines = [engine for engine in asked if not isinstance(engine, str)]
        if not engines:
            self._devices = ()
            return (), problems
        first = engines[0].info
        if not light:
            try:
                self._devices = await list_devices(host, first)
            except EngineError as error:
                problems.append(error.what)
        elif not self._devices:
            self._devices = first.devices
        seen = replace(first, devices=tuple(map(self._budgeted, self._devices)))
        return (replace(engines[0], info=seen), *engines[1:]), problems

    async def _engine(
        self, host: Asked, found: EngineInfo, light: bool
    ) -> Engine | str:
        try:
            return await describe(host, found, self._paths, light=light)
        except EngineError as error:
            return error.what

    def _budgeted(self, device: Device) -> Device:
        return replace(device, budget_bytes=self._config.budget_bytes(device.name))

    # --- models -------------------------------------------------------------------

    async def _models(
        self, host: Asked, folders: Iterable[Folder]
    ) -> tuple[tuple[ModelFile, ...], str]:
        """The models there, and what is wrong with any; where none can be listed, as
        they were.
        """
        try:
            async with asyncio.timeout(MODELS_S):
                every = distinct(await search(host, folders))
                whole = [each for each in every if each.size_bytes and not each.problem]
                found, problem = _named(whole)
                await self._identify(host, [each.files[0] for each in found])
        except PeerUnreachable:
            raise
        except (HostError, TimeoutError) as error:
            why = f"Its models cannot be listed: {error or 'they take too long'}"
            return self._machine.facts.models, why
        return tuple(map(self._model, found)), problem

    def _model(self, found: ModelCandidate) -> ModelFile:
        return ModelFile(
            path=found.files[0].path,
            name=found.name,
            size_bytes=found.size_bytes,
            source=found.source,
            identity=self._identities.get(found.files[0], ""),
        )

    async def _identify(self, host: Asked, files: Sequence[FoundFile]) -> None:
        """Read the identities of files that are new or have changed."""
        until = time.monotonic() + IDENTITIES_S
        kept = {f: self._identities[f] for f in files if f in self._identities}
        self._identities = kept
        unread = [file for file in files if file not in kept]
        while unread and time.monotonic() < until:
            now, unread = unread[:IDENTITIES_AT_ONCE], unread[IDENTITIES_AT_ONCE:]
            told = await asyncio.gather(*(_identity(host, file) for file in now))
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


async def _identity(host: Asked, file: FoundFile) -> str:
    try:
        return await host.identity(file.path)
    except PeerUnreachable:
        raise
    except HostError:
        return ""
