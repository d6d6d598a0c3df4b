"""Plain TCP connections to a name, whose lookup never holds up anything else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

from aiohappyeyeballs import start_connection

_STAGGER_S = 0.25
"""Head start of each address over the next (RFC 8305)."""


async def dial(host: str, port: int, family: int = socket.AF_UNSPEC) -> socket.socket:
    """Connect to the first address that answers; the caller bounds the time.

    Raises:
        OSError: the name is unknown, or no address answers.
    """
    made = await start_connection(
        await lookup(host, port, family),
        happy_eyeballs_delay=_STAGGER_S,
        interleave=1,
    )
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


async def lookup(host: str, port: int, family: int) -> list[Any]:
    """What ``getaddrinfo`` tells of a name.

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
    return await done


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
