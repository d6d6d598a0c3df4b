"""Passing requests on to whatever llama-server there is, and its answers back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from http import HTTPStatus
from typing import Self

import aiohttp
from aiohttp import web
from msgspec.structs import replace

from backends.gateway.api_shapes import Refusal, meanwhile, unavailable
from backends.gateway.continuation import CannotResume
from backends.gateway.control_messages import Mode, Target
from backends.gateway.counters import Count
from backends.gateway.reply import LOST, ClientLeft, ResponseWriter
from backends.gateway.request import RESUMED_BYTES_MAX, BufferedRequest
from backends.gateway.request_queue import STOPPED, Lost, Queue
from backends.gateway.resumable_stream import ResumableStream, resumable
from backends.gateway.upstream import Absent, Upstream, UpstreamAnswer
from backends.state.snapshots import RequestCounts

log = logging.getLogger(__name__)

COMPLETION = "/completion"
PEEK_TIMEOUT_S = 5.0


class Proxy:
    """Answers every request of a gateway; an async context manager."""

    def __init__(self) -> None:
        self.queue = Queue()
        self.counters = self.queue.counters
        self._upstream = Upstream()

    async def __aenter__(self) -> Self:
        await self._upstream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._upstream.__aexit__(*error)

    @property
    def target(self) -> Target:
        return self.queue.target

    @property
    def counts(self) -> RequestCounts:
        fragile = sum(self._is_fragile(*one) for one in self.queue.in_flight)
        return replace(self.counters.counts, fragile=fragile, drains=self.target.drains)

    def _is_fragile(self, asked: BufferedRequest, reply: ResponseWriter) -> bool:
        if reply.stream is None:
            return asked.may_stream or not asked.is_replayable
        return self.target.bound or reply.stream.is_fragile

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; the client left if this is cancelled."""
        if not request.raw_path.startswith("/"):
            return web.Response(status=400, text="The request names no path.\n")
        asked = BufferedRequest(request)
        if not asked.is_work:
            return await self._glance(asked, ResponseWriter(request))
        try:
            reply = ResponseWriter(request, await self._resumable(asked))
            reply.paused = self.counters.paused
            response = await self.queue.answered(
                asked, reply, lambda target: self._pass_on(target, asked, reply)
            )
        except asyncio.CancelledError:
            self._ended(asked, "left")
            raise
        except ClientLeft:
            self._ended(asked, "left")
            return web.Response()
        except Refusal as refusal:
            self.counters.add("refused")
            return refusal.response(request)
        self._ended(asked, "failed" if reply.broken else "passed")
        return response

    def _ended(self, asked: BufferedRequest, how: Count) -> None:
        if asked.wants_answer:
            self.counters.add(how)

    async def _resumable(self, asked: BufferedRequest) -> ResumableStream | None:
        try:
            await asked.decode()
            length = asked.request.content_length or 0
            if asked.options is None or length > RESUMED_BYTES_MAX:
                return None
            raw, may_seed = await asked.read(), not self.target.seeded
        except (aiohttp.ClientError, OSError) as error:
            raise ClientLeft from error
        stream = resumable(asked.path, raw, asked.options, may_seed=may_seed)
        if stream is not None:
            asked.replace(stream.first_body)
        return stream

    async def _glance(
        self, asked: BufferedRequest, reply: ResponseWriter
    ) -> web.StreamResponse:
        if self.target.mode is Mode.SERVE:
            try:
                return await self._glanced(asked, reply)
            except Lost:
                log.info("llama-server does not answer at port %d", self.target.port)
            except ClientLeft:
                return web.Response()
        there = meanwhile(asked.request, self.target)
        return there or unavailable(asked.request, self.target.why or STOPPED)

    async def _glanced(
        self, asked: BufferedRequest, reply: ResponseWriter
    ) -> web.StreamResponse:
        """Pass on the answer to a look; cut it if nothing but header fields came."""
        try:
            return await self._pass_on(self.target, asked, reply)
        except Lost:
            if not reply.is_begun:
                raise
            return await reply.cut()

    async def _pass_on(
        self, target: Target, asked: BufferedRequest, reply: ResponseWriter
    ) -> web.StreamResponse:
        """Pass on the answer of llama-server, whole or cut short by its end."""
        try:
            answer = await self._ask(target, asked, reply.stream)
        except CannotResume as error:
            return await reply.cut(f"{LOST}; {error}")
        except Absent as error:
            raise Lost(accepted=False) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Lost(accepted=True) from error
        try:
            return await reply.take(answer)
        except CannotResume as error:
            return await reply.cut(f"{LOST}; {error}")
        except (aiohttp.ClientError, OSError) as error:
            if why := reply.why_not:
                return await reply.cut(why)
            raise Lost(accepted=True) from error
        finally:
            # Ends the request there too, if the client left in the middle.
            answer.close()

    async def _ask(
        self, target: Target, asked: BufferedRequest, stream: ResumableStream | None
    ) -> UpstreamAnswer:
        path, body = asked.request.raw_path, await asked.body()
        if stream is not None:
            fetch = partial(self.fetch, target, asked)
            rest = await stream.next_body(fetch, bound=target.bound)
            if rest is not None:
                path, body = COMPLETION, rest
        return await self._request(target, asked, path, body)

    async def fetch(
        self, target: Target, asked: BufferedRequest, path: str, body: bytes
    ) -> bytes:
        """Ask llama-server something of ours."""
        answer = await self._request(target, asked, path, body)
        raw = await answer.read()
        if answer.status != HTTPStatus.OK:
            raise CannotResume(f"llama-server refuses {path}")
        return raw

    async def peek(self, path: str) -> bytes:
        """The answer of llama-server to a GET, empty if there is none."""
        if self.target.mode is not Mode.SERVE:
            return b""
        try:
            async with asyncio.timeout(PEEK_TIMEOUT_S):
                answer = await self._upstream.ask(self.target.port, "GET", path)
                raw = await answer.read()
        except (aiohttp.ClientError, OSError):
            return b""
        return raw if answer.status == HTTPStatus.OK else b""

    async def _request(
        self,
        target: Target,
        asked: BufferedRequest,
        path: str,
        body: bytes | AsyncIterator[bytes] | None,
    ) -> UpstreamAnswer:
        # What is kept takes one of llama-server's threads, and others may wait for it.
        return await self._upstream.ask(
            target.port,
            asked.method,
            path,
            headers=asked.headers,
            body=body,
            keep=body is not None and len(self.queue.in_flight) == 1,
        )
