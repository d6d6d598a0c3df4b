"""The part of the API that is about usage and single processes."""

from __future__ import annotations

from aiohttp import web

from backends.controller.http_server import (
    Parts,
    asker,
    body,
    frames,
    json_response,
    start_stream,
    write_values,
)
from backends.controller.processes import AGENT
from backends.controller.usage_monitor import CONTROLLER
from backends.errors import UsageError, did_you_mean
from backends.machine_names import LOCAL
from backends.state import ProcessState, UsageReport, Value


class ProcessRequest(Value, frozen=True, kw_only=True):
    name: str
    machine: str = LOCAL
    pid: int | None = None
    """Only the process of that number is meant, if one is given."""


WHOLE = {
    CONTROLLER: "End it with dllm-tui down; the next command starts another.",
    AGENT: "It ends with its connection, and comes back by itself.",
}
"""Processes that no cluster owns, and the way to end each."""


class ProcessApi:
    """Reports usage; restarts and kills processes as the reconciler expects it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._monitor = parts.usage

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/usage", self._usage),
            web.get("/v1/usage/stream", self._stream),
            web.post("/v1/processes/restart", self._restart),
            web.post("/v1/processes/kill", self._kill),
        ]

    async def _usage(self, request: web.Request) -> web.Response:
        cluster = self._parts.cluster_of(request)
        return json_response(await self._monitor.report(cluster.name))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        reports = self._monitor.reports(self._parts.cluster_of(request).name)
        response = await start_stream(request)
        await write_values(response, frames(reports, UsageReport.newest))
        return response

    async def _restart(self, request: web.Request) -> web.Response:
        asked = await self._asked(request)
        cluster = self._parts.cluster_of(request)
        cluster.restart(asked.name, asker(request))
        return json_response(cluster.store.snapshot)

    async def _kill(self, request: web.Request) -> web.Response:
        asked = await self._asked(request)
        cluster = self._parts.cluster_of(request)
        await cluster.kill(asked.machine, asked.name, asker(request))
        return json_response(cluster.store.snapshot)

    async def _asked(self, request: web.Request) -> ProcessRequest:
        """The process that is meant, which lives."""
        asked = await body(request, ProcessRequest)
        if asked.name in WHOLE:
            raise UsageError(
                f"The {asked.name} belongs to no cluster: it is not restarted or "
                "killed alone",
                WHOLE[asked.name],
            )
        known = self._parts.cluster_of(request).store.snapshot.processes
        alive = {
            one.name: one.pid
            for one in known
            if one.peer == asked.machine and one.state is not ProcessState.EXITED
        }
        if asked.name not in alive:
            where = "" if asked.machine == LOCAL else f" on {asked.machine}"
            listed = ", ".join(alive) or "none"
            raise UsageError(
                f"No process {asked.name} runs{where}",
                f"{did_you_mean(asked.name, list(alive))}Running there: {listed}.",
            )
        if asked.pid not in (None, alive[asked.name]):
            raise UsageError(
                f"Another process is called {asked.name} by now",
                "See dllm-tui processes, and say it again if that one is meant.",
            )
        return asked
