"""Looking at a peer: a script tells what it is, its agent what is installed there."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backends.engine.ask import describe, list_devices
from backends.errors import EngineError, HostError, ModelError, PeerUnreachable
from backends.machines.probe import bandwidth_mb_s, facts_of, rtt_ms, survey
from backends.models.folders import configured_folders
from backends.models.layers import printable_path
from backends.models.search import distinct, search
from backends.state import ModelFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from backends.config import PeerConfig
    from backends.engine.ask import Engine
    from backends.models.folders import Folder
    from backends.models.search import Found
    from backends.paths import Paths
    from backends.questions import Asked, FoundFile
    from backends.roster.ssh_machine import SshMachine
    from backends.state import Device, EngineInfo, PeerFacts

MODELS_S = 10.0
"""Longest search for models; folders on a disk that is gone answer nothing."""
IDENTITIES_S = 2.0
"""How long a look may read the identities of models; the next one goes on."""
IDENTITIES_AT_ONCE = 4


class Looker:
    """Looks at one peer, and asks there only what it does not know yet."""

    def __init__(self, machine: SshMachine, config: PeerConfig, paths: Paths) -> None:
        """Answers of engines are kept in the cache."""
        self._machine = machine
        self._config = config
        self._paths = paths
        self._devices: tuple[Device, ...] = ()
        self._identities: dict[FoundFile, str] = {}

    async def look(self, *, light: bool) -> PeerFacts:
        """What the peer is, has and holds; the machine is told of it too.

        One script, one request for each thing not known yet, the round trip and, for
        at most half a second, the bandwidth.

        Args:
            light: whether to leave out what would hold up an engine that serves there:
                its devices and the bandwidth are then as they were.

        Raises:
            HostError: the script failed, or its answer is not complete.
            PeerUnreachable: the connection broke.
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
        """What only an agent tells; nothing where there is none, or none that runs."""
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
        """Those that run, with what the first one sees now; why the others do not."""
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

    def _model(self, found: Found) -> ModelFile:
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


def _named(every: Iterable[Found]) -> tuple[list[Found], str]:
    """Those whose names can be told to others, and what is wrong with the rest."""
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
