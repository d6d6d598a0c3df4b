"""What llama-server is asked while it serves, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from backends.controller import serving
from backends.controller.serving import LOOK_S, SPEED_IDLE_S, Serving, Watch
from backends.engine.server import Counts, Slot
from backends.errors import HostError
from backends.state import LogChunk
from tests.kit.clusters import Stage
from tests.kit.virtual_time import in_virtual_time

IDLE = "0.01.000.000 I srv  update_slots: all slots are idle\n"
BUSY = "0.01.000.000 I slot launch_slot_: id  0 | task 10 | processing task\n"


class LogHost:
    def __init__(self) -> None:
        self.log = IDLE
        self.gone = False

    async def read_log(self, name: str, offset: int, limit_bytes: int) -> LogChunk:
        if self.gone:
            raise HostError("gone")
        start = len(self.log) + offset if offset < 0 else offset
        text = self.log[start : start + limit_bytes]
        end = start + len(text)
        return LogChunk(name=name, text=text, offset=start, next_offset=end)


class Server:
    """A llama-server with one slot, and its links; it notes what it is asked, when."""

    def __init__(self, rows: int | None = None, **slot: bool) -> None:
        self.slot = Slot(id=0, **slot)
        self.count = rows
        self.carried: dict[str, int] = {}
        self.host: Any = LogHost()
        self.asked: list[str] = []
        self.asked_at_s: list[float] = []
        self.heed: Callable[[object], None] = lambda speed: None
        store: Any = SimpleNamespace(update=lambda **_: None)
        links: Any = SimpleNamespace(
            rows=lambda: self.count,
            carried_bytes=lambda: dict(self.carried),
            heed=lambda speed: self.heed(speed),
        )
        self.serving = Serving(store, links)

    def __call__(self, port: int) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def slots(self) -> tuple[Slot, ...]:
        self.asked.append("slots")
        self.asked_at_s.append(asyncio.get_running_loop().time())
        return (self.slot,)

    async def counts(self) -> Counts:
        self.asked.append("metrics")
        return Counts(finished_tokens=7)

    async def moved(self) -> bool:
        return await self.serving.moved(self.host, "default/llama-server")


def follow(
    server: Server, monkeypatch: pytest.MonkeyPatch, seconds: float = 60.0
) -> list[str]:
    monkeypatch.setattr(serving, "ServerClient", server)

    async def run() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await server.serving.follow(1, server.host, "default/llama-server")

    in_virtual_time(run)
    return server.asked


async def test_what_was_reported_of_an_earlier_build_is_forgotten(
    tmp_path: Path,
) -> None:
    watch = Watch(Stage(tmp_path).context)
    watch.report(HostError("the gateway cannot be started"))
    watch.forget()
    await watch.require()
    watch.report(HostError("nor can this one"))
    with pytest.raises(HostError, match="nor can this one"):
        await watch.require()


@pytest.mark.parametrize("rows", [None, 3])
def test_an_idle_server_gets_few_lines_in_its_log(
    monkeypatch: pytest.MonkeyPatch, rows: int | None
) -> None:
    assert 0 < len(follow(Server(rows), monkeypatch)) <= 5


def test_its_averages_are_left_alone_where_relays_see_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = follow(Server(3, is_processing=True), monkeypatch)
    assert asked.count("metrics") == 1
    assert asked.count("slots") == 120


@pytest.mark.parametrize(("rows", "speculative"), [(None, False), (3, True)])
def test_it_is_asked_where_relays_do_not_see_tokens(
    monkeypatch: pytest.MonkeyPatch, rows: int | None, speculative: bool
) -> None:
    server = Server(rows, is_processing=True, speculative=speculative)
    asked = follow(server, monkeypatch)
    assert asked.count("metrics") == asked.count("slots")


def test_a_figure_that_cannot_be_shown_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(3, is_processing=True)

    def heed(speed: object) -> None:
        raise ZeroDivisionError

    server.heed = heed
    assert follow(server, monkeypatch).count("slots") > 100


def test_it_is_asked_anew_when_something_moved_or_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server()
    follow(server, monkeypatch, seconds=SPEED_IDLE_S + LOOK_S)
    assert server.asked_at_s == pytest.approx([0.0, SPEED_IDLE_S])
    server.asked_at_s.clear()
    server.heed = lambda speed: server.carried.update(w=len(server.asked))
    follow(server, monkeypatch, seconds=1.5 * LOOK_S)
    assert server.asked_at_s == pytest.approx([0.0, LOOK_S])


async def test_bytes_on_the_links_are_activity() -> None:
    server = Server()
    server.carried = {"worker1": 5, "worker2": 7}
    await server.moved()
    assert not await server.moved()
    server.carried["worker2"] = 8
    assert await server.moved()
    assert not await server.moved()


async def test_without_links_lines_that_are_not_answers_to_us_are_activity() -> None:
    server = Server()
    assert not await server.moved()
    server.host.log += IDLE
    assert not await server.moved()
    server.host.log += BUSY + IDLE
    assert await server.moved()
    assert not await server.moved()
    server.host.gone = True
    assert not await server.moved()
