"""The part of the API that gets, hashes and deletes models, and gets the engine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path, PurePath

from aiohttp import web
from msgspec.structs import replace

from backends.config import PeerConfig
from backends.controller.cluster import Cluster
from backends.controller.clusters import Clusters
from backends.controller.preparation import Preparations
from backends.controller.responses import (
    Parts,
    body,
    json_response,
    start_stream,
    write_values,
)
from backends.engine.get import get_engine
from backends.errors import DllmError
from backends.machines.agent import AgentSession
from backends.machines.peers import Peers
from backends.machines.readers import Readers
from backends.models.catalogue import Catalogue
from backends.models.download import (
    download,
    hub_environment,
    models_folder,
    parse_source,
    remote_models,
)
from backends.models.layers import read_model
from backends.models.parts import part_paths
from backends.models.removal import DAY_S, leftovers, model_removal, remove
from backends.models.search import Folder, configured_folders, names_after
from backends.places import LOCAL, at_peer
from backends.planning.blueprint import machines_of
from backends.printable import printable
from backends.server_settings import weight_files
from backends.state import (
    Ask,
    EngineProgress,
    EngineStage,
    EventKind,
    Fit,
    ModelFile,
    Plan,
    Value,
)
from backends.state.models import RemoteModel, Removal
from backends.tasks import end_tasks
from backends.units import format_bytes, format_count


@dataclass(frozen=True, eq=False)
class Removals:
    machines: Peers
    clusters: Clusters
    catalogue: Catalogue
    readers: Readers

    async def of_model(self, machine: str, path: str, *, lm_studio: bool) -> Removal:
        await self.machines.reached([machine])
        host = self.machines.get(machine).host
        used = await self._used(machine)
        found = await model_removal(host, path, lm_studio=lm_studio, used=used)
        return replace(found, machine=machine)

    async def of_leftovers(
        self, machine: str, *, older_than_s: float = DAY_S, lm_studio: bool = False
    ) -> Removal:
        """Plan to delete there what interrupted work left, and what nobody uses."""
        await self.machines.reached([machine])
        host = self.machines.get(machine).host
        before_s = time.time() - older_than_s
        here = machine == LOCAL
        more = await self._unused_here(before_s) if here else {}
        found = await leftovers(
            host,
            await self._folders(machine),
            older_than_s=older_than_s,
            lm_studio=lm_studio,
            more=more,
            used=await self._used(machine),
        )
        return replace(found, machine=machine)

    async def carry_out(self, removal: Removal) -> Removal:
        await remove(self.machines.get(removal.machine).host, removal)
        if removal.machine == LOCAL:
            await self.catalogue.refresh()
        else:
            await self.machines.known(removal.machine).look()
        return replace(removal, deleted=True)

    async def _used(self, machine: str) -> dict[str, str]:
        used: dict[str, str] = {}
        for cluster in self.clusters:
            for plan in filter(None, (cluster.pursued, cluster.goal.plan)):
                who = f"the cluster {cluster.name} runs it, or is to"
                for path in await self._files_of(plan, machine):
                    used |= dict.fromkeys(map(str, part_paths(Path(path))), who)
        return used

    async def _files_of(self, plan: Plan, machine: str) -> list[str]:
        files = [plan.model, *weight_files(plan.extra_args)]
        if plan.speculation is not None and plan.speculation.model:
            files.append(plan.speculation.model)
        named = [at_peer(file) or (LOCAL, file) for file in files]
        found = [path for there, path in named if there == machine]
        if machine == plan.head:
            found += [path for _, path in named]
        if machine in machines_of(plan):
            try:
                model = await self.readers.model(plan.model)
                found += await self.machines.get(machine).copies_of(model)
            except DllmError:
                name = PurePath(plan.model).name
                for peer in self.machines.values():
                    models = peer.facts.models if peer.facts else ()
                    if peer.name == machine:
                        found += [
                            m.path for m in models if PurePath(m.path).name == name
                        ]
        return [path for path in found if path.startswith("/")]

    async def _folders(self, machine: str) -> tuple[Folder, ...]:
        if machine == LOCAL:
            return self.catalogue.folders
        told = await self.machines.get(machine).host.machine()
        config = self.readers.settings().peers.get(machine, PeerConfig())
        home = Path(told.variables.get("HOME", "/"))
        return configured_folders(config.model_dirs, home, told.variables)

    async def _unused_here(self, before_s: float) -> dict[str, str]:
        """Headers of peers' models, and sparse copies whose whole model is known."""
        listing = await self.catalogue.refresh()
        held = {model.identity for model in listing.models if not model.sparse}
        for peer in self.machines.values():
            there = peer.facts.models if peer.facts else ()
            held |= {model.identity for model in there}
        names = {peer.name for peer in self.machines.values()}
        headers = self.readers.paths.cache_dir / "headers"
        return await asyncio.to_thread(
            lambda: (
                _headers(headers, names, before_s)
                | _sparse_copies(listing.models, held - {""}, before_s)
            )
        )


