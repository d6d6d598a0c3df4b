"""Plain TCP connections to a name, whose lookup never holds up anything else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from itertools import chain, zip_longest
from typing import Any

_STAGGER_S = 0.25
"""Head start of each address over the next (RFC 8305)."""

Address = tuple[int, Any]
"""Family and socket address."""


async def dial(host: str, port: int, family: int = socket.AF_UNSPEC) -> socket.socket:
    """Connect to the first address that answers; the caller bounds the time.

    Raises:
        OSError: the name is unknown, or no address answers (the first one's error).
    """
    addresses = await lookup(host, port, family)
    tasks: list[asyncio.Task[socket.socket]] = []
    try:
        for address in addresses:
            tasks.append(asyncio.create_task(_connect(address)))
            await asyncio.wait(tasks[-1:], timeout=_STAGGER_S)
            if (found := _winner(tasks)) is not None:
                return found
        return await _first(tasks)
    finally:
        await _leave(tasks)


async def lookup(host: str, port: int, family: int) -> list[Address]:
    """Addresses of a name, the families in turn.

    In a thread of its own: dozens of names that nobody answers for would fill the
    event loop's pool, and exiting would wait for them.

    Raises:
        OSError: the name is unknown.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[list[Any]] = loop.create_future()

    def look() -> None:
        try:
            found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            _report(loop, done, error)
        else:
            _report(loop, done, found)

    threading.Thread(target=look, daemon=True, name="ssh-lookup").start()
    return _in_turn([(int(each[0]), each[4]) for each in await done])


def _report(
    loop: asyncio.AbstractEventLoop,
    done: asyncio.Future[list[Any]],
    outcome: list[Any] | Exception,
) -> None:
    def settle() -> None:
        if done.done():
            return
        if isinstance(outcome, UnicodeError):
            done.set_exception(socket.gaierror(socket.EAI_NONAME, str(outcome)))
        elif isinstance(outcome, Exception):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)

    # The loop may be gone by now, and with it whoever asked.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)


def _in_turn(addresses: list[Address]) -> list[Address]:
    first = [each for each in addresses if each[0] == addresses[0][0]]
    others = [each for each in addresses if each[0] != addresses[0][0]]
    mixed = chain.from_iterable(zip_longest(first, others))
    return [each for each in mixed if each is not None]


async def _connect(address: Address) -> socket.socket:
    family, place = address
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(made, place)
    except BaseException:
        made.close()
        raise
    return made


def _winner(tasks: list[asyncio.Task[socket.socket]]) -> socket.socket | None:
    done = (task for task in tasks if task.done() and task.exception() is None)
    return next((task.result() for task in done), None)


async def _first(tasks: list[asyncio.Task[socket.socket]]) -> socket.socket:
    pending = set(tasks)
    while pending:
        _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if (found := _winner(tasks)) is not None:
            return found
    error = tasks[0].exception()
    assert error is not None
    raise error


async def _leave(tasks: list[asyncio.Task[socket.socket]]) -> None:
    winner = _winner(tasks)
    for task in tasks:
        task.cancel()
    for made in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(made, socket.socket) and made is not winner:
            made.close()
