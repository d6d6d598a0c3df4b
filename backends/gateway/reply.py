"""The answer to one client: as llama-server gives it, and honest when it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus

import aiohttp
from aiohttp import StreamReader, web

from backends.engine.sse import EndlessEvent, Splitter
from backends.gateway.api_shapes import (
    EVENTS,
    KEEP_ALIVE,
    EndMark,
    cross_origin,
    error_body,
    error_event,
    passed_on,
    unavailable,
)
from backends.gateway.continuation import CannotResume
from backends.gateway.resumable_stream import ResumableStream
from backends.gateway.upstream import UpstreamAnswer
from backends.units import format_seconds

HEALED = "X-Dllm-Healed"
"""A client that sends this field is told at the end of a stream that it was healed."""
LOST = "llama-server ended in the middle of the answer"
KEEP_ALIVE_S = 5.0
"""Between two comments to a client that waits for a stream."""
ERROR_BYTES_MAX = 1 << 20


class ClientLeft(Exception):
    """The client reads the answer no more."""


class _Response(web.StreamResponse):
    """Its header fields leave with its first piece, or at a word before that."""

    # Nothing else keeps aiohttp from sending them apart.
    _send_headers_immediately = False


class ResponseWriter:
    def __init__(
        self, request: web.BaseRequest, stream: ResumableStream | None = None
    ) -> None:
        self._request = request
        self.stream = stream
        self._end_mark = EndMark(request.path)
        self._response: web.StreamResponse | None = None
        self.carries_answer = False
        """True if anything of llama-server's answer was sent."""
        self.broken = False
        """True if it ended by an error of ours."""
        self._is_unread = False
        """True if the answer was sent unread: no llama-server can continue it."""
        self._is_over = False
        self._pauses_s: list[float] = []
        self._is_healed = False
        self._piece_at = time.monotonic()
        self.paused: Callable[[float], None] = lambda _: None
        """Told of each pause of a stream, as long as its client saw it."""
        self._written_at = time.monotonic()

    @property
    def is_begun(self) -> bool:
        """True once its header fields are settled: no other answer can be given."""
        return self._response is not None

    @property
    def is_stream(self) -> bool:
        response = self._response
        return response is not None and response.content_type == EVENTS

    @property
    def events(self) -> int:
        return self.stream.events if self.stream is not None else 0

    @property
    def why_not(self) -> str:
        """Why no other llama-server is asked for the answer, or its rest."""
        if self.stream is None or self._is_unread or not self.is_stream:
            return LOST if self.carries_answer else ""
        why = self.stream.why_not
        return f"{LOST}; {why}" if why else ""

    def healed(self) -> None:
        """Expect the rest of the answer of another llama-server."""
        self._is_healed = self.carries_answer

    def _look_at_pause(self) -> None:
        now = time.monotonic()
        if self._is_healed:
            self._pauses_s.append(now - self._piece_at)
            self.paused(self._pauses_s[-1])
        self._is_healed, self._piece_at = False, now

    def _told_healed(self) -> bytes:
        if not self._pauses_s or HEALED not in self._request.headers:
            return b""
        times, longest_s = len(self._pauses_s), max(self._pauses_s)
        longest = format_seconds(longest_s)
        return f": healed {times}, paused {longest} at most\n\n".encode()

    @contextlib.contextmanager
    def comforted(self) -> Iterator[None]:
        """Send comments to the client of a stream while llama-server says nothing."""
        comforting = asyncio.ensure_future(self._comfort())
        try:
            yield
        finally:
            comforting.cancel()

    async def _comfort(self) -> None:
        with contextlib.suppress(ClientLeft):
            while True:
                await asyncio.sleep(KEEP_ALIVE_S)
                if self._is_silent:
                    await self.keep_alive()

    @property
    def _is_silent(self) -> bool:
        is_open = self._response is None or (self.is_stream and not self._is_over)
        may_write = is_open and self._end_mark.is_between_events
        return may_write and time.monotonic() - self._written_at >= KEEP_ALIVE_S

    async def keep_alive(self) -> None:
        """Send a comment, so that nobody on the way takes silence for death."""
        if self._response is None:
            headers = {
                **cross_origin(self._request),
                "Content-Type": EVENTS,
                "X-Accel-Buffering": "no",
            }
            await self._begin(_Response(headers=headers))
        await self._write(KEEP_ALIVE)

    async def take(self, answer: UpstreamAnswer) -> web.StreamResponse:
        """Pass on an answer, each piece as it comes.

        Raises:
            aiohttp.ClientError: llama-server broke off.
            OSError: the same.
            ClientLeft: the client did.
        """
        if self.stream is not None and _is_plain_stream(answer):
            return await self._follow(self.stream, answer)
        if self._response is not None and answer.content_type != EVENTS:
            self.broken = self.carries_answer
            return await self._refused(await answer.content.read(ERROR_BYTES_MAX))
        if self._response is None:
            # Known only by now, so what it says of length and coding is true.
            response = _Response(
                status=answer.status,
                reason=answer.reason,
                headers=passed_on(answer.headers),
            )
            await self._begin(response, answer.content)
        # What follows the header fields of a stream may still come from another one.
        self.carries_answer = not self.is_stream
        async for chunk in answer.content.iter_any():
            self.carries_answer = self._is_unread = True
            self._end_mark.look_at(chunk)
            await self._write(chunk)
        if self.is_stream and self._end_mark.is_missing:
            if not self.carries_answer:
                raise aiohttp.ServerDisconnectedError
            return await self.cut()
        return await self._end()

    async def _follow(
        self, stream: ResumableStream, answer: UpstreamAnswer
    ) -> web.StreamResponse:
        if self._response is None:
            headers = passed_on(answer.headers)
            await self._begin(_Response(headers=headers), answer.content)
        splitter = Splitter()
        try:
            async for chunk in answer.content.iter_any():
                data = b"".join(map(stream.take, splitter.take(chunk)))
                self.carries_answer = stream.begun
                if data:
                    self._look_at_pause()
                    await self._write(data)
                else:
                    self._send_head()
        except EndlessEvent as error:
            raise CannotResume(str(error)) from error
        except (aiohttp.ClientError, OSError):
            if not stream.is_told:
                raise
        if not stream.is_told:
            raise aiohttp.ServerDisconnectedError
        return await self._end(stream.ending() + self._told_healed())

    async def refuse(self, message: str) -> web.StreamResponse:
        self.broken = True
        if self._response is not None:
            return await self._refused(error_body(self._request.path, message))
        response = unavailable(self._request, message)
        await response.prepare(self._request)
        await response.write_eof()
        return response

    async def cut(self, message: str = LOST) -> web.StreamResponse:
        """End an answer that breaks off: by an error, never as if it were whole."""
        assert self._response is not None
        self.broken = True
        if self.is_stream and self._end_mark.is_between_events:
            return await self._refused(error_body(self._request.path, message))
        if self._request.transport is not None:
            self._request.transport.abort()
        return self._response

    async def _refused(self, body: bytes) -> web.StreamResponse:
        return await self._end(error_event(self._request.path, body))

    async def _begin(
        self, response: web.StreamResponse, content: StreamReader | None = None
    ) -> None:
        self._response = response
        try:
            await response.prepare(self._request)
            if content is not None:
                # Whatever came behind the fields is read before this goes on.
                await asyncio.sleep(0)
                if not content.total_bytes and not content.is_eof():
                    self._send_head()
        except ConnectionError as error:
            raise ClientLeft from error

    def _send_head(self) -> None:
        try:
            self._request.writer.send_headers()
        except ConnectionError as error:
            raise ClientLeft from error

    async def _write(self, data: bytes) -> None:
        assert self._response is not None
        self._written_at = time.monotonic()
        try:
            await self._response.write(data)
        except ConnectionError as error:
            raise ClientLeft from error

    async def _end(self, rest: bytes = b"") -> web.StreamResponse:
        assert self._response is not None
        self._is_over = True
        try:
            await self._response.write_eof(rest)
        except ConnectionError as error:
            if rest:
                raise ClientLeft from error
        return self._response


def _is_plain_stream(answer: UpstreamAnswer) -> bool:
    coded = "Content-Encoding" in answer.headers
    return (
        answer.status == HTTPStatus.OK and answer.content_type == EVENTS and not coded
    )
