"""The part of the API that gets, hashes and deletes models, and gets the engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import PurePath

from aiohttp import web
from msgspec.structs import replace

from backends.controller.cluster import Cluster
from backends.controller.http_server import (
    Parts,
    body,
    json_response,
    stream_work,
)
from backends.controller.preparation import Preparations
from backends.controller.removals import Removals
from backends.engine.download import get_engine
from backends.machine_names import LOCAL
from backends.machines.agent import AgentSession
from backends.models.download import (
    download,
    hub_environment,
    models_folder,
    parse_source,
    remote_models,
)
from backends.models.removal import DAY_S
from backends.models.search import names_after
from backends.printable import printable
from backends.state import Ask, EngineProgress, EngineStage, EventKind, Fit, Value
from backends.state.models import RemoteModel, Removal
from backends.tasks import end_tasks
from backends.units import format_bytes, format_count


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


class LeftoversRequest(Value, frozen=True, kw_only=True):
    """The files to delete of those that interrupted work left on a machine."""

    machine: str = LOCAL
    older_than_s: float = DAY_S
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
        self._inventory = parts.inventory
        self._removals = Removals(
            parts.peers, parts.clusters, parts.catalogue, parts.inventory
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
        folder = models_folder(self._inventory.settings().model_dirs)
        work = download(asked.source, folder, hub_environment(asked.settings))
        what = f"got the model {printable(asked.source)}"
        with self._parts.recorder(request, LOCAL).tries(what):
            return await stream_work(self, request, work)

    async def _get_engine(self, request: web.Request) -> web.StreamResponse:
        recorder = self._parts.recorder(request, LOCAL)
        with recorder.tries("got llama.cpp", EventKind.ENGINE):
            return await stream_work(self, request, self._engine())

    async def _engine(self) -> AsyncGenerator[EngineProgress, None]:
        told: asyncio.Queue[EngineProgress | None] = asyncio.Queue()
        inventory = self._inventory
        work = get_engine(
            None, inventory.paths, inventory.agent, progress=told.put_nowait
        )
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: told.put_nowait(None))
        try:
            while (now := await told.get()) is not None:
                yield now
            await task
        finally:
            await end_tasks(task)
        await self._parts.clusters.look_for_engine()
        engine = (await inventory.engine()).info
        yield EngineProgress(stage=EngineStage.DONE, fraction=1.0, engine=engine)

    async def _remote(self, request: web.Request) -> web.StreamResponse:
        asked = await body(request, RemoteRequest)
        parse_source(asked.source)
        if asked.peers:
            await self._machines.reached(asked.peers)
        work = self._with_fits(asked, self._parts.cluster_of(request))
        return await stream_work(self, request, work)

    async def _with_fits(
        self, asked: RemoteRequest, cluster: Cluster
    ) -> AsyncGenerator[RemoteModel, None]:
        rooms_bytes = await self._preparations.rooms(cluster)
        env = hub_environment(asked.settings)
        headers = self._inventory.paths.cache_dir / "remote"
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
        agent = await self._agent(asked.machine)
        return await stream_work(self, request, agent.hashing(asked.path))

    async def _seed(self, request: web.Request) -> web.StreamResponse:
        asked = await body(request, SeedRequest)
        agent = await self._agent(asked.machine)
        work = agent.seeding(asked.path, asked.directory, dry=asked.dry)
        model = PurePath(asked.path).name
        what = f"seeded the cache of workers on {asked.machine} with {model}"
        recorder = self._parts.recorder(request, asked.machine)
        with contextlib.nullcontext() if asked.dry else recorder.tries(what):
            return await stream_work(self, request, work)

    async def _cache(self, request: web.Request) -> web.Response:
        asked = await body(request, CacheRequest)
        agent = await self._agent(asked.machine)
        return json_response(await agent.worker_cache(asked.directory))

    async def _prune(self, request: web.Request) -> web.Response:
        asked = await body(request, CacheRequest)
        agent = await self._agent(asked.machine)
        what = f"deleted {len(asked.names)} files of the cache on {asked.machine}"
        with self._parts.recorder(request, asked.machine).tries(what):
            freed_bytes = await agent.uncache(asked.names, asked.directory)
        return json_response({"freed_bytes": freed_bytes})

    async def _removal(self, request: web.Request) -> web.Response:
        asked = await body(request, RemovalRequest)
        planned = self._removals.of_model(asked.machine, asked.path)
        return json_response(await planned)

    async def _remove(self, request: web.Request) -> web.Response:
        asked = await body(request, RemovalRequest)
        what = f"deleted the model {printable(asked.path)} on {asked.machine}"
        with self._parts.recorder(request, asked.machine).tries(what):
            removal = await self._removals.of_model(asked.machine, asked.path)
            return json_response(await self._removals.carry_out(removal))

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
            asked.machine, older_than_s=asked.older_than_s
        )

    async def _agent(self, machine: str) -> AgentSession:
        await self._machines.reached([machine])
        return self._machines.get(machine).agent
