"""Having another llama-server read what the one before it had in its cache."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from backends.gateway.conversations import tokens_read
from backends.gateway.language import Mode
from backends.gateway.tokens import CannotGoOn
from backends.state.base import NOT_JSON, Value

if TYPE_CHECKING:
    from backends.gateway.conversations import Conversation
    from backends.gateway.language import Target
    from backends.gateway.proxy import Proxy

log = logging.getLogger(__name__)

READ_S = 120.0
"""Longest reading of one conversation."""


class _Props(Value, frozen=True):
    total_slots: int = 1


class Warming:
    """Works while no client does, and leaves off when one comes."""

    def __init__(self, proxy: Proxy) -> None:
        """Nothing happens before ``keep``."""
        self._proxy = proxy
        self._left = 0
        """So many more conversations this llama-server has room for."""
        self._server = ""
        self._faulty = ""
        """The llama-server with which a fault of ours was told last."""

    async def keep(self) -> None:
        """Read whatever is to be read, until cancelled."""
        while True:
            change = self._proxy.tally.change()
            if not self._is_idle:
                # With each request several things change.
                await change
                continue
            changed = asyncio.ensure_future(change)
            try:
                await self._read_soundly(changed)
                await changed
            finally:
                changed.cancel()

    async def _read_soundly(self, changed: asyncio.Future[object]) -> None:
        """What goes wrong is told, and tried again when something has changed."""
        try:
            await self._read_on(changed)
        except Exception:
            # Clients are answered all the same.
            self._tell_fault("nothing is read ahead now, and why was not foreseen")

    def _tell_fault(self, text: str) -> None:
        """Tell it with its traceback, once for each llama-server."""
        if self._faulty != self._proxy.target.server:
            self._faulty = self._proxy.target.server
            log.exception(text)
            self._proxy.tally.warming_failed()

    @property
    def _is_idle(self) -> bool:
        proxy, counts = self._proxy, self._proxy.tally.counts
        serves = proxy.target.mode is Mode.SERVE and not proxy.target.drains
        return serves and not counts.waiting and not counts.in_flight

    async def _read_on(self, changed: asyncio.Future[object]) -> None:
        """The longest first, until all are read or something happens."""
        began, read, tokens = time.monotonic(), 0, 0
        while not changed.done() and (one := await self._next()):
            reading = asyncio.ensure_future(self._read(one))
            both: set[asyncio.Future[Any]] = {reading, changed}
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                # A client goes first; what was read of it stays read.
                reading.cancel()
                (found,) = await asyncio.gather(reading, return_exceptions=True)
            if not isinstance(found, int):
                one.server, self._left = "", self._left + 1
                break
            read, tokens = read + (found > 0), tokens + found
        if read:
            self._proxy.tally.warmed(read, tokens, time.monotonic() - began)

    async def _next(self) -> Conversation | None:
        """Of those that another llama-server had; as many as there are slots."""
        target = self._proxy.target
        cold = self._proxy.conversations.cold(target.server)
        if not cold:
            return None
        if self._server != target.server:
            self._server, self._left = target.server, await self._slots()
        if not self._left:
            return None
        self._left -= 1
        return cold[0]

    async def _slots(self) -> int:
        try:
            raw = await self._proxy.peek("/props")
            return msgspec.json.decode(raw, type=_Props).total_slots
        except NOT_JSON:
            return 0

    async def _read(self, one: Conversation) -> int:
        """Have it read; so many tokens were."""
        target = self._proxy.target
        # Whatever comes of it, this one is not asked twice.
        one.server = target.server
        try:
            async with asyncio.timeout(READ_S):
                return tokens_read(await self._asked(target, one))
        except (aiohttp.ClientError, OSError):
            # It may be what llama-server died of.
            self._proxy.conversations.drop(one)
        except (CannotGoOn, *NOT_JSON) as error:
            log.info("a conversation is not read again: %s", error)
        except Exception:
            # Clients are answered all the same, and the next conversation is read.
            self._tell_fault(
                "a conversation is not read again, and why was not foreseen"
            )
            self._proxy.conversations.drop(one)
        return 0

    async def _asked(self, target: Target, one: Conversation) -> bytes:
        ask = partial(self._proxy.fetch, target, one)
        return await ask(*await one.reading(ask))
