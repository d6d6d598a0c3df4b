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

from backends.gateway.apis import (
    RETRY_AFTER_S,
    has_known_end,
    meanwhile,
    unavailable,
)
from backends.gateway.asked import Asked
from backends.gateway.language import Mode, Target
from backends.gateway.refusals import Refusal
from backends.gateway.reply import KEEP_ALIVE_S, LOST, ClientLeft, Reply
from backends.gateway.tally import Count, Tally
from backends.gateway.tokens import CannotGoOn
from backends.gateway.tries import AGAIN_S, Tries
from backends.gateway.upstream import Absent, Turns, Upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from backends.gateway.story import Story
    from backends.gateway.upstream import Answer
    from backends.state.snapshots import RequestCounts

log = logging.getLogger(__name__)

DEATHS_MAX = 3
"""A request that so many llama-servers died of is not tried once more."""
COMPLETION = "/completion"
PEEK_TIMEOUT_S = 5.0
STOPPED = "Nothing serves: the cluster was stopped"
LATE = "No model serves, and none did within the longest wait (api_wait_s)"
TOO_LONG = "llama-server is being started again, and the request is too long to keep"
DEADLY = "llama-server ended while it worked on this request, again and again"
OTHER = f"{LOST}; another model takes its place"


class Lost(Exception):
    """llama-server was not there, or went before it answered anything."""

    def __init__(self, *, accepted: bool) -> None:
        """``accepted``: it may have worked on the request."""
        super().__init__()
        self.accepted = accepted


