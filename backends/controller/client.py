"""The controller as the console and the commands use it."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from backends.controller import http
from backends.controller.journal import Journal
from backends.controller.start import answers, ensure_running, wait_gone
from backends.errors import ControllerError, DllmError
from backends.paths import Paths, user_paths
from backends.state import (
    ChatDelta,
    ChatRequest,
    ClusterSnapshot,
    Failure,
    Lab,
    LogChunk,
    ModelCatalogue,
    ModelInfo,
    Pass,
    Peer,
    PeerAnswer,
    PeerState,
    Plan,
    ProvisionMode,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

T = TypeVar("T")

SETTLE_S = 4.0
SETTLE_POLL_S = 0.1


class RequestFailed(DllmError):
    """The controller's answer was a failure; it is carried whole."""

    def __init__(self, failure: Failure) -> None:
        """Wrap a failure that came over the socket."""
        super().__init__(failure.what, failure.hint)
        self.value = failure

    def failure(self, at: float = 0.0) -> Failure:
        """The failure as the controller told it."""
        return self.value


class ControllerClient:
    """One user's controller; started when it is first needed."""

    def __init__(self, paths: Paths | None = None) -> None:
        """Nothing is connected yet; every call opens a connection of its own."""
        self._paths = paths or user_paths()

    async def running(self) -> bool:
        """Whether a controller answers now; starts none."""
        return await answers(self._paths.socket)

    def left_processes(self) -> bool:
        """Whether a new controller would find something: here, or by its journal."""
        run_dir = self._paths.run_dir
        here = run_dir.is_dir() and any(run_dir.iterdir())
        return here or Journal(self._paths.journal_file).load().plan is not None

    async def start(self) -> None:
        """See that a controller runs.

        Raises:
            ControllerError: it does not come up.
        """
        await ensure_running(self._paths)

    async def snapshot(self) -> ClusterSnapshot:
        """The state now."""
        return await self._call("GET", "/v1/snapshot", ClusterSnapshot)

    async def snapshots(
        self, *, hold: bool = False
    ) -> AsyncGenerator[ClusterSnapshot, None]:
        """Snapshots as they change; with ``hold`` the cluster ends when we do."""
        await self.start()
        target = f"/v1/events?hold={int(hold)}"
        async with aclosing(self._stream("GET", target, ClusterSnapshot)) as stream:
            async for snapshot in stream:
                yield snapshot

    async def propose(
        self,
        model: str,
        *,
        workers: int | None = None,
        peers: Sequence[str] | None = None,
        head: str | None = None,
        counts: Sequence[int] | None = None,
        ctx_size: int | None = None,
        api_port: int | None = None,
        relay: bool = True,
        extra_args: Sequence[str] = (),
    ) -> Plan:
        """A plan for a model on some peers, or on this machine's workers."""
        asked = {
            "model": model,
            "workers": workers,
            "peers": list(peers) if peers is not None else None,
            "head": head,
            "counts": list(counts) if counts is not None else None,
            "ctx_size": ctx_size,
            "api_port": api_port,
            "relay": relay,
            "extra_args": list(extra_args),
        }
        return await self._call("POST", "/v1/propose", Plan, asked)

    async def launch(self, plan: Plan) -> None:
        """Make the cluster run this plan."""
        await self._call("POST", "/v1/launch", ClusterSnapshot, plan)

    async def stop(self) -> None:
        """Begin to stop the cluster."""
        await self._call("POST", "/v1/stop", ClusterSnapshot)

    async def shutdown(self, *, only_if_idle: bool = False) -> None:
        """End the controller and all it runs; returns when that is done."""
        if not await self.running():
            return
        target = f"/v1/shutdown?only_if_idle={int(only_if_idle)}"
        try:
            last = await self._call("POST", target, ClusterSnapshot)
        except ControllerError:
            # It may have ended by itself in the meantime, which is what is wanted.
            if await self.running():
                raise
            return
        if not only_if_idle:
            await wait_gone(self._paths, last.controller_pid)

    async def inspect(self, path: str) -> ModelInfo:
        """A model's header."""
        target = f"/v1/inspect?{urlencode({'path': path})}"
        return await self._call("GET", target, ModelInfo)

    async def catalogue(self, *, refresh: bool = False) -> ModelCatalogue:
        """Models found on disk."""
        return await self._call(
            "GET", f"/v1/models?refresh={int(refresh)}", ModelCatalogue
        )

    async def read_log(
        self, name: str, offset: int, limit_bytes: int = 65536
    ) -> LogChunk:
        """Part of a process log."""
        query = urlencode({"offset": offset, "limit": limit_bytes})
        return await self._call("GET", f"/v1/logs/{quote(name)}?{query}", LogChunk)

    async def set_lab(self, worker: str | None, lab: Lab | None) -> ClusterSnapshot:
        """Put a worse network on one link (or all), or take it away."""
        asked = {"worker": worker, "lab": lab}
        return await self._call("POST", "/v1/lab", ClusterSnapshot, asked)

    async def passes(self) -> dict[str, tuple[Pass, ...]]:
        """Every pass still remembered, by worker, oldest first."""
        return await self._call("GET", "/v1/passes", dict[str, tuple[Pass, ...]])

    async def peers(self) -> tuple[Peer, ...]:
        """Every other machine of the settings, as it is now."""
        return await self._call("GET", "/v1/peers", tuple[Peer, ...])

    async def settled_peers(self) -> tuple[Peer, ...]:
        """The same, once none is being reached any more (or after 4 s)."""
        peers = await self.peers()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while any(peer.state is PeerState.PROBING for peer in peers):
                    await asyncio.sleep(SETTLE_POLL_S)
                    peers = await self.peers()
        return peers

    async def peers_to_pick(self) -> tuple[str, ...]:
        """Names in the user's SSH configuration that are no peers yet."""
        return await self._call("GET", "/v1/peers-to-pick", tuple[str, ...])

    async def add_peer(
        self, name: str, *, ssh: str | None = None, bare: str | None = None
    ) -> Peer:
        """Add a machine by what one gives to ``ssh``, or a bare ``host:port``."""
        asked = {"name": name, "ssh": ssh, "bare": bare}
        return await self._call("POST", "/v1/peers", Peer, asked)

    async def remove_peer(self, name: str) -> None:
        """Forget a machine."""
        await self._call("DELETE", _peer(name), tuple[Peer, ...])

    async def probe_peer(self, name: str) -> Peer:
        """Look at a machine now."""
        return await self._call("POST", _peer(name, "probe"), Peer)

    async def answer_peer(self, name: str, answer: PeerAnswer) -> Peer:
        """Answer what the connection to a machine waits for."""
        return await self._call("POST", _peer(name, "answer"), Peer, answer)

    async def provision_peer(
        self, name: str, mode: ProvisionMode = ProvisionMode.AUTO
    ) -> Peer:
        """Install engine and helper there; returns when done."""
        return await self._call("POST", _peer(name, "provision"), Peer, {"mode": mode})

    async def clean_peer(self, name: str) -> int:
        """Remove what was installed there; the bytes freed."""
        answer = await self._call("POST", _peer(name, "clean"), dict[str, int])
        return answer["freed_bytes"]

    async def copy_model(self, name: str, path: str) -> str:
        """Copy a model file there; its path there, when done."""
        answer = await self._call(
            "POST", _peer(name, "copy"), dict[str, str], {"path": path}
        )
        return answer["path"]

    async def cancel_work(self, name: str) -> Peer:
        """End what goes on at a machine; the next time it resumes."""
        return await self._call("POST", _peer(name, "cancel"), Peer)

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Stream an answer; closing the iterator stops the generation."""
        await self.start()
        async with aclosing(
            self._stream("POST", "/v1/chat", ChatDelta, request)
        ) as stream:
            async for delta in stream:
                yield delta

    # --- how -----------------------------------------------------------------

    async def _call(
        self, method: str, target: str, kind: type[T], body: object = None
    ) -> T:
        """One request, one value."""
        await self.start()
        try:
            async with http.request(
                self._paths.socket, method, target, _encode(body)
            ) as response:
                return _decoded(response.status, await response.read(), kind)
        except OSError as error:
            raise _gone(error) from error

    async def _stream(
        self, method: str, target: str, kind: type[T], body: object = None
    ) -> AsyncGenerator[T, None]:
        """One request, many values, one a line."""
        try:
            async with http.request(
                self._paths.socket, method, target, _encode(body)
            ) as response:
                await _check(response)
                async for line in response.lines():
                    yield msgspec.json.decode(line, type=kind)
        except OSError as error:
            raise _gone(error) from error


def _peer(name: str, verb: str = "") -> str:
    return f"/v1/peers/{quote(name, safe='')}" + (f"/{verb}" if verb else "")


def _encode(body: object) -> bytes:
    return b"" if body is None else msgspec.json.encode(body)


async def _check(response: http.Response) -> None:
    if response.status != 200:
        _decoded(response.status, await response.read(), Failure)


def _decoded(status: int, content: bytes, kind: type[T]) -> T:
    """The value of a good answer; the failure of a bad one, raised."""
    if status == 200:
        return msgspec.json.decode(content, type=kind)
    try:
        raise RequestFailed(msgspec.json.decode(content, type=Failure))
    except msgspec.DecodeError as error:
        raise ControllerError(
            f"The controller answered with status {status}"
        ) from error


def _gone(error: OSError) -> ControllerError:
    return ControllerError(
        f"The connection to the controller broke ({error.strerror or error})",
        "Run dllm-tui again: a new controller takes over what runs.",
    )
