"""Waiting for the cluster: requests held while nothing serves, and turns at its slots.

A request is tried at one llama-server after another, until one has answered all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import nullcontext

from aiohttp import web

from backends.gateway.api_shapes import has_known_end
from backends.gateway.control_messages import Mode, Target
from backends.gateway.counters import Count, Counters
from backends.gateway.reply import KEEP_ALIVE_S, LOST, ResponseWriter
from backends.gateway.request import BufferedRequest

log = logging.getLogger(__name__)

AGAIN_S = 0.25
"""Between two looks for a llama-server that ought to be there, at first."""
DEATHS_MAX = 3
"""A request that so many llama-servers died of is not tried once more."""
STOPPED = "Nothing serves: the cluster was stopped"
LATE = "No model serves, and none did within the longest wait (api_wait_s)"
TOO_LONG = "llama-server is being started again, and the request is too long to keep"
DEADLY = "llama-server ended while it worked on this request, again and again"
OTHER = f"{LOST}; another model takes its place"


class Lost(Exception):
    """llama-server was not there, or went before the answer was whole.

    ``accepted``: it may have worked on the request.
    """

    def __init__(self, *, accepted: bool) -> None:
        super().__init__()
        self.accepted = accepted


class RetryState:
    """The tries of one request so far, and which llama-server it is for next."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        """Refused if nothing serves by then."""
        self.last: Target | None = None
        """The target that was tried in vain; None if it is to be tried again."""
        self.deadly: set[str] = set()
        """Every llama-server that went while it may have worked on the request."""
        self.is_begun = False
        """True if any may have."""
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
        return not self._weights or target.weights in ("", self._weights)

    def is_for(self, target: Target) -> bool:
        """True if the target takes it; one that drains takes nothing new."""
        return target.mode is Mode.SERVE and (self.is_begun or not target.drains)

    def may_try(self, target: Target) -> bool:
        """True if the target is to be asked for the answer, or its rest, now."""
        return self.is_for(target) and target != self.last and self.is_of_model(target)

    async def may_go_on(self, target: Target, waited_s: float) -> bool:
        if not self.is_for(target):
            return False
        if target != self.last:
            return True
        return waited_s >= self.pause_s and await _listens(target)

    def again(self) -> None:
        self.last = None
        self.held += 1
        self.pause_s = min(2 * self.pause_s, KEEP_ALIVE_S)


class Turns:
    """Lets no more requests to llama-server than it has slots.

    It looks but once a second whether anybody still waits for what it has queued. What
    waits here costs nothing once its client has left.
    """

    def __init__(self) -> None:
        self._taken = 0
        self._slots = 0
        self._queue: deque[asyncio.Future[bool]] = deque()

    async def take(self, slots: int, *, is_first: bool) -> bool:
        """Wait for a turn, which is then to be given back; False after ``stir``.

        ``is_first``: before all others that wait.
        """
        self._slots = slots
        if self._taken < slots:
            self._taken += 1
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        (self._queue.appendleft if is_first else self._queue.append)(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.result():
                self.give()
            raise

    def give(self) -> None:
        """Give a turn back; whoever waits longest gets it if there are slots for it."""
        self._taken -= 1
        while self._queue and self._taken < self._slots:
            turn = self._queue.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(True)

    def stir(self) -> None:
        """Send all that wait away: they are to look what serves now."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(False)


class Queue:
    """The requests of a gateway, and the target that they are for.

    Until a target is told it holds whatever comes.
    """

    def __init__(self) -> None:
        self.counters = Counters()
        self.target = Target()
        self.in_flight: set[tuple[BufferedRequest, ResponseWriter]] = set()
        """Requests with llama-server, or next in turn."""
        self._turned = asyncio.Event()
        self._turns = Turns()

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

    async def answered(
        self,
        asked: BufferedRequest,
        reply: ResponseWriter,
        pass_on: Callable[[Target], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Answer a request with as many llama-servers as it takes.

        ``pass_on`` passes the answer of one on, and raises ``Lost`` if there is none.
        """
        retry = RetryState(time.monotonic() + self.target.hold_s)
        comforted = reply.comforted if asked.wants_stream else nullcontext
        while True:
            target, began = self.target, time.monotonic()
            if retry.may_try(target):
                try:
                    with self._in_flight(asked, reply), comforted():
                        async with self._turn(target, asked, retry) as is_ours:
                            # The wait for a slot has no limit.
                            retry.deadline += time.monotonic() - began
                            if not is_ours:
                                continue
                            return await pass_on(target)
                except Lost as error:
                    if error.accepted and target.server not in retry.deadly:
                        # Nor has the answer.
                        retry.deadline = time.monotonic() + self.target.hold_s
                    retry.lost(target, reply, accepted=error.accepted)
            began = time.monotonic()
            refusal = self._refusal(asked, retry)
            if not refusal and await self._hold(asked, reply, retry):
                waited_s = time.monotonic() - began
                self.counters.went_on(waited_s, again=retry.held > 0)
                again: Count = "continued" if reply.carries_answer else "replayed"
                self.counters.add(again, int(bool(retry.deadly)))
                reply.healed()
                retry.again()
                continue
            why = refusal or self._refusal(asked, retry) or LATE
            return await reply.refuse(why)

    @contextlib.contextmanager
    def _in_flight(
        self, asked: BufferedRequest, reply: ResponseWriter
    ) -> Iterator[None]:
        with self.counters.during("in_flight"):
            self.in_flight.add((asked, reply))
            try:
                yield
            finally:
                self.in_flight.discard((asked, reply))

    @contextlib.asynccontextmanager
    async def _turn(
        self, target: Target, asked: BufferedRequest, retry: RetryState
    ) -> AsyncIterator[bool]:
        if not target.slots or not has_known_end(asked.path):
            yield True
            return
        is_ours = await self._turns.take(target.slots, is_first=retry.is_begun)
        try:
            yield is_ours
        finally:
            if is_ours:
                self._turns.give()

    def _refusal(self, asked: BufferedRequest, retry: RetryState) -> str:
        if self.target.mode is Mode.END:
            return self.target.why or STOPPED
        if not retry.is_of_model(self.target):
            return OTHER
        if not asked.is_replayable:
            return TOO_LONG
        if len(retry.deadly) >= DEATHS_MAX:
            return DEADLY
        return (self.target.why or LATE) if time.monotonic() >= retry.deadline else ""

    async def _hold(
        self, asked: BufferedRequest, reply: ResponseWriter, retry: RetryState
    ) -> bool:
        """Wait for a llama-server; False if there will be none for this request."""
        began = comment_at = time.monotonic()
        with self.counters.during("waiting"):
            while not self._refusal(asked, retry):
                now, target, turned = time.monotonic(), self.target, self._turned
                if await retry.may_go_on(target, now - began):
                    return True
                if asked.wants_stream and now - comment_at >= KEEP_ALIVE_S:
                    comment_at = now
                    await reply.keep_alive()
                pause_s = AGAIN_S if retry.is_for(target) else KEEP_ALIVE_S
                timeout_s = max(min(pause_s, retry.deadline - now), 0.0)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await turned.wait()
        return False


async def _listens(target: Target) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", target.port)
    except OSError:
        return False
    writer.close()
    return True
