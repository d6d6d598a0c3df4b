"""A small HTTP/1.1 client on a Unix socket: h11 speaks it, asyncio moves the bytes.

The console must paint within half a second of its start; importing aiohttp alone takes
0.2 s of that, h11 a tenth of it.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path

import h11

from backends.errors import UsageError
from backends.state import SILENCE_MAX_S, Value
from backends.state.base import AGENT_HEADER, PROGRAM_HEADER

READ_BYTES = 1 << 16
LINE_BYTES_MAX = 1 << 25
BUSY_SILENCES = 6
"""So many times as long one that is busy is waited for."""


class Response:
    """An answer whose body is still to come."""

    def __init__(
        self,
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        silence_s: float = SILENCE_MAX_S,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._connection = connection
        self._reader = reader
        self._silence_s = silence_s
        self._is_busy = is_busy
        self.status = 0

    async def begin(self) -> None:
        event = await self._next_event()
        if isinstance(event, h11.Response):
            self.status = event.status_code

    async def read(self) -> bytes:
        return b"".join([part async for part in self.parts()])

    async def parts(self) -> AsyncIterator[bytes]:
        while True:
            event = await self._next_event()
            if not isinstance(event, h11.Data):
                return
            yield bytes(event.data)

    async def lines(self) -> AsyncIterator[bytes]:
        """The body line by line, each without its end; empty ones mean nothing."""
        pending = b""
        async for part in self.parts():
            *whole, pending = (pending + part).split(b"\n")
            for line in filter(None, whole):
                yield line
            if len(pending) > LINE_BYTES_MAX:
                raise ValueError("line too long")

    async def _next_event(self) -> h11.Event:
        """The next event that matters; a word that it is at work counts as one."""
        while True:
            try:
                event = self._connection.next_event()
                if event is h11.NEED_DATA:
                    self._connection.receive_data(await self._received())
                    continue
            except h11.RemoteProtocolError as error:
                raise ConnectionResetError(str(error)) from error
            if isinstance(event, h11.ConnectionClosed) or not isinstance(
                event, h11.Event
            ):
                raise ConnectionResetError("closed in the middle of an answer")
            if not isinstance(event, h11.InformationalResponse):
                return event

    async def _received(self) -> bytes:
        left = BUSY_SILENCES
        while True:
            try:
                async with asyncio.timeout(self._silence_s):
                    return await self._reader.read(READ_BYTES)
            except TimeoutError:
                left -= 1
                # What tells that is slow to import.
                if left == 0 or not await asyncio.to_thread(self._is_busy):
                    raise


@asynccontextmanager
async def request(
    socket: Path,
    method: str,
    target: str,
    body: bytes = b"",
    *,
    silence_s: float = SILENCE_MAX_S,
    is_busy: Callable[[], bool] = lambda: False,
) -> AsyncIterator[Response]:
    """Send one request on a connection of its own and give its answer.

    An answer may take any time, as long as something comes every ``silence_s``; of one
    that ``is_busy`` in a few of these.

    Raises:
        TimeoutError: nothing came for too long.
        OSError: nobody listens, or the connection broke.
    """
    reader, writer = await asyncio.open_unix_connection(str(socket))
    connection = h11.Connection(h11.CLIENT)
    headers = [("Host", "controller"), ("Content-Length", str(len(body)))]
    if program := ASKING.get().program:
        headers.append((PROGRAM_HEADER, program))
    agent = os.environ.get("SSH_AUTH_SOCK", "")
    if agent and agent.isascii() and agent.isprintable():
        headers.append((AGENT_HEADER, agent))
    try:
        for event in (
            h11.Request(method=method, target=target, headers=headers),
            *([h11.Data(data=body)] if body else []),
            h11.EndOfMessage(),
        ):
            writer.write(connection.send(event) or b"")
        async with asyncio.timeout(silence_s):
            await writer.drain()
        response = Response(connection, reader, silence_s, is_busy)
        await response.begin()
        yield response
    finally:
        writer.close()


class ClientFacts(Value, frozen=True, kw_only=True):
    program: str = ""
    readonly: bool = False
    """True if it only watches: nothing is asked that would change anything."""


_ANYBODY = ClientFacts()
ASKING: ContextVar[ClientFacts] = ContextVar("asking", default=_ANYBODY)
"""Set once by the program that the user started."""

_HARMLESS = re.compile(
    "/v1/(?:propose|prepare|memory|speeds|best|chat|chats|chats/.*|peers/[^/]+/probe"
    "|models/hash|models/cache|models/removal|models/leftovers"
    "|doctor/health|doctor/ways)"
)
"""Requests by POST that change nothing of a cluster: plans are reckoned, machines
looked at, a model is asked."""


class ReadOnly(UsageError):
    def __init__(self, what: str = "This") -> None:
        super().__init__(
            f"{what} is refused: read-only, nothing changed",
            "To make changes leave out --readonly, or readonly in config.toml.",
        )


def require_allowed(method: str, target: str) -> None:
    """Refuse a request of a read-only client that would change something.

    What is not known to be harmless is refused.
    """
    path = target.partition("?")[0]
    harmless = method == "GET" or (method == "POST" and _HARMLESS.fullmatch(path))
    if ASKING.get().readonly and not harmless:
        raise ReadOnly()
