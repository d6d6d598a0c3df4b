"""A controller of the test's own making: the API, with goals that cost nothing."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
from aiohttp import web

from backends.controller.api import LaunchRequest, PrepareRequest
from backends.controller.http_server import (
    body,
    errors_as_values,
    frames,
    json_response,
    outlives_its_asker,
    start_stream,
    write_values,
)
from backends.controller.lock import hold_lock
from backends.controller.peer_api import PeerRequest
from backends.errors import ControllerError
from backends.paths import Paths
from backends.planning.memory_fit import is_same
from backends.split.layout import make_split, ranges
from backends.state import (
    API_VERSION,
    Ask,
    ClusterBrief,
    ClusterSnapshot,
    ClusterState,
    ControllerInfo,
    KnownMachine,
    Peer,
    PeerAnswer,
    PeerQuestion,
    PeerState,
    Plan,
    Preview,
    QuestionKind,
    Transport,
)
from backends.state.delta import framed
from tests.kit.waiting import PATIENCE_S

PERIOD_S = 0.05
LOAD_S = 0.4


class ScriptedController:
    """Keeps a goal for each cluster; what is launched serves a moment later."""

    def __init__(self) -> None:
        self.info = ControllerInfo(api=API_VERSION, version="1", pid=os.getpid())
        self.now: dict[str, ClusterSnapshot] = {}
        self.passes: dict[str, list[object]] = {}
        self.raw: bytes | None = None
        """What a snapshot is instead, where it is set."""
        self.peers: dict[str, Peer] = {}
        self.told: tuple[KnownMachine, ...] = ()
        self.ended = asyncio.Event()
        self.asked: list[str] = []
        self._prepared: dict[str, Plan] = {}
        self._timers: list[asyncio.TimerHandle] = []

    def snapshot(self, name: str) -> ClusterSnapshot:
        """A cluster as it is, with the others in a line each."""
        briefs = tuple(
            ClusterBrief(
                name=key,
                state=one.state,
                model=one.plan.model if one.plan else "",
                api_url=one.api_url,
                generation=one.generation,
            )
            for key, one in self.now.items()
        )
        mine = self.now.get(name, ClusterSnapshot(cluster=name))
        return msgspec.structs.replace(
            mine, clusters=briefs, controller_pid=os.getpid()
        )

    def show(self, name: str = "default", **changes: Any) -> None:
        old = self.snapshot(name)
        self.now[name] = msgspec.structs.replace(old, seq=old.seq + 1, **changes)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[outlives_its_asker, errors_as_values])
        app.add_routes(
            [
                web.get("/v1/version", self._version),
                web.get("/v1/snapshot", self._snapshot),
                web.get("/v1/snapshots", self._snapshots),
                web.get("/v1/passes", self._passes),
                web.get("/v1/peers", self._peers),
                web.get("/v1/peers-to-pick", self._to_pick),
                web.post("/v1/peers", self._add_peer),
                web.delete("/v1/peers/{name}", self._remove_peer),
                web.post("/v1/peers/{name}/answer", self._answer_peer),
                web.post("/v1/propose", self._propose),
                web.post("/v1/prepare", self._prepare),
                web.post("/v1/launch", self._launch),
                web.post("/v1/stop", self._stop),
                web.post("/v1/shutdown", self._shutdown),
            ]
        )
        return app

    async def _version(self, request: web.Request) -> web.Response:
        return json_response(self.info)

    async def _snapshot(self, request: web.Request) -> web.Response:
        if self.raw is not None:
            return web.Response(body=self.raw, content_type="application/json")
        return json_response(self.snapshot(_cluster(request)))

    async def _snapshots(self, request: web.Request) -> web.StreamResponse:
        response = await start_stream(request)
        if self.raw is not None:
            await response.write(self.raw + b"\n")
        changes = self._changes(_cluster(request))
        await write_values(response, frames(changes, framed))
        return response

    async def _changes(self, name: str) -> AsyncGenerator[ClusterSnapshot]:
        last = -1
        while not self.ended.is_set():
            if self.snapshot(name).seq != last:
                last = self.snapshot(name).seq
                yield self.snapshot(name)
            await asyncio.sleep(PERIOD_S)

    async def _passes(self, request: web.Request) -> web.Response:
        return json_response(self.passes)

    async def _peers(self, request: web.Request) -> web.Response:
        return json_response(list(self.peers.values()))

    async def _to_pick(self, request: web.Request) -> web.Response:
        return json_response(self.told)

    async def _add_peer(self, request: web.Request) -> web.Response:
        """Its host key is unknown."""
        asked = await body(request, PeerRequest)
        self.asked.append(f"add {asked.name}")
        question = PeerQuestion(
            kind=QuestionKind.HOST_KEY,
            text="Trust its key \x1b]0;mine\x07 SHA256:abc?",
            fingerprint="SHA256:abc",
        )
        peer = Peer(
            name=asked.name,
            address=asked.ssh or "",
            state=PeerState.ASKING,
            transport=Transport.SSH,
            question=question,
        )
        self.peers[asked.name] = peer
        return json_response(peer)

    async def _remove_peer(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.asked.append(f"remove {name}")
        self.peers.pop(name, None)
        return await self._peers(request)

    async def _answer_peer(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        answer = await body(request, PeerAnswer)
        self.asked.append(f"answer {name} {answer.text}")
        fine = {"state": PeerState.READY, "question": None}
        self.peers[name] = msgspec.structs.replace(self.peers[name], **fine)
        return json_response(self.peers[name])

    async def _propose(self, request: web.Request) -> web.Response:
        return json_response(_proposed(await body(request, Ask)))

    async def _prepare(self, request: web.Request) -> web.Response:
        asked = await body(request, PrepareRequest)
        plan = _proposed(asked.ask) if asked.ask else asked.plan
        assert plan is not None
        token = str(len(self._prepared))
        self._prepared[token] = plan
        return json_response(
            Preview(
                plan=plan,
                layers=ranges(plan.split),
                memory=(),
                available_bytes={},
                commands=(),
                token=token,
            )
        )

    async def _launch(self, request: web.Request) -> web.Response:
        name = _cluster(request)
        asked = await body(request, LaunchRequest)
        plan = asked.plan or self._prepared[asked.token]
        now = self.snapshot(name)
        if asked.replaces not in (None, now.wanted_generation):
            what = f"Another launch came first: {now.plan.model if now.plan else ''}"
            raise ControllerError(what, "Look at it with dllm-tui status.")
        if now.wanted_generation and is_same(plan, now.plan):
            return json_response(now)
        self.asked.append(f"launch {name} {plan.ctx_size}")
        generation = now.generation + 1
        self.show(
            name,
            generation=generation,
            plan=plan,
            planned=ranges(plan.split),
            state=ClusterState.STARTING,
        )
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(LOAD_S, self._serves, name, generation))
        return json_response(self.snapshot(name))

    def _serves(self, name: str, generation: int) -> None:
        if self.snapshot(name).generation == generation:
            url = "http://127.0.0.1:8090/v1"
            self.show(name, state=ClusterState.SERVING, api_url=url)

    async def _stop(self, request: web.Request) -> web.Response:
        name = _cluster(request)
        self.asked.append(f"stop {name}")
        generation = self.snapshot(name).generation + 1
        idle = {"plan": None, "planned": (), "processes": (), "api_url": None}
        self.show(name, generation=generation, state=ClusterState.IDLE, **idle)
        return json_response(self.snapshot(name))

    async def _shutdown(self, request: web.Request) -> web.Response:
        self.asked.append(f"shutdown {request.query.get('only_if_idle')}")
        self.ended.set()
        return json_response(self.snapshot("default"))


def _proposed(asked: Ask) -> Plan:
    split = make_split(12, ["worker1/CPU", "worker2/CPU"], [6, 7])
    ctx_size = asked.ctx_size or 4096
    return Plan(model=asked.model, split=split, ctx_size=ctx_size, asked=asked)


def _cluster(request: web.Request) -> str:
    return request.query.get("cluster", "default")


@contextmanager
def serving(controller: ScriptedController, paths: Paths) -> Iterator[None]:
    """Listen where a controller of that user would, in a thread."""
    listens, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def listen() -> None:
        async with _listening(controller, paths):
            listens.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(listen(),))
    thread.start()
    assert listens.wait(PATIENCE_S)
    yield
    loop.call_soon_threadsafe(over.set)
    thread.join()
    loop.close()


@asynccontextmanager
async def _listening(
    controller: ScriptedController, paths: Paths
) -> AsyncIterator[None]:
    """Until told to end."""
    for directory in (paths.state_dir, paths.runtime_dir):
        directory.mkdir(mode=0o700, parents=True)
    lock = hold_lock(paths.lock, controller.info)
    runner = web.AppRunner(controller.application(), shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(paths.socket)).start()

    async def end() -> None:
        await controller.ended.wait()
        await asyncio.sleep(PERIOD_S)
        await runner.cleanup()
        paths.socket.unlink(missing_ok=True)
        os.close(lock)

    ending = asyncio.create_task(end())
    yield
    controller.ended.set()
    await ending
