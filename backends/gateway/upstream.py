"""Asking llama-server.

aiohttp's parser, writer and protocol do the work. Its ``ClientSession`` adds redirects,
cookies, proxies, traces and a pool. They cost half a millisecond of a request's first
token. So it is used only if a body goes through in pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Self

import aiohttp
from aiohttp import StreamReader
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError, StreamWriter
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

HERE = "127.0.0.1"
CONNECT_TIMEOUT_S = 5.0
KEPT_S = 2.0
"""A connection is kept so long for the next request. llama-server closes one after each
stream, so a new one is opened then; it closes an idle one after 5 s."""
OURS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Fields that aiohttp would add: clients know best."""
BODILESS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods of which nobody expects a body; others say that theirs is empty."""


INTERIM = frozenset(range(100, 200)) - {101}
"""Codes of messages that are not the answer yet."""


class Absent(OSError):
    """A port at which nobody listens: nothing can have come of the question."""


class UpstreamConnection(ResponseHandler):
    """One that can tell who keeps it for later that llama-server closed it."""

    on_lost: Callable[[], None] | None = None

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()


@dataclass(frozen=True, eq=False, repr=False)
class UpstreamAnswer:
    """An answer of llama-server, as it comes."""

    status: int
    reason: str | None
    headers: CIMultiDictProxy[str]
    content: StreamReader
    _connection: UpstreamConnection | aiohttp.ClientResponse

    @property
    def content_type(self) -> str:
        """Without its parameters, in lower case; empty where none is told."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    async def read(self) -> bytes:
        """All of it; no more is read afterwards, whatever comes of it."""
        try:
            return await self.content.read()
        finally:
            self.close()

    def close(self) -> None:
        """Read no more; llama-server ends what it works on for an unfinished one."""
        if not self.content.is_eof():
            self._connection.close()


class Upstream:
    """Connections to whatever llama-server there is; an async context manager."""

    def __init__(self) -> None:
        self._kept: tuple[int, UpstreamConnection] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=OURS,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop_preparing()
        self._drop()
        await self._session.close()

    async def ask(
        self,
        port: int,
        method: str,
        path: str,
        *,
        headers: CIMultiDict[str] | None = None,
        body: bytes | AsyncIterator[bytes] | None = None,
        keep: bool = False,
    ) -> UpstreamAnswer:
        """Ask llama-server at that port; the answer is there from its header fields on.

        ``keep``: the connection may be one that was kept, and be kept afterwards. It
        takes one of llama-server's threads meanwhile, for which others may wait.

        Raises:
            Absent: nobody listens there.
            aiohttp.ClientError: llama-server broke off, or does not speak HTTP.
            OSError: the connection broke.
        """
        fields = CIMultiDict(headers or {})
        if body is not None and not isinstance(body, bytes):
            return await self._ask_in_pieces(port, method, path, fields, body)
        fields.setdefault("Host", f"{HERE}:{port}")
        if body is not None or method not in BODILESS:
            fields["Content-Length"] = str(len(body or b""))
        if not keep:
            fields["Connection"] = "close"
            return await self._ask(await _connected(port), method, path, fields, body)
        if (kept := self._taken(port)) is not None:
            try:
                return await self._ask(kept, method, path, fields, body, port)
            except aiohttp.ServerDisconnectedError as error:
                # Through an SSH tunnel it is seen late that it was closed.
                lost = error
            try:
                connection = await _connected(port)
            except Absent:
                raise lost from None
        else:
            connection = await _connected(port)
        return await self._ask(connection, method, path, fields, body, port)

    async def _ask(
        self,
        connection: UpstreamConnection,
        method: str,
        path: str,
        fields: CIMultiDict[str],
        body: bytes | None,
        kept_for: int | None = None,
    ) -> UpstreamAnswer:
        connection.set_response_params(
            skip_payload=method == "HEAD", read_until_eof=True, auto_decompress=False
        )
        try:
            writer = StreamWriter(connection, asyncio.get_running_loop())
            await writer.write_headers(f"{method} {path} HTTP/1.1", fields)
            await writer.write_eof(body or b"")
            message, content = await connection.read()
            while message.code in INTERIM:
                message, content = await connection.read()
        except BaseException as error:
            connection.close()
            if isinstance(error, HttpProcessingError):
                raise aiohttp.ClientError(f"no HTTP: {error.message}") from error
            raise
        content.on_eof(partial(self._release, connection, kept_for))
        return UpstreamAnswer(
            message.code, message.reason, message.headers, content, connection
        )

    async def _ask_in_pieces(
        self,
        port: int,
        method: str,
        path: str,
        fields: CIMultiDict[str],
        body: AsyncIterator[bytes],
    ) -> UpstreamAnswer:
        url = URL(f"http://{HERE}:{port}{path}", encoded=True)
        try:
            answer = await self._session.request(
                method, url, headers=fields, data=body, allow_redirects=False
            )
        except aiohttp.ClientConnectorError as error:
            raise Absent(error.errno, error.strerror) from error
        status, reason = answer.status, answer.reason
        return UpstreamAnswer(status, reason, answer.headers, answer.content, answer)

    # --- connections that are kept ------------------------------------------------

    def _release(self, connection: UpstreamConnection, port: int | None) -> None:
        """Its answer is whole: have one for that port ready, or have done with it."""
        if port is None:
            connection.close()
        elif connection.should_close:
            connection.close()
            self._prepare(port)
        else:
            self._keep(port, connection)
            # After a stream llama-server closes it, a moment later.
            connection.on_lost = partial(self._renew, port)

    def _renew(self, port: int) -> None:
        self._forget()
        self._prepare(port)

    def _prepare(self, port: int) -> None:
        self._stop_preparing()
        self._preparing = asyncio.create_task(self._connect_ahead(port))

    def _stop_preparing(self) -> None:
        if self._preparing is not None:
            self._preparing.cancel()

    async def _connect_ahead(self, port: int) -> None:
        with contextlib.suppress(Absent):
            self._keep(port, await _connected(port))

    def _keep(self, port: int, connection: UpstreamConnection) -> None:
        self._drop()
        self._kept = port, connection
        self._expiry = asyncio.get_running_loop().call_later(KEPT_S, self._drop)

    def _taken(self, port: int) -> UpstreamConnection | None:
        if self._kept is None:
            return None
        kept_for, connection = self._kept
        if kept_for != port or not connection.is_connected():
            self._drop()
            return None
        self._forget()
        return connection

    def _drop(self) -> None:
        if self._kept is not None:
            self._kept[1].close()
        self._forget()

    def _forget(self) -> None:
        if self._kept is not None:
            self._kept[1].on_lost = None
        self._kept = None
        if self._expiry is not None:
            self._expiry.cancel()


async def _connected(port: int) -> UpstreamConnection:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            connecting = loop.create_connection(
                partial(UpstreamConnection, loop), HERE, port
            )
            _, connection = await connecting
    except OSError as error:
        raise Absent(error.errno, error.strerror) from error
    return connection