class Proxy:
    """Answers every request of a gateway; use as an async context manager."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Hold whatever comes until a target is told."""
        self.tally = Tally()
        self.target = Target()
        self._clock = clock
        self._busy: set[tuple[Asked, Reply]] = set()
        self._turned = asyncio.Event()
        self._upstream = Upstream()
        self._turns = Turns()

    async def __aenter__(self) -> Self:
        """Be able to connect."""
        await self._upstream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close every connection."""
        await self._upstream.__aexit__(*error)

    def turn_to(self, target: Target) -> None:
        """Serve like this from here on; requests that wait look again."""
        if target == self.target:
            return
        log.info("%s: %s", target.mode, target.port or target.why or "no reason told")
        self.target = target
        event, self._turned = self._turned, asyncio.Event()
        event.set()
        self._turns.stir()
        self.tally.stir()

    @property
    def counts(self) -> RequestCounts:
        """The tally, and what another llama-server in this one's place would break."""
        fragile = sum(self._is_fragile(*one) for one in self._busy)
        return replace(self.tally.counts, fragile=fragile, drains=self.target.drains)

    def _is_fragile(self, asked: Asked, reply: Reply) -> bool:
        """Whether no other llama-server could give this answer, or its rest.

        Of a stream that nobody goes on with it counts from the beginning: its first
        piece may come at any moment.
        """
        if reply.story is None:
            return asked.streams or not asked.replayable
        return self.target.bound or reply.story.is_fragile

    @contextlib.contextmanager
    def _in_flight(self, asked: Asked, reply: Reply) -> Iterator[None]:
        one = asked, reply
        with self.tally.during("in_flight"):
            self._busy.add(one)
            try:
                yield
            finally:
                self._busy.discard(one)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; being cancelled means that its client left."""
        if not request.raw_path.startswith("/"):
            return web.Response(status=400, text="The request names no path.\n")
        asked = Asked(request)
        if not asked.is_work:
            return await self._glance(asked, Reply(request))
        try:
            story = await _story(asked, may_seed=not self.target.seeded)
            reply = Reply(request, story)
            reply.paused = self.tally.paused
            response = await self._work(asked, reply)
        except asyncio.CancelledError:
            self.tally.add("left")
            raise
        except ClientLeft:
            self.tally.add("left")
            return web.Response()
        except Refusal as refusal:
            self.tally.add("refused")
            return refusal.response(request)
        self.tally.add("failed" if reply.broken else "passed")
        return response

    async def _glance(self, asked: Asked, reply: Reply) -> web.StreamResponse:
        """What only looks at something waits for nothing."""
        if self.target.mode is Mode.SERVE:
            try:
                return await self._glanced(asked, reply)
            except Lost:
                log.info("llama-server does not answer at port %d", self.target.port)
            except ClientLeft:
                return web.Response()
        there = meanwhile(asked.request, self.target)
        return there or unavailable(asked.request, self.target.why or STOPPED)

    async def _glanced(self, asked: Asked, reply: Reply) -> web.StreamResponse:
        """The answer to a look; cut where nothing came of it but header fields.

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

    async def _work(self, asked: Asked, reply: Reply) -> web.StreamResponse:
        """The answer, of as many llama-servers as it takes."""
        deadline = self._clock() + self.target.hold_s
        tries = Tries()
        comforted = reply.comforted if asked.wants_stream else nullcontext
        while True:
            target = self.target
            if tries.may_try(target):
                try:
                    with self._in_flight(asked, reply), comforted():
                        async with self._turn(target, asked, tries) as is_ours:
                            # It is the wait for llama-server that has a limit.
                            deadline = self._clock() + self.target.hold_s
                            if not is_ours:
                                continue
                            return await self._pass_on(target, asked, reply)
                except Lost as error:
                    tries.look_at(reply, target)
                    if error.accepted and target.server not in tries.deadly:
                        # It is the wait that has a limit, not the answer.
                        deadline = self._clock() + self.target.hold_s
                    tries.lost(target, accepted=error.accepted)
            began = self._clock()
            refusal = self._refusal(asked, tries, deadline)
            if not refusal and await self._hold(asked, reply, tries, deadline):
                waited_s = self._clock() - began
                self.tally.went_on(waited_s, again=tries.held > 0)
                again: Count = "continued" if reply.carries_answer else "replayed"
                self.tally.add(again, int(bool(tries.deadly)))
                reply.healed()
                tries.go_on()
                continue
            why = refusal or self._refusal(asked, tries, deadline) or LATE
            return await reply.refuse(why, RETRY_AFTER_S)

    @contextlib.asynccontextmanager
    async def _turn(
        self, target: Target, asked: Asked, tries: Tries
    ) -> AsyncIterator[bool]:
        """A turn at llama-server; False if it serves no more like this."""
        if not target.slots or not has_known_end(asked.path):
            yield True
            return
        is_ours = await self._turns.take(target.slots, is_first=tries.begun)
        try:
            yield is_ours
        finally:
            if is_ours:
                self._turns.give()

    def _refusal(self, asked: Asked, tries: Tries, deadline: float) -> str:
        """Why a request waits no longer; empty where it may."""
        if self.target.mode is Mode.END:
            return self.target.why or STOPPED
        if not tries.are_of(self.target):
            return OTHER
        if not asked.replayable:
            return TOO_LONG
        if len(tries.deadly) >= DEATHS_MAX:
            return DEADLY
        return (self.target.why or LATE) if self._clock() >= deadline else ""

    async def _hold(
        self, asked: Asked, reply: Reply, tries: Tries, deadline: float
    ) -> bool:
        """Wait for a llama-server; False where there will be none for this request."""
        began = comment_at = self._clock()
        with self.tally.during("waiting"):
            while not self._refusal(asked, tries, deadline):
                now, target, turned = self._clock(), self.target, self._turned
                if await _may_go_on(target, tries, now - began):
                    return True
                if asked.wants_stream and now - comment_at >= KEEP_ALIVE_S:
                    comment_at = now
                    await reply.keep_alive()
                pause_s = AGAIN_S if tries.is_for(target) else KEEP_ALIVE_S
                await _wait(turned, min(pause_s, deadline - now))
        return False

    async def _pass_on(
        self, target: Target, asked: Asked, reply: Reply
    ) -> web.StreamResponse:
        """The answer of llama-server, whole or cut short by its end.

        Raises:
            Lost: there was none.
            ClientLeft: nobody waits for it.
        """
        try:
            answer = await self._ask(target, asked, reply.story)
        except CannotGoOn as error:
            return await reply.cut(f"{LOST}; {error}")
        except Absent as error:
            raise Lost(accepted=False) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Lost(accepted=True) from error
        try:
            return await reply.take(answer)
        except CannotGoOn as error:
            return await reply.cut(f"{LOST}; {error}")
        except (aiohttp.ClientError, OSError) as error:
            if why := reply.why_not:
                return await reply.cut(why)
            raise Lost(accepted=True) from error
        finally:
            # Ends the request there too, if the client left in the middle.
            answer.close()

    async def _ask(self, target: Target, asked: Asked, story: Story | None) -> Answer:
        """Ask what the client asked, or for what is left of the answer.

        Raises:
            CannotGoOn: that cannot be asked for.
        """
        path, body = asked.request.raw_path, await asked.body()
        if story is not None:
            fetch = partial(self.fetch, target, asked)
            rest = await story.next_body(fetch, bound=target.bound)
            if rest is not None:
                path, body = COMPLETION, rest
        return await self._request(target, asked, path, body)

    async def fetch(
        self, target: Target, asked: Asked, path: str, body: bytes
    ) -> bytes:
        """What llama-server answers to a question of ours.

        Raises:
            CannotGoOn: it refuses to.
        """
        answer = await self._request(target, asked, path, body)
        raw = await answer.read()
        if answer.status != HTTPStatus.OK:
            raise CannotGoOn(f"llama-server refuses {path}")
        return raw

    async def peek(self, path: str) -> bytes:
        """What llama-server says there, for us to pass on; nothing if it does not."""
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
        asked: Asked,
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


async def _story(asked: Asked, *, may_seed: bool) -> Story | None:
    """How the answer could be gone on with.

    Raises:
        ClientLeft: the client did not even tell all that it wants.
    """
    try:
        return await asked.story(may_seed=may_seed)
    except (aiohttp.ClientError, OSError) as error:
        raise ClientLeft from error


async def _may_go_on(target: Target, tries: Tries, waited_s: float) -> bool:
    """Whether there is another llama-server than was tried last, or the same again."""
    if not tries.is_for(target):
        return False
    if target != tries.last:
        return True
    return waited_s >= tries.pause_s and await _listens(target)


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
