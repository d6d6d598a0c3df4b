"""Passing requests on to whatever llama-server there is, and waiting for one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from contextlib import nullcontext
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Self

import aiohttp
from aiohttp import web
from msgspec.structs import replace

from backends.gateway.api_shapes import (
    RETRY_AFTER_S,
    Refusal,
    has_known_end,
    meanwhile,
    unavailable,
)
from backends.gateway.continuation import CannotResume
from backends.gateway.counters import Count, Counters
from backends.gateway.language import Mode, Target
from backends.gateway.reply import KEEP_ALIVE_S, LOST, ClientLeft, ResponseWriter
from backends.gateway.request import RESUMED_BYTES_MAX, BufferedRequest
from backends.gateway.stream import resumable
from backends.gateway.upstream import Absent, Turns, Upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from backends.gateway.stream import ResumableStream
    from backends.gateway.upstream import Answer
    from backends.state.snapshots import RequestCounts

log = logging.getLogger(__name__)

AGAIN_S = 0.25
"""Between two looks for a llama-server that ought to be there, at first."""
DEATHS_MAX = 3
"""A request that so many llama-servers died of is not tried once more."""
COMPLETION = "/completion"
PEEK_TIMEOUT_S = 5.0
STOPPED = "Nothing serves: the cluster was stopped"
LATE = "No model serves, and none did within the longest wait (api_wait_s)"
TOO_LONG = "llama-server is being started again, and the request is too long to keep"
DEADLY = "llama-server ended while it worked on this request, again and again"
OTHER = f"{LOST}; another model takes its place"


class RetryState:
    """The tries of one request so far, and which llama-server it is for next."""

    def __init__(self) -> None:
        self.last: Target | None = None
        """The target that was tried in vain; None if it is to be tried again."""
        self.deadly: set[str] = set()
        """Every llama-server that went while it may have worked on the request."""
        self.is_begun = False
        """Whether any may have."""
        self.held = 0
        self.pause_s = AGAIN_S
        """Before the same llama-server is tried again."""
        self._events = 0
        self._weights = ""

    def lost(self, target: Target, reply: ResponseWriter, *, accepted: bool) -> None:
        """Note that the target went; a request that it ``accepted`` may be why.

        If more of the answer came from it, it was not what the others died of.
        """
        if reply.carries_answer:
            self._weights = self._weights or target.weights
        if reply.events > self._events:
            self._events = reply.events
            self.deadly.clear()
            self.held = 0
            self.pause_s = AGAIN_S
        self.last = target
        if accepted:
            self.is_begun = True
            self.deadly.add(target.server)

    def is_of_model(self, target: Target) -> bool:
        """Return true if the target has the model that began the answer."""
        return not self._weights or target.weights in ("", self._weights)

    def is_for(self, target: Target) -> bool:
        """Return true if the target takes it; one that drains takes nothing new."""
        return target.mode is Mode.SERVE and (self.is_begun or not target.drains)

    def may_try(self, target: Target) -> bool:
        """Return true if the target is to be asked for the answer, or its rest, now."""
        return self.is_for(target) and target != self.last and self.is_of_model(target)

    def again(self) -> None:
        """Try another target, or the same again."""
        self.last = None
        self.held += 1
        self.pause_s = min(2 * self.pause_s, KEEP_ALIVE_S)


class Lost(Exception):
    """llama-server was not there, or went before the answer was whole.

    ``accepted``: it may have worked on the request.
    """

    def __init__(self, *, accepted: bool) -> None:
        super().__init__()
        self.accepted = accepted


class Proxy:
    """Answers every request of a gateway; an async context manager.

    Until a target is told it holds whatever comes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counters = Counters()
        self.target = Target()
        self._clock = clock
        self._busy: set[tuple[BufferedRequest, ResponseWriter]] = set()
        self._turned = asyncio.Event()
        self._upstream = Upstream()
        self._turns = Turns()

    async def __aenter__(self) -> Self:
        await self._upstream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._upstream.__aexit__(*error)

    def turn_to(self, target: Target) -> None:
        """Serve as the target says; requests that wait look again."""
        if target == self.target:
            return
        log.info("%s: %s", target.mode, target.port or target.why or "no reason told")
        self.target = target
        event, self._turned = self._turned, asyncio.Event()
        event.set()
        self._turns.stir()
        self.counters.stir()

    @property
    def counts(self) -> RequestCounts:
        """The counts, with the answers that another llama-server could not resume."""
        fragile = sum(self._is_fragile(*one) for one in self._busy)
        return replace(self.counters.counts, fragile=fragile, drains=self.target.drains)

    def _is_fragile(self, asked: BufferedRequest, reply: ResponseWriter) -> bool:
        if reply.stream is None:
            return asked.may_stream or not asked.is_replayable
        return self.target.bound or reply.stream.is_fragile

    @contextlib.contextmanager
    def _in_flight(
        self, asked: BufferedRequest, reply: ResponseWriter
    ) -> Iterator[None]:
        one = asked, reply
        with self.counters.during("in_flight"):
            self._busy.add(one)
            try:
                yield
            finally:
                self._busy.discard(one)

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
            response = await self._work(asked, reply)
        except asyncio.CancelledError:
            self.counters.add("left")
            raise
        except ClientLeft:
            self.counters.add("left")
            return web.Response()
        except Refusal as refusal:
            self.counters.add("refused")
            return refusal.response(request)
        self.counters.add("failed" if reply.broken else "passed")
        return response

    async def _resumable(self, asked: BufferedRequest) -> ResumableStream | None:
        """The stream that is asked for, if another llama-server can resume it.

        Raises:
            ClientLeft: the client did not even say all that it wants.
            Refusal: the request is no JSON.
        """
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
        """Answer at once what only looks at something."""
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
        """Pass on the answer to a look; cut it if nothing but header fields came.

        Raises:
            Lost: nothing at all came.
            ClientLeft: nobody waits for it.
        """
        try:
            return await self._pass_on(self.target, asked, reply)
        except Lost:
            if not reply.is_begun:
                raise
            return await reply.cut()

    async def _work(
        self, asked: BufferedRequest, reply: ResponseWriter
    ) -> web.StreamResponse:
        """Answer, with as many llama-servers as it takes."""
        deadline = self._clock() + self.target.hold_s
        retry = RetryState()
        comforted = reply.comforted if asked.wants_stream else nullcontext
        while True:
            target, began = self.target, self._clock()
            if retry.may_try(target):
                try:
                    with self._in_flight(asked, reply), comforted():
                        async with self._turn(target, asked, retry) as is_ours:
                            # The wait for a slot has no limit.
                            deadline += self._clock() - began
                            if not is_ours:
                                continue
                            return await self._pass_on(target, asked, reply)
                except Lost as error:
                    if error.accepted and target.server not in retry.deadly:
                        # Nor has the answer.
                        deadline = self._clock() + self.target.hold_s
                    retry.lost(target, reply, accepted=error.accepted)
            began = self._clock()
            refusal = self._refusal(asked, retry, deadline)
            if not refusal and await self._hold(asked, reply, retry, deadline):
                waited_s = self._clock() - began
                self.counters.went_on(waited_s, again=retry.held > 0)
                again: Count = "continued" if reply.carries_answer else "replayed"
                self.counters.add(again, int(bool(retry.deadly)))
                reply.healed()
                retry.again()
                continue
            why = refusal or self._refusal(asked, retry, deadline) or LATE
            return await reply.refuse(why, RETRY_AFTER_S)

    @contextlib.asynccontextmanager
    async def _turn(
        self, target: Target, asked: BufferedRequest, retry: RetryState
    ) -> AsyncIterator[bool]:
        """Take a turn at llama-server; False if the target has changed meanwhile."""
        if not target.slots or not has_known_end(asked.path):
            yield True
            return
        is_ours = await self._turns.take(target.slots, is_first=retry.is_begun)
        try:
            yield is_ours
        finally:
            if is_ours:
                self._turns.give()

    def _refusal(
        self, asked: BufferedRequest, retry: RetryState, deadline: float
    ) -> str:
        """Why a request waits no longer; empty as long as it may."""
        if self.target.mode is Mode.END:
            return self.target.why or STOPPED
        if not retry.is_of_model(self.target):
            return OTHER
        if not asked.is_replayable:
            return TOO_LONG
        if len(retry.deadly) >= DEATHS_MAX:
            return DEADLY
        return (self.target.why or LATE) if self._clock() >= deadline else ""

    async def _hold(
        self,
        asked: BufferedRequest,
        reply: ResponseWriter,
        retry: RetryState,
        deadline: float,
    ) -> bool:
        """Wait for a llama-server; False if there will be none for this request."""
        began = comment_at = self._clock()
        with self.counters.during("waiting"):
            while not self._refusal(asked, retry, deadline):
                now, target, turned = self._clock(), self.target, self._turned
                if await _may_go_on(target, retry, now - began):
                    return True
                if asked.wants_stream and now - comment_at >= KEEP_ALIVE_S:
                    comment_at = now
                    await reply.keep_alive()
                pause_s = AGAIN_S if retry.is_for(target) else KEEP_ALIVE_S
                await _wait(turned, min(pause_s, deadline - now))
        return False

    async def _pass_on(
        self, target: Target, asked: BufferedRequest, reply: ResponseWriter
    ) -> web.StreamResponse:
        """Pass on the answer of llama-server, whole or cut short by its end.

        Raises:
            Lost: there was none.
            ClientLeft: nobody waits for it.
        """
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
    ) -> Answer:
        """Ask for the answer, or for what is left of it.

        Raises:
            CannotResume: that cannot be asked for.
        """
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
        """Ask llama-server something of ours.

        Raises:
            CannotResume: it refuses to.
        """
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
    ) -> Answer:
        # What is kept takes one of llama-server's threads, and others may wait for it.
        return await self._upstream.ask(
            target.port,
            asked.method,
            path,
            headers=asked.headers,
            body=body,
            keep=body is not None and len(self._busy) == 1,
        )


async def _may_go_on(target: Target, retry: RetryState, waited_s: float) -> bool:
    if not retry.is_for(target):
        return False
    if target != retry.last:
        return True
    return waited_s >= retry.pause_s and await _listens(target)


async def _listens(target: Target) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", target.port)
    except OSError:
        return False
    writer.close()
    return True


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(timeout_s, 0.0)):
            await event.wait()
