"""One request of a client: its body, kept while it may have to be sent again."""

from __future__ import annotations

import asyncio
from codecs import BOM_UTF8
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec
from aiohttp import HttpVersion11

from backends.gateway.headers import passed_on
from backends.gateway.refusals import Refusal
from backends.gateway.story import story_of
from backends.gateway.wish import CONTINUED_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web
    from multidict import CIMultiDict

    from backends.gateway.story import Story

KEPT_BYTES_MAX = 16 << 20
"""A longer body goes through as it comes and cannot be sent twice."""
WHOLE_BYTES_MAX = 256 << 10
"""A body no longer than this is sent in one piece, with its headers."""


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Asked:
    """What is sent to llama-server in a client's name."""

    def __init__(self, request: web.BaseRequest) -> None:
        """Read nothing yet."""
        self.request = request
        self.method = request.method
        self.path = request.path
        self.headers: CIMultiDict[str] = passed_on(request.headers)
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._reading = asyncio.Lock()
        self.replayable = True
        """Whether all that was read of the body is still there."""
        self.streams = self.is_work
        """Whether it asks for an answer in pieces, as far as that is known."""
        self.wants_stream = False
        """Whether it certainly does."""
        self._awaited = awaits(request)
        self._whole: bytes | None = None

    @property
    def is_work(self) -> bool:
        """Whether it asks for something to be done, and so may wait for it."""
        return self.method not in ("GET", "HEAD", "OPTIONS")

    async def body(self) -> bytes | AsyncIterator[bytes] | None:
        """What to send, from the beginning."""
        if self._whole is not None:
            return self._whole
        if not self.request.can_read_body and not self._kept:
            return None
        length = self.request.content_length
        if length is not None and length <= WHOLE_BYTES_MAX:
            return await self._read()
        return self._chunks()

    async def _require_json(self) -> None:
        """Read the body, and see that it is what llama-server expects.

        llama-server would write what it cannot read into its log, a prompt among it.

        Raises:
            Refusal: it is no JSON.
        """
        length, kind = self.request.content_length, self.request.content_type
        if self.method != "POST" or not length or length > KEPT_BYTES_MAX:
            return
        if kind.startswith("multipart/") or "Content-Encoding" in self.headers:
            return
        try:
            said = msgspec.json.decode((await self._read()).removeprefix(BOM_UTF8))
        except RecursionError:
            # It may be JSON all the same.
            return
        except ValueError as error:
            raise Refusal(
                HTTPStatus.BAD_REQUEST, f"The body of the request is no JSON: {error}"
            ) from error
        self.streams = isinstance(said, dict) and said.get("stream") is True
        self.wants_stream = self.streams

    @property
    def is_short(self) -> bool:
        """Whether the body can be read, and soon."""
        length = self.request.content_length
        coded = "Content-Encoding" in self.headers
        longest = min(CONTINUED_BYTES_MAX, KEPT_BYTES_MAX)
        return bool(self.is_work and not coded and length and length <= longest)

    async def story(self, *, may_seed: bool) -> Story | None:
        """How the answer can be gone on with; None where it could not be.

        From here on it is asked for together with what that needs.

        Raises:
            Refusal: the body is no JSON.
        """
        await self._require_json()
        if not self.is_short:
            return None
        raw = await self._read()
        story = story_of(self.path, raw, may_seed=may_seed)
        if story is not None:
            self._whole = story.first_body
            self.headers.popall("Content-Length", None)
        return story

    async def _read(self) -> bytes:
        return b"".join([chunk async for chunk in self._chunks()])

    async def _chunks(self) -> AsyncIterator[bytes]:
        told = 0
        while chunk := await self._chunk(told):
            told += 1
            yield chunk

    async def _chunk(self, told: int) -> bytes:
        """The one after so many; empty where the body ends.

        Who sent it to a llama-server that went may be about to read on.
        """
        async with self._reading:
            if told < len(self._kept):
                return self._kept[told]
            await self._invite()
            chunk = await self.request.content.readany()
            self._keep(chunk)
            return chunk

    async def _invite(self) -> None:
        """Tell a client that waits for a word before it sends the body to send it."""
        waits, self._awaited = self._awaited, False
        if waits and self.request.can_read_body:
            await self.request.writer.write(CONTINUE)
            # The answer itself has yet to begin.
            self.request.writer.output_size = 0

    def _keep(self, chunk: bytes) -> None:
        self._kept_bytes += len(chunk)
        if self._kept_bytes > KEPT_BYTES_MAX:
            self.replayable = False
            self._kept.clear()
        elif chunk and self.replayable:
            self._kept.append(chunk)


def awaits(request: web.BaseRequest) -> bool:
    """Whether the client sends its body only once it is told to."""
    expected = request.headers.get("Expect", "").strip().lower()
    return expected == "100-continue" and request.version >= HttpVersion11
