"""Workers that announce themselves: found, gone, forged, and no multicast at all."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import zeroconf.asyncio
from msgspec.structs import replace

from backends.mesh import dialling, discovery
from backends.mesh.discovery import Browser, announced
from backends.state import FoundWorker
from backends.tasks import forever
from tests.kit.waiting import until
from tests.unit.mesh.lent import LentMachine, lent

ON = ["127.0.0.1"]
IS_NEAR = discovery._is_near
ASKED = discovery._asked
DIAL = dialling._dial


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[LentMachine]:
    async with lent(tmp_path) as made:
        yield made


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    made = Browser()
    yield made
    await made.close()


@pytest.fixture(autouse=True)
def loopback_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no network hears of what is tested here."""
    monkeypatch.setattr(discovery, "_is_near", lambda _: True)


def known(machine: LentMachine) -> FoundWorker:
    return FoundWorker(
        name="nuc",
        address=machine.places[0],
        version="0.1.0",
        id=machine.worker._key.get_fingerprint(),
    )


def here(browser: Browser, worker: FoundWorker) -> list[FoundWorker]:
    """Others that run at the same time announce themselves, too."""
    return [one for one in browser.found().workers if one.id == worker.id]


async def test_a_worker_is_found_and_says_goodbye(
    machine: LentMachine, browser: Browser
) -> None:
    worker = known(machine)
    async with announced(worker, ON):
        await until(lambda: here(browser, worker), "the worker")
        assert here(browser, worker) == [worker]
        await until(lambda: browser.found().settled, "the others")
    await until(lambda: not here(browser, worker), "its end")


