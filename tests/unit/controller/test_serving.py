"""What llama-server is asked while it serves, on a false clock."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast
from unittest.mock import AsyncMock

import pytest

from backends.controller import serving
from backends.controller.relays import Links
from backends.controller.serving import Serving
from backends.engine.server import Counts, Slot
from backends.link.wire import Line

MINUTE_S = 60.0
LINES_MAX = 5


class CountingServer:
    """A llama-server with one slot, which counts what it is asked."""

    def __init__(self, *, busy: bool, speculative: bool) -> None:
        self.slot = Slot(id=0, is_processing=busy, speculative=speculative)
        self.asked: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def slots(self) -> tuple[Slot, ...]:
        self.asked.append("slots")
        return (self.slot,)

    async def counts(self) -> Counts:
        self.asked.append("metrics")
        return Counts(finished_tokens=7)


class Ended(Exception):
    """The time is over."""


@pytest.fixture
def minute(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a server is asked in the minute; nothing moves."""

    def questions(
        rows: int | None, *, busy: bool = False, speculative: bool = False
    ) -> list[str]:
        over = asyncio.Event()
        server = CountingServer(busy=busy, speculative=speculative)
        monkeypatch.setattr(serving, "ServerClient", lambda _: server)
        now_s = 0.0

        async def sleep(seconds: float) -> None:
            nonlocal now_s
            now_s += seconds
            if now_s >= MINUTE_S:
                over.set()
                await asyncio.Event().wait()

        async def until_trouble() -> None:
            await over.wait()
            raise Ended

        async def still() -> bool:
            return False

        async def run() -> None:
            store: Any = SimpleNamespace(update=lambda **_: None)
            watch: Any = SimpleNamespace(until_trouble=until_trouble)
            one = Serving(store, lambda _: None, lambda: rows, sleep)
            with pytest.raises(Ended):
                await one.until_trouble(1, watch, still)

        asyncio.run(run())
        return server.asked

    return questions


@pytest.mark.parametrize("rows", [None, 3])
def test_an_idle_server_gets_few_lines_in_its_log(
    minute: Any, rows: int | None
) -> None:
    assert 0 < len(minute(rows)) <= LINES_MAX


def test_its_averages_are_left_alone_where_relays_see_tokens(minute: Any) -> None:
    """Only the first count is its own: what it made before the relays were followed."""
    asked = minute(3, busy=True)
    assert asked.count("metrics") == 1
    assert asked.count("slots") == 120


@pytest.mark.parametrize(("rows", "speculative"), [(None, False), (3, True)])
def test_it_is_asked_where_relays_do_not_see_tokens(
    minute: Any, rows: int | None, speculative: bool
) -> None:
    asked = minute(rows, busy=True, speculative=speculative)
    assert asked.count("metrics") == asked.count("slots")


async def test_rows_are_known_until_a_relay_stops_reading() -> None:
    links = Links(cast("Any", SimpleNamespace(update=lambda **_: None)))
    nowhere = Path("/nonexistent/relay.sock")
    async with links.following({"w": nowhere}, lambda _: None):
        assert links.rows() is None
        (reader,) = links._each()
        reader.meter.take(Line(type="snapshot", rows=0))
        assert links.rows() == 0
        reader.meter.take(Line(type="snapshot", rows=0, mode="plain"))
        assert links.rows() is None


async def test_a_figure_that_cannot_be_shown_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = CountingServer(busy=True, speculative=False)
    monkeypatch.setattr(serving, "ServerClient", lambda _: server)
    shown = asyncio.Event()

    def told(_: object) -> None:
        if len(server.asked) > LINES_MAX:
            shown.set()
        raise ZeroDivisionError

    async def until_trouble() -> None:
        await shown.wait()
        raise Ended

    store: Any = SimpleNamespace(update=lambda **_: None)
    watch: Any = SimpleNamespace(until_trouble=until_trouble)
    one = Serving(store, told, lambda: 3, lambda _: asyncio.sleep(0))
    with pytest.raises(Ended):
        await asyncio.wait_for(one.until_trouble(1, watch, AsyncMock()), 10)