def _headers(folder: Path, peers: Collection[str], before_s: float) -> dict[str, str]:
    return {
        str(file): "header of a peer's model"
        for file in folder.glob("*/*/*")
        if file.is_file()
        and (
            file.relative_to(folder).parts[0] not in peers
            or file.stat().st_mtime <= before_s
        )
    }


def _sparse_copies(
    models: Collection[ModelFile], held: Collection[str], before_s: float
) -> dict[str, str]:
    found: dict[str, str] = {}
    for model in models:
        path = Path(model.path)
        if not model.sparse or path.is_symlink():
            continue
        with contextlib.suppress(DllmError, OSError):
            info = read_model(path)
            if path.stat().st_mtime > before_s:
                continue
            if info.sparse is not None and info.sparse.identity in held:
                found |= dict.fromkeys(info.files, "sparse copy, no cluster uses it")
    return found


class HashRequest(Value, frozen=True, kw_only=True):
    path: str
    machine: str = LOCAL


class SeedRequest(Value, frozen=True, kw_only=True):
    """A model on a machine to fill the cache of its stock worker from."""

    path: str
    machine: str = LOCAL
    directory: str = ""
    """Of the cache; empty: where a worker of that user has it."""
    dry: bool = False


class CacheRequest(Value, frozen=True, kw_only=True):
    """The cache of a stock worker, and what is to be deleted of it."""

    machine: str = LOCAL
    directory: str = ""
    names: tuple[str, ...] = ()


class GetRequest(Value, frozen=True, kw_only=True):
    """A model to get, as ``models get`` takes it."""

    source: str
    settings: dict[str, str] = {}
    """Of Hugging Face, from the environment of the asker."""


class RemovalRequest(Value, frozen=True, kw_only=True):
    path: str
    machine: str = LOCAL
    lm_studio: bool = False
    """Also if LM Studio manages it."""


class LeftoversRequest(Value, frozen=True, kw_only=True):
    """The files to delete of those that interrupted work left on a machine."""

    machine: str = LOCAL
    older_than_s: float = DAY_S
    lm_studio: bool = False
    paths: tuple[str, ...] = ()
    """The files that were shown; nothing else is deleted."""


class RemoteRequest(Value, frozen=True, kw_only=True):
    """A repository or URL to look at, and the machines that a model is to fit on."""

    source: str
    peers: tuple[str, ...] | None = None
    """Beside this one; None: all that are ready."""
    settings: dict[str, str] = {}
    """Of Hugging Face, from the environment of the asker."""


