"""The gateway's own socket, from both ends."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from backends.errors import ControllerError
from backends.gateway import control as control_module
from backends.gateway import server as server_module
from backends.gateway.control import LINE_BYTES_MAX, Control, GatewayLink
from backends.gateway.control_messages import Mode, Target
from backends.gateway.counters import KEYS_MAX, Counters
from backends.gateway.listen_settings import ListenSettings
from backends.gateway.proxy import Proxy
from backends.gateway.server import Listener, Server
from backends.state.snapshots import RequestCounts
from tests.kit.waiting import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "LOOK_EVERY_S", 0.01)


def control_of(proxy: Proxy, socket: Path) -> Control:
    listener = Listener(Server(proxy.answer), ListenSettings(), 0)
    listener.is_open.set()
    return Control(proxy, socket, listener)


@asynccontextmanager
async def listening(socket: Path) -> AsyncIterator[Proxy]:
    """The proxy of a gateway that hears controllers at that socket."""
    proxy = Proxy()
    keeping = asyncio.create_task(control_of(proxy, socket).keep())
    try:
        yield proxy
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


class Port:
    def __init__(self, name: str, socket: Path, port: int = 0) -> None:
        async def answer(request: web.BaseRequest) -> web.Response:
            return web.Response(text=name)

        self.proxy = Proxy()
        self.listener = Listener(Server(answer), ListenSettings(), port)
        control = Control(self.proxy, socket, self.listener)
        self._keeping = asyncio.create_task(control.keep())

    @property
    def port(self) -> int:
        return int(self.listener.sockets[0].getsockname()[1])

    async def end(self) -> None:
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        await self.listener.close(0)


async def test_controller_keeps_port_open_between_two_gateways(tmp_path: Path) -> None:
    path = tmp_path / "g.sock"
    link = GatewayLink(path, lambda counts: None)
    one = Port("one", path)
    await one.listener.open()
    port = one.port
    link.tell(Target())
    await until(lambda: link.holds(port))
    await one.end()
    async with aiohttp.ClientSession() as client:
        asking = asyncio.create_task(client.get(f"http://127.0.0.1:{port}/"))
        await asyncio.sleep(0.1)
        assert not asking.done()
        other = Port("other", path, port)
        await other.listener.open()
        async with await asking as answer:
            assert await answer.text() == "other"
        await until(lambda: other.proxy.target == Target())
        await until(lambda: link.holds(port))
        link.release()
        await other.end()
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.get(f"http://127.0.0.1:{port}/")
    await link.close()


async def test_a_port_that_nobody_hands_over_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HANDED_S", 0.05)
    one = Port("one", tmp_path / "one.sock")
    await one.listener.open()
    other = Port("other", tmp_path / "other.sock", one.port)
    with pytest.raises(OSError, match="in use"):
        await other.listener.open()
    # A controller that holds another port has nothing to offer.
    link = GatewayLink(tmp_path / "other.sock", lambda counts: None)
    link.tell(Target())
    with pytest.raises(OSError, match="in use"):
        await other.listener.open()
    await link.close()
    await other.end()
    await one.end()


@pytest.mark.parametrize(
    ("target", "calls"),
    [
        (Target(), 2),
        (Target(mode=Mode.SERVE, port=1), 2),
        (Target(mode=Mode.END), 0),
        (Target(drains=True, why="drained by a person"), 0),
    ],
)
async def test_a_controller_is_started_while_a_request_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Target, calls: int
) -> None:
    monkeypatch.setattr(control_module, "CALL_AGAIN_S", 0.05)
    proxy, socket, started = Proxy(), tmp_path / "g.sock", list[int]()

    async def start() -> None:
        started.append(1)
        if len(started) == 1:
            raise ControllerError("it does not come up")
        link.tell(target)

    control = control_of(proxy, socket)
    link = GatewayLink(socket, lambda counts: None)
    tasks = [
        asyncio.create_task(control.keep()),
        asyncio.create_task(control.call(start)),
    ]
    proxy.queue.turn_to(target)
    await asyncio.sleep(0.1)
    assert not started
    with proxy.counters.during("waiting"):
        await until(lambda: len(started) == calls)
        await until(lambda: control._writers or not calls)
        await asyncio.sleep(0.2)
    assert len(started) == calls
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await link.close()


async def test_a_gateway_hears_what_serves_and_tells_counts(tmp_path: Path) -> None:
    socket, counted = tmp_path / "sub" / "g.sock", list[RequestCounts]()
    async with listening(socket) as proxy:
        link = GatewayLink(socket, counted.append)
        serve = Target(mode=Mode.SERVE, port=1, model="m")
        link.tell(serve)
        await until(lambda: proxy.target == serve and counted)
        assert socket.stat().st_mode & 0o777 == 0o600
        proxy.counters.add("passed")
        await until(lambda: counted[-1].passed == 1)
        # Its directory is cleaned away: the next controller finds it all the same.
        socket.unlink()
        await until(socket.exists)
        await link.close()
        other = GatewayLink(socket, counted.append)
        other.tell(Target(mode=Mode.END, why="over"))
        await until(lambda: proxy.target.why == "over")
        await other.close()
    assert not socket.exists()


async def test_a_gateway_that_hangs_is_silent_until_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module, "SILENT_S", 0.05)
    path = tmp_path / "g.sock"
    link = GatewayLink(path, lambda counts: None)
    link.tell(Target(mode=Mode.SERVE, port=7))
    await asyncio.sleep(0.2)
    assert not link.is_silent, "there is none"

    async def hang(reader: object, writer: object) -> None:
        await asyncio.Event().wait()

    hanging = await asyncio.start_unix_server(hang, path)
    await until(lambda: link.is_silent)
    hanging.close()
    async with listening(path) as proxy:
        await until(lambda: not link.is_silent)
        monkeypatch.setattr(proxy.counters, "change", asyncio.Event().wait)
        await asyncio.sleep(0.2)
        # It has nothing new to tell; a machine that stood still is silent for a moment.
        await until(lambda: not link.is_silent)
    await link.close()


async def test_a_gateway_that_comes_later_is_told_too(tmp_path: Path) -> None:
    socket = tmp_path / "g.sock"
    link = GatewayLink(socket, lambda counts: None)
    link.tell(Target(mode=Mode.SERVE, port=7))
    for _ in range(2):
        async with listening(socket) as proxy:
            await is_told(proxy)
    await link.close()


async def test_socket_that_vanished_is_not_listened_at_any_more(tmp_path: Path) -> None:
    socket = tmp_path / "g.sock"
    async with listening(socket):
        await until(socket.exists)
        gc.collect()
        before = len(os.listdir("/dev/fd"))
        for _ in range(3):
            socket.unlink()
            await until(socket.exists)
        await until(lambda: len(os.listdir("/dev/fd")) == before, "as many as before")


async def test_a_controller_is_heard_again_once_files_may_be_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket, refused = tmp_path / "g.sock", list[int]()
    accept = asyncio.get_running_loop().sock_accept

    async def full(listening: object) -> object:
        if not refused:
            refused.append(1)
            raise OSError(errno.EMFILE, "Too many open files")
        return await accept(listening)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_accept", full)
    async with listening(socket) as proxy:
        link = GatewayLink(socket, lambda counts: None)
        link.tell(Target(mode=Mode.SERVE, port=7))
        await is_told(proxy)
        await link.close()


async def is_told(proxy: Proxy) -> None:
    await until(lambda: proxy.target.port == 7)


async def test_nonsense_changes_nothing(tmp_path: Path) -> None:
    socket = tmp_path / "g.sock"
    async with listening(socket) as proxy:
        await until(socket.exists)
        reader, writer = await asyncio.open_unix_connection(socket)
        writer.write(b'{"mode": "dance"}\n')
        while await reader.readline():
            pass
        writer.close()
        assert proxy.target == Target()


async def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path) -> None:
    socket, counted = tmp_path / "g.sock", list[RequestCounts]()
    long = b" " * (1 << 17) + b"{}\n", b" " * (LINE_BYTES_MAX * 3) + b"{}\n"

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for line in (b"\n", *long, b'{"passed":7}\n'):
            writer.write(line)
            await writer.drain()

    server = await asyncio.start_unix_server(talk, socket)
    link = GatewayLink(socket, counted.append)
    link.tell(Target())
    await until(lambda: counted and counted[-1].passed == 7)
    await link.close()
    server.close()


def test_the_counts_of_few_keys_are_kept() -> None:
    counters = Counters()
    counters.add_of_key("busy", in_flight=1)
    for number in range(2 * KEYS_MAX):
        counters.add_of_key(f"key-{number}", requests=1)
    keys = counters.counts.keys
    assert len(keys) == KEYS_MAX
    assert {"busy", f"key-{2 * KEYS_MAX - 1}"} <= keys.keys()
    assert len(msgspec.json.encode(counters.counts)) < 1 << 16


@pytest.mark.parametrize("why", ["", "drained by a person"])
async def test_without_a_controller_nobody_waits_for_its_next_step(
    tmp_path: Path, why: str
) -> None:
    socket = tmp_path / "g.sock"
    async with Proxy() as proxy:
        control = control_of(proxy, socket)
        keeping = asyncio.create_task(control.keep())
        serves = Target(mode=Mode.SERVE, port=7, why=why)
        link = GatewayLink(socket, lambda counts: None)
        link.tell(replace(serves, drains=True))
        await until(lambda: proxy.target.drains)
        await link.close()
        await until(lambda: not control._writers)
        assert proxy.target == replace(serves, drains=bool(why))
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
