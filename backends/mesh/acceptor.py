"""Accepting connections, so that those who are silent keep nobody out."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import TYPE_CHECKING

from backends.mesh.connection_limits import Crowd, StrangerLog
from backends.tasks import TaskSet

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    Welcome = Callable[
        [socket.socket, str, Callable[[], None]], Coroutine[Any, Any, None]
    ]

STRANGERS_MAX = 32
"""Connections of which nobody is known yet; more are closed at once."""
STRANGERS_OF_ONE_MAX = 8
PAUSE_S = 1.0


class Acceptor:
    """Welcomes each that comes, in a task of its own.

    ``welcome`` gets a socket, its address, and what to call once it is known who it is:
    until then, or until its welcome ends, it counts as a stranger.
    """

    def __init__(self, welcome: Welcome, say: Callable[[str], None]) -> None:
        self._welcome = welcome
        self._say = StrangerLog(say)
        self._tasks = TaskSet()
        self._crowd = Crowd(STRANGERS_MAX, STRANGERS_OF_ONE_MAX)

    @property
    def strangers(self) -> Counter[str]:
        """By address."""
        return self._crowd.by_address

    async def run(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                made, come_from = await loop.sock_accept(listening)
            except OSError as error:
                # Out of descriptors: some will be free again.
                self._say(f"nobody can be let in now ({error.strerror})")
                await asyncio.sleep(PAUSE_S)
                continue
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Whoever is known is not to wait until a flood is over.
            await asyncio.sleep(0)
            # A socket for both protocols writes the addresses of IPv4 in its own way.
            self.let_in(made, str(come_from[0]).removeprefix("::ffff:"))

    def let_in(self, made: socket.socket, address: str) -> None:
        """Welcome who has come by this socket, or close it if there are too many."""
        if not self._crowd.enter(address):
            made.close()
            self._say(f"a connection from {address} refused: too many without a login")
            return
        self._tasks.start(self._welcomed(made, address))

    async def close(self) -> None:
        await self._tasks.end()

    async def _welcomed(self, made: socket.socket, address: str) -> None:
        counted = [address]

        def known() -> None:
            while counted:
                self._crowd.leave(counted.pop())

        try:
            await self._welcome(made, address, known)
        finally:
            known()