async def test_one_that_does_not_answer_is_not_shown(
    machine: LentMachine, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is switched off says no goodbye."""
    monkeypatch.setattr(discovery, "CHECK_EVERY_S", 0.2)
    worker = known(machine)
    async with announced(worker, ON):
        await until(lambda: here(browser, worker), "the worker")
        assert machine.worker._listening is not None
        machine.worker._listening.close()
        await until(lambda: not here(browser, worker), "its silence")


async def test_what_is_announced_is_data(
    machine: LentMachine, browser: Browser
) -> None:
    worker = known(machine)
    hostile = replace(worker, name="[red]\x1b[2J\n", version="\u202e1" + "9" * 90)
    async with announced(hostile, ON):
        await until(lambda: here(browser, worker), "the worker")
        (shown,) = here(browser, worker)
    assert shown.name.isprintable()
    assert shown.version.isprintable()
    assert len(shown.version) <= discovery.WORD_CHARS


async def test_an_id_that_is_none_is_not_shown(
    machine: LentMachine, browser: Browser
) -> None:
    worker = replace(known(machine), id="\x1b]0;SHA256:")
    async with announced(worker, ON):
        await until(lambda: browser.found() and browser._names, "the announcement")
        await until(lambda: browser.found().settled, "the look")
        assert not here(browser, worker)


async def test_what_is_announced_is_name_port_id_and_version(
    machine: LentMachine,
) -> None:
    worker = known(machine)
    async with (
        announced(worker, ON),
        zeroconf.asyncio.AsyncZeroconf(interfaces=ON) as other,
    ):
        names: set[str] = set()
        browser = zeroconf.asyncio.AsyncServiceBrowser(
            other.zeroconf,
            discovery.SERVICE,
            handlers=[lambda name, **_: names.add(name)],
        )
        label = sha256(worker.id.encode()).hexdigest()[:16]
        name = f"{label}.{discovery.SERVICE}"
        await until(lambda: name in names, "the announcement")
        info = zeroconf.asyncio.AsyncServiceInfo(discovery.SERVICE, name)
        await info.async_request(other.zeroconf, 3000)
        await browser.async_cancel()
    assert set(info.properties) == {b"name", b"id", b"version"}
    assert info.port == machine.pairings.read().port
    assert info.server == f"{label}.local."


def test_only_addresses_of_this_network_are_announced_and_dialled() -> None:
    right = ["192.168.1.7", "10.0.0.7", "169.254.3.4", "fd00::7", "fe80::7%eth0"]
    wrong = ["127.0.0.1", "::1", "8.8.8.8", "2600::7", "::ffff:127.0.0.1"]
    assert [one for one in (*right, *wrong) if IS_NEAR(one)] == right


async def test_names_of_nobody_keep_no_worker_out(
    machine: LentMachine, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "FOUND_MAX", 2)
    worker = known(machine)
    async with contextlib.AsyncExitStack() as stack:
        for number in range(2):
            # Its id is none, so that it is of nobody.
            forged = replace(worker, name="eve", id=f"x{number}")
            await stack.enter_async_context(announced(forged, ON))
        await until(lambda: browser.found() and len(browser._checked) == 2, "those")
        await stack.enter_async_context(announced(worker, ON))
        await until(lambda: here(browser, worker), "the worker")


async def test_a_worker_waits_behind_names_of_nobody_and_is_found(
    machine: LentMachine, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "FOUND_MAX", 2)
    held = asyncio.Event()

    async def asked(responder: Any, name: str) -> FoundWorker | None:
        await held.wait()
        return await ASKED(responder, name)

    monkeypatch.setattr(discovery, "_asked", asked)
    worker = known(machine)
    async with contextlib.AsyncExitStack() as stack:
        for number in range(2):
            forged = replace(worker, name="eve", id=f"x{number}")
            await stack.enter_async_context(announced(forged, ON))
        await until(lambda: browser.found() and len(browser._checking) == 2, "those")
        await stack.enter_async_context(announced(worker, ON))
        held.set()
        await until(lambda: here(browser, worker), "the worker")


async def test_names_at_one_live_address_keep_no_worker_out(
    machine: LentMachine, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "FOUND_MAX", 6)
    real = replace(known(machine), id="SHA256:" + "r" * 43)
    elsewhere = f"10.0.0.9:{real.address.rpartition(':')[2]}"

    async def asked(responder: Any, name: str) -> FoundWorker | None:
        found = await ASKED(responder, name)
        is_real = found is not None and found.id == real.id
        return replace(found, address=elsewhere) if found and is_real else found

    monkeypatch.setattr(discovery, "_asked", asked)
    forgeries = [replace(real, id=f"SHA256:{number:043}") for number in range(6)]
    ours = {worker.id for worker in (real, *forgeries)}
    async with contextlib.AsyncExitStack() as stack:
        for forged in forgeries:
            await stack.enter_async_context(announced(forged, ON))
        await until(lambda: browser.found() and len(browser._checked) == 6, "those")
        await stack.enter_async_context(announced(real, ON))
        await until(lambda: here(browser, real), "the worker")
        # Others may be on this network.
        shown = [worker for worker in browser.found().workers if worker.id in ours]
        assert len(shown) == 1 + discovery.FOUND_OF_ONE_MAX


async def test_an_address_that_swallows_all_holds_nobody_up(
    machine: LentMachine, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def swallowed(here: str) -> socket.socket:
        return await (DIAL(here) if here == machine.places[0] else forever())

    monkeypatch.setattr(dialling, "_dial", swallowed)
    monkeypatch.setattr(discovery, "CHECK_S", 600.0)
    worker = known(machine)
    forged = replace(worker, address="127.0.0.1:9", id="SHA256:" + "x" * 43)
    async with announced(forged, ON):
        await until(lambda: browser.found() and browser._checking, "the forged one")
        async with announced(worker, ON):
            await until(lambda: here(browser, worker), "the worker")


def no_multicast(*_: object, **__: object) -> None:
    raise PermissionError(1, "Operation not permitted")


async def test_without_multicast_it_is_said_once_and_all_else_works(
    tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zeroconf.asyncio, "AsyncZeroconf", no_multicast)
    async with lent(tmp_path, announces=True) as machine:

        def told() -> list[str]:
            return [one for one in machine.tenants.lines if "multicast" in one]

        await until(told, "the sentence")
        await machine.pair()
        assert len(told()) == 1
        assert told()[0].endswith(
            "This machine sends no multicast (Operation not permitted): consoles need "
            "its address or a token"
        )
    await until(lambda: browser.found().problem, "the sentence")
    assert browser.found() == browser.found()
    assert browser.found().settled
    assert "by its address or a token" in browser.found().problem


async def test_a_worker_that_announces_is_found(
    tmp_path: Path, browser: Browser
) -> None:
    async with lent(tmp_path, announces=True) as machine:
        await until(lambda: here(browser, known(machine)), "the worker")
        (found,) = here(browser, known(machine))
        assert found.address == machine.places[0]
    await until(lambda: not here(browser, known(machine)), "its end")


async def test_it_is_looked_while_somebody_asks(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "ASKED_S", 0.1)
    browser.found()
    task = browser._task
    assert task is not None
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    assert browser.found().workers == ()
