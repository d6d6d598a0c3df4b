"""The controller's API: plain JSON over HTTP on a Unix socket.

Streams are newline-delimited JSON, one value a line: snapshots as ``Frame``, answers as
``ChatDelta``, conversations as ``ChatFrame``; a failure on the way is the last line. An
error is a ``Failure`` with a 4xx or 5xx status. While a request is worked on that is
said every second: by an informational response before an answer, by an empty line in a
stream.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import msgspec
from aiohttp import web

from backends.controller.chat_api import ChatApi
from backends.controller.cluster import Cluster
from backends.controller.event_log import CONTROLLER
from backends.controller.http_server import (
    Parts,
    asker,
    body,
    errors_as_values,
    frames,
    json_response,
    number,
    outlives_its_asker,
    start_stream,
    stream_work,
    with_the_agent_of_the_asker,
    write_values,
)
from backends.controller.model_api import ModelApi
from backends.controller.peer_api import PeerApi
from backends.controller.preparation import WEIGHT_AGE_S, Preparations
from backends.controller.process_api import ProcessApi
from backends.errors import ControllerError, DllmError, UsageError
from backends.link.wire import require_possible
from backends.machine_names import LOCAL
from backends.machines.agent import log_chunk
from backends.machines.machine import merged
from backends.plan_files import PlanFile, keep_launch
from backends.planning.blueprint import process_name
from backends.speculation.drafts import with_trials
from backends.state import (
    Actor,
    Ask,
    EventKind,
    GivenCluster,
    Lab,
    LogChunk,
    ModelFile,
    Plan,
    Value,
)
from backends.state.delta import framed
from backends.state.races import RaceRequest
from backends.state.sweeps import SweepRequest

log = logging.getLogger(__name__)

LOG_BYTES_MAX = 1 << 20
OWN_LOG = "controller"
"""The name of the controller's own log among those of processes."""
FALLBACKS_AGE_S = 30.0


class PrepareRequest(Value, frozen=True, kw_only=True):
    """Make a plan ready for a launch, or first propose one."""

    ask: Ask | None = None
    plan: Plan | None = None
    explain: bool = False
    """True to compare with other plans too."""
    cluster: GivenCluster | None = None
    """Machines that need not be there, in place of the known ones."""


class BestRequest(Value, frozen=True, kw_only=True):
    plan: Plan
    pins: tuple[str, ...] = ()


class LaunchRequest(Value, frozen=True, kw_only=True):
    """A plan to run in place of what runs, or the token of a prepared one."""

    plan: Plan | None = None
    token: str = ""
    replaces: int | None = None
    """The generation the asker takes for the present one; 0: nothing is wanted now."""
    holder: str = ""
    """The word of the stream of events with which the cluster ends; "": it goes on."""
    listed: bool = True
    """False keeps it out of the list of launches: a measurement or a check."""
    lab: Lab | None = None
    """On every link while it loads, and until another is set."""


class DrainRequest(Value, frozen=True, kw_only=True):
    on: bool = True


class LabRequest(Value, frozen=True, kw_only=True):
    """Set the lab of one link; no worker means every link."""

    worker: str | None = None
    lab: Lab | None = None


class EventText(Value, frozen=True, kw_only=True):
    text: str


class Leases:
    """The connected clients, each by its own token, and the clusters they hold.

    A client registers before it requests a launch. Its leaving is seen at any stage of
    the launch. A client without a token ("") holds no cluster.
    """

    def __init__(self) -> None:
        self._held: dict[str, set[int]] = {}

    def holds(self, holder: str, generation: int) -> None:
        """One is there from now on, and holds that; nothing (0) before its launch."""
        if holder:
            self._held.setdefault(holder, set()).update({generation} - {0})

    @property
    def anybody(self) -> bool:
        """Return true if a connected client launches, or has launched."""
        return bool(self._held)

    def is_gone(self, holder: str) -> bool:
        """Return true if this client was to hold a cluster, and left."""
        return bool(holder) and holder not in self._held

    def left(self, holder: str) -> set[int]:
        """The generations that must not outlive it."""
        return self._held.pop(holder, set())

    def require_free(self, generation: int) -> None:
        """Refuse to replace, and launch again, what would end with its client."""
        if any(generation in held for held in self._held.values()):
            raise ControllerError(
                "A command in the foreground holds this cluster, and would end",
                "Launch it with --detach to race it.",
            )

    def require(self, holder: str) -> None:
        if self.is_gone(holder):
            raise ControllerError("Whoever asked for this launch is gone")


