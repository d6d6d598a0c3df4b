"""Places that are dialled: the next one while those before are silent."""

from __future__ import annotations

import asyncio
import errno
import socket
import time

import pytest

from backends.errors import MachineError
from backends.mesh.dialling import DIAL_S, Dialled, dial_any
from backends.mesh.messages import BANNER
from tests.kit.virtual_time import in_virtual_time


def dialled(
    monkeypatch: pytest.MonkeyPatch, *places: str
) -> tuple[list[str], socket.socket | str, float]:
    """The hosts that were dialled, the outcome, and how long it took."""
    tried: list[str] = []
    made = [socket.socket() for _ in range(2)]

    async def dial(host: str, _: int) -> socket.socket:
        tried.append(host)
        if host == "refuses":
            # As asyncio says it.
            raise ConnectionRefusedError(
                errno.ECONNREFUSED, f"Connect call failed ({host!r}, 1)"
            )
        if host == "answers":
            return made[0]
        await asyncio.sleep(600.0)
        return made[1]

    monkeypatch.setattr("backends.mesh.dialling.dial", dial)

    async def works() -> tuple[socket.socket | str, float]:
        begun = time.monotonic()
        try:
            outcome: socket.socket | str = await dial_any(places)
        except MachineError as error:
            outcome = error.what
        return outcome, time.monotonic() - begun

    outcome, took_s = in_virtual_time(works)
    for one in made:
        one.close()
    return tried, outcome, took_s


def test_silent_places_keep_none_after_them_from_being_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = [f"10.0.0.{number}:1" for number in range(7)]
    tried, outcome, took_s = dialled(monkeypatch, *silent, "answers:1", "[::1]:1")
    assert isinstance(outcome, socket.socket)
    assert len(tried) == 8
    assert took_s < DIAL_S
    # One that fails at once holds up nothing, and the first that answers is taken.
    tried, _, took_s = dialled(monkeypatch, "refuses:1", "answers:1", *silent)
    assert (tried, took_s) == (["refuses", "answers"], 0.0)


def test_each_reason_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, why, _ = dialled(monkeypatch, "refuses:1", "10.0.0.7:1", "10.0.0.8:1")
    assert why == (
        "refuses:1 and 10.0.0.7:1 and 10.0.0.8:1 cannot be reached "
        "(connection refused, and nobody answers within 5 s)"
    )


async def test_a_foreign_server_is_not_taken_for_a_console_that_answers_words() -> None:
    async def console(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        assert await reader.readline() == b"hello\n"
        writer.write(BANNER + b"console\r\n")

    foreign = await asyncio.start_server(
        lambda _, writer: writer.write(b"SSH-2.0-OpenSSH_9.9\r\n"), "127.0.0.1"
    )
    ours = await asyncio.start_server(console, "127.0.0.1")
    async with foreign, ours:
        ports = [one.sockets[0].getsockname()[1] for one in (foreign, ours)]
        dial = Dialled([f"127.0.0.1:{port}" for port in ports], b"hello\n")
        with await dial.connected() as made:
            assert made.getpeername()[1] == ports[1]