class ModelApi:
    """Answers requests about models; long work ends with its client, and resumes.

    Its changes become events.
    """

    def __init__(self, parts: Parts, preparations: Preparations) -> None:
        self._parts = parts
        self._machines = parts.peers
        self._readers = parts.readers
        self._removals = Removals(
            parts.peers, parts.clusters, parts.catalogue, parts.readers
        )
        self._preparations = preparations
        self._looker = ThreadPoolExecutor(1, "paths")
        self.streams = 0
        """Askers whose work goes on."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/paths", self._paths),
            web.post("/v1/models/get", self._get),
            web.post("/v1/engine/get", self._get_engine),
            web.post("/v1/models/remote", self._remote),
            web.post("/v1/models/hash", self._hash),
            web.post("/v1/models/seed", self._seed),
            web.post("/v1/models/cache", self._cache),
            web.post("/v1/models/prune", self._prune),
            web.post("/v1/models/removal", self._removal),
            web.post("/v1/models/remove", self._remove),
            web.post("/v1/models/leftovers", self._leftovers),
            web.post("/v1/models/clean", self._clean),
        ]

    async def _paths(self, request: web.Request) -> web.Response:
        # In a thread of its own: a disk that hangs must not block other work.
        typed = request.query.get("path", "")
        loop = asyncio.get_running_loop()
        names = await loop.run_in_executor(self._looker, names_after, typed)
        return json_response(names)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        asked = await body(request, GetRequest)
        parse_source(asked.source)
        folder = models_folder(self._readers.settings().model_dirs)
        work = download(asked.source, folder, hub_environment(asked.settings))
        what = f"got the model {printable(asked.source)}"
        with self._parts.recorder(request, LOCAL).tries(what):
            return await self._told(request, work)

    async def _get_engine(self, request: web.Request) -> web.StreamResponse:
        recorder = self._parts.recorder(request, LOCAL)
        with recorder.tries("got llama.cpp", EventKind.ENGINE):
            return await self._told(request, self._engine())

    async def _engine(self) -> AsyncGenerator[EngineProgress, None]:
        told: asyncio.Queue[EngineProgress | None] = asyncio.Queue()
        readers = self._readers
        work = get_engine(None, readers.paths, readers.host, progress=told.put_nowait)
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: told.put_nowait(None))
        try:
            while (now := await told.get()) is not None:
                yield now
            await task
        finally:
            await end_tasks(task)
        await self._parts.clusters.look_for_engine()
        engine = (await readers.engine()).info
        yield EngineProgress(stage=EngineStage.DONE, fraction=1.0, engine=engine)

    async def _remote(self, request: web.Request) -> web.StreamResponse:
        asked = await body(request, RemoteRequest)
        parse_source(asked.source)
        if asked.peers:
            await self._machines.reached(asked.peers)
        work = self._with_fits(asked, self._parts.cluster_of(request))
        return await self._told(request, work)

    async def _with_fits(
        self, asked: RemoteRequest, cluster: Cluster
    ) -> AsyncGenerator[RemoteModel, None]:
        rooms_bytes = await self._preparations.rooms(cluster)
        env = hub_environment(asked.settings)
        headers = self._readers.paths.cache_dir / "remote"
        work = remote_models(asked.source, headers, rooms_bytes, env)
        async with aclosing(work) as found:
            async for one in found:
                fit = None
                if one.size_bytes > rooms_bytes:
                    fit = Fit(why=f"all devices have {format_bytes(rooms_bytes)}")
                elif one.header:
                    ask = Ask(model=one.header, peers=asked.peers)
                    fit = await self._preparations.fit(cluster, ask)
                yield replace(one, fit=fit)

    async def _hash(self, request: web.Request) -> web.StreamResponse:
        asked = await body(request, HashRequest)
        host = await self._host(asked.machine)
        return await self._told(request, host.hashing(asked.path))

    async def _seed(self, request: web.Request) -> web.StreamResponse:
        asked = await body(request, SeedRequest)
        host = await self._host(asked.machine)
        work = host.seeding(asked.path, asked.directory, dry=asked.dry)
        model = PurePath(asked.path).name
        what = f"seeded the cache of workers on {asked.machine} with {model}"
        recorder = self._parts.recorder(request, asked.machine)
        with contextlib.nullcontext() if asked.dry else recorder.tries(what):
            return await self._told(request, work)

    async def _cache(self, request: web.Request) -> web.Response:
        asked = await body(request, CacheRequest)
        host = await self._host(asked.machine)
        return json_response(await host.worker_cache(asked.directory))

    async def _prune(self, request: web.Request) -> web.Response:
        asked = await body(request, CacheRequest)
        host = await self._host(asked.machine)
        what = f"deleted {len(asked.names)} files of the cache on {asked.machine}"
        with self._parts.recorder(request, asked.machine).tries(what):
            freed_bytes = await host.uncache(asked.names, asked.directory)
        return json_response({"freed_bytes": freed_bytes})

    async def _removal(self, request: web.Request) -> web.Response:
        asked = await body(request, RemovalRequest)
        return json_response(await self._planned(asked))

    async def _remove(self, request: web.Request) -> web.Response:
        asked = await body(request, RemovalRequest)
        what = f"deleted the model {printable(asked.path)} on {asked.machine}"
        with self._parts.recorder(request, asked.machine).tries(what):
            removal = await self._planned(asked)
            return json_response(await self._removals.carry_out(removal))

    async def _planned(self, asked: RemovalRequest) -> Removal:
        return await self._removals.of_model(
            asked.machine, asked.path, lm_studio=asked.lm_studio
        )

    async def _leftovers(self, request: web.Request) -> web.Response:
        asked = await body(request, LeftoversRequest)
        return json_response(await self._left(asked))

    async def _clean(self, request: web.Request) -> web.Response:
        asked = await body(request, LeftoversRequest)
        found = await self._left(asked)
        files = tuple(file for file in found.files if file.path in asked.paths)
        count = format_count(len(files), "leftover file")
        what = f"deleted {count} of models on {asked.machine}"
        with self._parts.recorder(request, asked.machine).tries(what):
            done = await self._removals.carry_out(replace(found, files=files))
        return json_response(done)

    async def _left(self, asked: LeftoversRequest) -> Removal:
        return await self._removals.of_leftovers(
            asked.machine, older_than_s=asked.older_than_s, lm_studio=asked.lm_studio
        )

    async def _host(self, machine: str) -> AgentSession:
        await self._machines.reached([machine])
        return self._machines.get(machine).host

    async def _told(
        self, request: web.Request, work: AsyncGenerator[object, None]
    ) -> web.StreamResponse:
        response = await start_stream(request)
        self.streams += 1
        try:
            await write_values(response, work)
        finally:
            self.streams -= 1
        return response
