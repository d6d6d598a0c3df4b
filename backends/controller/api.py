"""The controller's API: plain JSON over HTTP on a Unix socket.

Streams are newline-delimited JSON, one value a line. An error is a ``Failure`` with a
4xx or 5xx status.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from backends.controller.answers import (
    body,
    errors_as_values,
    json_response,
    start_stream,
)
from backends.controller.holdings import merged
from backends.controller.metrics import prometheus_text
from backends.controller.places import LOCAL
from backends.controller.proposal import ProposalRequest, propose
from backends.engine.http import ServerClient
from backends.errors import ControllerError
from backends.state import (
    ChatDelta,
    ChatRequest,
    ClusterState,
    Lab,
    Peer,
    Plan,
    Value,
)

if TYPE_CHECKING:
    from backends.controller.board import Board
    from backends.controller.links import Links
    from backends.controller.machines import Machines
    from backends.controller.peer_api import PeerApi
    from backends.controller.readers import Readers
    from backends.controller.supervisor import Supervisor
    from backends.models.catalogue import Catalogue

log = logging.getLogger(__name__)

LOG_BYTES_MAX = 1 << 20


class LabRequest(Value, frozen=True, kw_only=True):
    """Which link gets which lab; no worker means every link."""

    worker: str | None = None
    lab: Lab | None = None


class Api:
    """Answers requests from the parts of the controller."""

    def __init__(
        self,
        *,
        supervisor: Supervisor,
        board: Board,
        readers: Readers,
        catalogue: Catalogue,
        machines: Machines,
        links: Links,
        peer_api: PeerApi,
        ended: asyncio.Event,
    ) -> None:
        """``ended`` is set when the controller is to exit."""
        self._supervisor = supervisor
        self._board = board
        self._readers = readers
        self._catalogue = catalogue
        self._machines = machines
        self._links = links
        self._peer_api = peer_api
        self._ended = ended
        self.streams = 0
        self._ending: asyncio.Future[None] | None = None

    def application(self) -> web.Application:
        """The aiohttp application with all routes."""
        app = web.Application(middlewares=[errors_as_values])
        app.add_routes(
            [
                web.get("/v1/snapshot", self._snapshot),
                web.get("/v1/events", self._events),
                web.post("/v1/propose", self._propose),
                web.post("/v1/launch", self._launch),
                web.post("/v1/stop", self._stop),
                web.post("/v1/shutdown", self._shutdown),
                web.get("/v1/inspect", self._inspect),
                web.get("/v1/models", self._models),
                web.get("/v1/logs/{name}", self._log),
                web.post("/v1/chat", self._chat),
                web.post("/v1/lab", self._lab),
                web.get("/v1/passes", self._passes),
                web.get("/metrics", self._metrics),
                *self._peer_api.routes(),
            ]
        )
        return app

    async def _snapshot(self, request: web.Request) -> web.Response:
        return json_response(self._board.snapshot)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Snapshots as they change; with ``hold=1`` the cluster ends with us."""
        response = await start_stream(request)
        self.streams += 1
        try:
            async for snapshot in self._board.changes():
                await response.write(msgspec.json.encode(snapshot) + b"\n")
        finally:
            self.streams -= 1
            if request.query.get("hold") == "1":
                log.info("the holder of the cluster is gone: stopping")
                self._begin_end()
        return response

    async def _propose(self, request: web.Request) -> web.Response:
        asked = await body(request, ProposalRequest)
        model = await self._readers.model(asked.model)
        plan = propose(
            asked,
            model,
            self._readers.config(),
            await self._machines_now(),
            os.cpu_count() or 1,
        )
        return json_response(plan)

    async def _machines_now(self) -> list[Peer]:
        """This machine with its devices, then every peer."""
        snapshot = self._board.snapshot
        engine = snapshot.engine
        memory = await self._machines.get(LOCAL).host.memory()
        here = Peer(name=LOCAL, devices=(memory, *(engine.devices if engine else ())))
        return [here, *self._machines.values()]

    async def _launch(self, request: web.Request) -> web.Response:
        await self._supervisor.launch(await body(request, Plan))
        return json_response(self._board.snapshot)

    async def _stop(self, request: web.Request) -> web.Response:
        await self._supervisor.stop()
        return json_response(self._board.snapshot)

    async def _shutdown(self, request: web.Request) -> web.Response:
        """End the controller; ``only_if_idle=1`` keeps it while it has a cluster."""
        if request.query.get("only_if_idle") == "1":
            if self._supervisor.busy or self.streams > 1:
                return json_response(self._board.snapshot)
            self._ended.set()
        else:
            await asyncio.shield(self._begin_end())
        return json_response(self._board.snapshot)

    def _begin_end(self) -> asyncio.Future[None]:
        """End once, however many ask for it: two stops would undo each other."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())
        return self._ending

    async def _end(self) -> None:
        """Stop everything, then let the controller exit."""
        await self._supervisor.stop()
        await self._supervisor.wait()
        self._ended.set()

    async def _inspect(self, request: web.Request) -> web.Response:
        return json_response(await self._readers.model(request.query.get("path", "")))

    async def _models(self, request: web.Request) -> web.Response:
        if request.query.get("refresh") == "1":
            self._catalogue.start_refresh()
        listing = self._catalogue.listing
        return json_response(merged(listing, self._machines.values()))

    async def _log(self, request: web.Request) -> web.Response:
        offset = int(request.query.get("offset", "0"))
        limit = min(int(request.query.get("limit", LOG_BYTES_MAX)), LOG_BYTES_MAX)
        name = request.match_info["name"]
        host = self._machines.get(self._machine_of(name)).host
        return json_response(await host.read_log(name, offset, limit))

    def _machine_of(self, process: str) -> str:
        """The machine on which a process of the snapshot runs; ours where unknown."""
        found = (p.peer for p in self._board.snapshot.processes if p.name == process)
        return next(found, LOCAL)

    async def _lab(self, request: web.Request) -> web.Response:
        """Put a worse network on one link, or on all; null takes it away."""
        asked = await body(request, LabRequest)
        await self._links.set_lab(asked.worker, asked.lab)
        return json_response(self._board.snapshot)

    async def _passes(self, request: web.Request) -> web.Response:
        """Every pass still remembered, by worker."""
        return json_response(self._links.passes())

    async def _metrics(self, request: web.Request) -> web.Response:
        """The snapshot as Prometheus text."""
        return web.Response(
            text=prometheus_text(self._board.snapshot),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        """Pass an answer on as it comes; a reader who leaves ends the generation."""
        asked = await body(request, ChatRequest)
        port = self._serving_port()
        response = await start_stream(request)
        async with ServerClient(port) as client:
            async for delta in client.chat(asked):
                if delta.failure is not None:
                    delta = await self._explained(delta)
                if delta.timings is not None and delta.done:
                    self._supervisor.meter.answered(delta.timings)
                await response.write(msgspec.json.encode(delta) + b"\n")
        return response

    def _serving_port(self) -> int:
        snapshot = self._board.snapshot
        if snapshot.state is not ClusterState.SERVING or not snapshot.api_url:
            raise ControllerError(
                f"No model is serving (the cluster is {snapshot.state.value})",
                "Launch a plan first: l in the console, or dllm-tui up.",
            )
        return urlsplit(snapshot.api_url).port or 0

    async def _explained(self, delta: ChatDelta) -> ChatDelta:
        """When the cluster broke, its failure says more than the broken connection."""
        for _ in range(20):
            failure = self._board.snapshot.failure
            if failure is not None:
                return msgspec.structs.replace(delta, failure=failure)
            if self._board.snapshot.state is not ClusterState.SERVING:
                break
            await asyncio.sleep(0.1)
        return delta