class Api:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._clusters = parts.clusters
        self._of = parts.cluster_of
        self._ended = parts.ended
        self._preparations = Preparations(
            parts.clusters, parts.peers, parts.inventory, self._models_found
        )
        self._model_api = ModelApi(parts, self._preparations)
        self.streams = 0
        self._leases = Leases()
        self._ending: asyncio.Future[None] | None = None

    def application(self) -> web.Application:
        handling = (outlives_its_asker, errors_as_values, with_the_agent_of_the_asker)
        app = web.Application(middlewares=handling)
        app.add_routes(
            [
                web.get("/v1/version", self._version),
                web.get("/v1/snapshot", self._snapshot),
                web.get("/v1/snapshots", self._snapshots),
                web.get("/v1/events", self._events),
                web.post("/v1/events", self._tell),
                web.post("/v1/settings", self._settings),
                web.post("/v1/propose", self._propose),
                web.post("/v1/prepare", self._prepare),
                web.post("/v1/memory", self._memory),
                web.post("/v1/speeds", self._speeds),
                web.post("/v1/best", self._best),
                web.get("/v1/why", self._why),
                web.post("/v1/launch", self._launch),
                web.post("/v1/stop", self._stop),
                web.post("/v1/drain", self._drain),
                web.post("/v1/shutdown", self._shutdown),
                web.get("/v1/inspect", self._inspect),
                web.get("/v1/models", self._models),
                web.get("/v1/drafts", self._drafts),
                web.post("/v1/drafts/measure", self._measure_drafts),
                web.get("/v1/logs/{name}", self._log),
                web.post("/v1/lab", self._lab),
                web.post("/v1/race", self._race),
                web.post("/v1/sweep", self._sweep),
                web.get("/v1/passes", self._passes),
                web.get("/metrics", self._metrics),
                *PeerApi(self._parts).routes(),
                *ProcessApi(self._parts).routes(),
                *self._model_api.routes(),
                *ChatApi(self._parts).routes(),
            ]
        )
        return app

    async def _snapshot(self, request: web.Request) -> web.Response:
        cluster = self._of(request)
        self._clusters.look_at_processes()
        await self._clusters.book.weigh(WEIGHT_AGE_S)
        await cluster.look_at_fallbacks(FALLBACKS_AGE_S)
        return json_response(cluster.store.snapshot)

    async def _snapshots(self, request: web.Request) -> web.StreamResponse:
        """Snapshots as they change; with its ``holder`` ends what that launched."""
        cluster = self._of(request)
        holder, by = request.query.get("holder", ""), asker(request)
        response = await start_stream(request)
        self.streams += 1
        self._leases.holds(holder, 0)
        try:
            await write_values(response, frames(cluster.store.changes(), framed))
        finally:
            self.streams -= 1
            held = self._leases.left(holder)
            goal = cluster.goal
            is_held = not held.isdisjoint((goal.generation, goal.rolled_back_to))
            if is_held and not self._ended.is_set():
                log.info("the holder of the cluster is gone: stopping")
                await asyncio.shield(self._let_go(cluster, by))
        return response

    async def _let_go(self, cluster: Cluster, by: Actor) -> None:
        await cluster.want(None, by=by)
        self._end_soon()

    async def _events(self, request: web.Request) -> web.Response:
        after = number(request, "after", 0)
        return json_response(self._clusters.event_log.after(after))

    async def _tell(self, request: web.Request) -> web.Response:
        # Commands that run without the controller report here that they built
        # an engine.
        asked = await body(request, EventText)
        event_log = self._clusters.event_log
        event_log.tell(EventKind.ENGINE, asked.text, by=asker(request))
        await self._clusters.look_for_engine()
        return json_response(event_log.after(event_log.newest - 1))

    async def _version(self, request: web.Request) -> web.Response:
        return json_response(self._parts.info)

    async def _settings(self, request: web.Request) -> web.Response:
        await self._parts.reloader.taken()
        return json_response({})

    async def _propose(self, request: web.Request) -> web.Response:
        ask = await body(request, Ask)
        return json_response(await self._preparations.propose(self._of(request), ask))

    async def _prepare(self, request: web.Request) -> web.Response:
        asked = await body(request, PrepareRequest)
        what = asked.plan or asked.ask
        if what is None:
            raise UsageError("There is nothing to prepare", "Give an ask or a plan.")
        if asked.cluster is not None:
            if asked.ask is None:
                raise UsageError("A cluster file is planned for by an ask")
            imagined = self._preparations.imagine(
                asked.cluster, asked.ask, explain=asked.explain
            )
            return json_response(await imagined)
        cluster = self._of(request)
        prepared = self._preparations.prepare(cluster, what, explain=asked.explain)
        return json_response(await prepared)

    async def _memory(self, request: web.Request) -> web.Response:
        plan = await body(request, Plan)
        return json_response(await self._clusters.memory.of(plan))

    async def _speeds(self, request: web.Request) -> web.Response:
        plan = await body(request, Plan)
        speeds = self._preparations.speeds(self._of(request), plan)
        return json_response(await speeds)

    async def _best(self, request: web.Request) -> web.Response:
        asked = await body(request, BestRequest)
        found = self._preparations.best(self._of(request), asked.plan, asked.pins)
        return json_response(await found)

    async def _why(self, request: web.Request) -> web.Response:
        return json_response(await self._preparations.why(self._of(request)))

    async def _launch(self, request: web.Request) -> web.Response:
        """Set the goal to a plan; returns at once, its generation in the snapshot."""
        asked = await body(request, LaunchRequest)
        if asked.lab is not None:
            require_possible(asked.lab)
        cluster = self._of(request)
        number = cluster.order.number()
        what = asked.plan or asked.token
        plan, facts = await self._preparations.launchable(cluster, what)
        settings = await cluster.require_possible(plan)
        if self._ended.is_set():
            raise ControllerError("The controller ends", "Ask again: another begins.")
        self._leases.require(asked.holder)
        self._parts.catalogue.look_for(plan.model)
        by = asker(request)
        goal = await cluster.want(
            plan,
            asked.replaces,
            api=settings,
            number=number,
            facts=facts,
            lab=asked.lab,
            by=by,
        )
        if self._leases.is_gone(asked.holder):
            # Nothing would end what it was to hold.
            await asyncio.shield(self._let_go(cluster, by))
        else:
            self._leases.holds(asked.holder, goal.generation)
        # Of this launch, not of what is asked for while the disk writes.
        answer = json_response(cluster.store.snapshot)
        if asked.listed:
            await asyncio.to_thread(self._keep_launch, plan)
        return answer

    def _keep_launch(self, plan: Plan) -> None:
        folder = self._parts.inventory.paths.launches_dir
        try:
            keep_launch(folder, PlanFile.of(plan))
        except DllmError:
            # What runs does not depend on it.
            log.exception("a launch was not kept")

    async def _stop(self, request: web.Request) -> web.Response:
        cluster = self._of(request)
        await cluster.want(None, by=asker(request))
        return json_response(cluster.store.snapshot)

    async def _drain(self, request: web.Request) -> web.Response:
        asked = await body(request, DrainRequest)
        cluster = self._of(request)
        await cluster.drain(on=asked.on, by=asker(request))
        return json_response(cluster.store.snapshot)

    async def _shutdown(self, request: web.Request) -> web.Response:
        """End the controller; ``only_if_idle=1`` keeps it while it has a cluster.

        Then somebody else's stream keeps it, too: the asker has 1, or ``streams``.

        One that is being stopped is waited for, without the asker. What cannot be
        stopped yet keeps the controller too: somebody must end that.
        """
        if request.query.get("only_if_idle") != "1":
            await asyncio.shield(self._begin_end(asker(request)))
        elif (
            self.streams <= number(request, "streams", 1)
            and not self._leases.anybody
            and not self._parts.peers.invites
        ):
            if self.busy:
                self._end_soon()
            else:
                self._ended.set()
        return json_response(self._of(request).store.snapshot)

    @property
    def busy(self) -> bool:
        """Return true if a cluster, or long work at a peer, needs this controller."""
        return self._clusters.busy or self._parts.peers.busy

    @property
    def in_use(self) -> bool:
        """Return true if a client watches or waits, or if the controller is busy."""
        return self.is_watched or self.busy

    @property
    def is_watched(self) -> bool:
        """Return true if a client watches, or if a machine is invited."""
        streams = self.streams or self._model_api.streams
        return bool(streams or self._parts.usage.watchers or self._parts.peers.invites)

    def _begin_end(self, by: Actor = CONTROLLER) -> asyncio.Future[None]:
        if self._ending is None or self._ending.done():
            self._ending = asyncio.ensure_future(self._end(by))
        return self._ending

    async def _end(self, by: Actor) -> None:
        await self._clusters.stop_all(by)
        if not self.busy:
            self._ended.set()

    def _end_soon(self) -> None:
        # A client that still waits keeps the controller running.
        if not any(c.pursued or c.stands or c.is_changing for c in self._clusters):
            self._begin_end()

    async def _inspect(self, request: web.Request) -> web.Response:
        path = request.query.get("path", "")
        return json_response(await self._parts.inventory.model(path))

    async def _models(self, request: web.Request) -> web.Response:
        if request.query.get("refresh") == "1":
            self._parts.catalogue.start_refresh()
        listing = self._parts.catalogue.listing
        return json_response(merged(listing, self._parts.peers.values()))

    async def _models_found(self) -> tuple[ModelFile, ...]:
        if self._parts.catalogue.listing.scanned_at is None:
            await self._parts.catalogue.refresh()
        return self._parts.catalogue.listing.models

    async def _drafts(self, request: web.Request) -> web.Response:
        listing = merged(self._parts.catalogue.listing, self._parts.peers.values())
        path = request.query.get("path", "")
        drafts = await self._preparations.drafting.candidates(path, listing.models)
        model = await self._parts.inventory.model(path)
        trials = self._clusters.trials.found_for(model)
        return json_response(with_trials(drafts, trials))

    async def _measure_drafts(self, request: web.Request) -> web.Response:
        cluster = self._of(request)
        cluster.auto.repeat()
        return json_response(cluster.store.snapshot)

    async def _log(self, request: web.Request) -> web.Response:
        offset = number(request, "offset", 0)
        limit = max(min(number(request, "limit", LOG_BYTES_MAX), LOG_BYTES_MAX), 0)
        name, cluster = request.match_info["name"], self._of(request)
        processes = cluster.store.snapshot.processes
        # A worker has the name of its machine, which may be this one.
        if name == OWN_LOG and all(p.name != name for p in processes):
            file = self._parts.inventory.paths.controller_log
            return json_response(await asyncio.to_thread(_own_log, file, offset, limit))
        peer = next((p.peer for p in processes if p.name == name), LOCAL)
        agent = self._parts.peers.get(peer).agent
        full = process_name(cluster.name, name)
        chunk = await agent.read_log(full, offset, limit)
        return json_response(msgspec.structs.replace(chunk, name=name))

    async def _lab(self, request: web.Request) -> web.Response:
        asked = await body(request, LabRequest)
        cluster = self._of(request)
        await cluster.set_lab(asked.worker, asked.lab, asker(request))
        return json_response(cluster.store.snapshot)

    async def _race(self, request: web.Request) -> web.StreamResponse:
        # Imported here because few controllers race plans, and all must start soon.
        from backends.controller.race import raced

        asked, cluster = await body(request, RaceRequest), self._of(request)
        self._leases.require_free(cluster.goal.generation)
        work = raced(cluster, self._preparations, asked, asker(request))
        try:
            return await stream_work(self, request, work)
        finally:
            if not self.is_watched and not self._leases.anybody:
                # Nothing may have served before.
                self._end_soon()

    async def _sweep(self, request: web.Request) -> web.StreamResponse:
        from backends.controller.sweep import swept

        asked, cluster = await body(request, SweepRequest), self._of(request)
        work = swept(cluster, self._preparations, asked)
        return await stream_work(self, request, work)

    async def _passes(self, request: web.Request) -> web.Response:
        return json_response(self._of(request).links.passes())

    async def _metrics(self, request: web.Request) -> web.Response:
        # Imported here because few controllers are scraped, and all must start soon.
        from backends.controller.metrics import prometheus_text

        return web.Response(
            text=prometheus_text(self._of(request).store.snapshot),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )


def _own_log(file: Path, offset: int, limit_bytes: int) -> LogChunk:
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            start = max(size + offset, 0) if offset < 0 else min(offset, size)
            stream.seek(0 if offset > size else start)
            start = stream.tell()
            data = stream.read(limit_bytes)
    except OSError as error:
        raise ControllerError(f"{file} cannot be read ({error.strerror})") from error
    return log_chunk(OWN_LOG, data, offset=offset, size_bytes=size, start=start)
